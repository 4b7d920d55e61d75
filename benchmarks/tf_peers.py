"""Peak memory and time of a TensorFlow training step, trained in four ways.

- plain: `tf.function` as it is.
- segments: `tf.recompute_grad` over segments of the network, cut with care (see tf_segments.py), for several numbers of segments.
- remat: `keras.RematScope`, which recomputes inside single layers, in each of its modes. Where Keras cannot train the
  network in a mode, its own message is in the table.
- ours: `checkmate.tf2.compile`, with the peak that each other way reached as the budget, and then with smaller ones, down to the
  smallest that works.

Each network runs in a process of its own. A peak is the most bytes that TensorFlow's allocator had in use in a step, beyond
what was there before it, plus the step's inputs and variables. Times are medians over rounds in which every way takes one
step, ours and what it is compared with one right after the other; "against" is the median over the rounds of our time over the
other's, at a budget of the other's peak.
The optimizer (SGD) and the data are the same. Note what the others change: with them batch norm updates its statistics
twice for recomputed layers; ours does not.

    python benchmarks/tf_peers.py [--model unet] [--size small|real] [--batch N] [--rounds 9] [--output tf_peers.json]

Writes a table, JSON and a picture (same name, .png). Exit code 1 if a way is faster at its own peak by more than
5% (noise), or has a lower peak than ours can reach.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker import result_of

NAMES = ("vgg19", "resnet50", "mobilenet", "unet", "transformer")
MEBI = 2**20
TOLERANCE = 1.05
SEGMENTS = (2, 3, 4, 6, 9, 14)
SHARES = (0.75, 0.5, 0.25)  # budgets of ours between its smallest (0) and the plain peak (1)


@dataclass
class Way:
    """One way to train the network.

    Attributes:
        step: one training step on a batch; None if it failed, and then `error` says why.
        peak: bytes. against: the way whose peak is this one's budget. infeasible: bytes that would do in place of the budget.
    """

    name: str
    setting: str
    step: Callable[[Any, Any], Any] | None = None
    budget: int | None = None
    against: str | None = None
    peak: int | None = None
    predicted_peak: int | None = None
    overhead: float | None = None
    error: str | None = None
    infeasible: int | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.name} {self.setting}".strip()

    def row(self) -> dict[str, Any]:
        kept = {key: value for key, value in vars(self).items() if key not in ("step", "infeasible")}
        return {**kept, "title": self.title, "median_seconds": statistics.median(self.seconds) if self.seconds else None}


class Comparison:
    """All ways of one network, in this process."""

    def __init__(self, name: str, size: str, batch: int | None, time_limit: float, segments: Sequence[int] = SEGMENTS):
        import keras
        import tensorflow as tf
        from tf_models import task

        self.keras = keras
        self.task = task(name, size, batch)
        self.time_limit = time_limit
        self.segments = segments
        self.ways: list[Way] = []
        self.x, self.y = (tf.constant(array) for array in self.task.batch(0))

    def run(self, rounds: int) -> list[Way]:
        self._add("plain", "", lambda: self._step(self.task.build()))
        self._add_segments()
        for setting in ({"mode": "full"}, {"mode": "activations"}, {"mode": "larger_than", "output_size_threshold": 2**16}):
            self._add("remat", str(setting["mode"]), lambda setting=setting: self._remat(setting))
        self._add_ours()
        # What is compared goes one right after the other, now this first, now that: the machine's speed drifts within a round.
        order = sorted((way for way in self.ways if way.step is not None), key=lambda way: way.against or way.title)
        for number in range(rounds):
            for way in order if number % 2 else reversed(order):
                assert way.step is not None
                started = time.perf_counter()
                way.step(self.x, self.y)
                way.seconds.append(time.perf_counter() - started)
        return self.ways

    def _add(self, name: str, setting: str, make: Callable[[], Callable[[Any, Any], Any]], **about: Any) -> Way:
        """Build a way, run it and measure its fourth step."""
        from checkmate.tf2 import measure

        way = Way(name, setting, **about)
        self.ways.append(way)
        try:
            way.step = make()
            for _ in range(4):  # the first prepares; ours may plan again after those that follow
                gc.collect()
                with measure("CPU:0") as seen:
                    way.step(self.x, self.y)
        except Exception as error:  # noqa: BLE001 - whatever a way of training cannot do is a result: it goes into the table
            way.infeasible = getattr(error, "smallest_found", None)
            way.step, way.error = None, f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            return way
        if seen.added is None:
            sys.exit("TensorFlow counts no memory on this device: run on the CPU with oneDNN on")
        way.peak = seen.added + self.fixed
        print(f"  {way.title}: {way.peak / MEBI:.1f} MiB", file=sys.stderr, flush=True)
        return way

    def _step(self, model: Any, forward: Callable[[Any], Any] | None = None) -> Callable[[Any, Any], Any]:
        from tf_models import plain_step, tensor_bytes

        optimizer = self.keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
        self.fixed = tensor_bytes([*(v.value for v in (*model.variables, *optimizer.variables)), self.x, self.y])
        return plain_step(model, self.task.loss, optimizer, forward)

    def _remat(self, setting: dict[str, Any]) -> Callable[[Any, Any], Any]:
        with self.keras.RematScope(**setting):
            model = self.task.build()
        return self._step(model)

    def _add_segments(self) -> None:
        from tf_segments import Layered

        done: set[tuple[int, ...]] = set()
        for count in self.segments:
            model = self.task.build()
            layered = Layered.read(model, len(self.x))
            cuts = layered.cuts(count, len(self.x))
            if len(cuts) > 2 and tuple(cuts) not in done:
                done.add(tuple(cuts))
                forward = layered.recomputed(cuts)
                alike = sum(len(other) == len(cuts) for other in done) - 1
                setting = f"{len(cuts) - 1}{'abcdef'[alike - 1] if alike else ''}"
                self._add("segments", setting, lambda model=model, forward=forward: self._step(model, forward))

    def _add_ours(self) -> None:
        import checkmate

        others = [way for way in self.ways if way.peak is not None]
        try:
            checkmate.solve(self._graph(), 1, method="greedy")
            smallest = others[0].peak  # every budget would do
        except checkmate.InfeasibleBudget as error:
            smallest = int(1.03 * error.smallest_found)
        for other in others:
            assert other.peak is not None
            self._add_planned(int(other.peak), other.title)
        plain = others[0].peak
        assert plain is not None and smallest is not None
        for share in (*SHARES, 0.0):
            self._add_planned(int(smallest + share * (plain - smallest)), None)

    def _graph(self) -> Any:
        import checkmate.tf2

        optimizer = self.keras.optimizers.SGD(0.01)
        return checkmate.tf2.capture(self.task.build(), self.task.loss, self.x, self.y, optimizer)

    def _add_planned(self, budget: int, against: str | None) -> None:
        import checkmate.tf2

        made: list[Any] = []

        def make() -> Callable[[Any, Any], Any]:
            optimizer = self.keras.optimizers.SGD(0.01)
            step = checkmate.tf2.compile(
                self.task.build(), self.task.loss, optimizer, self.x, self.y, budget=budget, time_limit=self.time_limit
            )
            made.append(step)
            return step

        for last in (False, False, True):
            way = self._add("ours", f"{budget / MEBI:.0f}", make, budget=budget, against=against)
            if last or against is not None or way.infeasible is None:
                break
            self.ways.remove(way)
            budget = int(1.01 * way.infeasible)
        if way.step is not None:
            (plan,) = checkmate.tf2.plans(made[0])
            way.predicted_peak, way.overhead = plan.predicted_peak, plan.schedule.overhead


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
    return {"ours_over_other_seconds": ratios, "lowest_peak": lowest, "budgets_kept": kept, "passed": passed}


def table(name: str, rows: list[dict[str, Any]]) -> str:
    """Text for people."""
    ratios = verdict(rows)["ours_over_other_seconds"]
    lines = [f"{name:22} {'budget':>8} {'peak MiB':>9} {'seconds':>8} {'ours at this peak':>18}"]
    for row in rows:
        if row["peak"] is None:
            lines.append(f"  {row['title']:20} {row['error'][:90]}")
            continue
        budget = f"{row['budget'] / MEBI:.1f}" if row["budget"] else ""
        ratio = ratios.get(row["title"])
        note = f"{ratio:.2f} of its time" if ratio else ""
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


def environment() -> dict[str, Any]:
    from importlib.metadata import version

    import tensorflow as tf

    import checkmate
    from checkmate.tf2.internals import onednn_is_on

    return {
        "checkmate": checkmate.__version__,
        "tensorflow": tf.__version__,
        "keras": version("keras"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "onednn": onednn_is_on(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux on x86
        return platform.processor()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", action="append", choices=NAMES, help="one network (default: all)")
    parser.add_argument("--size", choices=("small", "real"), default="small", help="small: minutes on two cores (default)")
    parser.add_argument("--batch", type=int, help="another batch size")
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each way (default: 9)")
    parser.add_argument("--segments", type=int, nargs="+", default=SEGMENTS, help="numbers of segments (default: 2 3 4 6 9 14)")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each plan of ours (default: 10)")
    parser.add_argument("--output", type=Path, default=Path("tf_peers.json"), help="JSON file (default: tf_peers.json)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, size, batch, rounds, time_limit, segments = json.loads(options.worker)
        rows = [way.row() for way in Comparison(name, size, batch, time_limit, segments).run(rounds)]
        print(json.dumps({"rows": rows, "environment": environment()}))
        return 0
    settings = {name: getattr(options, name) for name in ("size", "batch", "rounds", "time_limit", "segments")}
    results: dict[str, Any] = {}
    for name in options.model or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        made = result_of(__file__, [name, *settings.values()])
        results[name] = {"rows": made["rows"], "verdict": verdict(made["rows"])}
        print(table(name, made["rows"]), flush=True)
        # A run that is cut off keeps what it has.
        data = {"environment": made["environment"], "settings": {**settings, "seed": 0}, "networks": results}
        options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        plot(results, options.output.with_suffix(".png"))
    return 0 if all(result["verdict"]["passed"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
