from ..representation.graph_arrays import Ints

READS: int
WRITES: int
BEFORE: int
NEEDS: int
COST: int
AGAIN: int
REUSES: int
SAVES: int
SIZE: int
SHAPE: int

DONE: int
LIVE: int
SPENT: int
PARENT: int
OP: int

STATES: int
OPEN: int
GOAL: int
BOUND: int
WORK: int

MORE: int
FOUND: int
EXHAUSTED: int
FULL: int
WIDE: int

NEVER_BITS: int

def start(table: Ints, states: Ints, heap: Ints, index: Ints, counts: Ints) -> None: ...
def reindex(table: Ints, states: Ints, heap: Ints, index: Ints, counts: Ints) -> None: ...
def expand(table: Ints, states: Ints, heap: Ints, index: Ints, counts: Ints, capacity: int, limit: int, most: int) -> int: ...
