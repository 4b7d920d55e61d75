"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def replace_file(path: str | os.PathLike[str], save: Callable[[str], Any]) -> None:
    """Have `save` write a file of the name that it is given, which then takes the place of `path`.

    Whoever reads `path` finds the old contents or the new ones, also when the disk is full, the process is stopped, or two
    processes write at once; if `save` fails, the old file stays. The new file lies in the same folder while it is written. It has
    the permissions of the old file, or those of any new file. A link stays a link: what it names is replaced. What is not a
    regular file (a pipe, a terminal, `/dev/null`) cannot be replaced and is written to.

    Raises:
        OSError: the folder is missing, or must not be written to; the disk is full; the old file must not be written to.
    """
    try:
        _replace(Path(os.path.realpath(path)), save)
    except OSError as error:
        if error.errno is None:
            raise
        # The user knows the name that was asked for, and no other.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _replace(target: Path, save: Callable[[str], Any]) -> None:
    mode = None
    with suppress(FileNotFoundError):
        found = os.stat(target)
        if not stat.S_ISREG(found.st_mode):
            save(str(target))  # a folder refuses
            return
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        mode = stat.S_IMODE(found.st_mode)
    temporary = target.parent / f".checkmate-{secrets.token_hex(8)}.tmp"
    try:
        # Made here, so that it never exists with more permissions than it shall have in the end.
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600))
        save(str(temporary))
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def write_file(path: str | os.PathLike[str], contents: str | bytes) -> None:
    """Write a text (as UTF-8) or bytes to a file, whole or not at all; see `replace_file`."""
    data = contents.encode("utf-8") if isinstance(contents, str) else contents
    replace_file(path, lambda name: Path(name).write_bytes(data))
