"""Data-parallel training in two processes: `python torch_distributed.py RANK STORE` prints what each script of SCRIPTS shows, a line of JSON each.

Every script trains without a budget, then from the same weights under one, in the same process. The two processes have different
budgets, and with them different plans.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import sys
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.fsdp import fully_shard

import checkmate.torch
from checkmate.errors import BudgetWarning

WIDTH, ROWS, STEPS, RANKS = 32, 256, 3, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1, self.training)


class Together(Block):
    """Reads what the other process has computed, by collectives inside the compiled graph."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        everywhere = all_gather_tensor_autograd(x.tanh(), 0, dist.group.WORLD)
        return x + everywhere.view(RANKS, *x.shape).mean(0).sin()


class Net(nn.Module):
    def __init__(self, kind: type[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@dataclass(frozen=True)
class Script:
    """How to train.

    Attributes:
        wrap: "ddp", "fsdp" or nothing. first: compile before wrapping. by_name: by torch.compile.
        microbatches: in each step. sync: after each of them. shares: of the plain peak, for each process.
        percent: the budget is given as a percentage.
    """

    wrap: str = ""
    first: bool = False
    by_name: bool = False
    microbatches: int = 1
    sync: bool = True
    shares: tuple[float, float] = (0.8, 0.9)
    percent: bool = False


SCRIPTS = {
    "ddp, compiled before": Script("ddp", first=True),
    "ddp, compiled after": Script("ddp", by_name=True, microbatches=2),
    "ddp, no_sync": Script("ddp", microbatches=2, sync=False, percent=True),
    "fsdp": Script("fsdp"),
    "fsdp, accumulation": Script("fsdp", by_name=True, microbatches=2, sync=False, shares=(0.9, 1.0)),
    "collectives inside": Script(),
}


def compiled(model: nn.Module, script: Script, budget: int | str) -> Any:
    options: dict[str, Any] = {"budget": budget, "time_limit": 3.0}
    if script.wrap:  # what each process measures for itself cannot be compared
        options["cost_model"] = "flops"
    if not script.by_name:
        return checkmate.torch.compile(model, **options)
    if script.wrap == "fsdp":
        model.compile(backend="checkmate", options=options)
        return model
    return torch.compile(model, backend="checkmate", options=options)


def build(script: Script, budget: int | str | None) -> tuple[Net, Any]:
    """The network, and what the script calls."""
    torch.manual_seed(0)
    net = Net(Block if script.wrap else Together)
    if script.wrap == "fsdp":
        mesh = dist.init_device_mesh("cpu", (RANKS,))
        for block in net.blocks:
            if budget is not None:
                compiled(block, script, budget)
            fully_shard(block, mesh=mesh)
        return net, fully_shard(net, mesh=mesh)
    model: Any = net
    if budget is not None and (script.first or not script.wrap):
        model = compiled(model, script, budget)
    if script.wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1 / 32)
        if budget is not None and not script.first:
            model = compiled(model, script, budget)
    return net, model


def train(script: Script, rank: int, budget: int | str | None = None) -> dict[str, Any]:
    net, model = build(script, budget)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    torch.manual_seed(10 + rank)
    losses, peaks = [], []
    for step in range(STEPS):
        with checkmate.torch.measure("cpu") if step else contextlib.nullcontext() as seen:
            for micro in range(script.microbatches):
                waits = not script.sync and micro + 1 < script.microbatches
                if script.wrap == "fsdp":
                    model.set_requires_gradient_sync(not waits)
                with model.no_sync() if waits and script.wrap == "ddp" else contextlib.nullcontext():
                    random = torch.Generator().manual_seed(100 * rank + 10 * step + micro)
                    loss = model(torch.randn(ROWS, WIDTH, generator=random)).square().mean()
                    loss.backward()
                losses.append(float(loss.detach()).hex())
                del loss
            optimizer.step()
            optimizer.zero_grad()
        if seen is not None:
            # The reducer's buckets cannot be seen from Python, but when it makes them, which it does anew in the second step.
            hidden = sum(p.nbytes for p in net.parameters()) if script.wrap == "ddp" and step > 1 else 0
            peaks.append(seen.peak + hidden)
    shown = [(p.budget, p.num_graphs, p.schedule.overhead) for p in checkmate.torch.plans(model)] if budget is not None else []
    digest = hashlib.sha256()
    for parameter in net.parameters():
        local: Any = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        digest.update(local.detach().numpy().tobytes())
    return {"losses": losses, "state": digest.hexdigest(), "peaks": peaks, "plans": shown}


def run(script: Script, rank: int) -> dict[str, Any]:
    """Plain training twice and planned training once, nothing of one left for the next."""
    made: dict[str, Any] = {}
    share = script.shares[rank]
    for name in ("plain", "again", "planned"):
        budget: int | str | None = None
        if name == "planned":
            budget = f"{100 * share:g}%" if script.percent else int(share * max(made["plain"]["peaks"]))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made[name] = train(script, rank, budget)
        made[name]["warnings"] = [str(one.message) for one in caught if issubclass(one.category, BudgetWarning)]
        torch._dynamo.reset()
        gc.collect()
    return made


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 14  # type: ignore[attr-defined]  # as small as these networks
    wait = timedelta(minutes=30)  # who waits for it to end has less patience
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS, timeout=wait)
    for name, script in SCRIPTS.items():
        gc.freeze()  # what is there by now need not be searched for models: 55 s of processor time in both processes instead of 97
        print(json.dumps([name, run(script, rank)]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
