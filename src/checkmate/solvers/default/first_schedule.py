"""A fair schedule soon: for whoever cannot wait for a near-optimal one.

Small graphs are searched exactly, as far as that takes a fraction of a second; else greedy eviction is asked in all its settings.
"""

from __future__ import annotations

from ..exact.best_first_search import FIRST, exact
from ..heuristics.greedy_eviction import greedy
from ..interface.running_search import Search


def first_schedule(search: Search) -> None:
    """See the module's description."""
    if not exact(search, FIRST) and not search.done():
        greedy(search)
