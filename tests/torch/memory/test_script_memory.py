"""What the script takes between passes: against sizes computed by hand."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import checkmate.torch
from checkmate.torch import BudgetWarning
from checkmate.torch.backend import sessions_of
from checkmate.torch.memory.beside import Beside
from checkmate.torch.memory.script_memory import Script, ScriptMemory

SIZE = 4 * 10_000


def as_is(arguments: list[Any]) -> list[Any]:
    given = list(arguments)
    arguments.clear()
    return given


def loss_of(x: Tensor) -> Tensor:
    """The exponential and the square save one storage of `SIZE` bytes; going back, each makes a gradient of that size or two."""
    return x.exp().square().sum()


def test_what_autograd_saves_and_what_its_run_takes() -> None:
    x = torch.ones(10_000, requires_grad=True)
    script = ScriptMemory(lambda: {x.untyped_storage()._cdata})
    script.run(0, as_is, [x])
    loss_of(x).backward()
    script.leave()
    assert script.seen.during == 0
    assert list(script.seen.gaps) == [0]
    assert 2 * SIZE <= script.seen.gaps[0] <= 4 * SIZE + 1000


def test_what_a_checkpoint_puts_away_is_not_asked_for() -> None:
    """It would be computed anew each time, and be kept."""
    x = torch.ones(10_000, requires_grad=True)
    called: list[int] = []

    def counted(x: Tensor) -> Tensor:
        called.append(len(called))
        return loss_of(x)

    script = ScriptMemory(lambda: {x.untyped_storage()._cdata})
    script.run(0, as_is, [x])
    checkpoint(counted, x, use_reentrant=False).backward()
    script.leave()
    assert called == [0, 1]


def test_what_hooks_have_made_of_saved_tensors_counts() -> None:
    x = torch.ones(10_000, requires_grad=True)
    script = ScriptMemory(lambda: {x.untyped_storage()._cdata})
    script.run(0, as_is, [x])
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: torch.cat([saved] * 9), lambda kept: kept[:10_000]):
        loss = loss_of(x)
    loss.backward()
    script.leave()
    assert 2 * 9 * SIZE <= script.seen.gaps[0] <= (2 * 9 + 3) * SIZE + 1000  # the exponential and the square save one each


def test_the_script_measures_itself() -> None:
    """Then what is saved is known, and nothing is recorded."""
    x = torch.ones(10_000, requires_grad=True)
    script = ScriptMemory(set)
    script.run(0, as_is, [x])
    with torch.profiler.profile():
        loss_of(x).backward()
    script.leave()
    assert SIZE <= script.seen.gaps[0] <= SIZE + 1000
    assert not script.put_off(lambda: None)


def test_what_a_pass_is_given_is_not_the_scripts_and_what_it_makes_neither() -> None:
    x = torch.ones(10_000, requires_grad=True)
    script = ScriptMemory(lambda: {x.untyped_storage()._cdata})

    class Passes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            (given,) = script.run(0, as_is, [x])
            return given.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            def work(arguments: list[Any]) -> Tensor:
                made = [arguments[0] * number for number in range(9)]
                return made[1]

            done: Tensor = script.run(1, work, [*gradients], told.append)
            script.put_off(lambda: ended.append(script.seen))
            return done

    ended: list[Script] = []
    told: list[int] = []
    loss = loss_of(Passes.apply(x))
    loss.backward()
    script.leave()
    assert ended == [script.seen]
    assert 2 * SIZE <= script.seen.after(0) <= 4 * SIZE + 1000
    assert script.seen.during <= SIZE  # the saved exponential at most
    assert script.seen.after(1) <= SIZE
    (most,) = told
    assert 9 * SIZE <= most <= 9 * SIZE + 1000


def test_what_a_pass_releases_of_what_it_was_given_is_room_for_what_it_makes() -> None:
    x = torch.ones(10_000, requires_grad=True)
    script = ScriptMemory(set)

    class Passes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            saved.extend(script.run(0, lambda given: [tensor.clone() for tensor in given for _ in range(2)], [x]))
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            def work(arguments: list[Any]) -> Tensor:
                arguments[1:] = []  # two blocks of before the recording
                made = [arguments[0] * number for number in range(3)]
                return made[1]

            given = [*gradients, *saved]
            saved.clear()
            return script.run(1, work, given, told.append)  # type: ignore[no-any-return]

    saved: list[Tensor] = []
    told: list[int] = []
    loss_of(Passes.apply(x)).backward()
    script.leave()
    (most,) = told
    assert SIZE <= most <= SIZE + 1000


TOLD = "a step took up to .* what the script computes with the outputs"


def test_a_loss_outside_of_the_model_is_under_the_budget_once_it_was_seen() -> None:
    torch.manual_seed(0)
    width, rows = 192, 1024
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(width, width), nn.ReLU())))
    x = torch.randn(rows, width)

    def step() -> None:
        model(x).square().mean().backward()
        model.zero_grad()

    with checkmate.torch.measure() as plain:
        step()
    own = sum(tensor.nbytes for tensor in (x, *model.parameters()))
    budget = own + (plain.peak - plain.base) * 7 // 10
    checkmate.torch.compile(model, budget=budget, time_limit=2)
    with pytest.warns(BudgetWarning, match=TOLD):
        step()
    (plan,) = checkmate.torch.plans(model)
    assert plan.measured_peak is not None  # though more than its passes was looked at
    assert plan.measured_peak <= plan.predicted_peak
    step()
    with checkmate.torch.measure() as planned:
        step()
    assert own + planned.peak - planned.base <= budget


def test_what_a_loss_takes_is_not_forgotten_where_training_holds_more() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)), torch.randn(256, 64)
    checkmate.torch.compile(model, budget=2**24, time_limit=2, cost_model="flops")
    model(x).square().mean().backward()
    (session,) = sessions_of(model.parameters())
    planner, (plan,) = session.group.planner, session.group.plans
    room = 2**24 - plan.plan.modelled_peak - plan.plan.margin
    taken = 2**22
    assert plan.covers(plan.plan.outside + room - 2**20)
    assert plan.accepts(plan.passes, planner.profile, Script(0, {0: taken}))
    assert not plan.covers(plan.plan.outside + room - 2**20)
    assert plan.covers(plan.plan.outside + 2**24 - taken - 2**20)


def test_a_loss_outside_of_the_model_is_looked_at_again_where_it_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_EACH", "_LAST"):
        monkeypatch.setattr(f"checkmate.torch.rounds.scripts.{name}", 1)  # for what else the script holds
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(192, 192), nn.ReLU())))
    x = torch.randn(1024, 192)

    def step(auxiliary: bool) -> None:
        y = model(x)
        loss = y.square().mean()
        if auxiliary:
            loss = loss + y.exp().log1p().sin().cos().mean()
        loss.backward()
        model.zero_grad()

    with checkmate.torch.measure() as plain:
        step(True)
    own = sum(tensor.nbytes for tensor in (x, *model.parameters()))
    budget = own + (plain.peak - plain.base) * 9 // 10
    checkmate.torch.compile(model, budget=budget, time_limit=2, cost_model="flops")
    for _ in range(3):
        step(False)  # a warning would be an error
    with pytest.warns(BudgetWarning, match=TOLD):
        step(True)
    (session,) = sessions_of(model.parameters())
    recorded = session.group._scripts._recorded
    for auxiliary in (True, False, True):
        with checkmate.torch.measure() as planned:
            step(auxiliary)
        assert own + planned.peak - planned.base <= budget
    step(False)
    step(True)
    assert session.group._scripts._recorded == recorded  # both are known


def test_nobody_is_told_of_a_step_that_left_room_for_a_state_which_was_not_there_yet() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(192, 192), nn.ReLU())))
    x = torch.randn(1024, 192)

    def step(optimizer: torch.optim.Optimizer | None = None) -> None:
        model(x).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad()

    with checkmate.torch.measure() as plain:
        step()
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    held = x.nbytes + parameters + 2 * parameters
    budget = held + (plain.peak - plain.base) * 7 // 10
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    checkmate.torch.compile(model, budget=budget, time_limit=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        step(optimizer)
    plans = checkmate.torch.plans(model)
    step(optimizer)
    assert checkmate.torch.plans(model) != plans  # for the loss had taken more than was left for it
    with checkmate.torch.measure() as planned:
        step(optimizer)
    assert held + planned.peak - planned.base <= budget


def test_a_loss_outside_of_the_model_is_looked_at_again_where_inputs_are_larger() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(192, 192), nn.ReLU())))

    def step(rows: int) -> None:
        model(torch.ones(rows, 192)).square().mean().backward()
        model.zero_grad()

    with checkmate.torch.measure() as plain:
        step(1024)
    own = sum(parameter.nbytes for parameter in model.parameters())
    budget = own + (plain.peak - plain.base) * 9 // 10
    checkmate.torch.compile(model, budget=budget, dynamic=True, cost_model="flops")
    step(128)
    step(128)
    with pytest.warns(BudgetWarning, match=TOLD):
        step(1024)
    for rows in (1024, 128, 1024):
        with checkmate.torch.measure() as planned:
            step(rows)
        assert own + planned.peak - planned.base <= budget


def test_what_a_loss_holds_while_the_backward_pass_runs_is_under_the_budget() -> None:
    """`F.mse_loss` returns one number, in a storage as large as the outputs."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(128, 128), nn.Tanh())]
    model, x, target = nn.Sequential(*layers), torch.randn(1024, 128), torch.zeros(())

    def step() -> Tensor:
        loss = nn.functional.mse_loss(model(x), target.expand_as(x))
        loss.backward()
        model.zero_grad()
        return loss

    assert step().untyped_storage().nbytes() == x.nbytes
    own = sum(tensor.nbytes for tensor in (x, *model.parameters()))
    with checkmate.torch.measure() as plain:
        step()
    budget = own + (plain.peak - plain.base) * 8 // 10
    checkmate.torch.compile(model, budget=budget, time_limit=2, cost_model="flops")
    with pytest.warns(BudgetWarning, match=TOLD):
        last = step()
    with pytest.warns(BudgetWarning, match=r"the script holds 512\.0 KiB"):
        last = step()  # while the number of the step before is still there
    with checkmate.torch.measure() as planned:
        step()
    assert own + last.untyped_storage().nbytes() + planned.peak - planned.base <= budget
    (plan,) = checkmate.torch.plans(model)
    assert plan.schedule.overhead > 1


