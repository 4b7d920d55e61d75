"""One plan for the whole step: several graphs, several microbatches, what training holds, and sizes that change."""

from __future__ import annotations

import copy
import gc
import random
import warnings
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import checkmate
import checkmate.torch
from checkmate import Graph
from checkmate.planning import Allowance, Options
from checkmate.torch import BudgetWarning
from checkmate.torch.graphs import part
from checkmate.torch.graphs.capture import Captured
from checkmate.torch.graphs.halves import Halves
from checkmate.torch.memory import script_memory
from checkmate.torch.rounds import planner
from checkmate.torch.rounds.planner import Planner
from torch_models import identical

FLOPS = {"cost_model": "flops", "time_limit": 3.0, "gap": 0.02}


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norm(x)))), 0.1, self.training)


class Stack(nn.Module):
    """Blocks of a transformer without attention; with `breaks`, PyTorch makes a graph of each."""

    def __init__(self, breaks: bool = False, width: int = 32, depth: int = 4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            if self.breaks:
                torch._dynamo.graph_break()
        return x.square().mean()


def stack(breaks: bool = False) -> tuple[Stack, Tensor]:
    torch.manual_seed(0)
    return Stack(breaks), torch.randn(256, 32)


Step = Callable[[nn.Module, torch.optim.Optimizer], Tensor]


def train(model: nn.Module, step: Step, steps: int = 3) -> list[Tensor]:
    """Losses and parameters after AdamW has trained."""
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = [step(model, optimizer) for _ in range(steps)]
    return [*losses, *(p.detach() for p in model.parameters())]


def one_batch(x: Tensor) -> Step:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def plain_peak(model: nn.Module, step: Step) -> int:
    """Bytes that the second step of plain training takes, the parameters and AdamW's state included."""
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    optimizer.zero_grad()
    with checkmate.torch.measure("cpu") as seen:
        step(model, optimizer)
    return 3 * sum(p.nbytes for p in model.parameters()) + seen.peak - seen.base


# PyTorch looks at the gradient of what goes from one graph to the next.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:a part of Stack runs outside the plan")
def test_graphs_of_one_step_are_planned_as_one() -> None:
    base, x = stack(breaks=True)
    planned = checkmate.torch.compile(copy.deepcopy(base), budget="75%", **FLOPS)
    assert identical(train(planned, one_batch(x)), train(base, one_batch(x)))
    (plan,) = checkmate.torch.plans(planned)
    assert plan.graph.num_ops > 4 * 8  # all blocks are in it
    assert plan.executions == 2
    assert plan.schedule.num_recomputations > 0
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.predicted_peak <= plan.budget


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:a part of")
def test_blocks_compiled_one_by_one_share_the_budget() -> None:
    base, x = stack()
    planned = copy.deepcopy(base)
    for block in planned.blocks:
        checkmate.torch.compile(block, budget="150KiB", **FLOPS)  # what one of them takes, not all
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        train(planned, one_batch(x))
    refused, least = weakref.ref(planned), caught.value.smallest_found
    del caught, block
    planned = copy.deepcopy(base)
    gc.collect()
    assert refused() is None  # what is remembered of an error holds no tensors
    for block in planned.blocks:
        checkmate.torch.compile(block, budget=least, **FLOPS)
    assert identical(train(planned, one_batch(x)), train(base, one_batch(x)))
    plans = {id(plan): plan for block in planned.blocks for plan in checkmate.torch.plans(block)}
    plan = next(plan for plan in plans.values() if plan.executions == 2)
    assert plan.schedule.num_recomputations > 0
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget


def test_what_training_holds_counts() -> None:
    """The state of the optimizer from the first step on, and gradients of earlier microbatches once there are any."""
    base, x = stack()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        losses = torch.stack([microbatch(model, part) for part in x.chunk(2)])
        optimizer.step()
        return losses

    def microbatch(model: nn.Module, part: Tensor) -> Tensor:
        loss = model(part)
        loss.backward()
        return loss.detach()

    budget = int(0.8 * plain_peak(copy.deepcopy(base), step))
    planned = checkmate.torch.compile(copy.deepcopy(base), budget=budget, **FLOPS)
    assert identical(train(planned, step), train(base, step))
    parameters = sum(p.nbytes for p in base.parameters())
    first, second = checkmate.torch.plans(planned)
    assert 2 * parameters <= first.outside < 2 * parameters + 1000  # AdamW's two moments, predicted
    assert 3 * parameters <= second.outside < 3 * parameters + 1000
    for plan in (first, second):
        assert plan.budget == budget
        assert plan.measured_peak is not None
        assert plan.measured_peak <= budget


class Scored(Stack):
    """Returns the loss and what it is made of."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # another model
        for block in self.blocks:
            x = block(x)
        return x.square().mean(), x.exp()


def test_what_is_left_of_earlier_steps_counts_for_as_long_as_it_lives() -> None:
    """Each step runs under a plan with room for that; where the first plan has none, under another one."""
    others = 0
    for share in (0.9, 0.8, 0.7):
        torch.manual_seed(0)
        model, x = Scored(), torch.randn(256, 32)
        budget = int(share * plain_peak(copy.deepcopy(model), lambda model, _, x=x: model(x)[0].backward()))
        checkmate.torch.compile(model, budget=budget, **FLOPS)
        kept = []

        def ran(model: nn.Module = model, x: Tensor = x, kept: list[Tensor] = kept) -> checkmate.torch.Plan:
            before = [plan.executions for plan in checkmate.torch.plans(model)]
            model.zero_grad()
            loss, scores = model(x)
            loss.backward()
            kept.append(scores)
            now = checkmate.torch.plans(model)
            return next(plan for plan, count in zip(now, [*before, 0], strict=False) if plan.executions > count)

        first, second = ran(), ran()
        del kept[1]  # the scores of the first step stay
        assert second.modelled_peak - second.outside + second.margin + first.outside + x.nbytes <= budget
        assert ran() is second
        others += second is not first
    assert others


class Headed(nn.Module):
    """Blocks, and a head and a loss that take more than all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = Stack(depth=2).blocks, nn.Linear(32, 512)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), torch.zeros(len(x), dtype=torch.int64))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:a part of")
