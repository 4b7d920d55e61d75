"""TensorFlow training that does not fit, under a real memory limit: plain training dies, `checkmate.tf2.compile` trains.

The training script is `train` below, for the networks of tf_models.py, and `under_limit.py` runs it. The limit leaves it what the budget leaves
to the step: budget - bytes of variables and of the batch + 16 MiB (for page rounding, and what TensorFlow itself allocates in a step besides
tensors).

(1) plain without a limit, (2) plain under the limit, which must die of it, (3) ours under the limit, which must complete
with the losses of (1), bit for bit.

    python benchmarks/tf_oom.py [--model unet] [--share 0.5] [--output tf_oom.json]

Exit code 1 if (2) lives or (3) does not complete with the same losses. Linux only.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from under_limit import Limited, limit_memory
from worker import environment

NAMES = ("unet", "mobilenet", "resnet50", "transformer")
STEPS = 5
SLACK = 16 << 20


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
        limit = limit_memory(limited_to - fixed + SLACK)
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


def settings(limited: bool) -> dict[str, str]:
    """TensorFlow's own pool keeps what was ever freed, so nothing after the first step would ask the system for memory; the system's allocator
    asks for every tensor. It does not count, so the run without a limit, which is measured, has the pool."""
    return {"TF_CPP_MIN_LOG_LEVEL": "1", **({"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"} if limited else {})}


BENCHMARK = Limited(
    script=__file__,
    models=NAMES,
    usual=1,
    train=train,
    # What TensorFlow, oneDNN and the C++ library say.
    refused=re.compile(
        r"OOM when allocating|ResourceExhausted|RESOURCE_EXHAUSTED|out of memory|bad_alloc|MemoryError|could not create a"
    ),
    settings=settings,
    says=lambda: {"environment": environment(), "steps": STEPS, "slack": SLACK},
)


def main() -> int:
    return BENCHMARK.main(__doc__ or "", "tf_oom.json")


if __name__ == "__main__":
    sys.exit(main())