class Squared(nn.Sequential):
    """Its own loss is inside."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square().mean()


def test_batches_that_were_fetched_ahead_are_under_the_budget_once_they_were_seen() -> None:
    torch.manual_seed(0)
    model = Squared(*(layer for _ in range(6) for layer in (nn.Linear(192, 192), nn.Tanh())))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = [torch.randn(1024, 192) for _ in range(3)]  # it was there before: nobody counts it

    def step() -> None:
        batches = [x + 1 for x in data]
        while batches:
            model(batches.pop()).backward()
        optimizer.step()
        optimizer.zero_grad()

    with checkmate.torch.measure() as plain:
        step()
    own = sum(parameter.nbytes for parameter in model.parameters())
    budget = own + (plain.peak - plain.base) * 8 // 10
    checkmate.torch.compile(model, budget=budget, time_limit=2, cost_model="flops")
    step()
    with pytest.warns(BudgetWarning, match=r"the script holds 1\.50 MiB"):
        step()
    with checkmate.torch.measure() as planned:
        step()
    assert own + planned.peak - planned.base <= budget


def test_what_a_script_collects_is_looked_for_in_several_rounds() -> None:
    torch.manual_seed(0)
    model = Squared(*(layer for _ in range(6) for layer in (nn.Linear(192, 192), nn.Tanh())))
    checkmate.torch.compile(model, budget="1GiB", time_limit=2, cost_model="flops")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(40):
        targets = []
        for _ in range(3):
            targets.append(torch.randn(256, 192))
            model(torch.randn(256, 192)).backward()
        optimizer.step()
        optimizer.zero_grad()
    size, group = 4 * 256 * 192, sessions_of(model.parameters())[0].group
    assert 3 * size <= group._scripts.of(group.plans[-1].order).during <= 3 * size + 10_000
    assert (
        group._scripts._recorded == 1 + 4 + 4
    )  # in the first round, then the first four of later steps, the 8th, 16th, 32nd and 64th


def test_a_step_inside_of_a_backward_pass_leaves_room_for_what_that_holds() -> None:
    """As where it computes its forward pass again: reversible networks, the adjoint method."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())))
    weights = [*model.parameters()]
    optimizer = torch.optim.SGD(weights, 0.1)
    size = 4 * 512 * 64

    class Solved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *_: Tensor) -> Tensor:
            made = [x]
            with torch.no_grad():
                made += [made[-1] + number for number in range(8)]
            ctx.save_for_backward(*made)
            return model(made[-1])  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
            made = ctx.saved_tensors
            with torch.enable_grad():
                y = model(made[-1].detach())
            return None, *torch.autograd.grad(y, weights, gradients)  # type: ignore[return-value]

    def step() -> None:
        Solved.apply(torch.randn(512, 64), *weights).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with checkmate.torch.measure() as plain:
        step()
    budget = plain.peak - plain.base + sum(p.nbytes for p in weights) - 2 * size
    checkmate.torch.compile(model, budget=budget, time_limit=2, cost_model="flops")
    step()
    with pytest.warns(BudgetWarning, match="the script holds"):
        step()
    with checkmate.torch.measure() as planned:
        step()
    assert sum(p.nbytes for p in weights) + planned.peak - planned.base <= budget


