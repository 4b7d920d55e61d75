"""Training that does not fit, under a real memory limit: plain training dies, the same script with one more line trains.

The training script is `train` below, and `under_limit.py` runs it. The limit leaves it what the budget leaves to the step: budget - bytes of
tensors alive + 8 MiB (for page rounding and Python's own objects).

For each model: (1) plain without a limit, (2) plain under the limit, which must die of it, (3) with the line under the
limit, which must complete with the losses of (1), bit for bit.

    python benchmarks/oom.py [--model resnet] [--share 0.5] [--output oom.json]

Exit code 1 if (2) lives or (3) does not complete with the same losses. Linux only.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from under_limit import Limited, limit_memory

MODELS = ("resnet", "unet", "transformer")
SEED = 0
STEPS = 5
SLACK = 8 << 20


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
        limit = limit_memory(limited_to - alive + SLACK)
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


def says() -> dict[str, Any]:
    from checkmate.demo.run import environment

    return {"environment": environment(), "seed": SEED, "steps": STEPS, "slack": SLACK}


BENCHMARK = Limited(
    script=__file__,
    models=MODELS,
    usual=len(MODELS),
    train=train,
    # What torch's CPU allocator says.
    refused=re.compile(r"you tried to allocate \d+ bytes"),
    settings=lambda limited: {"TORCH_CPP_LOG_LEVEL": "ERROR"},
    says=says,
)


def main() -> int:
    return BENCHMARK.main(__doc__ or "", "oom.json")


if __name__ == "__main__":
    sys.exit(main())
