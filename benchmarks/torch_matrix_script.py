"""The training scripts of torch_matrix.py: one script with what its features say, and what one run of it shows."""

from __future__ import annotations

import contextlib
import hashlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_matrix_networks import Batch, Task

import checkmate.torch
from checkmate.errors import BudgetWarning, CheckmateError, InfeasibleBudget
from checkmate.torch.backend import sessions_of

SEED, STEPS = 0, 8
MEASURED = (2, 3, 8)
#: Of a script whose batches change: parts of the largest.
SHRUNK = (1.0, 0.75, 0.625, 1.0, 0.375, 0.875, 0.5, 1.0)
#: In the middle of training.
MIDDLE = 5

Compile = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Feature:
    """What a script does besides forward, loss, backward, step.

    Attributes:
        optimizer: "sgd" or "adamw". microbatches: backward passes before each step. forwards: forward passes before one backward.
        loss: "inside" the model, "outside" it, or inside behind a graph "break".
        examples, lengths: batches have changing numbers of them. regional: each block is compiled by itself.
        freeze: half of the blocks stop learning in the middle. evaluate: a pass without gradients after every step.
        scaled: losses are scaled as for float16. ddp: wrapped in DistributedDataParallel with several buckets.
        duel: the two models of a GAN take turns.
    """

    optimizer: str = "adamw"
    microbatches: int = 1
    forwards: int = 1
    loss: str = "inside"
    autocast: bool = False
    checkpoint: bool = False
    regional: bool = False
    tied: bool = False
    lora: bool = False
    freeze: bool = False
    retain: bool = False
    set_to_none: bool = True
    examples: bool = False
    lengths: bool = False
    average: bool = False
    hooks: bool = False
    evaluate: bool = False
    clip: bool = False
    scaled: bool = False
    ddp: bool = False
    duel: bool = False


FEATURES: dict[str, Feature] = {
    "sgd": Feature(optimizer="sgd"),
    "adamw": Feature(),
    "accumulation": Feature(microbatches=2),
    "graph-break": Feature(loss="break"),
    "loss-outside": Feature(loss="outside"),
    "autocast": Feature(autocast=True),
    "checkpoint": Feature(checkpoint=True),
    "regional": Feature(regional=True, loss="outside"),
    "tied": Feature(tied=True),
    "lora": Feature(lora=True, microbatches=2),
    "freezing": Feature(freeze=True),
    "two-forwards": Feature(forwards=2),
    "retain-graph": Feature(retain=True),
    "zero-grad-to-zero": Feature(set_to_none=False),
    "batch-sizes": Feature(examples=True),
    "lengths": Feature(lengths=True),
    "average": Feature(average=True, loss="outside"),
    "sparse-embedding": Feature(optimizer="sgd"),
    "hooks": Feature(hooks=True),
    "evaluation": Feature(evaluate=True),
    "clipping": Feature(clip=True),
    "scaler": Feature(autocast=True, scaled=True),
    "ddp": Feature(ddp=True, loss="outside"),
    "two-optimizers": Feature(duel=True),
}


# --- models ---


class WithLoss(nn.Module):
    """A network that returns its loss, after a graph break if that is wanted."""

    def __init__(self, net: nn.Module, loss: Callable[[Any, Tensor], Tensor], broken: bool):
        super().__init__()
        self.net, self.loss, self.broken = net, loss, broken

    def forward(self, *batch: Tensor) -> Tensor:
        output = self.net(*batch[:-1])
        if self.broken:
            torch._dynamo.graph_break()
        return self.loss(output, batch[-1])


