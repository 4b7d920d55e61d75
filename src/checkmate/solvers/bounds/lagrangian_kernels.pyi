from ..representation.graph_arrays import Bools, Floats, Ints

def solve(
    first: Ints,
    width: Ints,
    cost: Floats,
    parent: Ints,
    pointers: Ints,
    children: Ints,
    offsets: Ints,
    holding: Floats,
    used: Bools,
    recomputed: Floats,
    needed: Floats,
) -> tuple[float, Bools]: ...