def test_what_runs_without_gradients_meanwhile_and_is_held_counts_once() -> None:
    torch.manual_seed(0)
    model = Squared(*(layer for _ in range(6) for layer in (nn.Linear(192, 192), nn.Tanh())))
    checkmate.torch.compile(model, budget="1GiB", time_limit=2, cost_model="flops")

    def step() -> None:
        x, following = torch.randn(256, 192), torch.randn(1024, 192)
        loss = model(x)
        with torch.no_grad():
            target = model(following)
        (loss - target).square().backward()
        model.zero_grad()

    for _ in range(3):
        step()
    group = sessions_of(model.parameters())[0].group
    script = group._scripts.of(group.plans[-1].order)
    size = 4 * 1024 * 192
    assert size <= script.during <= size + 10_000
    assert script.gaps[0] <= 3 * size + 10_000  # what runs takes two of its outputs at a time


def test_a_failed_run_teaches_nothing() -> None:
    x = torch.ones(10, requires_grad=True)
    script = ScriptMemory(set)
    script.run(0, as_is, [x])

    def refuse(_: Tensor) -> None:
        raise ValueError("no")

    y = x.exp()
    y.register_hook(refuse)
    with pytest.raises(ValueError, match="no"):
        y.sum().backward()
    assert not script.put_off(lambda: None)  # the recording has ended
    script.leave()
    assert script.seen.gaps == {0: 40}


def test_states_of_generators_are_not_held_by_the_script() -> None:
    """Plans keep them, to draw once more what was drawn."""
    beside = Beside(0, 0)
    kept = [torch.get_rng_state(), torch.zeros(2000)]
    assert [storage.nbytes() for storage in beside.made(set()).values()] == [kept[1].nbytes]
