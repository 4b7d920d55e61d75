"""HiGHS in a process of its own, which is stopped when its time is over.

HiGHS does not look at its clock while it presolves, nor while the simplex method starts up, which takes many seconds on
programs with hundreds of thousands of variables. Small programs are solved here: starting a process takes longer than they do.

Run as `python -m checkmate.solvers.mixed_integer.highs_process FOLDER SECONDS GAP SEED TOLERANCE`: reads the program from FOLDER, and writes the answer
there.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import scipy.sparse

from ...errors import CheckmateError
from ..interface.running_search import Search
from ..representation.graph_arrays import Floats
from .highs import Answer, Arrays, Program, minimise

#: Variables of a program that is small, solved within a blink or under HiGHS's own clock.
_SMALL = 15_000
#: Seconds that it may take beyond its time to write down what it has.
_GRACE = 0.5
_PROGRAM, _BEST, _ANSWER = "program.npz", "best.npy", "answer.npz"


def solve_apart(program: Program, seconds: float, gap: float, search: Search, tolerance: float | None = None) -> Answer:
    """Minimise. Takes what `Program.solve` takes, stops on Ctrl-C, and is back in time.

    Raises:
        CheckmateError: the process failed, as for want of memory.
    """
    if program.num_variables <= _SMALL:
        return program.solve(seconds, gap, search.seed, lambda _: search.interrupted, tolerance=tolerance)
    deadline = time.perf_counter() + seconds
    with tempfile.TemporaryDirectory(prefix="checkmate-highs-") as name:
        folder = Path(name)
        _write(program.arrays(), folder / _PROGRAM)
        left = deadline - time.perf_counter()
        if left <= 0:
            return Answer(None, np.inf, -np.inf, False, False)
        settings = [str(left), str(gap), str(search.seed), str(math.nan if tolerance is None else tolerance)]
        # A session of its own: Ctrl-C in the terminal comes through `search`.
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, name, *settings],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            while process.poll() is None and time.perf_counter() < deadline + _GRACE and not search.interrupted:
                time.sleep(0.01)
            stopped = process.poll() is None
        finally:
            process.kill()
            errors = process.communicate()[1].decode(errors="replace").strip()
        if (folder / _ANSWER).exists():
            return _read(folder / _ANSWER)
        if not stopped:
            raise CheckmateError(f"HiGHS failed with exit code {process.returncode}: {errors.splitlines()[-1:] or 'no output'}")
        if (folder / _BEST).exists():
            x = np.load(folder / _BEST)
            return Answer(x, float(program.arrays().cost @ x), -np.inf, False, False)
        return Answer(None, np.inf, -np.inf, False, False)


def _write(arrays: Arrays, path: Path) -> None:
    matrix = arrays.matrix
    with path.open("wb") as file:
        np.savez(
            file,
            shape=np.array(matrix.shape),
            pointers=matrix.indptr,
            indices=matrix.indices,
            coefficients=matrix.data,
            **{name: getattr(arrays, name) for name in ("cost", "lower", "integer", "row_lower", "row_upper")},
        )


def _read(path: Path) -> Answer:
    with np.load(path) as data:
        x: Floats = data["x"]
        objective, bound = data["numbers"].tolist()
        infeasible, optimal = data["flags"].tolist()
    return Answer(x if len(x) else None, objective, bound, infeasible, optimal)


def _main(folder: Path, seconds: float, gap: float, seed: int, tolerance: float) -> None:
    """What the process does."""
    began = time.perf_counter()
    with np.load(folder / _PROGRAM) as data:
        parts = (data["coefficients"], data["indices"], data["pointers"])
        matrix = scipy.sparse.csc_matrix(parts, shape=tuple(data["shape"]))
        arrays = Arrays(data["cost"], data["lower"], data["integer"], matrix, data["row_lower"], data["row_upper"])

    def put(name: str, write: Callable[[IO[bytes]], None]) -> None:
        """A file is there as a whole or not at all: the process may be stopped at any time."""
        part = folder / f"{name}.part"
        with part.open("wb") as file:
            write(file)
        part.replace(folder / name)

    answer = minimise(
        arrays,
        seconds - (time.perf_counter() - began),
        gap,
        seed,
        stop=lambda _: False,
        tolerance=None if math.isnan(tolerance) else tolerance,
        found=lambda x: put(_BEST, lambda file: np.save(file, x)),
    )
    x = np.zeros(0) if answer.x is None else answer.x
    numbers, flags = np.array([answer.objective, answer.bound]), np.array([answer.infeasible, answer.optimal])
    put(_ANSWER, lambda file: np.savez(file, x=x, numbers=numbers, flags=flags))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
