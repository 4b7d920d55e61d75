"""What an op costs: the part that needs no framework (roofline arithmetic and the cache of measured costs)."""

from .cache import CostCache, cache_directory
from .roofline import Rates, roofline_seconds

__all__ = ["CostCache", "Rates", "cache_directory", "roofline_seconds"]
