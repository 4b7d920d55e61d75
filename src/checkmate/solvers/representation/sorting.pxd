from libc.stdint cimport int64_t


cdef inline void sort(int64_t *numbers, int64_t count) noexcept nogil:
    """Ascending, in place: by insertion if they are few, else by a heap."""
    cdef int64_t i, number, place, end
    if count <= 16:
        for i in range(1, count):
            number, place = numbers[i], i
            while place > 0 and numbers[place - 1] > number:
                numbers[place] = numbers[place - 1]
                place -= 1
            numbers[place] = number
        return
    for i in range(count // 2 - 1, -1, -1):
        _sift(numbers, i, count)
    for end in range(count - 1, 0, -1):
        numbers[0], numbers[end] = numbers[end], numbers[0]
        _sift(numbers, 0, end)


cdef inline void _sift(int64_t *numbers, int64_t place, int64_t count) noexcept nogil:
    cdef int64_t number = numbers[place], child = 2 * place + 1
    while child < count:
        if child + 1 < count and numbers[child + 1] > numbers[child]:
            child += 1
        if numbers[child] <= number:
            break
        numbers[place] = numbers[child]
        place, child = child, 2 * child + 1
    numbers[place] = number
