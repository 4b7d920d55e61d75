"""The largest batch and the longest sequence under a budget: as step by step until compile refuses, and without a trace on the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checkmate
import checkmate.torch
from checkmate import BudgetError, CheckmateError, InfeasibleBudget
from checkmate.torch import largest
from checkmate.torch.dry_run import DryRun
from torch_models import identical, state

FLOPS: dict[str, Any] = {"cost_model": "flops", "time_limit": 0.5, "gap": 0.05}


class Net(nn.Module):
    """Dropout, batch norm and a mask of all pairs of tokens; with `breaks`, two graphs."""

    def __init__(self, breaks: bool = False, width: int = 16):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.BatchNorm1d(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.wide(self.norm(x.flatten(0, 1)).view_as(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        x = F.dropout(self.narrow(x), 0.1, self.training)
        return ((x @ x.transpose(1, 2)).softmax(-1) @ x).square().mean()


class Short(nn.Module):
    """A few ops, where it does not matter which: sizes are planned in no time. With `pairs`, tokens look at all others."""

    def __init__(self, pairs: bool = False):
        super().__init__()
        self.norm, self.wide, self.pairs = nn.BatchNorm1d(16), nn.Linear(16, 64), pairs

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.wide(self.norm(x.flatten(0, 1)).view_as(x)))
        if self.pairs:
            x = (x @ x.transpose(1, 2)).softmax(-1) @ x
        return x.square().mean()


def net(breaks: bool = False) -> Net:
    torch.manual_seed(0)
    return Net(breaks)


def short(pairs: bool = False) -> Short:
    torch.manual_seed(0)
    return Short(pairs)


def batch_of(size: int) -> Tensor:
    return torch.randn(size, 8, 16)


def sequence_of(size: int) -> Tensor:
    return torch.randn(2, size, 16)


def fits(model: nn.Module, make: Any, size: int, budget: int) -> bool:
    """What training says, step by step, with a new model for each size."""
    model = checkmate.torch.compile(model, budget=budget, **FLOPS)
    x = make(size)
    try:
        for _ in range(2):
            model.zero_grad()
            model(x).backward()
    except InfeasibleBudget:
        return False
    return True


@pytest.mark.parametrize("make", [batch_of, sequence_of])
def test_the_largest_is_the_last_that_compile_accepts(make: Any) -> None:
    search = checkmate.torch.max_batch_size if make is batch_of else checkmate.torch.max_sequence_length
    budget, lines = 60_000, []
    found = search(short(pairs=True), make, budget, progress=lines.append, **FLOPS)
    assert fits(short(pairs=True), make, found, budget)
    assert not fits(short(pairs=True), make, found + 1, budget)
    assert 2 < found == (found.batch if make is batch_of else found.length)
    assert found.plan.measured_peak is not None and found.plan.measured_peak <= budget == found.plan.budget
    assert len(lines) == found.tried + 1 and str(int(found)) in lines[-1]


def test_what_is_not_found_in_a_hurry_gets_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real, hurried = DryRun.plan, 0

    def plan(self: DryRun, step: Any, *, time: float, **given: Any) -> Any:
        nonlocal hurried
        if time < 1.0:
            hurried += 1
            if hurried > 2:
                raise InfeasibleBudget(60_000, 1, 70_000)
        return real(self, step, time=time, **given)

    expected = checkmate.torch.max_batch_size(short(pairs=True), batch_of, 60_000, **FLOPS)
    monkeypatch.setattr(DryRun, "plan", plan)
    found = checkmate.torch.max_batch_size(short(pairs=True), batch_of, 60_000, **FLOPS)
    assert found == expected
    assert hurried > 2


def test_a_size_that_a_real_step_refused_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where all the time finds more than a hurry, and a search before has gone further."""
    search, asked = largest._Search.__new__(largest._Search), []
    search.answers = {20: largest._Answer(False)}

    def fits(size: int) -> bool:
        asked.append(size)
        search.answers[size] = largest._Answer(size < (5 if search.hurried else 20), hurried=search.hurried)
        return search.answers[size].fits

    monkeypatch.setattr(search, "_fits", fits)
    monkeypatch.setattr(search, "_guess", lambda unit, low, high: low + 1)
    assert search._largest(1, 10) == 9
    assert max(asked) == 9


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # PyTorch looks, between the graphs
def test_several_graphs_are_joined_as_in_training() -> None:
    found = checkmate.torch.max_batch_size(net(breaks=True), batch_of, 50_000, **FLOPS)
    assert found.plan.num_graphs == 2
    assert fits(net(breaks=True), batch_of, found, 50_000)
    assert not fits(net(breaks=True), batch_of, found + 1, 50_000)


def test_nothing_of_the_model_changes() -> None:
    model = net()
    model(batch_of(2)).backward()
    gradients = [p.grad for p in model.parameters()]
    before = [*state(model), *[g.clone() for g in gradients if g is not None], torch.get_rng_state()]
    asked = []

    def make(size: int) -> Tensor:
        asked.append(size)
        return torch.ones(size, 8, 16)  # draws no random numbers itself

    found = checkmate.torch.max_batch_size(model, make, 60_000, **FLOPS)
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))
    assert identical([*state(model), *[g for g in gradients if g is not None], torch.get_rng_state()], before)
    assert max(asked) > found
    with pytest.raises(CheckmateError, match="not a compiled model"):
        checkmate.torch.plans(model)


