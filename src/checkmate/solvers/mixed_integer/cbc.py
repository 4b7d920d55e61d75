"""COIN-OR CBC through its command line: the program goes out as an MPS file, the solution comes back as text.

The command is that of the package `cbcbox` (the extra `cbc`), or else the one on the PATH: CBC 2.10 and 3 both do.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from importlib import import_module
from pathlib import Path

import numpy as np

from ...errors import CheckmateError
from ..interface.running_search import Search
from ..representation.graph_arrays import Floats
from . import child_guard, dispatch, highs_process, python_process
from .mps_file import write_mps
from .program import Answer, Model

_MODEL, _SOLUTION, _CODE = "model.mps", "solution.txt", "exit_code.txt"
#: CBC looks at the clock, and at signals, between nodes only: it is told to stop at this part of the time, and killed at the end,
#: or this many seconds after Ctrl-C.
_PART, _GRACE = 0.9, 1.5


def find_cbc() -> str:
    """The command of CBC.

    Raises:
        CheckmateError: there is none.
    """
    try:
        return str(import_module("cbcbox").cbc_bin_path())
    except ImportError:
        path = shutil.which("cbc")
    except (RuntimeError, ValueError) as error:  # its environment variable CBCBOX_BUILD asks for a build that it lacks
        raise CheckmateError(f"method 'milp-cbc': {error}") from None
    if path is None:
        raise CheckmateError(
            "method 'milp-cbc' needs the solver CBC: run pip install 'checkmate-remat[cbc]', or put cbc on the PATH"
        )
    return path


def solve_with_cbc(program: Model, seconds: float, gap: float, search: Search) -> Answer:
    """Minimise. Takes what `solve_with_highs` takes. The bound of a search that was cut is not read: logs round it.

    Raises:
        CheckmateError: CBC is not installed, or failed.
    """
    path = find_cbc()
    began = time.perf_counter()
    deadline, finish = began + seconds, began + _PART * seconds
    folder = Path(tempfile.mkdtemp(prefix="checkmate-cbc-"))
    try:
        process = python_process.start(
            ["-S", child_guard.__file__, str(folder), _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
    except CheckmateError:
        folder.rmdir()
        raise
    assert process.stdin is not None
    try:
        with process.stdin:  # once it is closed CBC is killed and the folder goes
            if not _write(program, folder / _MODEL, search, deadline):
                return Answer(None, np.inf, -np.inf, False, False)
            command = _command(path, folder, finish - time.perf_counter(), gap, search.seed)
            _run(process, command, folder / _CODE, search, deadline)
            if process.poll() is not None:
                raise CheckmateError(f"method 'milp-cbc': cannot run {path}")
            return _read(folder, program.num_variables, gap)
    except OSError as error:  # no space left, for one
        raise CheckmateError(f"method 'milp-cbc': {error}") from None
    finally:
        python_process.leave(process)


def _write(program: Model, path: Path, search: Search, deadline: float) -> bool:
    """Write the program; False if time was over first, or Ctrl-C."""
    if not dispatch.is_small(program):
        return highs_process.write(program, path, deadline, lambda: search.interrupted)
    write_mps(program.arrays(), path)
    return True


def _command(path: str, folder: Path, seconds: float, gap: float, seed: int) -> list[str]:
    options = {
        "sec": f"{max(0.1, seconds):.3f}",
        "timeMode": "elapsed",
        "ratioGap": "0",
        "allowableGap": repr(float(gap)),
        "primalTolerance": "1e-9",
        "integerTolerance": "1e-9",
        "randomCbcSeed": str(seed + 1),  # 0 would mean the time of day
    }
    words = [word for name, value in options.items() for word in (f"-{name}", value)]
    return [path, str(folder / _MODEL), *words, "-solve", "-solution", str(folder / _SOLUTION)]


def _run(process: subprocess.Popen[bytes], command: list[str], code: Path, search: Search, deadline: float) -> None:
    """Until it is done, or the deadline; asks it to stop on Ctrl-C (it then writes what it has)."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(command).encode() + b"\n")
    asked = False
    while process.poll() is None and not code.exists() and time.perf_counter() < deadline:
        if search.interrupted and not asked:
            process.stdin.write(b"i")
            asked, deadline = True, time.perf_counter() + _GRACE
        time.sleep(0.01)


def _read(folder: Path, num_variables: int, gap: float) -> Answer:
    solution, log, code = (folder / name for name in (_SOLUTION, child_guard.LOG, _CODE))
    if code.exists() and (number := code.read_text(encoding="ascii")) != "0":
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise CheckmateError(f"CBC failed with exit code {number}: {said[-1] if said else 'no output'}")
    if not code.exists() or not solution.exists():  # its time was over
        return Answer(None, np.inf, -np.inf, False, False)
    head, *lines = solution.read_text(encoding="utf-8").splitlines()
    if "infeasible" in head.lower():
        return Answer(None, np.inf, np.inf, True, False)
    # Stopped before the first solution it writes the last relaxation, which is not one.
    if "no integer solution" in head.lower() or not lines:
        return Answer(None, np.inf, -np.inf, False, False)
    x: Floats = np.zeros(num_variables)
    for line in lines:
        # Number, name, value and reduced cost of a variable that is not 0; ** in front of what breaks a row.
        words = line.replace("**", " ").split()
        x[int(words[1].removeprefix("x"))] = float(words[2])
    objective = float(head.split()[-1])
    optimal = head.startswith("Optimal")
    return Answer(x, objective, objective - gap if optimal else -np.inf, False, optimal)
