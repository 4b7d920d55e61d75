"""Files that are kept from one process to the next: where they are, how they are written, and how few of them stay.

They are only ever a cache. A file that is damaged, or was written for another problem or by another version, is a miss; where no file
can be written, or no place for it is known, the work is done again. Nothing here raises because of the file system.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..cache_directory import cache_directory
from ..files import write_file

FORMAT, VERSION = "checkmate-cache", 3

#: Bytes of all files together; beyond that those go first that have not been used for longest.
LIMIT = 256 * 2**20

#: Seconds after which a file that is still being written belongs to a process that is gone.
_ABANDONED = 3600.0

_OURS = re.compile(r"[a-z]+-[0-9a-f]{24}\.json|\.checkmate-[0-9a-f]+\.tmp")


def file_of(kind: str, key: str) -> Path | None:
    """Where the entry for a key is, if there is one.

    Args:
        kind: lower-case letters, the first part of the file's name. key: everything that the entry depends on.
    """
    directory = cache_directory()
    return directory / f"{kind}-{_digest(kind, key)[:24]}.json" if directory is not None else None


def load(kind: str, key: str) -> Any:
    """What `store` was given for this kind and key; None if there is no such entry, or not a whole one."""
    path = file_of(kind, key)
    if path is None:
        return None
    try:
        entry = json.loads(path.read_bytes())
        content = entry["content"]
        if (entry["format"], entry["version"]) != (FORMAT, VERSION) or entry["digest"] != _digest(kind, key, content):
            return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    with suppress(OSError):
        os.utime(path)  # used just now
    return content


def store(kind: str, key: str, content: Any) -> None:
    """Keep JSON data for `load`, signed with the key that it belongs to; nothing happens where that cannot be done."""
    path = file_of(kind, key)
    if path is None:
        return
    entry = {"format": FORMAT, "version": VERSION, "digest": _digest(kind, key, content), "content": content}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(entry, separators=(",", ":")))
        _evict(path.parent)


def _digest(kind: str, key: str, *content: Any) -> str:
    text = json.dumps([FORMAT, VERSION, kind, key, *content], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _evict(directory: Path) -> None:
    """Delete the files that were not used for longest, until what is left is within the limit."""
    found: list[tuple[float, int, str]] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if _OURS.fullmatch(entry.name):
                with suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    found.append((about.st_mtime, about.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        if total > LIMIT or (path.endswith(".tmp") and time.time() - used > _ABANDONED):
            total -= size
            with suppress(OSError):
                os.unlink(path)
