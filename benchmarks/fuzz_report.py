"""What the fuzzers of the front ends share: modules of programs, their options, the loop over seeds, counts of what came of programs, and the JSON file."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """What came of a program: the kind, details, and its text."""

    kind: str
    detail: str
    text: str


def imported(name: str, source: str) -> ModuleType:
    """A module of this source, from a file: compilers look into the source of functions."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{name}.py").write_text(source, encoding="utf-8")
        sys.path.insert(0, folder)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(folder)


def options(description: str) -> argparse.ArgumentParser:
    """Of the command line, for every fuzzer."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print programs and details")
    parser.add_argument("--output", type=Path, help="a JSON file")
    return parser


def survey(
    args: argparse.Namespace,
    outcome: Callable[[int], Outcome],
    fine: Sequence[str],
    environment: dict[str, Any],
    settings: dict[str, Any],
) -> int:
    """Try the programs of all seeds, until Ctrl-C, and report. Returns the exit code: 1 if there is any failure.

    Args:
        args: of the `options`. outcome: of the program of a seed. fine: kinds that are no failures, the usual one first.
            environment, settings: for the file, which also has the seeds of each kind but the usual one.
    """
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    seeds: defaultdict[str, list[int]] = defaultdict(list)
    begin = time.monotonic()
    with suppress(KeyboardInterrupt):
        for number, seed in enumerate(range(args.seed, args.seed + args.programs), 1):
            kind, detail, text = outcome(seed)
            counts[kind] += 1
            if kind != fine[0]:
                seeds[kind].append(seed)
            if kind not in fine:
                failures.append({"seed": seed, "kind": kind, "detail": detail[:1000]})
                print(f"seed {seed}: {kind}: {detail}", flush=True)
            if args.show:
                print(f"{text}\n{kind}: {detail}")
            if number % 20 == 0:
                print(f"{number} programs, {len(failures)} failures: {dict(counts)}", flush=True)
    seconds = time.monotonic() - begin
    print(f"{counts.total()} programs in {seconds:.0f} s: {dict(counts)}, {len(failures)} failures")
    if args.output:
        settings = {"programs": args.programs, "seed": args.seed, **settings}
        report = {"environment": environment, "settings": settings, "seconds": seconds, "counts": counts, "seeds": seeds}
        report["failures"] = failures
        args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0
