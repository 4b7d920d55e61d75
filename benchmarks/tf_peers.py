"""Peak memory and time of a TensorFlow training step, trained in four ways.

- plain: `tf.function` as it is.
- segments: `tf.recompute_grad` over segments of the network, cut with care (see tf_segments.py), for several numbers of segments.
- remat: `keras.RematScope`, which recomputes inside single layers, in each of its modes. Where Keras cannot train the
  network in a mode, its own message is in the table.
- ours: `checkmate.tf2.compile`, with the peak that each other way reached as the budget, and then with smaller ones, down to the
  smallest that works.

Every way trains in a process of its own, as it would for a user; all of them stay alive until their network is done. A peak is the
most bytes that TensorFlow's allocator had in use in one of nine steps, each with a new batch, beyond what was there before it, plus the
step's inputs and variables, the latter with what their blocks of memory are larger than they are.
Times are medians over rounds in which every way takes two steps, of which the second is timed, ours and what it is compared with
one right after the other; "against" is the median over the rounds of our time over the other's, at a budget of the other's peak.
The optimizer (SGD) and the data are the same. Note what the others change: with them batch norm updates its statistics
twice for recomputed layers; ours does not.

    python benchmarks/tf_peers.py [--model unet] [--size small|real] [--batch N] [--rounds 9] [--before FOLDER] [--add]
                                  [--output tf_peers.json]

`--before` names a folder with another version of the package: what it takes under the same budgets is timed right after ours, and
compared with it where it keeps to the budget.
Writes a table, JSON and a picture (same name, .png); with --add, networks that the JSON file has already stay in it. Exit code 1 if a way
is faster at its own peak by more than 5% (noise), or has a lower peak than ours can reach.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker import Worker, quartiles_of_ratios

NAMES = ("vgg19", "resnet50", "mobilenet", "unet", "transformer")
MEBI = 2**20
TOLERANCE = 1.05
SEGMENTS = (2, 3, 4, 6, 9, 14)
SCOPES = ({"mode": "full"}, {"mode": "activations"}, {"mode": "larger_than", "output_size_threshold": 2**16})
ENOUGH = 2**40  # bytes that need no schedule
SHARES = (0.75, 0.5, 0.25)  # budgets of ours between its smallest (0) and the plain peak (1)


@dataclass
class Way:
    """One way to train the network.

    Attributes:
        worker: the process that trains; None if that failed, and then `error` says why.
        peak: bytes. against: the way whose peak is this one's budget. infeasible: bytes that would do in place of the budget.
        before: another version of the package, under the same budget.
    """

    name: str
    setting: str
    worker: Worker | None = None
    budget: int | None = None
    against: str | None = None
    peak: int | None = None
    predicted_peak: int | None = None
    overhead: float | None = None
    error: str | None = None
    infeasible: int | None = None
    before: Way | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.name} {self.setting}".strip()

    def row(self) -> dict[str, Any]:
        kept = {key: value for key, value in vars(self).items() if key not in ("worker", "infeasible", "before")}
        if self.before is not None:
            kept["before"] = self.before.row()
        return {**kept, "title": self.title, "median_seconds": statistics.median(self.seconds) if self.seconds else None}


class Comparison:
    """All ways of one network.

    Args:
        network: name, size and batch of `tf_models.task`. alive: holds the processes. before: folder of another version.
    """

    def __init__(
        self,
        network: Sequence[Any],
        alive: ExitStack,
        time_limit: float,
        segments: Sequence[int] = SEGMENTS,
        before: str | None = None,
    ):
        self.network = network
        self.alive = alive
        self.time_limit = time_limit
        self.before = {"PYTHONPATH": before} if before is not None else {}
        with Worker("tf_ways.py") as worker:
            self.facts = worker.ask([*network, "facts", [list(segments)]])
        if before is not None:
            with Worker("tf_ways.py", **self.before) as worker:  # its times of ops, too, are measured while nothing else runs
                worker.ask([*network, "ours", [ENOUGH, time_limit]])

    def run(self, rounds: int) -> list[Way]:
        others = self._others()
        plain, smallest = others[0].peak, self.facts["smallest"]
        assert plain is not None
        least = int(1.03 * smallest) if smallest is not None else plain
        wanted = [(way.peak, way.title) for way in others if way.peak is not None]
        wanted += [(int(least + share * (plain - least)), None) for share in (*SHARES, 0.0)]
        # Nothing is timed while plans are made, of ops whose times the facts left in the cache.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ours = list(pool.map(lambda one: self._planned(*one), wanted))
        # What is compared goes one right after the other, now this first, now that: the machine's speed drifts within a round.
        ways = [*others, *ours]
        together = sorted(ways, key=lambda way: way.against or way.title)
        order = [one for way in together for one in (way, way.before) if one is not None and one.worker is not None]
        for number in range(rounds):
            for way in order if number % 2 else reversed(order):
                assert way.worker is not None
                way.seconds.append(way.worker.ask("step")["seconds"])
        return ways

    def _others(self) -> list[Way]:
        """Plain training first."""
        ways = [self._train("plain", "", [])]
        done: list[list[int]] = []
        for cuts in self.facts["cuts"]:
            if len(cuts) > 2 and cuts not in done:
                alike = sum(len(other) == len(cuts) for other in done)
                done.append(cuts)
                ways.append(self._train("segments", f"{len(cuts) - 1}{'abcdef'[alike - 1] if alike else ''}", [cuts]))
        return ways + [self._train("remat", str(scope["mode"]), [scope]) for scope in SCOPES]

    def _planned(self, budget: int, against: str | None) -> Way:
        """Ours; a budget of our own choice may turn out to be too small."""
        for last in (False, False, True):
            way = self._train("ours", f"{budget / MEBI:.0f}", [budget, self.time_limit], budget=budget, against=against)
            if last or against is not None or way.infeasible is None:
                break
            budget = int(1.01 * way.infeasible)
        if self.before:
            way.before = self._train("ours", f"before {way.setting}", [budget, self.time_limit], self.before, budget=budget)
        return way

    def _train(
        self, name: str, setting: str, arguments: Sequence[Any], surroundings: dict[str, str] | None = None, **about: Any
    ) -> Way:
        """A process that trains in this way; see `Training` for the arguments."""
        way = Way(name, setting, **about)
        worker = self.alive.enter_context(Worker("tf_ways.py", TF_FORCE_GPU_ALLOW_GROWTH="true", **(surroundings or {})))
        for key, value in worker.ask([*self.network, name, arguments]).items():
            setattr(way, key, value)
        if way.error is None:
            assert way.peak is not None
            way.worker = worker
            print(f"  {way.title}: {way.peak / MEBI:.1f} MiB", file=sys.stderr, flush=True)
        return way


def verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the rows of one network say: our time against each other way's at its peak, and the lowest peaks."""
    by_title = {row["title"]: row for row in rows if row["name"] != "ours"}
    ratios = {}
    for row in rows:
        if row["against"] is not None:
            other = by_title[row["against"]]
            paired = zip(row["seconds"], other["seconds"], strict=False)
            ratios[row["against"]] = statistics.median([a / b for a, b in paired]) if row["seconds"] else None
    lowest = {
        name: min(row["peak"] for row in rows if row["peak"] and (row["name"] == "ours") == (name == "ours"))
        for name in ("ours", "others")
    }
    kept = all(row["peak"] <= row["budget"] for row in rows if row["name"] == "ours" and row["peak"])
    passed = kept and lowest["ours"] < lowest["others"] and all(r is not None and r <= TOLERANCE for r in ratios.values())
    said = {"ours_over_other_seconds": ratios, "lowest_peak": lowest, "budgets_kept": kept, "passed": passed}
    before = [row for row in rows if row["seconds"] and row.get("before") and row["before"]["seconds"]]
    if before:
        kept_before = [row for row in before if row["before"]["peak"] <= row["budget"]]
        said["budgets_kept_before"] = len(kept_before)
        said["ours_over_before_seconds"] = {
            row["budget"]: quartiles_of_ratios(row["seconds"], row["before"]["seconds"])[1] for row in kept_before
        }
    return said