def test_what_plain_parts_keep_between_the_passes_counts() -> None:
    """In a script whose blocks are compiled one by one, the budget that the error names holds from the second step on."""
    torch.manual_seed(0)
    base, x = Headed(), torch.randn(256, 32)

    def compiled(budget: int | str) -> tuple[Headed, Callable[[], None]]:
        model = copy.deepcopy(base)
        for block in model.blocks:
            checkmate.torch.compile(block, budget=budget, **FLOPS)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()

        return model, step

    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        compiled("1KiB")[1]()
    budget = caught.value.smallest_found
    del caught
    model, step = compiled(budget)
    step()
    for _ in range(2):
        model.zero_grad()
        with checkmate.torch.measure("cpu") as seen:
            step()
        assert sum(p.nbytes for p in model.parameters()) + x.nbytes + seen.peak - seen.base <= budget


class Loop(Stack):
    """PyTorch does not compile the loop, only the blocks."""

    @torch._dynamo.disable(recursive=False)
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:a part of")
def test_a_first_step_that_has_room_for_one_graph_only_is_refused() -> None:
    """A plan for the first graph alone, made when nothing told of others, is no training that could go on."""
    torch.manual_seed(0)
    model: nn.Module = torch.compile(Loop(depth=12), backend="checkmate", options={"budget": "2.5MB", **FLOPS})
    with pytest.raises(checkmate.InfeasibleBudget):
        model(torch.randn(1024, 32)).backward()


