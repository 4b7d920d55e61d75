"""Where the machine code of kernels is kept between processes.

Numba's own cache stops every search where neither the package's folder nor a home can be written, as in containers that run as
some user; and it takes a kernel for unchanged when only a kernel that it calls has changed, as after an upgrade. Here a cache
that cannot be read is a miss, and one that cannot be written is none.

The files are pickles, so reading one runs what it says: they are taken from the package's own folder, which holds code anyway,
and else from folders that nobody but this user can write to.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, _CacheLocator
from numba.core.dispatcher import Dispatcher

from ...cache_directory import cache_directory

#: What a cache that is damaged, or of no use here, may raise.
_BROKEN = (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError, pickle.PickleError)


class KernelCache(NullCache):
    """The caches of one function, in the order of `folders`: the first one that has it is read, the first that takes it written."""

    def __init__(self, function: Callable[..., Any]):
        source = Path(function.__code__.co_filename)
        found = (_cache_in(folder, function) for folder in (folders(source.parent) if source.is_file() else ()))
        self._caches = [one for one in found if one is not None]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for these argument types; None if there is none that can be read."""
        for one in self._caches:
            with suppress(*_BROKEN):
                known = one.load_overload(sig, target_context)
                if known is not None:
                    return known
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the machine code for these argument types, if any folder takes it."""
        for one in self._caches:
            for mend in (False, True):  # numba reads what is there before it adds to it
                with suppress(*_BROKEN):
                    if mend:
                        one.flush()
                    one.save_overload(sig, data)
                    return


@cache
def folders(source: Path) -> tuple[Path, ...]:
    """Where the machine code of the functions in a folder of source files may be, or go."""
    name = f"{source.name}-{hashlib.sha256(str(source).encode()).hexdigest()[:16]}"
    trusted = getattr(config, "CACHE_DIR", "")  # $NUMBA_CACHE_DIR
    chosen = (Path(trusted) / name,) if trusted else ()
    beside = source / "__pycache__"
    if os.access(beside if beside.is_dir() else source, os.W_OK):
        return *chosen, beside
    own = private_folder()
    # What an image was built with is read also by those who cannot write there.
    return *chosen, *([beside] if beside.is_dir() else []), *([own / name] if own is not None else [])


def private_folder() -> Path | None:
    """A folder that no other user can write to, in the cache directory of this package or the one for temporary files."""
    return next((folder for folder in _candidates() if _make_private(folder)), None)


def _candidates() -> Iterator[Path]:
    shared = cache_directory()
    if shared is not None:
        yield shared.absolute() / "kernels"
    with suppress(OSError):
        yield Path(tempfile.gettempdir()) / f"checkmate-kernels-{os.geteuid() if hasattr(os, 'geteuid') else 'own'}"


def _make_private(folder: Path) -> bool:
    """Make the folder, if need be; False if others can write there, or put another one in its place, or it cannot be made."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        here, above = folder.lstat(), folder.parent.stat()
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    if not stat.S_ISDIR(here.st_mode):
        return False
    if sys.platform == "win32":  # both places are the user's own
        return True
    replaceable = above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX
    return here.st_uid == os.geteuid() and not here.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not replaceable


def _cache_in(folder: Path, function: Callable[..., Any]) -> FunctionCache | None:
    """Numba's cache for the function in a folder; None if numba will not have it."""

    class Locator(_CacheLocator):
        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Locator:
            return cls()

        def get_cache_path(self) -> str:
            return str(folder)

        def get_source_stamp(self) -> str:
            return stamp(function)

        def get_disambiguator(self) -> str:
            return str(function.__code__.co_firstlineno)

    class Implementation(CompileResultCacheImpl):
        _locator_classes = [Locator]  # type: ignore  # noqa: PGH003, RUF012 (typed by numba in part)

    class Cache(FunctionCache):
        _impl_class = Implementation

    try:
        return Cache(function)
    except _BROKEN:
        return None


def stamp(function: Callable[..., Any]) -> str:
    """Of the source that the machine code of a function is made from: its module, and those that it has kernels from."""
    modules = {function.__module__}
    waiting = [function]
    while waiting:
        for other in waiting.pop().__globals__.values():
            if isinstance(other, Dispatcher) and other.py_func.__module__ not in modules:
                modules.add(other.py_func.__module__)
                waiting.append(other.py_func)
    return hashlib.sha256("".join(_digest(name) for name in sorted(modules)).encode()).hexdigest()


@cache
def _digest(module: str) -> str:
    """Of the source of a module, or what stands for it."""
    path = getattr(sys.modules[module], "__file__", None)
    try:
        return hashlib.sha256(Path(path or "").read_bytes()).hexdigest()
    except OSError:
        return module
