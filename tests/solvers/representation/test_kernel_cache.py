"""Where kernels are kept: never where others can write, and nowhere if there is no such place. Searches go on either way."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from checkmate.solvers.representation import kernel_cache

SOURCE = """
from checkmate.solvers.representation.kernels import kernel

@kernel()
def double(number):
    return {factor} * number
"""

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes are those of POSIX")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The package's own folder cannot be written, and the place for private ones is this."""
    kernel_cache.folders.cache_clear()
    monkeypatch.setattr(kernel_cache.os, "access", lambda path, mode: False)
    monkeypatch.setattr(kernel_cache, "_candidates", lambda: iter([tmp_path / "first", tmp_path / "second"]))
    yield tmp_path
    kernel_cache.folders.cache_clear()


def load(path: Path, factor: int = 2) -> ModuleType:
    path.write_text(SOURCE.format(factor=factor), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    kernel_cache._digest.cache_clear()
    spec.loader.exec_module(module)
    return module


def hits(function: Any) -> int:
    return sum(function.stats.cache_hits.values())


def test_the_private_folder_serves_where_the_package_is_read_only(nowhere: Path) -> None:
    first = load(nowhere / "some_kernels.py")
    assert (first.double(3), hits(first.double)) == (6, 0)
    assert list((nowhere / "first").rglob("*.nbc")) and not (nowhere / "__pycache__").exists()
    assert stat.S_IMODE((nowhere / "first").stat().st_mode) == 0o700 or sys.platform == "win32"
    again = load(nowhere / "some_kernels.py")
    assert (again.double(3), hits(again.double)) == (6, 1)


def test_what_is_beside_a_read_only_package_is_read(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as writable:
        writable.setattr(kernel_cache.os, "access", lambda path, mode: True)
        load(nowhere / "built_kernels.py").double(3)
    assert list((nowhere / "__pycache__").glob("*.nbc")) and not (nowhere / "first").exists()
    kernel_cache.folders.cache_clear()
    built = load(nowhere / "built_kernels.py")
    assert (built.double(3), hits(built.double)) == (6, 1)


def test_no_place_at_all_means_no_cache(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_candidates", lambda: iter([]))
    assert load(nowhere / "lost_kernels.py").double(3) == 6
    assert not list(nowhere.rglob("*.nb?"))


def test_a_damaged_cache_and_a_full_disk_are_no_cache(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(nowhere / "hurt_kernels.py").double(3)
    for path in (nowhere / "first").rglob("*.nb?"):
        path.write_bytes(path.read_bytes()[:7])
    hurt = load(nowhere / "hurt_kernels.py")
    assert (hurt.double(3), hits(hurt.double)) == (6, 0)
    mended = load(nowhere / "hurt_kernels.py")
    assert (mended.double(3), hits(mended.double)) == (6, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    shutil.rmtree(nowhere / "first")
    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
    assert load(nowhere / "hurt_kernels.py").double(3) == 6


def test_a_kernel_is_compiled_again_when_one_that_it_calls_has_changed(nowhere: Path) -> None:
    caller = nowhere / "calling_kernels.py"
    text = "from called_kernels import double\nfrom checkmate.solvers.representation.kernels import kernel\n"
    text += "\n@kernel()\ndef quadruple(number):\n    return double(double(number))\n"
    results = []
    for factor in (2, 2, 3):
        load(nowhere / "called_kernels.py", factor)
        caller.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("calling_kernels", caller)
        assert spec is not None and spec.loader is not None
        module = sys.modules["calling_kernels"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        results.append((module.quadruple(1), hits(module.quadruple)))
    assert results == [(4, 0), (4, 1), (9, 0)]


@needs_posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    open_to_all = tmp_path / "kernels"
    open_to_all.mkdir()
    open_to_all.chmod(mode)
    assert not kernel_cache._make_private(open_to_all)


@needs_posix
def test_a_folder_that_others_can_replace_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert not kernel_cache._make_private(tmp_path / "kernels")
    tmp_path.chmod(0o1777)  # as /tmp is: only owners move things
    assert kernel_cache._make_private(tmp_path / "kernels")


@needs_posix
def test_a_link_that_someone_put_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "kernels").symlink_to(tmp_path / "theirs")
    assert not kernel_cache._make_private(tmp_path / "kernels")


@needs_posix
def test_a_folder_of_someone_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache.os, "geteuid", lambda: os.getuid() + 1)
    assert not kernel_cache._make_private(tmp_path / "kernels")


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("", encoding="utf-8")
    assert not kernel_cache._make_private(tmp_path / "kernels")
    assert not kernel_cache._make_private(tmp_path / "kernels" / "deeper")


def test_an_unknown_home_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECKMATE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def nowhere(*_: object, **__: object) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("platformdirs.user_cache_path", nowhere)
    assert all(folder.is_absolute() for folder in kernel_cache._candidates())


#: All that a search imports is there before the user changes, whom a test machine may not let at its interpreter.
_CONTAINER = """
import os, sys
import checkmate
graph = checkmate.Graph.from_arrays([1.0] * 6, [8] * 6, [(i, i + 1) for i in range(5)])
checkmate.solve(graph, graph.no_recompute_peak, "griewank")
for name in [name for name in sys.modules if name.split(".")[0] == "checkmate"]:
    del sys.modules[name]
sys.path.insert(0, sys.argv[1])
os.environ.pop("HOME", None)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(12345)
    os.setuid(12345)
import checkmate
assert checkmate.__file__.startswith(sys.argv[1]), checkmate.__file__
graph = checkmate.Graph.from_arrays([1.0] * 6, [8] * 6, [(i, i + 1) for i in range(5)])
print(checkmate.solve(graph, graph.no_recompute_peak, "griewank").overhead)
from checkmate.solvers.representation import decoding, kernel_cache
print(*kernel_cache.folders(kernel_cache.Path(decoding.__file__).parent))
"""


@needs_posix
def test_it_runs_as_anyone_from_a_package_that_is_read_only() -> None:
    with tempfile.TemporaryDirectory(prefix="checkmate-read-only-") as name:
        Path(name).chmod(0o755)
        package = Path(name) / "checkmate"
        source = Path(kernel_cache.__file__).parents[2]
        shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
        (Path(name) / "tmp").mkdir()
        (Path(name) / "tmp").chmod(0o1777)
        folders = [path for path in (package, *package.rglob("*")) if path.is_dir()]
        for folder in folders:
            folder.chmod(0o555)
        try:
            environment = {
                **os.environ,
                "TMPDIR": f"{name}/tmp",
                "CHECKMATE_CACHE_DIR": "/dev/null/no",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            done = subprocess.run(
                [sys.executable, "-c", _CONTAINER, name], env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            overhead, folder = done.stdout.split()
            assert overhead == "1.0"
            assert folder.startswith(f"{name}/tmp/checkmate-kernels-") and list(Path(folder).glob("*.nbc"))
            assert stat.S_IMODE(Path(folder).parent.stat().st_mode) == 0o700
        finally:
            for folder in folders:
                folder.chmod(0o755)
