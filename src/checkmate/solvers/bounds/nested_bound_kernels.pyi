from ..representation.graph_arrays import Bools, Floats, Ints

NONE: int
SMALL: int
LARGE: int
MORE: int

def runs(
    begin: int,
    end: int,
    limit: int,
    shares: Ints,
    cost: Floats,
    forced: Floats,
    lowest: Ints,
    deadline: Ints,
    single: Bools,
    nested: Floats,
    holding: Floats,
) -> float: ...
