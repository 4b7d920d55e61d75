from libc.stdint cimport int64_t

cimport cython

#: Rows of `SequenceArrays.table`. Per op: where its inputs, its outputs begin in `SequenceArrays.links` (they end where the next
#: op's begin), cost, workspace, whether it may be recomputed, phase code. Per value: where its readers begin, producer, bytes.
#: SHAPE: number of ops (the sink's number), number of values.
cpdef enum:
    IN, OUT, COST, WORKSPACE, RECOMPUTABLE, PHASE, USERS, PRODUCER, SIZE, SHAPE

#: Rows of `SequenceState.rows`. Per position: the slot there, live bytes (workspace included). Per slot: op, position, the slots of
#: the same op before and after (-1: none). Per op: its first and its last slot (-1: none). UNUSED: stack of free slots.
#: COUNT: see below. KIND, WHAT, FROM, TO: the changes since the log was last empty.
cpdef enum:
    ORDER, LIVE, OP, POSITION, BEFORE, AFTER, FIRST, LAST, UNUSED, COUNT, KIND, WHAT, FROM, TO

#: Places in the row COUNT: length, sum of the bytes above the limit, free slots, logged changes, total cost, capacity, work done
#: (readers asked, positions changed).
cpdef enum:
    LENGTH, EXCESS, FREE, CHANGES, TOTAL, CAPACITY, WORK

#: The ideal cost is this power of two in units of COST and TOTAL: whole numbers, so that no error adds up.
cpdef enum:
    IDEAL_BITS = 44


@cython.final
cdef class SequenceState:
    cdef readonly object rows
    cdef const int64_t[:, ::1] _table
    cdef const int64_t[::1] _links
    cdef int64_t[:, ::1] _rows
    # The rows of the graph, and those of the state, under names of their own: the arrays above own the memory.
    cdef const int64_t *inputs
    cdef const int64_t *outputs
    cdef const int64_t *cost
    cdef const int64_t *workspace
    cdef const int64_t *recomputable
    cdef const int64_t *phase
    cdef const int64_t *users
    cdef const int64_t *producer
    cdef const int64_t *size
    cdef const int64_t *links
    cdef int64_t *order
    cdef int64_t *live
    cdef int64_t *op
    cdef int64_t *position
    cdef int64_t *before
    cdef int64_t *after
    cdef int64_t *first
    cdef int64_t *last
    cdef int64_t *unused
    cdef int64_t *count
    cdef int64_t *kind
    cdef int64_t *what
    cdef int64_t *origin
    cdef int64_t *target
    cdef int64_t width
    cdef int64_t limit
    cdef int64_t num_ops
    cdef int64_t num_values
    cdef int64_t *_row(self, int row)


cdef int64_t end(SequenceState s, int64_t slot, int64_t value) noexcept nogil
cdef int64_t next_reader(SequenceState s, int64_t slot, int64_t value, int64_t after) noexcept nogil
cdef int64_t slot_before(SequenceState s, int64_t op, int64_t position) noexcept nogil
cpdef int64_t insert(SequenceState s, int64_t op, int64_t position) noexcept nogil
cpdef void remove(SequenceState s, int64_t slot) noexcept nogil
cpdef void move(SequenceState s, int64_t slot, int64_t position) noexcept nogil
cpdef void undo(SequenceState s) noexcept nogil
cpdef bint may_move(SequenceState s, int64_t slot, int64_t position, bint reorder) noexcept nogil
cpdef bint superfluous(SequenceState s, int64_t slot, bint reorder) noexcept nogil
