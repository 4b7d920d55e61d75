"""Parts that compute again, in a backward pass of another part, what that one was called with."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checkmate.torch
from checkmate.torch import BudgetWarning
from checkmate.torch.backend import sessions_of
from checkmate.torch.rounds import group
from checkmate.torch.rounds.rounds import Round
from checkmate.torch.rounds.step_plan import StepPlan
from torch_models import identical

# PyTorch looks at the gradient of what goes from one graph to the next.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:a part of")

FLOPS: dict[str, Any] = {"cost_model": "flops", "time_limit": 1.0, "gap": 0.05, "wait": True}
DEPTH = 5


class Layer(nn.Module):
    """What goes from one layer to the next takes as much as all that is inside."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor(2.0) * F.dropout(F.relu(self.norm(self.linear(x))), 0.2, self.training)


class Layers(nn.Module):
    def __init__(self, breaks: bool = False):
        super().__init__()
        self.layers, self.breaks = nn.ModuleList(Layer() for _ in range(DEPTH)), breaks

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            if self.breaks:
                torch._dynamo.graph_break()
        return x


Run = Callable[[nn.Module], Tensor]


def layers(breaks: bool = False) -> Layers:
    torch.manual_seed(0)
    return Layers(breaks)


def batch(size: int = 512) -> Tensor:
    return torch.randn(size, 32, generator=torch.Generator().manual_seed(1))


def compiled(model: Layers, share: float = 0.6) -> Layers:
    """Layer by layer, each a graph of its own, with so much of the plain step's memory."""
    plain = copy.deepcopy(model)
    with checkmate.torch.measure("cpu") as seen:
        plain(batch()).square().mean().backward()
    # Should gradients add up over batches, there is room for them.
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    budget = int(share * (seen.peak - seen.base)) + 3 * parameters + batch().nbytes
    for part in [model] if model.breaks else model.layers:
        checkmate.torch.compile(part, budget=budget, **FLOPS)
    return model


