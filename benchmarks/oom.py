"""Training that does not fit, under a real memory limit: plain training dies, the same script with one more line trains.

The training script is `train` below. It runs in a process of its own: it builds the model, takes one warm-up step (which
sets up what libraries allocate once, and with the line compiles and plans), puts parameters and buffers back, and gives
freed memory back to the system. Then it sets RLIMIT_DATA to what the process uses at that point plus what the budget
leaves to the step: budget - bytes of tensors alive + 8 MiB (for page rounding and Python's own objects). From there on
the system refuses every allocation beyond the limit, and the training that counts begins, from the first step.

Compiling, profiling and planning are before the limit, because they take memory (Python objects, the solver) that is not
tensor memory; the plain script takes the same warm-up step, so the only difference between the two is the line.

For each model: (1) plain without a limit, (2) plain under the limit, which must die of it, (3) with the line under the
limit, which must complete with the losses of (1), bit for bit.

    python benchmarks/oom.py [--model resnet] [--share 0.5] [--output oom.json]

Exit code 1 if (2) lives or (3) does not complete with the same losses. Linux only.
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
from pathlib import Path
from typing import Any

MODELS = ("resnet", "unet", "transformer")
SEED = 0
STEPS = 5
SLACK = 8 << 20
#: What torch's CPU allocator says when the system refuses it memory.
REFUSED = re.compile(r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+) bytes")


def train(name: str, budget: int | None, limited_to: int | None) -> dict[str, Any]:
    """The training script. `budget`: add the line. `limited_to`: train under a limit that leaves this many bytes."""
    import torch

    import checkmate.torch
    from checkmate.demo.models import workloads

    workload = workloads()[name]
    torch.manual_seed(SEED)
    model = workload.build()
    if budget is not None:
        model = checkmate.torch.compile(model, budget=budget, time_limit=20.0)  # the line
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(number: int) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = workload.loss(model, workload.batch(number))
        loss.backward()
        optimizer.step()
        return loss.item()

    start = {key: tensor.numpy().copy() for key, tensor in model.state_dict().items()}
    step(0)
    peak = None
    if budget is None and limited_to is None:
        with checkmate.torch.measure("cpu") as measured:
            step(1)
        peak = measured.peak
    model.load_state_dict({key: torch.from_numpy(array) for key, array in start.items()})
    optimizer.zero_grad(set_to_none=True)
    del start
    limit = None
    if limited_to is not None:
        alive = sum(t.nbytes for t in {t.data_ptr(): t for t in model.state_dict().values()}.values())
        limit = used_memory() + limited_to - alive + SLACK
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.manual_seed(SEED + 1)
    losses = [step(number).hex() for number in range(STEPS)]
    plan = checkmate.torch.plans(model)[0] if budget is not None else None
    return {
        "losses": losses,
        "peak": peak,
        "limit": limit,
        "overhead": plan.schedule.overhead if plan else None,
        "predicted_peak": plan.predicted_peak if plan else None,
    }


def used_memory() -> int:
    """Bytes that count against RLIMIT_DATA, after what was freed has gone back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmData:")[1].split()[0]) * 1024


def run(name: str, budget: int | None = None, limited_to: int | None = None) -> dict[str, Any]:
    """`train` in a process: its result, or what it died of."""
    command = [sys.executable, __file__, "--worker", json.dumps([name, budget, limited_to])]
    # Blocks that torch frees go back to the system at once, instead of waiting in the C library for their next use.
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    started = time.perf_counter()
    process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, check=False)
    result: dict[str, Any] = {"completed": process.returncode == 0, "seconds": time.perf_counter() - started}
    if process.returncode == 0:
        return {**result, **json.loads(process.stdout.splitlines()[-1])}
    refused = REFUSED.search(process.stderr)
    last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    return {**result, "refused_bytes": int(refused[1]) if refused else None, "error": last}


def compare(name: str, share: float) -> dict[str, Any]:
    """The three runs of one model."""
    free = run(name)
    if not free["completed"]:
        sys.exit(f"plain training of {name} without a limit failed: {free['error']}")
    budget = int(share * free["peak"])
    plain = run(name, limited_to=budget)
    planned = run(name, budget=budget, limited_to=budget)
    same = planned.get("losses") == free["losses"]
    died = not plain["completed"] and plain["refused_bytes"] is not None
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


def format_row(row: dict[str, Any]) -> str:
    """One line of the table."""
    mebi = 2**20
    refused, planned = row["plain_limited"].get("refused_bytes"), row["planned_limited"]
    if row["plain_died_of_the_limit"]:
        plain_text = f"died (refused {refused / mebi:.1f} MiB)"
    else:
        plain_text = "survived" if row["plain_limited"]["completed"] else f"failed: {row['plain_limited']['error']}"
    if row["planned_completed"]:
        planned_text = f"trained, losses {'equal' if row['same_losses'] else 'DIFFER'}, overhead {planned['overhead']:.3f}"
    else:
        planned_text = f"failed: {planned['error']}"
    peaks = f"{row['plain_peak'] / mebi:10.1f}  {row['budget'] / mebi:8.1f}"
    return f"{row['model']:12} {peaks}  {plain_text:26}  {planned_text}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", action="append", choices=MODELS, help="one model (default: all)")
    parser.add_argument("--share", type=float, default=0.5, help="the budget as a share of the plain peak (default: 0.5)")
    parser.add_argument("--output", type=Path, default=Path("oom.json"), help="JSON file (default: oom.json)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(train(*json.loads(options.worker))))
        return 0
    from checkmate.demo.run import environment

    print(f"{'model':12} {'plain MiB':>10}  {'budget':>8}  {'plain, limited':26}  with the line, limited")
    rows = []
    for name in options.model or MODELS:
        rows.append(compare(name, options.share))
        print(format_row(rows[-1]), flush=True)
    data = {"environment": environment(), "seed": SEED, "steps": STEPS, "slack": SLACK, "rows": rows}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
