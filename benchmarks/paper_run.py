"""Cells on any `concurrent.futures.Executor`, each kept as soon as it is done; what `paper.py` runs on.

A worker that is killed loses nothing but the cells it was at, which are begun again, on a new pool where the old one is broken.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from paper_cells import Cell, answer, is_of

from checkmate import CheckmateError

#: A cell whose worker has ended so often is given up until the next start.
ATTEMPTS = 3

Row = dict[str, Any]
#: Cells of which each is of use only if the one before was done in time.
Ladder = Sequence[Cell]


class Kept:
    """Results in a file, a line of JSON each. A line that was cut short when a process ended is dropped."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: dict[str, Row] = {}
        self._latest: dict[str, Row] = {}
        if not path.exists():
            return
        contents = path.read_bytes()
        whole = contents[: contents.rfind(b"\n") + 1]
        if whole != contents:
            with path.open("r+b") as file:
                file.truncate(len(whole))
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, row: Row) -> None:
        self.rows[row["key"]] = row
        if "section" in row:
            self._latest[_search_of(row)] = row

    def find(self, cell: Cell, older: bool = False) -> Row | None:
        """The result of a cell; with `older`, the latest one of any version of the code, if its graph had the same costs and sizes."""
        row = self.rows.get(cell.key)
        if row is None and older:
            row = self._latest.get(_search_of(asdict(cell) | {"graph": cell.name}))
            if row is not None and not is_of(row, cell):
                return None
        return row

    def add(self, row: Row) -> None:
        """Keep a result: it is on the disk when this returns."""
        self._take(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _search_of(row: Row) -> str:
    """All of a cell but the version of the code."""
    return json.dumps([row[field.name] for field in fields(Cell)])


def run(
    ladders: Sequence[Ladder],
    kept: Kept,
    make_executor: Callable[[], Executor],
    jobs: int,
    say: Callable[[Row], None] = lambda row: None,
    work: Callable[[Cell], Row] = answer,
) -> list[str]:
    """Answer all cells that are not kept.

    Args:
        jobs: cells at a time. say: called with every new row. work: answers a cell.

    Returns:
        A line for each cell that could not be answered.

    Raises:
        CheckmateError: a worker has another version of the code.
    """
    waiting = deque(rest for ladder in ladders if (rest := _left(ladder, kept)))
    attempts: Counter[str] = Counter()
    failures: list[str] = []
    executor: Executor | None = None
    running: dict[Future[Row], Ladder] = {}
    try:
        while waiting or running:
            executor = executor or make_executor()
            while waiting and len(running) < jobs:
                ladder = waiting.popleft()
                try:
                    running[executor.submit(work, ladder[0])] = ladder
                except BrokenExecutor:
                    waiting.appendleft(ladder)
                    break
            broken = not running
            for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                ladder = running.pop(future)
                error = future.exception()
                if error is None:
                    row = future.result()
                    if row["key"] != ladder[0].key:  # or it would be begun again for ever
                        raise CheckmateError(
                            "a worker has other code or packages than the process that collects: start again once both are the same"
                        )
                    kept.add(row)
                    say(row)
                    if rest := _left(ladder, kept):
                        waiting.appendleft(rest)
                    continue
                broken |= isinstance(error, BrokenExecutor)
                attempts[ladder[0].key] += 1
                if attempts[ladder[0].key] < ATTEMPTS:
                    waiting.append(ladder)
                else:
                    failures.append(f"{ladder[0]}: {type(error).__name__}: {error}")
            if broken:  # the other futures are done, too, each with the same error
                executor.shutdown(wait=False)
                executor = None
    except BaseException:
        _end(executor)
        executor = None
        raise
    finally:
        if executor is not None:
            executor.shutdown()
    return failures


def _left(ladder: Ladder, kept: Kept) -> Ladder:
    """What of it is still of use and not kept."""
    for number, cell in enumerate(ladder):
        row = kept.rows.get(cell.key)
        if row is None:
            return ladder[number:]
        if not row["done"]:
            return ()
    return ()


def _end(executor: Executor | None) -> None:
    """Now, whatever its workers are at."""
    if executor is not None:
        executor.shutdown(wait=False, cancel_futures=True)
    for child in multiprocessing.active_children():
        child.terminate()


# --- executors ---


def executor_maker(name: str, jobs: int) -> Callable[[], Executor]:
    """processes, dask, or MODULE:CALLABLE, which is called with the number of workers and returns an executor."""
    if name == "processes":
        return lambda: processes(jobs)
    if name == "dask":
        return lambda: Dask(jobs)
    module, _, function = name.partition(":")
    made = getattr(importlib.import_module(module), function)
    return lambda: made(jobs)


def processes(jobs: int) -> ProcessPoolExecutor:
    """Of this machine."""
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_begin_worker)


def _begin_worker() -> None:
    """Ctrl-C is for the process that collects, since a search that it ends would count as done; with that process a worker ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class Dask(Executor):
    """Of a cluster of this machine, with so many workers; of another one with its address. Needs the package distributed."""

    def __init__(self, jobs: int, address: str | None = None):
        from distributed import Client, LocalCluster

        self.cluster = None
        if address is None:
            self.cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None)
        self.client = Client(self.cluster if self.cluster is not None else address)
        self._executor = self.client.get_executor(pure=False)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(function, *arguments, **keywords)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait=wait)
        self.client.close()
        if self.cluster is not None:
            self.cluster.close()
