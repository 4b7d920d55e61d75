"""One way of training one network, or several in turn, for torch_peers.py and gpu.py: a process that does nothing else, and answers requests.

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
    checkmate reserved      the same, and the budget is on what CUDA's allocator reserves
"""

from __future__ import annotations

import fcntl
import gc
import json
import math
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch._functorch.config
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch_peers_networks import TASKS, Network, Task, square_root

_aten = torch.ops.aten
_functorch: Any = torch._functorch.config
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
#: Ways whose first step compiles nothing.
_NOT_COMPILED = ("eager", "checkpoint", "selective")
#: Steps for the highest peak of several.
_LATER = 5
#: Seconds between two looks whether it is this process's turn.
_PAUSE = 0.01


def _policy(context: Any, op: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


class Turn:
    """A turn on a device that processes share.

    Args:
        paths: of files. Whoever has a lock on one of them may step, whoever has all of them is alone. None: nobody else is there, and
            none of this does anything.
    """

    def __init__(self, paths: list[str] | None, device: torch.device):
        self.device = device
        self.taken = False
        self._files = [open(path, "ab") for path in paths or ()]  # noqa: SIM115 - as long as the process

    def take(self, alone: bool = False) -> None:
        """Wait for it. Who has it keeps it as it is."""
        if not self._files or self.taken:
            return
        if alone:
            for file in self._files:
                fcntl.flock(file, fcntl.LOCK_EX)
        else:
            while not any(_locked(file) for file in self._files):
                time.sleep(_PAUSE)
        self.taken = True

    def give(self) -> None:
        """To the next one, with the memory in which nothing lives."""
        if self.taken:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            for file in self._files:
                fcntl.flock(file, fcntl.LOCK_UN)
            self.taken = False

    @contextmanager
    def planning(self, stay: bool) -> Iterator[None]:
        """Where checkmate plans: it takes its turn while it profiles ops, and if it is to stay, for good once it has a plan.

        In between it searches, which others need not wait for.
        """
        from checkmate.torch.rounds import planner

        if not self._files:
            yield
            return
        profile, make = planner.profile_nodes, planner.Planner.make

        def profiled(*arguments: Any, **keywords: Any) -> Any:
            had = self.taken
            self.take(alone=True)
            try:
                return profile(*arguments, **keywords)
            finally:
                if not had:
                    self.give()

        def made(*arguments: Any, **keywords: Any) -> Any:
            plan = make(*arguments, **keywords)
            if stay:
                self.take()
            return plan

        with patch.object(planner, "profile_nodes", profiled), patch.object(planner.Planner, "make", made):
            yield


def _locked(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Trainer:
    """A network in training.

    Args:
        request: scale, network, device and way; for checkmate the budget and the seconds for a search; examples, if not the task's own;
            lock: files, if other processes use the device, too, which then take turns.
        others: bytes of what else trains in this process, which do not count.
    """

    def __init__(self, request: dict[str, Any], others: int = 0):
        self.others = others
        self.device = torch.device(request["device"])
        self.turn = Turn(request.get("lock"), self.device)
        task = TASKS[request["scale"]][request["network"]]
        self.network = built(task, self.device)
        self.batch = [moved(tensor, self.device) for tensor in task.batch(request.get("examples") or task.examples)]
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-4)
        self.way = request["way"]
        self.model: Any = self._prepared(request)

    def _prepared(self, request: dict[str, Any]) -> Any:
        network: Network = self.network
        kind, *details = self.way.split()
        _functorch.activation_memory_budget = 1.0  # of the whole process: another way may have set it
        if kind == "checkpoint":
            network.every = square_root(network) if details[0] == "sqrt" else int(details[0])
        elif kind == "selective":
            network.every = 1
            network.keywords = {"context_fn": partial(create_selective_checkpoint_contexts, _policy)}
        elif "checkpoint" in details:
            network.every = int(details[-1])
            return torch.compile(network, backend=_ATEN if kind == "compiled" else "inductor")
        elif kind in ("partitioner", "inductor"):
            if details:
                _functorch.activation_memory_budget = float(details[-1])
            if kind == "partitioner":
                _functorch.activation_memory_budget_solver = details[0]
            return torch.compile(network, backend=_ATEN if kind == "partitioner" else "inductor")
        elif kind == "checkmate":
            import checkmate.torch

            options: dict[str, Any] = {"time_limit": request["time_limit"], "wait": True}
            if details:
                options.update({"of": "reserved"} if details[0] == "reserved" else {"inner": details[0]})
            return checkmate.torch.compile(network, request["budget"], **options)
        return network

    def step(self, times: int = 1) -> float:
        """Train so many times in a row; seconds."""
        self._wait()
        began = time.perf_counter()
        for _ in range(times):
            loss = self.model(*self.batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self._wait()
        return time.perf_counter() - began

    def warm(self) -> dict[str, Any]:
        """What the first steps take: seconds and bytes."""
        import checkmate.torch

        cuda = self.device.type == "cuda"
        if self.way.split()[0] in _NOT_COMPILED:  # else others would wait for a compiler
            self.turn.take()
        began = time.perf_counter()
        # checkmate measures this step itself, which begins CUDA's counters anew, and which on a CPU nobody else can do at the same time.
        measured = checkmate.torch.measure(self.device) if cuda else nullcontext()
        # Where Inductor compiles after the plan, the first step has no turn.
        with self.turn.planning(stay="inductor" not in self.way), measured as seen:
            self.step()
        made: dict[str, Any] = {"first_step": time.perf_counter() - began, "first_peak": seen.peak if seen else None}
        if cuda:
            made["first_reserved"] = torch.cuda.max_memory_reserved(self.device)
        if cuda and not self.turn.taken:
            torch.cuda.empty_cache()  # others step meanwhile
        self.turn.take()
        self.step()
        made.update(self.peak())
        if cuda:
            made["later_peak"] = self.later_peak()
        self.turn.give()
        return made

    def times(self, number: int) -> list[float]:
        """Seconds of so many steps, after one that does not count: it gets its memory from the device anew.

        On a GPU it is their mean, for as in training the host goes on to the next step while the device is at work on this one.
        """
        self.turn.take()
        self.step()
        cuda = self.device.type == "cuda"
        seconds = [self.step(number) / number] if cuda else [self.step() for _ in range(number)]
        self.turn.give()
        return seconds

    def peak(self) -> dict[str, Any]:
        """Of one step, in bytes: what tensors take, and on CUDA what the allocator has reserved, and what it was asked for."""
        import checkmate.torch

        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.empty_cache()
        with checkmate.torch.measure(self.device) as seen:
            self.step()
        reserved = torch.cuda.max_memory_reserved(self.device) if cuda else None
        requested = torch.cuda.memory_stats(self.device).get("requested_bytes.all.peak") if cuda else None
        return {"peak": seen.peak - self.others, "reserved": reserved, "requested": requested}

    def later_peak(self) -> int:
        """The highest of several steps in a row, as CUDA's allocator counts it."""
        import checkmate.torch

        with checkmate.torch.measure(self.device) as seen:
            for _ in range(_LATER):
                self.step()
        return seen.peak

    def planned(self) -> dict[str, Any]:
        """What checkmate says of its plan."""
        import checkmate.torch

        plan = checkmate.torch.plans(self.network)[-1]
        names = ("predicted_peak", "measured_peak", "num_graphs", "budget")
        known = {name: getattr(plan, name) for name in names}
        known.update(overhead=plan.schedule.overhead, gap=plan.schedule.gap, ops=plan.graph.num_ops)
        return {**known, "op_seconds": math.fsum(op.cost for op in plan.graph.ops)}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def built(task: Task, device: torch.device) -> Network:
    """A network to train, on its device from the start, where random numbers for it are soon drawn."""
    torch.manual_seed(0)
    with device:
        network = task.build().train()
    if device.type == "cuda":
        network.bfloat16()
        torch.cuda.empty_cache()  # twice as much, in which nothing lives
    return network


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A part of a batch."""
    there = tensor.to(device)
    return there.bfloat16() if device.type == "cuda" and tensor.is_floating_point() else there


def largest(request: dict[str, Any]) -> dict[str, Any]:
    """The largest batch within a budget: plain by doubling and halving, ours by planning and one real step."""
    import checkmate.torch

    device, budget = torch.device(request["device"]), request["budget"]
    turn, task = Turn(request.get("lock"), device), TASKS[request["scale"]][request["network"]]
    model = built(task, device)

    def inputs(examples: int) -> dict[str, Tensor]:
        given, target = (moved(x, device) for x in task.batch(examples))
        names = ("words", "following") if given.dtype == torch.int64 else ("pictures", "labels")
        return dict(zip(names, (given, target), strict=True))

    def fits(examples: int) -> bool:
        turn.take()
        try:
            with checkmate.torch.measure(device) as seen:
                model(**inputs(examples)).backward()
            return seen.peak <= budget
        except torch.OutOfMemoryError:
            return False
        finally:
            model.zero_grad(set_to_none=True)
            turn.give()

    if request["way"] == "checkmate":
        with turn.planning(stay=False):
            found = checkmate.torch.max_batch_size(
                model,
                inputs,
                budget,
                time_limit=request["time_limit"],
                max_overhead=request["max_overhead"],
                multiple_of=request["multiple_of"],
            )
        plan = found.plan
        known = {"overhead": plan.schedule.overhead, "measured_peak": plan.measured_peak, "tried": found.tried}
        return {"batch": int(found), "budget": budget, "seconds": found.seconds, **known}
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {"batch": low, "budget": budget}


def make(trainer: Trainer) -> dict[str, Any]:
    """Warm it up; what it takes, and what checkmate says and warns of."""
    from checkmate.errors import BudgetWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BudgetWarning)
        said = trainer.warm()
    texts = [str(one.message)[:300] for one in caught if issubclass(one.category, BudgetWarning)]
    return {**said, **(trainer.planned() if trainer.way.startswith("checkmate") else {}), "warnings": texts}


def answer(trainers: dict[str, Trainer], request: dict[str, Any]) -> dict[str, Any]:
    """What to say to a request: to make a trainer and warm it up, to train, or to find the largest batch.

    Args:
        trainers: by the name that requests call them by ("as"), if there are several.
    """
    from checkmate.errors import InfeasibleBudget

    name = request.get("as", "")
    trainer = trainers.pop(name, None)  # one that fails is gone
    try:
        if request["do"] == "make":
            trainer = Trainer(request, _held(request["device"]) if trainers else 0)
            said = make(trainer)
        elif request["do"] == "largest":
            return largest(request)
        else:
            assert trainer is not None
            said = {"seconds": trainer.times(request["times"]) if "times" in request else trainer.step()}
        trainers[name] = trainer
        return said
    except InfeasibleBudget as error:
        # Gradients are gone before the next step, which nothing that is planned at the first step can know.
        gradients = sum(p.nbytes for p in trainer.network.parameters()) if trainer else 0
        kept = "if no gradients are kept" in str(error)
        named = error.smallest_found - kept * gradients
        said = {"error": f"{type(error).__name__}: {error}"[:500], "smallest": error.smallest_found, "named": named}
    except Exception as error:  # noqa: BLE001 - a way that fails is a result
        said = {"error": f"{type(error).__name__}: {error}"[:500]}
    if trainer is not None:
        gc.collect()  # the turn ends with what the failed step has made, which its error held until here
        trainer.turn.give()
    return said


def _held(device: str) -> int:
    """Bytes that this process holds on the device."""
    import checkmate.torch

    gc.collect()
    with checkmate.torch.measure(torch.device(device)) as seen:
        pass
    return seen.base


def main() -> None:
    import checkmate.torch  # noqa: F401 - before the first request, while nobody waits for it

    trainers: dict[str, Trainer] = {}
    for line in sys.stdin:
        print(json.dumps(answer(trainers, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
