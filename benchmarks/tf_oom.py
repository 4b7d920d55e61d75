"""TensorFlow training that does not fit, under a real memory limit: plain training dies, `checkmate.tf2.compile` trains.

As in oom.py: the training script `train` runs in a process of its own, builds the U-Net of tf_models.py, takes one warm-up
step (which traces, and with checkmate plans), puts all variables back, and gives freed memory back to the system. Then it
sets RLIMIT_DATA to what the process uses at that point plus what the budget leaves to the step: budget - bytes of variables
and of the batch + slack (for page rounding, and what TensorFlow itself allocates in a step besides tensors). From there on the system
refuses every allocation beyond the limit, and the training that counts begins.

(1) plain without a limit, (2) plain under the limit, which must die of it, (3) ours under the limit, which must complete
with the losses of (1), bit for bit.

    python benchmarks/tf_oom.py [--model unet] [--share 0.5] [--output tf_oom.json]

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

from worker import environment

NAMES = ("unet", "mobilenet", "resnet50", "transformer")
STEPS = 5
SLACK = 16 << 20
MEBI = 2**20
#: What TensorFlow, oneDNN and the C++ library say when the system refuses them memory.
REFUSED = re.compile(
    r"OOM when allocating|ResourceExhausted|RESOURCE_EXHAUSTED|out of memory|bad_alloc|MemoryError|could not create a"
)


def train(name: str, budget: int | None, limited_to: int | None) -> dict[str, Any]:
    """The training script. `budget`: train with checkmate. `limited_to`: under a limit that leaves this many bytes."""
    import keras
    import tensorflow as tf
    from tf_models import plain_step, task, tensor_bytes

    import checkmate.tf2

    work = task(name)
    model, optimizer = work.build(), keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in (*model.variables, *optimizer.variables)]
    start = [variable.numpy() for variable in variables]
    x, y = (tf.constant(array) for array in work.batch(0))

    step: Any = plain_step(model, work.loss, optimizer)
    if budget is not None:
        step = checkmate.tf2.compile(model, work.loss, optimizer, x, y, budget=budget, time_limit=20.0)
    step(x, y)
    fixed = tensor_bytes([*variables, x, y])
    with checkmate.tf2.measure("CPU:0") as seen:
        step(x, y)
    for variable, array in zip(variables, start, strict=True):
        variable.assign(array)
    del start
    limit = None
    if limited_to is not None:
        limit = used_memory() + limited_to - fixed + SLACK
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    losses = []
    for number in range(STEPS):
        x, y = (tf.constant(array) for array in work.batch(number))
        losses.append(float(step(x, y)[1]).hex())
    plan = checkmate.tf2.plans(step)[0] if budget is not None else None
    return {
        "losses": losses,
        "peak": fixed + (seen.added or 0) if limited_to is None else None,  # the system's allocator does not count
        "limit": limit,
        "overhead": plan.schedule.overhead if plan else None,
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
    # TensorFlow's own pool keeps what was ever freed, so nothing after the first step would ask the system for memory; the
    # system's allocator asks for every tensor. It does not count, so the run without a limit, which is measured, has the pool.
    # Blocks that TensorFlow frees go back to the system at once, instead of waiting in the C library for their next use.
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "TF_CPP_MIN_LOG_LEVEL": "1"}
    if limited_to is not None:
        settings["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"
    started = time.perf_counter()
    process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, check=False)
    result: dict[str, Any] = {"completed": process.returncode == 0, "seconds": time.perf_counter() - started}
    if process.returncode == 0:
        return {**result, **json.loads(process.stdout.splitlines()[-1])}
    refused = REFUSED.search(process.stderr)
    last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    return {**result, "refused": refused[0] if refused else None, "error": last[:500]}


def compare(name: str, share: float) -> dict[str, Any]:
    """The three runs of one network."""
    free = run(name)
    if not free["completed"]:
        sys.exit(f"plain training of {name} without a limit failed: {free['error']}")
    budget = int(share * free["peak"])
    plain = run(name, limited_to=budget)
    planned = run(name, budget=budget, limited_to=budget)
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


def format_row(row: dict[str, Any]) -> str:
    """One line of the table."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", action="append", choices=NAMES, help="one network (default: unet)")
    parser.add_argument("--share", type=float, default=0.5, help="the budget as a share of the plain peak (default: 0.5)")
    parser.add_argument("--output", type=Path, default=Path("tf_oom.json"), help="JSON file (default: tf_oom.json)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(train(*json.loads(options.worker))))
        return 0
    print(f"{'model':12} {'plain MiB':>10}  {'budget':>8}  {'plain, limited':30}  ours, limited")
    rows = []
    for name in options.model or NAMES[:1]:
        rows.append(compare(name, options.share))
        print(format_row(rows[-1]), flush=True)
    data = {"environment": environment(), "steps": STEPS, "slack": SLACK, "rows": rows}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
