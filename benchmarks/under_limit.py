"""Training under a real memory limit, for oom.py and tf_oom.py: plain without it, plain under it, and ours under it.

A training script runs in a process of its own: it builds the model, takes one warm-up step (which sets up what libraries allocate once, and
with ours compiles and plans), puts everything back, and gives freed memory back to the system. Then `limit_memory` sets RLIMIT_DATA to what
the process uses at that point plus what the budget leaves to the step. From there on the system refuses every allocation beyond it, and the
training that counts begins, from the first step.

Compiling, profiling and planning are before the limit, because they take memory (Python objects, the solver) that is not tensor memory; the
plain script takes the same warm-up step, so the only difference between the two is ours. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEBI = 2**20
#: Blocks that a framework frees go back to the system at once, instead of waiting in the C library for their next use.
_RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def limit_memory(added: int) -> int:
    """From now on the process may have so many bytes more than it has. Returns the limit."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    limit = int(status.split("VmData:")[1].split()[0]) * 1024 + added
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return limit


@dataclass(frozen=True)
class Limited:
    """A benchmark of such training.

    Attributes:
        script: that calls `main`. models: names; the first `usual` of them are run if none is named.
        train: of a model's name, a budget or None, and the bytes that a limit leaves or None: what came of it, among it `losses`, `peak` and
            `overhead`.
        refused: finds what the framework says when the system refuses it memory.
        settings: environment of the process, where there is a limit and where there is none.
        says: what else the file says.
    """

    script: str
    models: Sequence[str]
    usual: int
    train: Callable[[str, int | None, int | None], dict[str, Any]]
    refused: re.Pattern[str]
    settings: Callable[[bool], Mapping[str, str]]
    says: Callable[[], dict[str, Any]]

    def run(self, name: str, budget: int | None = None, limited_to: int | None = None) -> dict[str, Any]:
        """`train` in a process: its result, or what it died of."""
        command = [sys.executable, self.script, "--worker", json.dumps([name, budget, limited_to])]
        environment = {**os.environ, **_RETURNED, **self.settings(limited_to is not None)}
        started = time.perf_counter()
        process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        result: dict[str, Any] = {"completed": process.returncode == 0, "seconds": time.perf_counter() - started}
        if process.returncode == 0:
            return {**result, **json.loads(process.stdout.splitlines()[-1])}
        refused = self.refused.search(process.stderr)
        last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return {**result, "refused": refused[0] if refused else None, "error": last[:500]}

    def compare(self, name: str, share: float) -> dict[str, Any]:
        """The three runs of one model, under `share` of the plain peak."""
        free = self.run(name)
        if not free["completed"]:
            sys.exit(f"plain training of {name} without a limit failed: {free['error']}")
        budget = int(share * free["peak"])
        plain = self.run(name, limited_to=budget)
        planned = self.run(name, budget=budget, limited_to=budget)
        same = planned.get("losses") == free["losses"]
        died = not plain["completed"] and plain["refused"] is not None
        return {
            "model": name,
            "plain_peak": free["peak"],
            "budget": budget,
            "plain_unlimited": free,
            "plain_limited": plain,
            "planned_limited": planned,
            "plain_died_of_the_limit": died,
            "planned_completed": planned["completed"],
            "same_losses": same,
            "passed": died and planned["completed"] and same,
        }

    def main(self, about: str, output: str) -> int:
        """The command line. Exit code 1 if a plain run lives under the limit, or ours does not complete with the same losses."""
        parser = argparse.ArgumentParser(description=about.split("\n")[0])
        usual = ", ".join(self.models[: self.usual])
        parser.add_argument("--model", action="append", choices=self.models, help=f"one model (default: {usual})")
        parser.add_argument("--share", type=float, default=0.5, help="the budget as a share of the plain peak (default: 0.5)")
        parser.add_argument("--output", type=Path, default=Path(output), help=f"JSON file (default: {output})")
        parser.add_argument("--worker", help=argparse.SUPPRESS)
        options = parser.parse_args()
        if options.worker:
            print(json.dumps(self.train(*json.loads(options.worker))))
            return 0
        print(f"{'model':12} {'plain MiB':>10}  {'budget':>8}  {'plain, limited':30}  ours, limited")
        rows = []
        for name in options.model or self.models[: self.usual]:
            rows.append(self.compare(name, options.share))
            print(_line(rows[-1]), flush=True)
        options.output.write_text(json.dumps({**self.says(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
        return 0 if all(row["passed"] for row in rows) else 1


def _line(row: dict[str, Any]) -> str:
    """Of the table."""
    plain, planned = row["plain_limited"], row["planned_limited"]
    if row["plain_died_of_the_limit"]:
        plain_text = f"died ({plain['refused']})"
    else:
        plain_text = "survived" if plain["completed"] else f"failed: {plain['error']}"
    if row["planned_completed"]:
        planned_text = f"trained, losses {'equal' if row['same_losses'] else 'DIFFER'}, overhead {planned['overhead']:.3f}"
    else:
        planned_text = f"failed: {planned['error']}"
    return f"{row['model']:12} {row['plain_peak'] / MEBI:10.1f}  {row['budget'] / MEBI:8.1f}  {plain_text:30}  {planned_text}"
