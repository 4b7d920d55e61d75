"""Where HiGHS runs: in this process, or in one of its own.

Here where it can: an answer takes no longer than the program. Apart where the program is so large that HiGHS would not look at its
clock, and where HiGHS must not be loaded: packages such as OR-Tools bring another version of the library under the same file name
(`libhighs.so.1`), and of two such libraries the loader takes the first for both, so that the second package cannot be imported
("undefined symbol"), whichever of them it is.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..interface.running_search import Search
from ..representation.graph_arrays import Floats, Ints
from . import highs_process
from .program import Answer, Model

#: Variables and nonzeros of a program that is small: made within a blink, and solved within one or under HiGHS's own clock.
_SMALL, _FEW_NONZEROS = 15_000, 200_000
#: Seconds for a program that takes milliseconds, where its process has to start.
_PATIENCE = 60.0
#: Packages known to bring a HiGHS of their own, in some versions.
_RIVALS = ("ortools",)


def minimise(
    program: Model,
    time_limit: float,
    absolute_gap: float,
    seed: int,
    stop: Callable[[float], bool],
    start: tuple[Ints, Floats] | None = None,
    tolerance: float | None = None,
    work: float = math.inf,
    thorough: bool = False,
) -> Answer:
    """Minimise by HiGHS.

    Args:
        time_limit: seconds. absolute_gap: stop when objective - bound is at most this.
        stop: called now and then with the current bound; True ends the search.
        start: (variables, values) of a solution to begin with; the rest is completed by HiGHS.
        tolerance: how far rows and integers may be off; HiGHS's own choice (1e-6) if None.
        work: units (see interface/work_limits.py) after which it ends, if some variables are integer: at the same point in every run.
        thorough: see `highs.minimise`.
    """
    deadline = time.perf_counter() + time_limit
    arguments: dict[str, Any] = {"absolute_gap": absolute_gap, "seed": seed, "start": start, "tolerance": tolerance}
    arguments |= {"work": work, "thorough": thorough}
    if may_load():
        from . import highs

        arrays = program.arrays()
        return highs.minimise(arrays, deadline - time.perf_counter(), stop=stop, **arguments)
    return highs_process.solve("minimise", program, arguments, deadline, stop)


def relax(program: Model, time_limit: float, stop: Callable[[], bool] = lambda: False) -> Answer:
    """The linear relaxation by HiGHS: see `highs.relax`."""
    deadline = time.perf_counter() + time_limit
    if may_load():
        from . import highs

        arrays = program.arrays()
        return highs.relax(arrays, deadline - time.perf_counter(), stop)
    return highs_process.solve("relax", program, {}, deadline, lambda _: stop())


def highest_point(slopes: Floats, heights: Floats, lower: Floats, upper: Floats) -> Answer:
    """See `highs.highest_point`. That takes no time to speak of, but for a process that has to start."""
    planes = {"slopes": slopes, "heights": heights, "lower": lower, "upper": upper}
    if may_load():
        from . import highs

        return highs.highest_point(**planes)
    return highs_process.solve("highest_point", None, planes, time.perf_counter() + _PATIENCE, lambda _: False)


def is_small(program: Model) -> bool:
    """It takes no time to speak of before HiGHS looks at its clock."""
    return program.num_variables <= _SMALL and program.num_nonzeros <= _FEW_NONZEROS


def solve_with_highs(program: Model, seconds: float, gap: float, search: Search, tolerance: float | None = None) -> Answer:
    """Minimise within the time, to the gap (absolute), or until Ctrl-C, in a process of its own if the program is large.

    Raises:
        CheckmateError: the process failed, as for want of memory.
    """
    if is_small(program):
        return minimise(program, seconds, gap, search.seed, lambda _: search.interrupted, tolerance=tolerance)
    deadline = time.perf_counter() + seconds
    arguments = {"absolute_gap": gap, "seed": search.seed, "tolerance": tolerance}
    return highs_process.solve("minimise", program, arguments, deadline, lambda _: search.interrupted)


def may_load() -> bool:
    """HiGHS is loaded in this process, or can be without harm to other packages."""
    if sys.modules.get("highspy") is not None:
        return True
    if any(map(_brings_highs, _RIVALS)):
        return False
    try:
        import highspy  # noqa: F401
    except ImportError:
        return False  # something that is loaded already is in its way; if it is not installed, the other process says so
    return True


def _brings_highs(package: str) -> bool:
    """A package of this name, loaded or not, lies beside a HiGHS library of its own."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # put into `sys.modules` by hand
        return False
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    libraries = [part for folder in folders for part in (folder / ".libs", folder / ".dylibs", folder.parent / f"{package}.libs")]
    return any(folder.is_dir() and any(folder.glob("*highs*")) for folder in libraries)
