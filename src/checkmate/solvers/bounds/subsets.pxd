from libc.stdint cimport int64_t


cdef inline void advance(int64_t *members, int64_t count) noexcept nogil:
    """The next set of as many numbers: sets come by their largest member, then by the second largest, and so on."""
    cdef int64_t x = 0
    while x + 1 < count and members[x] + 1 == members[x + 1]:
        members[x] = x
        x += 1
    members[x] += 1
