import numpy as np
import numpy.typing as npt

from ..representation.graph_arrays import Ints

_Costs = npt.NDArray[np.int32]

COLUMNS: int
ENTRY: int
IMPOSSIBLE: int
MOST_ITEMS: int
OPEN: int
PROVEN: int
STATES: int

class Layout:
    def __init__(
        self,
        need: Ints,
        cost: _Costs,
        reads: Ints,
        writes: Ints,
        items: Ints,
        binomial: Ints,
        first: int,
        capacity: int,
    ) -> None: ...

def fill(layout: Layout, previous: _Costs, current: _Costs, phase: int) -> None: ...
def search(
    layout: Layout,
    tables: _Costs,
    kept: Ints,
    states: _Costs,
    heap: _Costs,
    index: _Costs,
    counts: Ints,
    most: int,
) -> bool: ...