class Checkpointed(nn.Module):
    """A block under torch's own checkpointing."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, *inputs: Tensor) -> Any:
        return checkpoint(self.block, *inputs, use_reentrant=False)


class LowRank(nn.Module):
    """A frozen layer and a small one beside it that learns."""

    def __init__(self, base: nn.Linear, rank: int = 4):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def _add_low_rank(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    layers = [
        (parent, name) for parent in net.modules() for name, layer in parent.named_children() if isinstance(layer, nn.Linear)
    ]
    for parent, name in layers:
        setattr(parent, name, LowRank(getattr(parent, name)))


def _blocks(net: nn.Module) -> nn.ModuleList:
    """The longest list of layers."""
    return max((m for m in net.modules() if isinstance(m, nn.ModuleList)), key=len)


def _prepared(task: Task, feature: Feature) -> nn.Module:
    """The network as the script changes it before anything is compiled."""
    net = task.build()
    if feature.tied:
        net.head.weight = net.embed.weight  # type: ignore[union-attr]
    if feature.lora:
        _add_low_rank(net)
    if feature.checkpoint and task.loss is None:
        net.gradient_checkpointing_enable()  # type: ignore[operator]
    elif feature.checkpoint:
        blocks = _blocks(net)
        for number, block in enumerate(blocks):
            blocks[number] = Checkpointed(block)
    if feature.hooks:
        _blocks(net)[0].register_forward_hook(lambda module, inputs, output: 1.1 * output)
        for parameter in _blocks(net)[-1].parameters():
            parameter.register_hook(lambda gradient: 0.5 * gradient)
    return net


class Script:
    """A user's training script.

    Attributes:
        net: what learns. hidden: bytes that live and that Python cannot see.
        outputs: called with what the model returns where it is to learn.
    """

    def __init__(self, task: Task, feature: Feature, compiled: Compile):
        self.task, self.feature = task, feature
        self.hidden = 0
        self.outputs: Callable[[Any], None] = lambda output: None
        self.net = _prepared(task, feature)
        if feature.regional:
            blocks = _blocks(self.net)
            for number, block in enumerate(blocks):
                blocks[number] = compiled(block)
        model = self.net
        if task.loss is not None and feature.loss != "outside":
            model = WithLoss(self.net, task.loss, feature.loss == "break")
        if feature.ddp:
            model = self._distributed(model)
        self.model = model if feature.regional else compiled(model)
        learning = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(learning, lr=1e-3) if feature.optimizer == "adamw" else torch.optim.SGD(learning, lr=1e-2)
        )
        self.average = torch.optim.swa_utils.AveragedModel(self.net) if feature.average else None
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=feature.scaled)

    def _distributed(self, model: nn.Module) -> nn.Module:
        import torch.distributed as dist

        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 16  # as small as these networks
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.hidden = sum(
            parameter.nbytes for parameter in model.parameters() if parameter.requires_grad
        )  # the reducer's buckets
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.25)

    def _loss(self, batch: Batch) -> Tensor:
        if self.task.loss is None:
            loss = self.model(batch[0], labels=batch[1]).loss
        elif self.feature.loss == "outside":
            output = self.model(*batch[:-1])
            self.outputs(output)
            return self.task.loss(output, batch[-1])
        else:
            loss = self.model(*batch)
        self.outputs(loss)
        return loss

    def step(self, number: int) -> list[Tensor]:
        """One step, from its batch to the optimizer's: its losses."""
        feature = self.feature
        if feature.freeze and number == MIDDLE:
            for parameter in _blocks(self.net)[0].parameters():
                parameter.requires_grad_(False)
        losses = []
        for micro in range(feature.microbatches):
            with torch.autocast("cpu", torch.bfloat16, enabled=feature.autocast):
                parts = [self._loss(self._batch(100 * micro + 10 * part + number, number)) for part in range(feature.forwards)]
            loss = sum(parts[1:], start=parts[0]) / feature.microbatches
            losses.append(loss.detach())
            scaled = self.scaler.scale(loss)
            if feature.retain:
                scaled.backward(retain_graph=True)
            scaled.backward()
            del parts, loss, scaled
        if feature.clip:
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update_parameters(self.net)
        self.optimizer.zero_grad(set_to_none=feature.set_to_none)
        if feature.evaluate:
            self.model.eval()
            with torch.no_grad():
                losses.append(self._loss(self._batch(number + 50, number)))
            self.model.train()
        return losses

    def _batch(self, seed: int, number: int) -> Batch:
        share = SHRUNK[number - 1]
        examples, length = self.task.examples, self.task.length
        return self.task.batch(
            seed,
            int(share * examples) if self.feature.examples else examples,
            int(share * length) if self.feature.lengths else length,
        )


class Duel(Script):
    """The script of a GAN: two models, two optimizers, taking turns."""

    def __init__(self, task: Task, feature: Feature, compiled: Compile):
        self.task, self.feature, self.hidden = task, feature, 0
        self.outputs = lambda output: None
        self.net: Any = task.build()
        self.generator, self.discriminator = compiled(self.net.generator), compiled(self.net.discriminator)
        self.makes = torch.optim.AdamW(self.net.generator.parameters(), lr=1e-3)
        self.judges = torch.optim.AdamW(self.net.discriminator.parameters(), lr=1e-3)

    def step(self, number: int) -> list[Tensor]:
        """One step of each."""
        real, _ = self._batch(number, number)
        noise = torch.randn(real.shape[0], 16, generator=torch.Generator().manual_seed(number))
        self.judges.zero_grad()
        false = self.generator(noise)
        scores, others = self.discriminator(real), self.discriminator(false.detach())
        judged = F.softplus(-scores).mean() + F.softplus(others).mean()
        judged.backward()
        self.judges.step()
        self.makes.zero_grad()
        fooled = F.softplus(-self.discriminator(false)).mean()
        self.outputs([false, scores, others])
        fooled.backward()
        self.makes.step()
        return [judged.detach(), fooled.detach()]


# --- runs ---