def test_what_two_backward_passes_take_is_known_from_the_second_step_on() -> None:
    base, x = stack()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    peak = plain_peak(copy.deepcopy(base), step)
    planned = checkmate.torch.compile(copy.deepcopy(base), budget=6 * peak // 10, wait=True, **FLOPS)
    optimizer = torch.optim.AdamW(planned.parameters())
    with warnings.catch_warnings(record=True) as caught:  # of the first step, if it takes more
        warnings.simplefilter("always")
        step(planned, optimizer)
    optimizer.zero_grad()
    for _ in range(2):
        with checkmate.torch.measure("cpu") as seen:
            step(planned, optimizer)
        optimizer.zero_grad()
        assert 3 * sum(p.nbytes for p in planned.parameters()) + seen.peak - seen.base <= 6 * peak // 10
    assert sum(issubclass(one.category, BudgetWarning) for one in caught) <= 1
    (plan,) = checkmate.torch.plans(planned)
    assert plan.margin > 0


def test_what_a_script_has_when_backward_passes_run_once_more_is_known_from_the_second_step_on() -> None:
    """As gradients of several tasks over one forward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(96, 96), nn.Tanh())), nn.Linear(96, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weights, x = [*model.parameters()], torch.randn(512, 96)

    def step() -> None:
        losses = model(x).square().mean(0)
        gradients = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in losses for _ in range(3)]
        losses.sum().backward()
        assert len(gradients) == 9
        optimizer.step()
        optimizer.zero_grad()

    with checkmate.torch.measure("cpu") as seen:
        step()
    own = sum(tensor.nbytes for tensor in (x, *weights))
    budget = own + (seen.peak - seen.base) * 9 // 10
    checkmate.torch.compile(model, budget=budget, **FLOPS)
    with pytest.warns(BudgetWarning, match="a step took up to .* the script holds"):
        step()
    for _ in range(2):
        with checkmate.torch.measure("cpu") as seen:
            step()
        assert own + seen.peak - seen.base <= budget
    (plan,) = checkmate.torch.plans(model)
    assert plan.schedule.overhead > 1


def test_many_backward_passes_over_one_forward_pass_are_not_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a Jacobian: a look takes longer than such a pass. The last one is looked at from the second step on."""
    model = nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40))
    checkmate.torch.compile(model, budget="1GiB", **FLOPS)
    looked: list[int] = []
    gradients: list[Tensor] = []
    recording = script_memory.Recording
    monkeypatch.setattr(script_memory, "Recording", lambda: looked.append(len(gradients)) or recording())

    for last in ([], [39]):
        x = torch.ones(1, 40, requires_grad=True)
        (out,) = model(x)
        for one in out:
            gradients += torch.autograd.grad(one, x, retain_graph=True)
        del out, one
        for plain in x.square().sum(0):  # they run nothing once more
            torch.autograd.grad(plain, x, retain_graph=True)
        assert looked == [*range(9), 16, 32, *last]
        gradients.clear()
        looked.clear()


def test_a_forward_pass_that_fails_is_waited_for_by_nobody() -> None:
    """Another model with the same options would be taken for a part of the step that it began, which never ends."""
    failing = checkmate.torch.compile(nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 8)), budget="1GiB", **FLOPS)
    words = torch.arange(4)
    failing(words).sum().backward()
    with pytest.raises(IndexError):
        failing(2 * words)
    other = checkmate.torch.compile(nn.Linear(8, 8), budget="1GiB", **FLOPS)
    other(torch.randn(4, 8)).sum().backward()
    failing(words).sum().backward()
    assert [plan.num_graphs for model in (other, failing) for plan in checkmate.torch.plans(model)] == [1, 1]


def least_without_gradients(model: nn.Module, x: Tensor) -> int:
    """The budget that does if no gradients are kept from one batch to the next."""
    probe = checkmate.torch.compile(copy.deepcopy(model), budget="1KiB", **FLOPS)
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        probe(x)
    without = caught.value.smallest_found - sum(p.nbytes for p in model.parameters())
    assert f"{without} bytes) if no gradients are kept" in str(caught.value)
    return without


