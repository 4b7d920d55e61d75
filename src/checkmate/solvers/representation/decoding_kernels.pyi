from .graph_arrays import Bools, Floats, Ints

def used(
    sequence: Ints, n: int, in_pointers: Ints, in_values: Ints, producer: Ints, keep: Bools, recomputable: Bools
) -> tuple[bool, Ints]: ...
def memory_profile(
    sequence: Ints,
    n: int,
    in_pointers: Ints,
    in_values: Ints,
    out_pointers: Ints,
    out_values: Ints,
    producer: Ints,
    place: Ints,
    keep: Bools,
    sizes: Ints,
    workspaces: Ints,
    reuses: Ints,
    fixed: int,
) -> tuple[int, Floats, Floats, Ints]: ...
def decode(
    stages: Ints,
    kept: Bools,
    eager: bool,
    n: int,
    in_pointers: Ints,
    in_values: Ints,
    out_pointers: Ints,
    out_values: Ints,
    producer: Ints,
    keep: Bools,
) -> Ints: ...
