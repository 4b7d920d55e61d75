"""Text of every length under one budget: how many traces and plans that takes, and whether every step keeps to the budget.

A GPT-2 and a BERT of four layers are trained on 60 batches of 50 different (examples, length) pairs, plainly, under aot_eager and under a
budget, each in a process of its own. Losses of all steps and the final parameters must be bit-equal to plain ones, and the measured
peak of every step within the budget, which is a share of the plain peak over all batches.

    python benchmarks/torch_lengths.py [--networks gpt bert] [--share 0.7] [--layers 4] [--dynamic] [--output torch_lengths.json]

`plans` counts those in use at the end, `made` all that were made. `--dynamic` has PyTorch trace with symbolic sizes from the start.
Exit code 1 if a network takes more than 3 traces or 3 plans, or a step passes the budget, or results differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker import result_of

PAIRS, BATCHES, MOST = 50, 60, 3


def shapes() -> list[tuple[int, int]]:
    """The batches in turn; the last ones have been seen before."""
    chosen = random.Random(0)
    every = [(examples, length) for examples in range(2, 9) for length in range(8, 65)]
    pairs = chosen.sample(every, PAIRS)
    return pairs + chosen.sample(pairs, BATCHES - PAIRS)


def work(name: str, way: str, layers: int, budget: int, dynamic: bool) -> dict[str, Any]:
    """Train in this process."""
    import torch
    from torch_matrix_networks import TASKS, Language, Layer

    import checkmate.torch
    from checkmate.torch.rounds import step_plan

    task = replace(TASKS[name], build=lambda: Language(lambda: Layer(causal=name == "gpt"), layers))
    torch.manual_seed(0)
    model = task.build().train()
    traces, made = [0], [0]
    whole = step_plan.StepPlan.__init__

    def counted(*arguments: Any, **keywords: Any) -> None:
        made[0] += 1
        whole(*arguments, **keywords)

    if way == "checkmate":
        step_plan.StepPlan.__init__ = counted  # type: ignore[method-assign]
        checkmate.torch.compile(model, budget=budget, dynamic=dynamic or None)
    elif way == "aot_eager":
        model.compile(backend="aot_eager", dynamic=dynamic or None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses, peaks, seconds = [], [], []
    assert task.loss is not None
    for number, (examples, length) in enumerate(shapes()):
        inputs, target = task.batch(number, examples, length)
        torch.manual_seed(number)
        began = time.perf_counter()
        with checkmate.torch.measure() as seen:
            loss = task.loss(model(inputs), target)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        losses.append(float(loss.detach()))
        peaks.append(seen.peak)
        if way == "checkmate":
            traces[0] = len({id(one.part) for plan in _plans(model) for one in plan.passes})
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    plans = checkmate.torch.plans(model) if way == "checkmate" else []
    return {
        "peak": max(peaks),
        "losses": losses,
        "parameters": digest,
        "seconds": sum(seconds),
        "traces": traces[0],
        "plans": len(plans),
        "made": made[0],
        "overheads": [plan.schedule.overhead for plan in plans],
    }


def _plans(model: Any) -> list[Any]:
    from checkmate.torch import api

    return list(api._compiled[model].group.plans)


def surroundings() -> dict[str, Any]:
    """What figures depend on."""
    import torch

    import checkmate
    from checkmate.planning import cost_environment

    return {"checkmate": checkmate.__version__, **cost_environment("torch", torch.__version__, "cpu", torch.get_num_threads())}


def compare(name: str, layers: int, share: float, dynamic: bool) -> dict[str, Any]:
    """All processes of one network."""
    with tempfile.TemporaryDirectory() as cache:
        plain, eager = (result_of(__file__, [name, way, layers, 0, dynamic]) for way in ("plain", "aot_eager"))
        budget = int(share * plain["peak"])
        ours = result_of(__file__, [name, "checkmate", layers, budget, dynamic], CHECKMATE_CACHE_DIR=cache)
    exact = all(ours[what] == plain[what] for what in ("losses", "parameters"))
    kept = {what: ours[what] for what in ("peak", "seconds", "traces", "plans", "made", "overheads")}
    return {
        "network": name,
        "layers": layers,
        "dynamic": dynamic,
        "budget": budget,
        "plain_peak": plain["peak"],
        "exact": exact,
        **kept,
        "plain_seconds": plain["seconds"],
        "aot_eager_seconds": eager["seconds"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=("gpt", "bert"), choices=("gpt", "bert"))
    parser.add_argument("--share", type=float, default=0.7)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("torch_lengths.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        print(json.dumps(work(*json.loads(options.worker))))
        return 0
    rows = []
    failed = False
    print(
        f"{'network':>7} {'traces':>6} {'plans':>5} {'made':>4} {'peak / budget':>13} {'exact':>5} {'seconds':>7} {'aot_eager':>9}"
    )
    for name in options.networks:
        row = compare(name, options.layers, options.share, options.dynamic)
        rows.append(row)
        failed |= row["traces"] > MOST or row["plans"] > MOST or row["peak"] > row["budget"] or not row["exact"]
        print(
            f"{name:>7} {row['traces']:6} {row['plans']:5} {row['made']:4} {row['peak'] / row['budget']:13.3f} {row['exact']!s:>5} "
            f"{row['seconds']:7.1f} {row['aot_eager_seconds']:9.1f}",
            flush=True,
        )
        options.output.write_text(json.dumps({"environment": surroundings(), "rows": rows}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