@dataclass(frozen=True)
class Run:
    """How to train once: `way` is "plain", "aot_eager", "function" or "name"; the budget is for the last two.

    Attributes:
        steps: how many. measured: those whose peak is taken where there is a budget; of plain training all but the first.
    """

    way: str
    budget: int | str | None = None
    time_limit: float = 5.0
    steps: int = STEPS
    measured: tuple[int, ...] = MEASURED

    def compiled(self, model: nn.Module) -> nn.Module:
        """The model as the script's one line makes it."""
        options = {"budget": self.budget, "time_limit": self.time_limit}
        if self.way == "function":
            return checkmate.torch.compile(model, **options)  # type: ignore[arg-type]
        if self.way == "name":
            return torch.compile(model, backend="checkmate", options=options)  # type: ignore[return-value]
        return torch.compile(model, backend="aot_eager") if self.way == "aot_eager" else model  # type: ignore[return-value]


def train(task: Task, feature: Feature, run: Run) -> dict[str, Any]:
    """Train in this process, which does nothing else: losses, final state, peaks, and what was planned."""
    torch.manual_seed(SEED)
    result: dict[str, Any] = {"losses": [], "peaks": {}, "bases": {}, "error": None, "infeasible": None}
    uncovered: set[str] = set()
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            script = (Duel if feature.duel else Script)(task, feature, run.compiled)
            torch.manual_seed(SEED + 1)
            if run.way in ("function", "name"):
                script.outputs = lambda output: uncovered.update(_nodes_outside(output))
            measured = range(2, run.steps + 1) if run.way == "plain" else run.measured
            for number in range(1, run.steps + 1):
                _step(script, number, number in measured, result)
                if number == 1:
                    result["first_step_seconds"] = time.perf_counter() - began
            result["state"] = _fingerprint(script.net)
            if run.way in ("function", "name"):
                result |= _planned(script.net)
        except InfeasibleBudget as error:
            result["infeasible"] = {"budget": error.budget, "proven": error.proven_minimum, "smallest": error.smallest_found}
            result["error"] = f"InfeasibleBudget: {error}"
        except Exception as error:  # noqa: BLE001 - a row that fails is a result
            result["error"] = f"{type(error).__name__}: {error}"[:2000]
            import traceback

            result["traceback"] = traceback.format_exc()[-3000:]
    told = {f"{type(one.message).__name__}: {one.message}" for one in caught if issubclass(one.category, BudgetWarning)}
    others = {f"{one.category.__name__}: {one.message}"[:200] for one in caught if not issubclass(one.category, BudgetWarning)}
    counted = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
    result |= {"warnings": sorted(told), "other_warnings": sorted(others), "handed_over": counted}
    return {**result, "uncovered": sorted(uncovered), "seconds": time.perf_counter() - began}


def _step(script: Script, number: int, measuring: bool, result: dict[str, Any]) -> None:
    context: Any = checkmate.torch.measure("cpu") if measuring else contextlib.nullcontext()
    with context as seen:
        losses = script.step(number)
    result["losses"].append([float(loss).hex() for loss in losses])
    if seen is not None:
        # In the second step the reducer makes its buckets anew: that is seen.
        hidden = 0 if number == 2 else script.hidden
        result["peaks"][str(number)] = seen.peak + hidden
        result["bases"][str(number)] = seen.base + hidden


def _fingerprint(net: nn.Module) -> str:
    """Of all parameters and buffers, bit for bit."""
    digest = hashlib.sha256()
    for tensor in [*net.parameters(), *net.buffers()]:
        digest.update(tensor.detach().contiguous().cpu().view(torch.uint8 if tensor.dim() else tensor.dtype).numpy().tobytes())
    return digest.hexdigest()


def _planned(net: nn.Module) -> dict[str, Any]:
    """The plans, and how many of the graphs that came are planned."""
    sessions = sessions_of(net.parameters())
    groups = {id(session.group): session.group for session in sessions}.values()
    parts = {part for group in groups for part in group.parts}  # those without parameters too
    planned = {one.part for group in groups for plan in group.plans for one in plan.passes}
    planned |= {part for part in parts if not part.trains}  # values die after their last use, or by a plan
    plans = {id(plan): plan for session in sessions for plan in session.plans}.values()
    shown = ("num_graphs", "budget", "reserved", "margin", "outside", "modelled_peak", "measured_peak", "executions")
    rows = [{**{name: getattr(plan, name) for name in shown}, "overhead": plan.schedule.overhead} for plan in plans]
    try:
        visible = len(checkmate.torch.plans(net))
    except CheckmateError:
        visible = 0
    return {"parts": len(parts), "planned_parts": len(parts & planned), "plans": rows, "plans_of_the_model": visible}


#: Autograd nodes that keep no tensor: leaves, compiled graphs, views.
_FREE = ("AccumulateGrad", "CompiledFunction", "Alias", "View", "UnsafeView", "Transpose", "TBackward", "Expand", "Unsqueeze")


def _nodes_outside(output: Any) -> Iterator[str]:
    """Autograd nodes behind what a model returned that no compiled graph is responsible for."""
    leaves = [x for x in torch.utils._pytree.tree_leaves(output) if isinstance(x, Tensor)]
    stack, seen = [x.grad_fn for x in leaves], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if not type(node).__name__.startswith(_FREE):
            yield type(node).__name__
        stack.extend(following for following, _ in node.next_functions)
