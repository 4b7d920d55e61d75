"""How long the first step of a Keras model under a budget is waited for: in a first process, and in a second one with what the first
left on disk.

The rows are those of `keras_matrix.py`. Each process (a copy of one that has loaded the packages and done nothing else) has nothing but
its cache folder in common with the other, makes the model, and trains two steps under a budget of 60% of the plain peak, with all options
at their defaults. Seconds are wall time: trace (TensorFlow and
Keras build the step, and TensorFlow rewrites it), profile (ops are timed), solve (schedules are sought), rehearse (they are tried out),
waited (from the beginning of training to the end of the first step), step (the one after, in which one more plan may be tried out), and
beyond (waited, less the trace and the second process's step). A budget that cannot be met is tried first, as people do (`refused` is what
that takes), and then the one that the error names, with a new model in the same process; the second process asks for that one at once.

Where the second process takes more than it should, plain training is there to compare with: TensorFlow compiles some ops when they run
first in a process, grouped convolutions for one, and plain training waits for that, too. `more` is what the second process waits beyond
plain training.

    python benchmarks/keras_first_step.py [--rows PATTERN ...] [--budget 60%] [--resume] [--output keras_first_step.json]

Exit code 1 if a first process waits more than 60 s for its first step, or a second one more than 5 s beyond tracing and also more than 5 s
longer than plain training.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from keras_matrix import commit, environment, prepared_imports, rows

FIRST_LIMIT, SECOND_LIMIT = 60.0, 5.0
PARTS = ("trace", "profile", "solve", "rehearse")
COLUMNS = (*PARTS, "refused", "waited", "step", "beyond", "more")
STEPS = 2
#: Seconds, for a process.
TIMEOUT = 300.0


class Stopwatch:
    """Adds up the seconds spent in functions, and how often they were called, by name."""

    def __init__(self) -> None:
        self.stopped = False
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        function = getattr(owner, attribute)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                if not self.stopped:
                    self.seconds[name] += time.perf_counter() - started
                    self.calls[name] += 1

        setattr(owner, attribute, timed)

    def stop_after(self, owner: Any, attribute: str) -> None:
        """What comes after the first call that returns does not count."""
        function: Callable[..., Any] = getattr(owner, attribute)

        def stopping(*arguments: Any, **keywords: Any) -> Any:
            result = function(*arguments, **keywords)
            self.stopped = True
            return result

        setattr(owner, attribute, stopping)


def work(model: str, feature: str, budget: int | str | None) -> dict[str, Any]:
    """Train in this process until two steps are done; plainly without a budget."""
    from keras_matrix_networks import TASKS
    from keras_matrix_script import FEATURES, Script, Watch, train

    from checkmate.tf2 import step
    from checkmate.tf2.execution import execute
    from checkmate.tf2.options import Options

    clock = Stopwatch()
    for owner, attribute, part in (
        (step.PlannedStep, "traced", "trace"),
        (step, "_profile", "profile"),
        (step, "make_plan", "solve"),
        (execute.Executor, "_rehearse", "rehearse"),
        (Script, "train", "refused"),
    ):
        clock.watch(owner, attribute, part)
    clock.stop_after(Watch, "step")
    result = train(TASKS[model], FEATURES[feature], budget, Options().time_limit, None, STEPS)
    parts: dict[str, float] = {}
    if result["infeasible"] is not None:  # of a small network the weights may well be more
        parts, clock.seconds = clock.seconds, defaultdict(float)
        budget = result["infeasible"]["named"]
        result = train(TASKS[model], FEATURES[feature], budget, Options().time_limit, None, STEPS)
    if result["error"] is not None:
        return {"error": result["error"]}
    waited, following = result["step_seconds"]
    seconds = {part: clock.seconds[part] for part in PARTS} | {"refused": parts.get("refused", 0.0)}
    return {
        **seconds,
        "error": None,
        "budget": budget,
        "calls": dict(clock.calls),
        "waited": waited,
        "step": following,
        "of_the_refusal": dict(parts),
    }


def row_of(model: str, feature: str, budget: str) -> dict[str, Any]:
    """Two processes with one cache, and plain training where the second one takes too long."""
    from keras_matrix_script import forked_with_cache

    with tempfile.TemporaryDirectory() as cache:

        def run(budget: int | str | None) -> dict[str, Any]:
            made = forked_with_cache(lambda: work(model, feature, budget), cache, TIMEOUT)
            return made if made["error"] is None else dict.fromkeys((*COLUMNS, "budget"), 0.0) | {"error": made["error"]}

        first = run(budget)
        second = run(first["budget"] or budget)
        row = judged(first, second, None)
        if row["second"]["beyond"] > SECOND_LIMIT:
            row = judged(first, second, run(None))
    return {"model": model, "feature": feature, "commit": commit(), **row}


def judged(first: dict[str, Any], second: dict[str, Any], plain: dict[str, Any] | None) -> dict[str, Any]:
    """The processes, and what is wrong with them."""
    problems = [one["error"] for one in (first, second, plain) if one is not None and one["error"] is not None]
    for process in (first, second):
        # The first process may have tried a plan out in its own second step.
        process["beyond"] = process["waited"] - process["trace"] - second["step"]
        process["more"] = process["beyond"] if plain is None else process["waited"] - plain["waited"]
    if first["waited"] > FIRST_LIMIT:
        problems.append(f"the first step came after {first['waited']:.1f} s")
    if min(second["beyond"], second["more"]) > SECOND_LIMIT:
        problems.append(f"a second process took {second['beyond']:.1f} s beyond tracing, {second['more']:.1f} s more than plain")
    alone = None if plain is None else {key: plain[key] for key in ("waited", "step")}
    return {"first": first, "second": second, "plain": alone, "problems": problems}


def line(row: dict[str, Any]) -> str:
    """Of the table; seconds."""
    figures = "  ".join("".join(f"{row[kind][column]:8.2f}" for column in COLUMNS) for kind in ("first", "second"))
    verdict = "passes" if not row["problems"] else "FAILS: " + "; ".join(row["problems"])
    return f"{row['model'] + '/' + row['feature']:26}{figures}  {verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="PATTERN", help="as in conv/* or */adam (default: all)")
    parser.add_argument("--budget", default="60%", help="of the plain peak (default: 60%%)")
    parser.add_argument("--resume", action="store_true", help="leave out rows that the output already has and that pass")
    parser.add_argument("--output", type=Path, default=Path("keras_first_step.json"))
    options = parser.parse_args()
    prepared_imports()
    had = json.loads(options.output.read_text("utf-8"))["rows"] if options.resume and options.output.exists() else []
    done = {(row["model"], row["feature"]): row for row in had}
    print(f"{'row':26}" + "  ".join("".join(f"{column:>8}" for column in COLUMNS) for _ in range(2)), flush=True)
    for pair in rows():
        if not any(fnmatch("/".join(pair), pattern) for pattern in options.rows) or (pair in done and not done[pair]["problems"]):
            continue
        done[pair] = row_of(*pair, options.budget)
        print(line(done[pair]), flush=True)
        ordered = [done[pair] for pair in rows() if pair in done]
        text = json.dumps({"environment": {**environment(), "steps": STEPS}, "rows": ordered}, indent=1) + "\n"
        options.output.write_text(text, encoding="utf-8")
    failing = sum(bool(row["problems"]) for row in done.values())
    print(f"{len(done)} rows, {len(done) - failing} pass")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
