from .graph_arrays import Ints

IN: int
OUT: int
COST: int
WORKSPACE: int
RECOMPUTABLE: int
PHASE: int
USERS: int
PRODUCER: int
SIZE: int
SHAPE: int

ORDER: int
LIVE: int
OP: int
POSITION: int
BEFORE: int
AFTER: int
FIRST: int
LAST: int
UNUSED: int
COUNT: int
KIND: int
WHAT: int
FROM: int
TO: int

LENGTH: int
EXCESS: int
FREE: int
CHANGES: int
TOTAL: int
CAPACITY: int
WORK: int

IDEAL_BITS: int

class SequenceState:
    rows: Ints
    def __init__(self, table: Ints, links: Ints, sequence: Ints, capacity: int, limit: int) -> None: ...

def insert(s: SequenceState, op: int, position: int) -> int: ...
def remove(s: SequenceState, slot: int) -> None: ...
def move(s: SequenceState, slot: int, position: int) -> None: ...
def undo(s: SequenceState) -> None: ...
def may_move(s: SequenceState, slot: int, position: int, reorder: bool) -> bool: ...
def superfluous(s: SequenceState, slot: int, reorder: bool) -> bool: ...