def table(name: str, rows: list[dict[str, Any]]) -> str:
    """Text for people."""
    said = verdict(rows)
    ratios, before = said["ours_over_other_seconds"], said.get("ours_over_before_seconds", {})
    lines = [f"{name:22} {'budget':>8} {'peak MiB':>9} {'seconds':>8} {'ours at this peak':>18}"]
    for row in rows:
        if row["peak"] is None:
            lines.append(f"  {row['title']:20} {row['error'][:90]}")
            continue
        budget = f"{row['budget'] / MEBI:.1f}" if row["budget"] else ""
        ratio = ratios.get(row["title"])
        note = (
            f"{ratio:.2f} of its time" if ratio else f"{before[row['budget']]:.2f} of before" if row["budget"] in before else ""
        )
        lines.append(f"  {row['title']:20} {budget:>8} {row['peak'] / MEBI:9.1f} {row['median_seconds']:8.3f} {note:>18}")
    return "\n".join(lines)


def plot(results: dict[str, Any], path: Path) -> None:
    """Time over peak for each network."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(results), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    places = figure.subplots(1, len(results), squeeze=False)[0]
    styles = {"plain": ("s", "black"), "segments": ("o", "tab:orange"), "remat": ("^", "tab:red"), "ours": (".", "tab:blue")}
    for axes, (name, result) in zip(places, results.items(), strict=True):
        for kind, (marker, color) in styles.items():
            points = sorted((r["peak"] / MEBI, r["median_seconds"]) for r in result["rows"] if r["name"] == kind and r["peak"])
            line = "-" if kind == "ours" else "none"
            axes.plot(*zip(*points, strict=True) if points else ([], []), marker=marker, color=color, linestyle=line, label=kind)
        axes.set_title(name, loc="left")
        axes.set_xlabel("peak (MiB)")
        axes.set_ylabel("seconds per step")
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", action="append", choices=NAMES, help="one network (default: all)")
    parser.add_argument("--size", choices=("small", "real"), default="small", help="small: minutes on two cores (default)")
    parser.add_argument("--batch", type=int, help="another batch size")
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each way (default: 9)")
    parser.add_argument("--segments", type=int, nargs="+", default=SEGMENTS, help="numbers of segments (default: 2 3 4 6 9 14)")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each plan of ours (default: 10)")
    parser.add_argument("--before", help="folder of another version of the package, timed under the same budgets")
    parser.add_argument("--add", action="store_true", help="keep the other networks that the output has, one run for each")
    parser.add_argument("--output", type=Path, default=Path("tf_peers.json"), help="JSON file (default: tf_peers.json)")
    options = parser.parse_args()
    settings = {name: getattr(options, name) for name in ("size", "batch", "rounds", "time_limit", "segments")}
    found = json.loads(options.output.read_text("utf-8"))["networks"] if options.add and options.output.exists() else {}
    for name in options.model or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        with ExitStack() as alive:
            comparison = Comparison(
                [name, options.size, options.batch], alive, options.time_limit, options.segments, options.before
            )
            rows = [way.row() for way in comparison.run(options.rounds)]
        found[name] = {"rows": rows, "verdict": verdict(rows)}
        results = {name: found[name] for name in NAMES if name in found}
        print(table(name, rows), flush=True)
        # A run that is cut off keeps what it has.
        data = {"environment": comparison.facts["environment"], "settings": {**settings, "seed": 0}, "networks": results}
        options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        plot(results, options.output.with_suffix(".png"))
    return 0 if all(result["verdict"]["passed"] for result in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
