"""One way of training one network, for torch_overhead.py: a process that does nothing else, and answers requests.

Ways: eager, aot_eager, and checkmate under a budget. A step is timed from the call of the model to the end of the backward pass; the
optimizer, which is the same for all, runs outside of that.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import torch
from torch_peers_networks import UNet, _gpt, _llama, _resnet, _seen

from checkmate.errors import CheckmateError

TASKS = {
    "tiny": {"gpt": _gpt(2, 32, 2, 64, 16, 4), "resnet": _seen(partial(_resnet, (1, 1)), 32, 4)},
    "cpu": {
        "gpt2": _gpt(12, 768, 12, 50257, 64, 2),
        "resnet": _seen(partial(_resnet, (1, 1, 1, 1)), 64, 8),
        "llama": _llama(4, 256, 4, 4096, 128, 4),
        "tiny-gpt": _gpt(6, 64, 2, 256, 32, 4),
        "long-gpt": _gpt(4, 256, 8, 4096, 256, 4),
        "long-llama": _llama(4, 256, 4, 4096, 256, 4),
        "long-resnet": _seen(partial(_resnet, (2, 2, 2)), 96, 16),
        "unet": _seen(partial(UNet, 16), 128, 4, True),
    },
}


class Trainer:
    """A network that is trained one way.

    Args:
        request: with the scale, the network, the way, and for checkmate the budget and the seconds for a search.
    """

    def __init__(self, request: dict[str, Any]):
        task = TASKS[request["scale"]][request["network"]]
        torch.manual_seed(0)
        self.network = task.build().train()
        self.batch = task.batch(task.examples)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-4)
        self.model: Any = self.network
        if request["way"] == "aot_eager":
            self.model = torch.compile(self.network, backend="aot_eager")
        elif request["way"] == "checkmate":
            import checkmate.torch

            self.model = checkmate.torch.compile(self.network, request["budget"], time_limit=request["time_limit"], wait=True)

    def step(self) -> dict[str, float]:
        """Train once: seconds on the clock, seconds that processors worked for it, page faults, and the loss."""
        self.optimizer.zero_grad()
        faults = _faults()
        began, worked = time.perf_counter(), time.process_time()
        loss = self.model(*self.batch)
        loss.backward()
        worked, seconds = time.process_time() - worked, time.perf_counter() - began
        faults = _faults() - faults
        self.optimizer.step()
        return {"seconds": seconds, "cpu": worked, "faults": faults, "loss": loss.item()}

    def planned(self) -> dict[str, Any]:
        """What checkmate says of its plan."""
        import checkmate.torch

        plan = checkmate.torch.plans(self.network)[-1]
        names = ("predicted_peak", "measured_peak", "budget", "executions")
        known = {name: getattr(plan, name) for name in names}
        cost = plan.graph.ideal_cost
        return {**known, "overhead": plan.schedule.overhead, "ops": plan.graph.num_ops, "modelled_seconds": cost}


def _faults() -> int:
    """Pages that this process was given so far."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def main() -> None:
    trainer = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "make":
            try:
                trainer = Trainer(request)
                said: dict[str, Any] = {"losses": [trainer.step()["loss"] for _ in range(request["warm"])]}
                if request["way"] == "checkmate":
                    said |= trainer.planned()
            except CheckmateError as error:
                said = {"error": f"{type(error).__name__}: {error}"}
        else:
            assert trainer is not None
            said = trainer.step()
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
