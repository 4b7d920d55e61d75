"""How much memory there is: what the budget "auto" means.

On the CPU it is 80% of what is available to this process, by the machine and by the control groups (cgroups) that containers and
batch systems limit it with; on an accelerator 90% of its memory. What is available changes from one moment to the next, so it is
rounded down: a script that is started again gets the same budget, and with it the plan that was made before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

from ..errors import BudgetError

_HOST_PERCENT, _ACCELERATOR_PERCENT = 80, 90
_MEBI = 2**20

#: Per version of control groups: where its tree is, files with limits, the file with what is used, and in memory.stat the entry for
#: pages of files that the kernel drops as soon as memory is short.
_CGROUPS = {
    1: ("sys/fs/cgroup/memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    2: ("sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current", "inactive_file"),
}


def host_budget() -> int:
    """The budget "auto" on the CPU, in bytes.

    Raises:
        BudgetError: it is not known how much memory there is.
    """
    return max(1, rounded_down(available_memory() * _HOST_PERCENT // 100))


def accelerator_budget(total: int) -> int:
    """The budget "auto" on a device with `total` bytes of memory of its own."""
    return total * _ACCELERATOR_PERCENT // 100 // _MEBI * _MEBI or total


def rounded_down(amount: int) -> int:
    """The next number below with no more than four binary digits before its zeros: at most a ninth less."""
    unit = 1 << max(0, amount.bit_length() - 4)
    return amount // unit * unit


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process can have before something else must go.

    Args:
        root: of the file system; the tests put another in its place.

    Raises:
        BudgetError: it is not known on this system.
    """
    try:
        machine = int(psutil.virtual_memory().available)
    except (OSError, RuntimeError, NotImplementedError, psutil.Error):
        raise BudgetError('budget "auto" cannot be worked out on this system: give the budget in bytes') from None
    return max(1, min([machine, *_cgroup_rooms(root)]))


def _cgroup_rooms(root: Path) -> Iterator[int]:
    """Bytes that are left in each control group with a limit that this process is in."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return  # not Linux, or none at all
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, limits, usage, reclaimable = _CGROUPS[1 if controllers else 2]
        # Inside a container the path is that of the host, and may not exist; what does are the groups above it.
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for depth in range(len(parts), -1, -1):
            folder = (root / mount).joinpath(*parts[:depth])
            known = [limit for name in limits if (limit := _number(folder / name)) is not None]
            used = _number(folder / usage)
            if known and used is not None:
                yield min(known) - max(0, used - _stat(folder, reclaimable))


def _number(file: Path) -> int | None:
    """The number in a file; None if there is none, or it says "max"."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _stat(folder: Path, name: str) -> int:
    try:
        entries = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        return int(entries.get(name, 0))
    except (OSError, ValueError):
        return 0
