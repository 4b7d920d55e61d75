"""How long the first training step takes under a budget, beside that of PyTorch's own aot_eager, or of plain Inductor.

Every network is trained for a few steps in processes of their own: without a budget; under one with an empty cache ("first"); and once
more with what the first process left on disk ("second"). "beyond" is what the first step, with the import of the package and the calls
that compile, takes more than plain training's in the same way: Inductor has programs and kernels on disk, too, in a second process. The
search for a better schedule goes on while the next steps run; the first process trains until the better plan is there, and the table
says after how many seconds and steps that was. On Inductor the first step waits for it.

    python benchmarks/torch_first_step.py [--inner inductor] [--networks gpt2 ...] [--budget 60%] [--extra-path FOLDER] [--output FILE]

The networks are gpt2 (12 layers), resnet50 and swin_tiny in their full size, of transformers and timm, or, where these are not installed,
small ones of the same kinds. Besides seconds on the clock, those that the process spent computing ("cpu") are given: they say more
on a busy machine. Exit code 1 if a first step takes more than 20 s beyond plain training's, or 2 s in the second process; on Inductor,
where a plan waits for a search and costs of kernels come with it, nothing is judged.
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
#: What plain training is compiled with, for each way to run a plan.
PLAIN = {"eager": "aot_eager", "inductor": "inductor"}
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


def work(name: str, inner: str, budget: str | None, wait: bool, extra: str | None) -> dict[str, Any]:
    """Train in this process, without a budget where that is None; `wait`: until the better plan has come."""
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

    if budget is None:
        model.compile(backend=PLAIN[inner])
        step()
        return {**since(), "next": _seconds(step)}
    import checkmate.torch

    checkmate.torch.compile(model, budget=budget, inner=inner)
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


def compare(name: str, inner: str, budget: str, extra: str | None) -> dict[str, Any]:
    """All processes of one network."""

    def of(given: str | None, cache: str, wait: bool = False) -> dict[str, Any]:
        kept = {"CHECKMATE_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
        return result_of(__file__, [name, inner, given, wait, extra], **kept)

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        without = of(None, one)
        again = of(None, one) if inner == "inductor" else without
        first, second = of(budget, other, wait=True), of(budget, other)
    for row, beside in ((first, without), (second, again)):
        row |= {"beyond": row["seconds"] - beside["seconds"], "beyond_cpu": row["cpu"] - beside["cpu"]}
    return {
        "network": name,
        "inner": inner,
        "budget": budget,
        PLAIN[inner]: without,
        "again": again,
        "first": first,
        "second": second,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--inner", default="eager", choices=PLAIN, help="what runs the plans")
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--extra-path", help="folder with transformers and timm")
    parser.add_argument("--output", type=Path, default=Path("torch_first_step.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        print(json.dumps(work(*json.loads(options.worker))))
        return 0
    rows = []
    plain = PLAIN[options.inner]
    print(
        f"{'network':>10} {'ops':>5} {plain:>9} {'again':>6} {'first: beyond':>13} {'cpu':>6} {'second: beyond':>14} {'cpu':>6} "
        "overhead: quick, final"
    )
    for name in options.networks:
        row = compare(name, options.inner, options.budget, options.extra_path)
        rows.append(row)
        first, second = row["first"], row["second"]
        print(
            f"{name:>10} {first['ops']:5} {row[plain]['seconds']:9.1f} {row['again']['seconds']:6.1f} {first['beyond']:13.1f} "
            f"{first['beyond_cpu']:6.1f} {second['beyond']:14.1f} {second['beyond_cpu']:6.1f} {first['quick_overhead']:.3f}, "
            f"{first['overhead']:.3f} after {first['final_after']:.0f} s and {first['steps']} steps",
            flush=True,
        )
        options.output.write_text(json.dumps({"environment": surroundings(), "rows": rows}, indent=1) + "\n")
    if options.inner == "inductor":
        return 0
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