def trained(model: nn.Module, runs: Sequence[Run]) -> list[Tensor]:
    """Losses, parameters, buffers, and a random number at the end, after a step of gradient descent for each loss."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for run in runs:
        losses.append(run(model).detach())
        optimizer.step()
        optimizer.zero_grad()
    return [*losses, *(p.detach() for p in model.parameters()), *model.buffers(), torch.rand(3)]


def once(model: nn.Module) -> Tensor:
    loss: Tensor = model(batch()).square().mean()
    loss.backward()
    return loss


def plans(model: nn.Module) -> list[StepPlan]:
    groups = {id(session.group): session.group for session in sessions_of(model.parameters())}
    return [plan for one in groups.values() for plan in one.plans]


def lending(model: nn.Module) -> list[StepPlan]:
    return [plan for plan in plans(model) if plan.stages is not None]


def same(model: Layers, runs: Sequence[Run], share: float = 0.6) -> Layers:
    """The model, compiled, which trains as it does plainly."""
    plain, planned = copy.deepcopy(model), compiled(model, share)
    assert identical(trained(planned, runs), trained(plain, runs))
    return planned


@pytest.mark.parametrize("breaks", [False, True])
def test_what_goes_from_graph_to_graph_is_computed_again(breaks: bool) -> None:
    planned = same(layers(breaks), [once] * 4)
    (plan,) = lending(planned)
    assert plan.plan.executions == 3
    assert plan.plan.measured_peak is not None
    assert plan.plan.measured_peak <= plan.plan.predicted_peak <= plan.plan.budget
    assert plan.plan.schedule.lower_bound <= plan.plan.schedule.cost


def changing(model: nn.Module) -> Tensor:
    """The script writes in what goes from layer to layer."""
    assert isinstance(model, Layers)
    x = batch()
    for layer in model.layers:
        x = layer(x)
        with torch.no_grad():
            x.add_(0.5)
    loss = x.square().mean()
    loss.backward()
    return loss


def test_a_tensor_that_the_script_changes_is_not_computed_again() -> None:
    assert not lending(same(layers(), [changing] * 3, share=1.0))


def test_a_script_that_begins_to_change_tensors_leaves_the_plan() -> None:
    planned = same(layers(), [once, once, once, changing, once, changing])
    assert lending(planned)


def test_a_run_borrows_what_it_is_called_with_as_it_was_returned() -> None:
    part: Any = SimpleNamespace(runner=None)
    returned = torch.zeros(4, 4)
    other = torch.zeros(4, 4)

    def borrowed(given: Tensor, whole: bool = True) -> dict[int, int]:
        round = Round[Any]()
        first = round.begin(part, ())
        round.note_inputs(first, [])
        round.note_borrowed(first, [], [])
        round.note_outputs(first, [torch.zeros(2), returned], [0, 1])
        second = round.begin(part, ())
        round.note_inputs(second, [other, given])
        round.note_borrowed(second, [other, given], [True, whole])
        return second.borrowed

    assert borrowed(returned) == borrowed(returned.detach()) == borrowed(returned.view(4, 4)) == {1: 1}
    assert not borrowed(returned, whole=False)
    for seen in (returned.t(), returned[1:], returned.view(2, 8), returned.view(torch.int32), other):
        assert not borrowed(seen)


def test_backward_passes_in_another_order_than_planned() -> None:
    """Once a plan is there, the script leaves out layers, stops early, and runs a pass for a layer in the middle alone."""

    def through(model: nn.Module, count: int) -> list[Tensor]:
        assert isinstance(model, Layers)
        found = [batch()]
        for layer in model.layers[:count]:
            found.append(layer(found[-1]))
        return found

    def in_the_middle(model: nn.Module) -> Tensor:
        loss = through(model, DEPTH)[3].square().mean()
        loss.backward()
        return loss

    def early(model: nn.Module) -> Tensor:
        loss = through(model, 4)[-1].square().mean()
        loss.backward()
        return loss

    def two_losses(model: nn.Module) -> Tensor:
        found = through(model, DEPTH)
        first, second = found[2].square().mean(), found[-1].square().mean()
        (first + second).backward()
        return first

    def one_by_one(model: nn.Module) -> Tensor:
        found = through(model, DEPTH)
        for place in (2, 4, DEPTH):
            x = found[place].detach().requires_grad_()
            (gradient,) = torch.autograd.grad(x.square().mean(), x)
            found[place].backward(gradient, retain_graph=place != DEPTH)
        return found[-1].sum()

    def never(model: nn.Module) -> Tensor:
        return model(batch()).square().mean()

    runs = [once, once]
    for other in (in_the_middle, early, two_losses, one_by_one, never):
        runs += [other, once]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)  # orders that were not seen before
        assert lending(same(layers(), runs))


def test_a_backward_pass_that_was_not_planned_draws_the_same_numbers() -> None:
    """A plan is made for steps that stop early; a step that does not stop comes under it."""

    def early(model: nn.Module) -> Tensor:
        assert isinstance(model, Layers)
        found = [batch()]
        for layer in model.layers:
            found.append(layer(found[-1]))
        loss = found[3].square().mean()
        loss.backward()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)  # orders that were not seen before
        assert lending(same(layers(), [once, once, early, once], share=0.5))


def test_a_second_backward_pass() -> None:
    def twice(model: nn.Module) -> Tensor:
        loss: Tensor = model(batch()).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)  # not foreseen
        # Before PyTorch 2.13 autograd holds gradients, and less would not do.
        planned = same(layers(), [once, once, twice, twice, once], share=0.65)
    assert not lending(planned)  # what backward passes keep to run again is there anyway


def test_a_script_that_holds_what_goes_from_graph_to_graph() -> None:
    held: list[Tensor] = []

    def holding(model: nn.Module) -> Tensor:
        assert isinstance(model, Layers)
        held[:] = [batch()]
        for layer in model.layers:
            held.append(layer(held[-1]))
        loss = held[-1].square().mean()
        loss.backward()
        return loss

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BudgetWarning)
        planned = same(layers(), [holding] * 5, share=0.65)
    (said,) = [str(one.message) for one in caught]
    assert said.startswith("the script holds what one compiled graph hands to the next until the backward pass")
    assert not lending(planned)


def test_nothing_is_lent_where_inputs_are_let_go_between_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    part: Any = SimpleNamespace(runner=None)
    round, weight = Round[Any](), torch.zeros(4)
    round.note_inputs(round.begin(part, ()), [weight])
    round.note_intact()
    assert round.intact
    weight.untyped_storage().resize_(0)
    round.note_intact()
    assert not round.intact
    monkeypatch.setattr(group, "sharded_groups", lambda: iter([(None, None)]))  # some model is under `fully_shard`
    assert not lending(same(layers(), [once, once]))


class Dropping(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(F.gelu(self.linear(x)), 0.2, self.training)


def test_random_numbers_are_not_lent() -> None:
    model = layers()
    model.layers[2], model.layers[3] = Dropping(), Dropping()
    planned = same(model, [once, once], share=1.0)
    (plan,) = plans(planned)
    assert [bool(part.lendable) for part in plan.captured] == [True, True, False, False, True]


def test_batches_of_other_sizes() -> None:
    def of(size: int) -> Run:
        def run(model: nn.Module) -> Tensor:
            loss: Tensor = model(batch(size)).square().mean()
            loss.backward()
            return loss

        return run

    planned = same(layers(), [of(512), of(384), of(512), of(256), of(384)])
    assert lending(planned)


def test_what_is_left_dies_with_the_loss() -> None:
    planned = compiled(layers())
    trained(planned, [once, once])
    assert lending(planned)
    loss = planned(batch())
    del loss
    gc.collect()
    groups = {id(session.group): session.group for session in sessions_of(planned.parameters())}
    for one in groups.values():
        for round in one._open.values():
            assert not round.kept().keys() - {p.untyped_storage()._cdata for p in [*planned.parameters(), *planned.buffers()]}


def test_what_backward_needs_must_not_change() -> None:
    planned = compiled(layers())
    trained(planned, [once, once])
    loss = planned(batch()).square().mean()
    with torch.no_grad():
        planned.layers[2].linear.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Dense(nn.Module):
    def __init__(self, last: bool) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(32, 32), nn.Linear(32, 32), last

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.second(torch.tanh(self.first(x))))
        return y.square().mean() if self.last else y


def test_a_script_that_holds_it_where_there_is_no_room_for_that() -> None:
    torch.manual_seed(0)
    budget = 600_000
    blocks = [checkmate.torch.compile(Dense(number == DEPTH), budget=budget, **FLOPS) for number in range(DEPTH + 1)]

    def step(hold: bool) -> None:
        x, held = torch.randn(512, 32), []
        for block in blocks:
            x = block(x)
            held += [x] if hold else []
        x.backward()
        for block in blocks:
            block.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)  # of the first step it is not known which graphs belong to it
        step(hold=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BudgetWarning)
        for _ in range(4):
            step(hold=True)
    first, second = [str(one.message) for one in caught if one.category is BudgetWarning]
    assert first.startswith("the script holds what one compiled graph hands to the next")
    assert second.startswith("no plan was found within the budget of 585.9 KiB (600000 bytes) that does not compute again")
    named = int(second.rpartition("(")[2].removesuffix(" bytes)"))
    assert named > budget


def test_what_has_come_as_planned_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [checkmate.torch.compile(Dense(number == DEPTH), budget="1GiB", **FLOPS) for number in range(DEPTH + 1)]
    looked: list[int] = []
    covers = StepPlan._covers

    def counted(plan: StepPlan, number: int, sizes: Any) -> bool:
        looked.append(number)
        return covers(plan, number, sizes)

    for _ in range(3):
        looked.clear()
        monkeypatch.setattr(StepPlan, "_covers", counted)
        x = torch.randn(8, 32)
        for block in blocks:
            x = block(x)
        x.backward()
    assert sorted(looked) == list(range(DEPTH + 1))
