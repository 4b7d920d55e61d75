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

def fill(
    previous: _Costs,
    current: _Costs,
    need: Ints,
    cost: _Costs,
    reads: Ints,
    writes: Ints,
    items: Ints,
    binomial: Ints,
    first: int,
    capacity: int,
    phase: int,
) -> None: ...
def search(
    tables: _Costs,
    need: Ints,
    cost: _Costs,
    reads: Ints,
    writes: Ints,
    items: Ints,
    binomial: Ints,
    first: int,
    capacity: int,
    kept: Ints,
    states: _Costs,
    heap: _Costs,
    index: _Costs,
    counts: Ints,
    most: int,
) -> bool: ...
