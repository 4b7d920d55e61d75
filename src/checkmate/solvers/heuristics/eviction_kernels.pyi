from ..representation.graph_arrays import Bools, Floats, Ints

IN: int
OUT: int
AGAIN: int
USERS: int
PRODUCER: int
UNTIL: int
CANDIDATE: int
BY_UNTIL: int
SNAPSHOT: int
COUNTS: int

COST: int
WORKSPACE: int
SIZE: int
WORTH: int
POWER: int

UNFINISHED: int
FOUND: int
STUCK: int

class Pass:
    followed: int
    def __init__(self, table: Ints, links: Ints, numbers: Floats, retained: Bools, longest: int, budget: float) -> None: ...
    @property
    def found(self) -> Ints: ...

def run_slice(p: Pass, until: int) -> int: ...
