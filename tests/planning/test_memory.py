"""How much memory "auto" is: the machine's, or what a control group leaves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from checkmate.errors import BudgetError
from checkmate.planning import memory
from checkmate.planning.memory import accelerator_budget, available_memory, host_budget, rounded_down

GIB = 2**30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 16 GiB available."""
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GIB))


def group(root: Path, cgroup: str, files: dict[str, str | int]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def test_no_groups_at_all(tmp_path: Path) -> None:
    assert available_memory(tmp_path) == 16 * GIB


def test_version_2(tmp_path: Path) -> None:
    files = {
        "memory.stat": "anon 3\ninactive_file 0",
        "job/memory.max": 8 * GIB,
        "job/memory.current": 3 * GIB,
        "job/memory.stat": f"anon {GIB}\ninactive_file {GIB}\nactive_file 7",
    }
    assert available_memory(group(tmp_path, "0::/job\n", files)) == 6 * GIB


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    files = {
        "a/memory.max": 4 * GIB,
        "a/memory.current": 3 * GIB,
        "a/b/memory.max": "max",
        "a/b/memory.current": 2 * GIB,
        "a/b/c/memory.max": 8 * GIB,
        "a/b/c/memory.high": 6 * GIB,
        "a/b/c/memory.current": 1 * GIB,
    }
    assert available_memory(group(tmp_path / "1", "0::/a/b/c\n", files)) == GIB
    del files["a/memory.max"]
    assert available_memory(group(tmp_path / "2", "0::/a/b/c\n", files)) == 5 * GIB


def test_version_1_inside_a_container_where_the_path_of_the_host_does_not_exist(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": 2 * GIB,
        "memory/memory.usage_in_bytes": GIB,
        "memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 2}",
    }
    cgroup = "12:cpu,cpuacct:/docker/ab\n5:memory:/docker/ab\n1:name=systemd:/docker/ab\n"
    assert available_memory(group(tmp_path, cgroup, files)) == 2 * GIB - GIB // 2


def test_a_path_above_the_root_of_the_group(tmp_path: Path) -> None:
    files: dict[str, str | int] = {"memory.max": 2 * GIB, "memory.current": GIB}
    assert available_memory(group(tmp_path, "0::/../../other\n", files)) == GIB


def test_no_limit_in_version_1_is_a_huge_number(tmp_path: Path) -> None:
    files: dict[str, str | int] = {"memory/memory.limit_in_bytes": 2**63 - 4096, "memory/memory.usage_in_bytes": GIB}
    assert available_memory(group(tmp_path, "5:memory:/\n", files)) == 16 * GIB


def test_damaged_files_are_left_out(tmp_path: Path) -> None:
    files: dict[str, str | int] = {"memory.max": "much", "memory.current": GIB, "a/memory.max": GIB, "a/memory.stat": "x"}
    assert available_memory(group(tmp_path / "1", "0::/a\nnonsense\n", files)) == 16 * GIB
    files = {"a/memory.max": GIB, "a/memory.current": 2 * GIB, "a/memory.stat": "x"}
    assert available_memory(group(tmp_path / "2", "0::/a\n", files)) == 1  # more is used than allowed


def test_a_little_more_or_less_gives_the_same_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: int(16 * GIB))
    once = host_budget()
    monkeypatch.setattr(memory, "available_memory", lambda: int(15.7 * GIB))
    assert host_budget() == once
    assert 0.88 * 0.8 * 16 * GIB <= once <= 0.8 * 15.7 * GIB


@pytest.mark.parametrize("amount", [1, 2, 7, 15, 16, 17, 1000, 2**31 - 1, 2**31, 123_456_789_012])
def test_rounding(amount: int) -> None:
    rounded = rounded_down(amount)
    assert amount * 8 / 9 <= rounded <= amount
    assert rounded_down(rounded) == rounded
    assert bin(rounded).rstrip("0").count("1") <= 4


def test_nine_tenths_of_an_accelerator() -> None:
    assert 0.9 * 80 * GIB - 2**20 <= accelerator_budget(80 * GIB) <= 0.9 * 80 * GIB
    assert accelerator_budget(1000) == 1000


def test_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> None:
        raise NotImplementedError

    monkeypatch.setattr(memory.psutil, "virtual_memory", unknown)
    with pytest.raises(BudgetError, match="give the budget in bytes"):
        host_budget()
