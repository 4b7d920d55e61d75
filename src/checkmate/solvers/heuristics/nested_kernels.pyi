import numpy as np
import numpy.typing as npt

from ..representation.graph_arrays import Floats

def below(level: int, size: float, unit: float) -> int: ...
def solve_width(
    options: Floats,
    enters: Floats,
    before: Floats,
    after: Floats,
    advance: Floats,
    cost: npt.NDArray[np.float32],
    choice: npt.NDArray[np.int16],
    width: int,
    lowest: float,
    unit: float,
) -> None: ...
