"""What an op costs: the part that needs no framework (roofline arithmetic and the cache of measured costs)."""

from .cache import CostCache, cache_directory, replace_file
from .models import check_cost_model
from .roofline import Rates, roofline_seconds

__all__ = ["CostCache", "Rates", "cache_directory", "check_cost_model", "replace_file", "roofline_seconds"]
