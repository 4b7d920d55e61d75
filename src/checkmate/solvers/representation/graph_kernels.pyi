from .graph_arrays import Bools, Ints

def useful_until(
    last_use: Ints, through: Bools, in_pointers: Ints, in_values: Ints, out_pointers: Ints, out_values: Ints
) -> Ints: ...