def test_it_does_not_run_the_model_unless_asked_to_verify() -> None:
    computed = []

    def loss(output: Tensor) -> Tensor:
        computed.append(bool(output.any()))  # a mean of squares is zero only where nothing was computed
        return output

    found = checkmate.torch.max_batch_size(short(), batch_of, 60_000, loss=loss, verify=False, **FLOPS)
    assert computed and not any(computed) and found.plan.measured_peak is None
    checkmate.torch.max_batch_size(short(), batch_of, 60_000, loss=loss, at_most=2, **FLOPS)
    assert computed[-1]


def test_the_state_of_the_optimizer_and_gradients_of_microbatches_count() -> None:
    def one_token(size: int) -> Tensor:
        return torch.randn(size, 1, 16)  # less than the parameters

    model, budget = short(), 60_000
    alone = checkmate.torch.max_batch_size(model, one_token, budget, verify=False, **FLOPS)
    accumulating = checkmate.torch.max_batch_size(model, one_token, budget, accumulate=True, **FLOPS)
    optimizer = torch.optim.AdamW(model.parameters())
    trained = checkmate.torch.max_batch_size(model, one_token, budget, verify=False, **FLOPS)
    assert alone > accumulating > trained > 0  # one more copy of the parameters, then two
    parameters = sum(p.nbytes for p in model.parameters())
    assert accumulating.plan.outside == pytest.approx(parameters, abs=200)
    assert trained.plan.outside == pytest.approx(2 * parameters, abs=200)
    del optimizer


def test_limits_on_size_and_cost() -> None:
    def ask(**keywords: Any) -> checkmate.torch.LargestSize:
        return checkmate.torch.max_batch_size(short(), batch_of, 60_000, verify=False, **keywords, **FLOPS)

    largest = ask()
    assert ask(at_most=3) == 3
    assert ask(multiple_of=4) == largest // 4 * 4
    cheap = ask(max_overhead=1)
    assert 0 < cheap < largest and cheap.plan.schedule.overhead == 1 < largest.plan.schedule.overhead


def test_what_a_call_takes_may_be_a_tuple_or_keywords() -> None:
    model, of_a_tuple = short(), lambda n: (batch_of(n),)
    sizes = [
        checkmate.torch.max_batch_size(compiled, make, 60_000, verify=False, **FLOPS)
        for compiled, make in (
            (model, of_a_tuple),
            (torch.compile(model, backend="checkmate"), lambda n: {"x": batch_of(n)}),
        )
    ]
    assert sizes[0] == sizes[1] > 2


def test_a_real_step_that_takes_more_than_planned_leads_to_a_smaller_size(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = checkmate.torch.max_batch_size(short(), batch_of, 60_000, verify=False, **FLOPS)
    real = checkmate.torch.largest._Search._verified
    monkeypatch.setattr(
        checkmate.torch.largest._Search, "_verified", lambda self, size: None if size == planned else real(self, size)
    )
    found = checkmate.torch.max_batch_size(short(), batch_of, 60_000, **FLOPS)
    assert found == planned - 1


def test_a_real_plan_that_costs_too_much_leads_to_a_smaller_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ops are timed again, and cost something else then."""
    planned = checkmate.torch.max_batch_size(short(), batch_of, 60_000, max_overhead=2, verify=False, **FLOPS)
    search, lines = checkmate.torch.largest._Search, list[str]()
    cheap = search._cheap
    monkeypatch.setattr(
        search, "_cheap", lambda self, plan: cheap(self, plan) and (plan.measured_peak is None or bool(lines_about(lines)))
    )
    found = checkmate.torch.max_batch_size(short(), batch_of, 60_000, max_overhead=2, progress=lines.append, **FLOPS)
    assert found == planned - 1
    assert len(lines_about(lines)) == 1


def lines_about(lines: list[str]) -> list[str]:
    return [line for line in lines if "costs too much after all" in line]


def test_errors_say_what_to_do() -> None:
    def ask(budget: Any = 60_000, make: Any = batch_of, model: Any = None, **keywords: Any) -> Any:
        return checkmate.torch.max_batch_size(model or short(), make, budget, **keywords, **FLOPS)

    with pytest.raises(InfeasibleBudget, match="not even a batch of 1 fits: .*ask for at least") as refused:
        ask(10_000)
    assert ask(refused.value.smallest_found, verify=False) >= 1
    with pytest.raises(BudgetError, match="a percentage"):
        ask("50%")
    with pytest.raises(BudgetError, match="at_most"):
        ask(at_most=0)
    with pytest.raises(BudgetError, match="no multiple of 8"):
        ask(at_most=4, multiple_of=8)
    with pytest.raises(BudgetError, match="max_overhead"):
        ask(max_overhead=0.5)
    with pytest.raises(CheckmateError, match="make_inputs must use its argument"):
        ask(make=lambda n: torch.zeros(2, 8, 16))
    with pytest.raises(CheckmateError, match="must be a torch.nn.Module"):
        ask(model=F.relu)
    frozen = short().requires_grad_(False)
    with pytest.raises((CheckmateError, RuntimeError), match="grad"):
        ask(model=frozen)