def test_training_goes_on_where_no_plan_has_room() -> None:
    base, x = stack()
    expected = copy.deepcopy(base)
    planned = checkmate.torch.compile(copy.deepcopy(base), budget=least_without_gradients(base, x), **FLOPS)
    torch.manual_seed(3)
    planned(x).backward()
    with pytest.warns(BudgetWarning, match="no plan was found that takes less"):
        planned(x).backward()  # gradients of the first batch are in the way
    torch.manual_seed(3)
    for _ in range(2):
        expected(x).backward()
    assert identical([p.grad for p in planned.parameters()], [p.grad for p in expected.parameters()])  # type: ignore[misc]  # none is None


class Summary(nn.Sequential):
    """Returns its loss, and a few rows."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = super().forward(x)
        return y.square().mean(), y[:16].clone()


def test_what_training_holds_may_grow_from_step_to_step_until_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkmate.torch.rounds.growth._GROWTHS", 2)
    torch.manual_seed(0)
    model = Summary(*(layer for _ in range(5) for layer in (nn.Linear(64, 64), nn.Tanh())))
    x, kept = torch.randn(256, 64), []

    def step() -> Tensor:
        loss, summary = model(x)
        loss.backward()
        model.zero_grad()
        return summary.detach()

    own = x.nbytes + sum(p.nbytes for p in model.parameters())
    gc.collect()  # what other tests have left, which would be released while this is measured
    with checkmate.torch.measure() as plain:
        step()
    budget = own + (plain.peak - plain.base) * 9 // 10
    checkmate.torch.compile(model, budget=budget, **FLOPS)
    for number in range(30):
        before = sum(y.nbytes for y in kept)
        if number % 3:  # the first round of each plan is measured
            kept.append(step())
        else:
            with checkmate.torch.measure() as seen:
                kept.append(step())
            assert own + before + seen.peak - seen.base <= budget
    assert len(checkmate.torch.plans(model)) >= 4
    with pytest.warns(BudgetWarning, match="no plan was found that takes less"):
        kept.extend(step() for _ in range(200))
    assert len(checkmate.torch.plans(model)) <= 8  # each leaves more room than the one before


def made_plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each plan that is sought from now on."""
    make, calls = Planner.make, []

    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        return make(*arguments, **keywords)

    monkeypatch.setattr(Planner, "make", counted)
    return calls


def seeks_no_more(step: Callable[[], int], first: str, further: int) -> None:
    """Steps that say how many plans were made so far: the first two are told, and further ones make none."""
    with pytest.warns(BudgetWarning, match=first):
        step()
    with pytest.warns(BudgetWarning, match="no plan was found that takes less"):
        made = step()
    assert [step() for _ in range(further)] == [made] * further


def test_a_plan_for_two_backward_passes_that_does_not_exist_is_not_sought_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    base, x = stack()
    planned = checkmate.torch.compile(base, budget=least_without_gradients(base, x), **FLOPS)
    calls = made_plans(monkeypatch)

    def step() -> int:
        planned.zero_grad()
        loss = planned(x)
        loss.backward(retain_graph=True)
        loss.backward()
        return len(calls)

    seeks_no_more(step, "the first step peaked", 3)


