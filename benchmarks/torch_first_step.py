"""How long the first training step takes under a budget, beside that of PyTorch's own aot_eager.

Every network is trained for a few steps in processes of their own: under aot_eager; under a budget with an empty cache ("first");
and once more with what the first process left on disk ("second"). "beyond" is what the first step, with the import of the package
and the calls that compile, takes more than aot_eager's. The search for a better schedule goes on while the next steps run; the first
process trains until the better plan is there, and the table says after how many seconds and steps that was.

    python benchmarks/torch_first_step.py [--networks gpt2 ...] [--budget 60%] [--extra-path FOLDER] [--output torch_first_step.json]

The networks are gpt2 (12 layers), resnet50 and swin_tiny in their full size, of transformers and timm, or, where these are not installed,
small ones of the same kinds. Besides seconds on the clock, those that the process spent computing ("cpu") are given: they say more
on a busy machine. Exit code 1 if a first step takes more than 20 s beyond aot_eager's, or 2 s in the second process.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch_lengths import surroundings
from worker import result_of

NETWORKS = ("gpt2", "resnet50", "swin_tiny")
FIRST_LIMIT, SECOND_LIMIT = 20.0, 2.0
#: Of training after the first step, for the better plan to come.
PATIENCE = 120.0


def task(name: str) -> Any:
    """A network and its batches."""
    from importlib.util import find_spec

    from torch_matrix_networks import TASKS, Language, Layer, _pictures
    from torch_matrix_packages import PACKAGED, _masked, _timm, _transformer

    if name == "gpt2":
        small = replace(TASKS["gpt"], build=lambda: Language(lambda: Layer(causal=True), 12))
        sizes = {"vocab_size": 4096, "n_embd": 256, "n_head": 8, "n_positions": 256}
        build = _transformer("GPT2LMHeadModel", "GPT2Config", n_layer=12, use_cache=False, **sizes)
        whole = replace(PACKAGED["hf-gpt2"][1], build=build, batch=_masked, examples=4, length=256)
        return whole if find_spec("transformers") else small
    names = {"resnet50": "resnet50", "swin_tiny": "swin_tiny_patch4_window7_224"}
    if find_spec("timm"):
        return replace(TASKS["resnet50"], build=_timm(names[name]), batch=partial(_pictures, side=224), examples=4)
    return TASKS[name.removesuffix("_tiny")]


def work(name: str, way: str, budget: str, wait: bool, extra: str | None) -> dict[str, Any]:
    """Train in this process; `wait`: until the better plan has come."""
    if extra is not None:
        sys.path.append(extra)
    import torch
    import torch._dynamo

    given = task(name)
    torch.manual_seed(0)
    model = given.build().train()
    *inputs, target = given.batch(0, given.examples, given.length)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        loss = model(*inputs, labels=target).loss if given.loss is None else given.loss(model(*inputs), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    began = time.perf_counter(), time.process_time()

    def since() -> dict[str, float]:
        return {"seconds": time.perf_counter() - began[0], "cpu": time.process_time() - began[1]}

    if way == "aot_eager":
        model.compile(backend="aot_eager")
        step()
        return {**since(), "next": _seconds(step)}
    import checkmate.torch

    checkmate.torch.compile(model, budget=budget)
    step()
    found: dict[str, Any] = since()
    (first,) = plans = checkmate.torch.plans(model)
    found |= {"ops": first.graph.num_ops, "quick_overhead": first.schedule.overhead, "next": _seconds(step)}
    steps = 2
    while wait and not plans[0].final and time.perf_counter() - began[0] < PATIENCE:
        step()
        steps += 1
        plans = checkmate.torch.plans(model)
    better = plans[0]
    return {
        **found,
        "overhead": better.schedule.overhead,
        "final": better.final,
        "final_after": since()["seconds"],
        "steps": steps,
    }


def _seconds(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def compare(name: str, budget: str, extra: str | None) -> dict[str, Any]:
    """All processes of one network."""
    with tempfile.TemporaryDirectory() as cache:
        plain = result_of(__file__, [name, "aot_eager", budget, False, extra])
        first = result_of(__file__, [name, "checkmate", budget, True, extra], CHECKMATE_CACHE_DIR=cache)
        second = result_of(__file__, [name, "checkmate", budget, False, extra], CHECKMATE_CACHE_DIR=cache)
    for row in (first, second):
        row |= {"beyond": row["seconds"] - plain["seconds"], "beyond_cpu": row["cpu"] - plain["cpu"]}
    return {"network": name, "budget": budget, "aot_eager": plain, "first": first, "second": second}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--extra-path", help="folder with transformers and timm")
    parser.add_argument("--output", type=Path, default=Path("torch_first_step.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        print(json.dumps(work(*json.loads(options.worker))))
        return 0
    rows = []
    print(
        f"{'network':>10} {'ops':>5} {'aot_eager':>9} {'first: beyond':>13} {'cpu':>6} {'second: beyond':>14} {'cpu':>6} overhead: quick, final"
    )
    for name in options.networks:
        row = compare(name, options.budget, options.extra_path)
        rows.append(row)
        first, second = row["first"], row["second"]
        print(
            f"{name:>10} {first['ops']:5} {row['aot_eager']['seconds']:9.1f} {first['beyond']:13.1f} {first['beyond_cpu']:6.1f} "
            f"{second['beyond']:14.1f} {second['beyond_cpu']:6.1f} {first['quick_overhead']:.3f}, {first['overhead']:.3f} "
            f"after {first['final_after']:.0f} s and {first['steps']} steps",
            flush=True,
        )
        options.output.write_text(json.dumps({"environment": surroundings(), "rows": rows}, indent=1) + "\n")
    late = [
        f"{row['network']} ({which} process: {row[which]['beyond']:.1f} s)"
        for row in rows
        for which, limit in (("first", FIRST_LIMIT), ("second", SECOND_LIMIT))
        if row[which]["beyond"] > limit
    ]
    print(f"too slow: {', '.join(late)}" if late else "every first step in time")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
