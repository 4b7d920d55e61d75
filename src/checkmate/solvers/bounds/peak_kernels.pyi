from ..representation.graph_arrays import Bools, Floats, Ints

def fill(
    least: Floats,
    first: int,
    count: int,
    current: Ints,
    binomial: Ints,
    size: Floats,
    producer: Ints,
    need: Floats,
    reads: Ints,
    touched: Bools,
    most: float,
) -> None: ...
def of_ops(least: Floats, binomial: Ints, need: Floats, reads: Ints) -> float: ...