def test_nor_is_one_for_a_loss_outside_that_leaves_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script has is looked at in several rounds."""
    torch.manual_seed(0)
    planned = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())))
    x = torch.randn(256, 32)
    optimizer = torch.optim.SGD(planned.parameters(), 0.1)
    checkmate.torch.compile(planned, budget=20 * x.nbytes, **FLOPS)
    calls = made_plans(monkeypatch)

    def step() -> int:
        torch.cat([planned(x)] * 8).sin().exp().square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return len(calls)

    seeks_no_more(step, "what the script computes", 4)


def test_the_budget_that_an_error_names_does_for_several_batches() -> None:
    """That gradients add up is not known when the error is raised, in the first batch."""
    base, x = stack()
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        checkmate.torch.compile(copy.deepcopy(base), budget="1KiB", **FLOPS)(x)
    planned = checkmate.torch.compile(copy.deepcopy(base), budget=caught.value.smallest_found, **FLOPS)
    for _ in range(3):
        planned(x).backward()
    plans = checkmate.torch.plans(planned)
    assert max(plan.modelled_peak for plan in plans) <= caught.value.smallest_found
    assert max(plan.outside for plan in plans) >= sum(p.nbytes for p in base.parameters())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_graph_has_no_plan_of_its_own_while_others_are_to_come() -> None:
    """Else the first one would take all of the budget, and leave nothing to those that were compiled with it."""
    base, x = stack()
    for block in base.blocks:
        checkmate.torch.compile(block, budget="1GiB", **FLOPS)
    first, *others = base.blocks
    y = first(x)
    assert checkmate.torch.plans(first) == []
    for block in others:
        y = block(y)
    y.sum().backward()
    assert [plan.num_graphs for plan in checkmate.torch.plans(base)] == [4]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_safe_plans_leave_room_for_what_earlier_graphs_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    base, x = stack()
    seen: list[int] = []
    make = planner.safe_halves

    def noted(captured: Captured, options: Options, allowance_of: Callable[[Graph], Allowance]) -> Halves:
        seen.append(allowance_of(captured.graph).outside)
        return make(captured, options, allowance_of)

    monkeypatch.setattr(planner, "safe_halves", noted)
    for block in base.blocks:
        checkmate.torch.compile(block, budget="1GiB", **FLOPS)
    base(x).backward()
    # All blocks are equal: what is added is at least what the one before has returned.
    assert len(seen) == 4
    assert all(later - earlier >= x.nbytes for earlier, later in pairwise(seen))


class Fork(nn.Module):
    """Which graphs run is decided anew in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = Block(32), Block(32), Block(32)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return (self.left(x) if left else self.right(self.right(x))).square().mean()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_every_order_of_graphs_has_a_plan() -> None:
    torch.manual_seed(0)
    base, x = Fork(), torch.randn(64, 32)
    planned = checkmate.torch.compile(copy.deepcopy(base), budget="1MiB", **FLOPS)
    ways = iter([True, False, True, True, False, False, True] * 2)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        loss = model(x, next(ways))
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert identical(train(planned, step, 7), train(base, step, 7))
    assert len(checkmate.torch.plans(planned)) == 2
    assert all(plan.num_graphs == 2 for plan in checkmate.torch.plans(planned))


def test_what_backward_needs_must_not_change() -> None:
    base, x = stack()
    planned = checkmate.torch.compile(base, budget="90%", **FLOPS)
    loss = planned(x)
    with torch.no_grad():
        base.blocks[0].wide.weight.add_(1)  # type: ignore[union-attr, operator]  # nn.Module's attributes are untyped
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_backward_pass_needs_what_the_first_has_used_up() -> None:
    base, x = stack()
    loss = checkmate.torch.compile(base, budget="90%", **FLOPS)(x)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_hooks_on_saved_tensors_do_no_harm() -> None:
    base, x = stack()
    planned = checkmate.torch.compile(copy.deepcopy(base), budget="90%", **FLOPS)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return one_batch(x)(model, optimizer)

    assert identical(train(planned, step), train(base, step))


