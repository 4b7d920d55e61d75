"""One way of training one network, for torch_peers.py: a process that does nothing else, and answers requests.

Ways:
    eager                   plain training
    checkpoint N            torch.utils.checkpoint around every N blocks; "sqrt": as many regions as blocks in each
    selective               torch.utils.checkpoint around every block, which keeps products of matrices
    partitioner SOLVER R    torch.compile with PyTorch's own memory budget, a ratio R of the activations, on eager kernels
    inductor                torch.compile
    inductor R              the same with PyTorch's own memory budget
    compiled checkpoint N, inductor checkpoint N
                            the network with its checkpoints, in torch.compile: on eager kernels, and on Inductor's
    checkmate               under a budget in bytes
    checkmate inductor      the same on Inductor's kernels
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch_peers_networks import TASKS, Network, square_root

_aten = torch.ops.aten
#: What selective checkpointing keeps: the choice of PyTorch's own examples.
_KEPT = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.convolution.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
}
#: `torch.compile` with PyTorch's own partitioner, and eager kernels.
_ATEN = "aot_eager_decomp_partition"


def _policy(context: Any, op: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


class Trainer:
    """A network in training.

    Args:
        request: scale, network, device and way; for checkmate the budget and the seconds for a search; examples, if not the task's own.
    """

    def __init__(self, request: dict[str, Any]):
        self.device = torch.device(request["device"])
        task = TASKS[request["scale"]][request["network"]]
        torch.manual_seed(0)
        self.network = task.build().train().to(self.device)
        batch = task.batch(request.get("examples") or task.examples)
        if self.device.type == "cuda":
            self.network.bfloat16()
        self.batch = [self._moved(tensor) for tensor in batch]
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-4)
        self.way = request["way"]
        self.model: Any = self._prepared(request)

    def _moved(self, tensor: Tensor) -> Tensor:
        moved = tensor.to(self.device)
        return moved.bfloat16() if self.device.type == "cuda" and tensor.is_floating_point() else moved

    def _prepared(self, request: dict[str, Any]) -> Any:
        network: Network = self.network
        kind, *details = self.way.split()
        if kind == "checkpoint":
            network.every = square_root(network) if details[0] == "sqrt" else int(details[0])
        elif kind == "selective":
            network.every = 1
            network.keywords = {"context_fn": partial(create_selective_checkpoint_contexts, _policy)}
        elif "checkpoint" in details:
            network.every = int(details[-1])
            return torch.compile(network, backend=_ATEN if kind == "compiled" else "inductor")
        elif kind in ("partitioner", "inductor"):
            import torch._functorch.config as config

            settings: Any = config
            if details:
                settings.activation_memory_budget = float(details[-1])
            if kind == "partitioner":
                settings.activation_memory_budget_solver = details[0]
            return torch.compile(network, backend=_ATEN if kind == "partitioner" else "inductor")
        elif kind == "checkmate":
            import checkmate.torch

            inner = details[0] if details else "eager"
            return checkmate.torch.compile(network, request["budget"], time_limit=request["time_limit"], wait=True, inner=inner)
        return network

    def step(self) -> float:
        """Train once; seconds."""
        self._wait()
        began = time.perf_counter()
        loss = self.model(*self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._wait()
        return time.perf_counter() - began

    def peak(self) -> dict[str, Any]:
        """Of one step, in bytes: what tensors take, and on CUDA what the allocator has reserved."""
        import checkmate.torch

        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        with checkmate.torch.measure(self.device) as seen:
            self.step()
        reserved = torch.cuda.max_memory_reserved(self.device) if self.device.type == "cuda" else None
        return {"peak": seen.peak, "reserved": reserved}

    def planned(self) -> dict[str, Any]:
        """What checkmate says of its plan."""
        import checkmate.torch

        plan = checkmate.torch.plans(self.network)[-1]
        names = ("predicted_peak", "measured_peak", "num_graphs", "budget")
        known = {name: getattr(plan, name) for name in names}
        return {**known, "overhead": plan.schedule.overhead, "gap": plan.schedule.gap, "ops": plan.graph.num_ops}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def answer(trainer: Trainer | None, request: dict[str, Any]) -> tuple[Trainer | None, dict[str, Any]]:
    """What to say to a request: to make a trainer and warm it up, or to train."""
    from checkmate.errors import InfeasibleBudget

    try:
        if request["do"] == "make":
            trainer = Trainer(request)
            began = time.perf_counter()
            if trainer.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(trainer.device)
            trainer.step()
            first = time.perf_counter() - began
            first_peak = torch.cuda.max_memory_allocated(trainer.device) if trainer.device.type == "cuda" else None
            trainer.step()
            made = {"first_step": first, "first_peak": first_peak, **trainer.peak()}
            return trainer, {**made, **(trainer.planned() if trainer.way.startswith("checkmate") else {})}
        assert trainer is not None
        return trainer, {"seconds": trainer.step()}
    except InfeasibleBudget as error:
        # Gradients are gone before the next step, which nothing that is planned at the first step can know.
        gradients = sum(p.nbytes for p in trainer.network.parameters()) if trainer else 0
        kept = "if no gradients are kept" in str(error)
        named = error.smallest_found - kept * gradients
        return None, {"error": f"{type(error).__name__}: {error}"[:500], "smallest": error.smallest_found, "named": named}
    except Exception as error:  # noqa: BLE001 - a way that fails is a result
        return None, {"error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    trainer = None
    for line in sys.stdin:
        trainer, said = answer(trainer, json.loads(line))
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
