"""COIN-OR CBC through its command line: the program goes out as an MPS file, the solution comes back as text."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from ...errors import CheckmateError
from ..interface.running_search import Search
from ..representation.graph_arrays import Floats
from .highs import Answer, Arrays, Program

PROGRAM = "cbc"
#: CBC looks at the clock, and at signals, between nodes only: it is told to stop at this part of the time, and killed at the end,
#: or this many seconds after Ctrl-C.
_PART, _GRACE = 0.9, 1.5


def solve_with_cbc(program: Program, seconds: float, gap: float, search: Search) -> Answer:
    """Minimise. Takes what `Program.solve` takes; the bound is read from CBC's log.

    Raises:
        CheckmateError: the program `cbc` is not installed, or failed.
    """
    path = shutil.which(PROGRAM)
    if path is None:
        raise CheckmateError("method 'milp-cbc' needs the program cbc: install it (Debian: apt-get install coinor-cbc)")
    deadline = time.perf_counter() + seconds
    with tempfile.TemporaryDirectory(prefix="checkmate-cbc-") as folder:
        model, solution, log = (Path(folder) / name for name in ("model.mps", "solution.txt", "log.txt"))
        write_mps(program.arrays(), model)
        options = {
            "sec": f"{max(0.1, _PART * (deadline - time.perf_counter())):.3f}",
            "timeMode": "elapsed",
            "ratioGap": "0",
            "allowableGap": repr(float(gap)),
            "primalTolerance": "1e-9",
            "integerTolerance": "1e-9",
            "randomCbcSeed": str(search.seed + 1),  # 0 would mean the time of day
        }
        command = [path, str(model), *(word for name, value in options.items() for word in (f"-{name}", value))]
        with log.open("wb") as output:
            # A session of its own: Ctrl-C in the terminal comes through `search`, once, and not twice.
            process = subprocess.Popen(
                [*command, "-solve", "-solution", str(solution)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                _wait(process, search, deadline)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
        return _read(solution, log.read_text(encoding="utf-8", errors="replace"), program.num_variables, process.returncode)


def _wait(process: subprocess.Popen[bytes], search: Search, deadline: float) -> None:
    """Until it is done, or the deadline; asks it to stop on Ctrl-C (it then writes what it has)."""
    asked = False
    while process.poll() is None and time.perf_counter() < deadline:
        if search.interrupted and not asked:
            process.send_signal(signal.SIGINT)
            asked, deadline = True, time.perf_counter() + _GRACE
        time.sleep(0.01)


def write_mps(arrays: Arrays, path: Path) -> None:
    """Write the program in free MPS form: columns x0, x1, ... and rows r0, r1, ...; every row has one finite side."""
    lower = np.isfinite(arrays.row_lower)
    if np.any(lower & np.isfinite(arrays.row_upper)):
        raise ValueError("rows with both sides are not supported: state them as two rows")
    lines = ["NAME checkmate FREE", "ROWS", " N cost"]
    lines += [f" {'G' if below else 'L'} r{row}" for row, below in enumerate(lower.tolist())]
    lines.append("COLUMNS")
    matrix = arrays.matrix
    pointers, rows, numbers = matrix.indptr.tolist(), matrix.indices.tolist(), matrix.data.tolist()
    inside = False
    for column, (integer, cost) in enumerate(zip(arrays.integer.tolist(), arrays.cost.tolist(), strict=True)):
        if integer != inside:
            lines.append(f" MARKER 'MARKER' '{'INTORG' if integer else 'INTEND'}'")
            inside = integer
        lines.append(f" x{column} cost {cost!r}")
        lines += [f" x{column} r{rows[entry]} {numbers[entry]!r}" for entry in range(pointers[column], pointers[column + 1])]
    if inside:
        lines.append(" MARKER 'MARKER' 'INTEND'")
    lines.append("RHS")
    sides = np.where(lower, arrays.row_lower, arrays.row_upper)
    lines += [f" RHS r{row} {float(sides[row])!r}" for row in np.flatnonzero(sides).tolist()]
    lines.append("BOUNDS")
    for column, least in enumerate(arrays.lower.tolist()):
        if least:
            lines.append(f" LO BND x{column} {least!r}")
        lines.append(f" UP BND x{column} 1")
    lines.append("ENDATA")
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


def _read(solution: Path, log: str, num_variables: int, code: int | None) -> Answer:
    status = solution.read_text(encoding="utf-8").splitlines() if solution.exists() else []
    head = status[0] if status else ""
    if "infeasible" in head.lower():
        return Answer(None, np.inf, np.inf, True, False)
    bounds = re.findall(r"(?:Lower bound|best possible):? +(-?[0-9.e+]+)", log)
    bound = float(bounds[-1]) if bounds else -np.inf
    x: Floats = np.zeros(num_variables)
    for line in status[1:]:
        # Number, name, value and reduced cost of a variable that is not 0; ** in front of what breaks a row.
        words = line.replace("**", " ").split()
        x[int(words[1].removeprefix("x"))] = float(words[2])
    if code not in (0, -9):  # it may have to be killed when its time is over
        raise CheckmateError(f"cbc failed with exit code {code}: {log.strip().splitlines()[-1] if log.strip() else 'no output'}")
    found = re.search(r"objective value +(-?[0-9.e+]+)", head)
    # Stopped before the first solution it writes the last relaxation, which is not one.
    if found is None or "no integer solution" in head.lower() or not status[1:]:
        return Answer(None, np.inf, bound, False, False)
    objective = float(found[1])
    optimal = head.startswith("Optimal")
    return Answer(x, objective, objective if optimal else bound, False, optimal)