class Reader(nn.Module):
    """Reads texts of every length, in batches of every size."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.words, self.blocks = nn.Embedding(50, width), nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        logits = x @ self.words.weight.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def test_one_trace_and_one_plan_serve_many_shapes() -> None:
    torch.manual_seed(0)
    base = Reader()
    rng = random.Random(0)
    batches = [torch.randint(50, (rng.randint(2, 6), rng.randint(8, 40))) for _ in range(12)]
    batches.insert(0, torch.randint(50, (6, 40)))
    planned = checkmate.torch.compile(copy.deepcopy(base), budget="70%", dynamic=True, **FLOPS)
    for ids in batches:
        results = []
        for model in (planned, base):
            torch.manual_seed(3)
            model.zero_grad()
            loss = model(ids)
            loss.backward()
            results.append([loss.detach(), *(p.grad for p in model.parameters())])
        assert identical(*results)  # type: ignore[arg-type]  # every parameter has a gradient
    (plan,) = checkmate.torch.plans(planned)
    assert plan.executions == len(batches)
    assert plan.schedule.num_recomputations > 0
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget


class Returned:
    """What a model returns, in a reference cycle."""

    def __init__(self, loss: Tensor, scores: Tensor):
        self.loss, self.scores, self.itself = loss, scores, self


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_what_waits_for_the_collector_is_no_part_of_the_next_round() -> None:
    """The graph of the scores, which are not in the loss, never gets a backward pass."""
    torch.manual_seed(0)
    body, head = Stack(depth=6), nn.Linear(32, 32)
    x = torch.randn(1024, 32)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body, head

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            loss = self.body(x)
            torch._dynamo.graph_break()
            return loss, self.head(x).exp()

    def step(model: nn.Module) -> None:
        for _ in range(2):
            Returned(*model(x)).loss.backward()
        model.zero_grad()

    plain = copy.deepcopy(model := Model())
    with checkmate.torch.measure("cpu") as unplanned:
        step(plain)
    own = x.nbytes + sum(p.nbytes for p in model.parameters())
    budget = own + (unplanned.peak - unplanned.base) * 7 // 10
    checkmate.torch.compile(model, budget=budget, **FLOPS)
    step(model)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            step(model)
    finally:
        gc.enable()
    plans = checkmate.torch.plans(model)
    assert sum(plan.executions for plan in plans) >= 6  # every round since the first step ran under one


@pytest.mark.filterwarnings("ignore:a step took")  # the first late one
def test_a_backward_pass_that_comes_late_is_planned_with_its_round() -> None:
    base, x = stack()
    model = checkmate.torch.compile(copy.deepcopy(base), budget="80%", **FLOPS)

    def alone() -> None:
        first, second = model(x), model(x + 1)
        first.backward()
        del second
        model.zero_grad()

    def late() -> None:
        first, second = model(x), model(x + 1)
        first.backward()
        second.backward()
        model.zero_grad()

    for run in (alone, alone, *[late] * 12):  # after a surprise, some rounds must come as foreseen
        run()
    executions = sum(plan.executions for plan in checkmate.torch.plans(model))
    late()
    assert sum(plan.executions for plan in checkmate.torch.plans(model)) == executions + 1


@pytest.mark.parametrize("last", [torch.sigmoid, lambda y: torch.exp(y).view(-1)], ids=["output", "view"])
def test_a_forward_pass_without_a_backward_pass_leaves_nothing(last: Callable[[Tensor], Tensor]) -> None:
    """The backward pass would read what is returned."""
    torch.manual_seed(0)
    layer, x = nn.Linear(32, 32), torch.randn(64, 32)
    model = checkmate.torch.compile(lambda given: last(layer(given)), budget="1GiB", **FLOPS)
    model(x).sum().backward()
    gc.disable()
    try:
        left = [weakref.ref(model(x).untyped_storage()) for _ in range(3)]
        assert [reference() for reference in left] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_what_runs_under_a_checkpoint_outside_is_let_go_of() -> None:
    """The checkpoint runs it again, and keeps nothing of the first time."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(4)))
    plain = copy.deepcopy(blocks)
    x = torch.randn(256, 64)

    def step(model: nn.Sequential) -> None:
        y = x
        for block in model:
            y = checkpoint(block, y, use_reentrant=False)
        y.square().mean().backward()

    for block in blocks:
        checkmate.torch.compile(block, budget="64MiB", **FLOPS)
    tickets = []
    for _ in range(3):
        for model in (plain, blocks):
            model.zero_grad()
            step(model)
        tickets.append(len(part._tickets) + len(part._hooked))
        assert identical([p.grad for p in blocks.parameters()], [p.grad for p in plain.parameters()])  # type: ignore[misc]  # none is None
    assert tickets == [tickets[0]] * 3
    y = checkpoint(blocks[0], x, use_reentrant=False)
    assert len(part._tickets) + len(part._hooked) == tickets[0]
    del y
