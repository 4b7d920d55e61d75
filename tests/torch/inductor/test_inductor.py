"""Planned steps that Inductor compiles: results of plain Inductor, peaks that keep to the budget, plans of fused ops."""

from __future__ import annotations

import copy
import gc
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import checkmate
import checkmate.torch
from checkmate.errors import UnknownMethod
from checkmate.planning import OpCost
from checkmate.planning.roofline import Rates
from checkmate.torch.inductor import inner, internals
from checkmate.torch.inductor.dry_run import dry_run
from checkmate.torch.ops.nodes import Computation
from checkmate.torch.ops.sizes import Number, storage_key
from checkmate.torch.rounds import planner, step_plan

#: Of PyTorch, when Inductor is imported, and where it compiles a part of a frame.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning"
)

INNER: dict[str, Any] = {"inner": "inductor", "cost_model": "flops", "time_limit": 3.0, "gap": 0.02}


@pytest.fixture(autouse=True)
def _quickly() -> Iterator[None]:
    """No pool of compiling processes: the kernels are few."""
    from torch._inductor import config

    with config.patch(compile_threads=1, fx_graph_cache=False):
        yield


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.norm(F.gelu(self.linear(x))), 0.2, self.training)


class Loss(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


class Layers(nn.Module):
    """Wide values, narrow weights: what is kept for the backward pass decides the peak. With `breaks`, each layer is a graph."""

    def __init__(self, depth: int = 3, width: int = 16, breaks: bool = False):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.breaks, self.loss = breaks, Loss()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            if self.breaks:
                torch._dynamo.graph_break()
        return self.loss(x)


def made(**more: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Layers(**more), torch.randn(2048, 16)


def losses(run: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor, steps: int = 3) -> list[float]:
    """Of steps of SGD, with random numbers that begin anew."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = run(x)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def assert_alike(one: nn.Module, other: nn.Module) -> None:
    """Up to rounding: a dropout mask that was drawn twice, or statistics that were updated twice, would be far off."""
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def largest_peak(run: Callable[[], object]) -> int:
    gc.collect()
    with checkmate.torch.measure() as seen:
        run()
    return seen.peak - seen.base


@pytest.fixture(scope="module")
def plain() -> tuple[nn.Module, list[float]]:
    """Trained by plain Inductor."""
    model, x = made()
    compiled = torch.compile(copy.deepcopy(model))
    return compiled._orig_mod, losses(compiled, compiled, x)


def test_dropout_and_batch_norm_are_plain_inductors(plain: tuple[nn.Module, list[float]]) -> None:
    model, x = made()
    free = checkmate.torch.compile(copy.deepcopy(model), "1GiB", **INNER)
    assert losses(free, free, x) == pytest.approx(plain[1], rel=1e-6)
    assert_alike(free, plain[0])
    (easy,) = checkmate.torch.plans(free)
    assert easy.measured_peak is not None
    layers = {op.layer for op in easy.graph.ops}
    assert {name for name, _ in model.named_modules() if name not in ("", "layers")} == layers - {""}
    budget = int(0.75 * easy.measured_peak)
    tight = checkmate.torch.compile(copy.deepcopy(model), budget, **INNER)
    assert losses(tight, tight, x) == pytest.approx(plain[1], rel=1e-6)
    assert_alike(tight, plain[0])
    (plan,) = checkmate.torch.plans(tight)
    assert plan.schedule.overhead > 1
    assert plan.measured_peak is not None and plan.measured_peak <= budget
    # The caller's own count agrees: nothing lives that the plan does not know of.
    assert largest_peak(lambda: tight(x).backward()) <= budget


def test_by_name_and_without_gradients(plain: tuple[nn.Module, list[float]]) -> None:
    model, x = made()
    options = {"budget": "1GiB", **INNER}
    compiled = torch.compile(model, backend="checkmate", options=options)
    assert losses(compiled, compiled, x) == pytest.approx(plain[1], rel=1e-6)
    expected = torch.compile(copy.deepcopy(model).eval())
    compiled.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected(x))


class Rounded(nn.Module):
    """Rounds what each layer is given to steps that follow from a buffer, which is written place by place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
        self.register_buffer("most", torch.ones(5))
        self.most: Tensor

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            with torch.no_grad():
                self.most[number] = 0.9 * self.most[number] + 0.1 * x.abs().max()
            size = self.most[number] / 7
            x = layer(x + ((x / size).round() * size - x).detach()).relu()
        return x


@pytest.mark.parametrize("percent", [100, 60])
def test_what_follows_from_a_buffer_is_as_it_was_before_the_buffer_was_written(percent: int) -> None:
    """Plain Inductor computes in the place of the buffer what the forward pass returns for the backward pass, and writes over it."""
    torch.manual_seed(0)
    model, x = Rounded(), torch.randn(1024, 64)
    eager = copy.deepcopy(model)
    compiled = checkmate.torch.compile(model, f"{percent}%", **INNER)
    for number in range(2):
        for one in (eager, compiled):
            one(x + number).square().mean().backward()
    for mine, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(compiled.most, eager.most)


class Queue(nn.Module):
    """Compares what it is given with what it was given before, which it keeps in a buffer (as MoCo)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))
        self.register_buffer("before", torch.randn(32, 64))
        self.before: Tensor

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        alike = x @ self.before.clone()
        with torch.no_grad():
            self.before.copy_(torch.cat([x.T, self.before[:, : -len(x)]], 1))
        return alike.logsumexp(1).mean()


def test_a_view_of_a_buffer_is_as_it_was_before_the_buffer_was_written() -> None:
    """Inductor takes the copy out, and the backward pass reads the buffer transposed."""
    torch.manual_seed(0)
    model, x = Queue(), torch.randn(16, 32)
    eager = copy.deepcopy(model)
    compiled = checkmate.torch.compile(model, "1GiB", **INNER)
    for number in range(3):
        for one in (eager, compiled):
            one(x + number).backward()
    for mine, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(compiled.before, eager.before)


def test_what_is_returned_is_as_it_was_before_an_input_was_written() -> None:
    def write(x: Tensor) -> Tensor:
        x[0] = 1.0
        between = x.clone()
        x[1] = 2.0
        return between

    compiled = torch.compile(write, backend="checkmate", options={"budget": "1GiB", **INNER})
    x = torch.zeros(4)
    assert compiled(x).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert x.tolist() == [1.0, 2.0, 0.0, 0.0]


def test_what_the_device_reaches_is_measured_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def rates(device: torch.device, dtype: torch.dtype, limit: int) -> Rates:
        limits.append(limit)
        return Rates(2e11, 1e11, 1e-6)

    monkeypatch.setattr(planner, "rates_of", rates)
    model, x = made(depth=1)
    checkmate.torch.compile(model, 16 << 20, **INNER)(x).backward()
    own = x.nbytes + sum(parameter.nbytes for parameter in model.parameters())
    assert limits
    assert all(0 < limit <= (16 << 20) - own for limit in limits)


def test_a_backward_pass_can_run_twice() -> None:
    model, x = made(depth=2)
    compiled = checkmate.torch.compile(model, "1GiB", **INNER)
    loss = compiled(x)
    loss.backward(retain_graph=True)
    once = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    loss.backward()
    for gradient, parameter in zip(once, model.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, 2 * gradient)


def test_a_view_that_takes_the_place_of_an_op_stays_a_view() -> None:
    """Inductor drops what subtracts zeros, and gives what is read instead the op's fake tensor: half of a value would be its own value."""

    def two(x: Tensor) -> tuple[Tensor, ...]:
        first, second = x.chunk(2, -1)
        return (first - torch.full((64, 4), 0.0)).cos(), first, second

    module = internals.joint_passes(make_fx(two, tracing_mode="fake")(torch.empty(64, 8)))
    (given,) = module.graph.find_nodes(op="placeholder")
    halves = [node for node in module.graph.nodes if node.target is operator.getitem]
    assert len(halves) == 2
    assert not module.graph.find_nodes(op="call_function", target=torch.ops.aten.sub.Tensor)
    assert {storage_key(node.meta["val"]) for node in halves} == {storage_key(given.meta["val"])}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_train_as_eager_training_trains_them(kind: type[nn.LSTM | nn.GRU]) -> None:
    """Plain Inductor leaves them out of its programs."""
    torch.manual_seed(0)
    model = kind(16, 32, 2, batch_first=True)
    plain, x = copy.deepcopy(model), torch.randn(32, 8, 16)
    compiled = checkmate.torch.compile(model, "1GiB", inner="inductor", time_limit=3)
    for _ in range(2):
        for each in (compiled, plain):
            each(x)[0].square().mean().backward()
    for mine, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-7)
    (plan,) = checkmate.torch.plans(compiled)
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.predicted_peak


def test_several_graphs_share_the_budget(plain: tuple[nn.Module, list[float]]) -> None:
    model, x = made(breaks=True)
    probe = checkmate.torch.compile(copy.deepcopy(model), "1GiB", **INNER)
    assert losses(probe, probe, x) == pytest.approx(plain[1], rel=1e-6)
    easy = checkmate.torch.plans(probe)[-1]  # the first one was for the first layer, before others were known
    assert easy.num_graphs == 3 and easy.measured_peak is not None
    budget = int(0.85 * easy.measured_peak)
    tight = checkmate.torch.compile(copy.deepcopy(model), budget, **INNER)
    assert losses(tight, tight, x) == pytest.approx(plain[1], rel=1e-6)
    assert_alike(tight, plain[0])
    plan = checkmate.torch.plans(tight)[-1]
    assert plan.num_graphs == 3 and plan.schedule.overhead > 1
    assert plan.measured_peak is not None and plan.measured_peak <= budget


def test_convolutions_take_no_more_than_was_found_without_running_them() -> None:
    """Inductor changes layouts: copies of weights and inputs live for a while, and must not be handed to the backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(1))
    x = torch.randn(4, 3, 24, 24)
    compiled = checkmate.torch.compile(model, "1GiB", inner="inductor")
    plans = []
    make = step_plan.StepPlan

    class Seen(make):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            plans.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_plan, "StepPlan", Seen)
        for _ in range(2):
            compiled(x).square().mean().backward()
    (plan,) = plans
    assert plan.plan.measured_peak is not None
    assert plan.halves[0].more == 0
    assert plan.plan.measured_peak <= plan.compiled_peak
    assert plan.plan.measured_peak >= 0.8 * plan.compiled_peak


def test_what_several_kernels_of_the_forward_pass_compute_takes_no_memory() -> None:
    """The logits in float32, which both sums of a cross entropy read, are twice as large as all else."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2048)).bfloat16()
    x, y = torch.randn(256, 64).bfloat16(), torch.randint(2048, (256,))

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(x).float(), y)

    step = torch.compile(loss, backend="checkmate", options={"budget": "1GiB", **INNER})
    for _ in range(2):
        step().backward()
    (plan,) = checkmate.torch.plans(model)
    logits = 256 * 2048 * 2
    assert plan.measured_peak is not None
    assert plan.measured_peak - sum(p.nbytes for p in model.parameters()) < 3 * logits
    assert plan.measured_peak <= plan.predicted_peak  # the model leaves out 1 KiB, the logarithms of the sums
    assert plan.modelled_peak == pytest.approx(plan.measured_peak, rel=0.001)


@pytest.mark.parametrize("inside", [True, False])
def test_what_autograd_holds_during_a_backward_pass_is_in_the_peak(inside: bool) -> None:
    """The gradient of a loss; before PyTorch 2.13 also that of what the model returns."""
    torch.manual_seed(0)
    layers = [nn.Linear(1024, 64), nn.GELU(), nn.Linear(64, 64)]  # the first weight's gradient, the largest, comes last
    model = nn.Sequential(*layers, *([Loss()] if inside else []))
    compiled = checkmate.torch.compile(model, "1GiB", **INNER)
    x = torch.randn(256, 1024)
    for _ in range(2):
        (compiled(x) if inside else compiled(x).square().mean()).backward()
    (plan,) = checkmate.torch.plans(compiled)
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.predicted_peak <= 1.01 * plan.measured_peak
    assert plan.measured_peak == plan.predicted_peak or not inside


def test_what_the_program_takes_too_much_becomes_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made(depth=2)
    seen: list[int] = []
    real = inner.dry_run

    def dearer(*arguments: Any) -> Any:
        """The first plan's programs for the forward pass are said to take more than there is."""
        found = real(*arguments)
        seen.append(found.added)
        found.added += (1 << 30) - found.added if len(seen) in (1, 3, 5) else 0
        return found

    monkeypatch.setattr(inner, "dry_run", dearer)
    budget = 1 << 30
    compiled = checkmate.torch.compile(model, budget, **INNER)
    compiled(x).backward()
    (plan,) = checkmate.torch.plans(compiled)
    assert len(seen) == 8  # two passes, of two plans and of the first one with groups apart in two ways
    assert plan.margin > 0
    assert plan.modelled_peak < plan.graph.no_recompute_peak  # it could have been that much
    assert plan.measured_peak is not None and plan.measured_peak <= budget


class Tail(nn.Module):
    """Its backward pass ends with the gradient of a table, and elementwise ops before it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(8192, 64), nn.Parameter(torch.randn(256, 64))
        self.norm, self.mix, self.last = nn.RMSNorm(64), nn.Linear(64, 64, bias=False), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x) + self.places
        return self.last(h + self.mix(self.norm(h)))


def test_groups_run_apart_where_one_kernel_for_all_takes_too_much() -> None:
    """In the order of the plan: what that says is what the programs take, and a budget is met that joined kernels pass."""
    x = torch.randint(8192, (4, 256))
    torch.manual_seed(0)
    models = [model := Tail(), copy.deepcopy(model)]

    def train(model: nn.Module, budget: int | str) -> checkmate.torch.Plan:
        compiled = checkmate.torch.compile(model, budget, **INNER)
        for _ in range(2):
            model.zero_grad()
            compiled(x).square().mean().backward()
        (plan,) = checkmate.torch.plans(compiled)
        return plan

    joined = train(models[0], "1GiB")
    assert joined.predicted_peak > joined.modelled_peak, "the model ends otherwise than it should"
    apart = train(models[1], joined.modelled_peak)
    assert apart.measured_peak == apart.predicted_peak == apart.modelled_peak == apart.budget
    assert apart.schedule.overhead == 1
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_a_program_as_planned_gives_back_what_dies() -> None:
    """Inductor would hold a buffer that a later one can use, though a library takes memory for itself in between."""

    def two(x: Tensor, y: Tensor, narrow: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
        first = x.cos() @ narrow
        return first @ square, y.sin() @ narrow

    mode = internals.sized_mode()
    with mode:
        inputs = [torch.empty(*shape) for shape in ((512, 256), (512, 256), (256, 16), (16, 16))]

    def profile(nodes: Sequence[torch.fx.Node], number: Number) -> dict[torch.fx.Node, OpCost]:
        return {node: OpCost(1.0, workspace if node.args[1].meta["val"].shape == (16, 16) else 0) for node in nodes}

    def added(apart: set[Computation] | None) -> int:
        lowered = internals.lower(make_fx(two, tracing_mode="real")(*inputs), inputs, 2, apart=apart)
        found = dry_run(lowered, list(inputs), mode, torch.device("cpu"), profile)
        assert found is not None
        return found.added

    wide, thin, workspace = 512 * 256 * 4, 512 * 16 * 4, 1 << 20
    assert added(None) == wide + 2 * thin + workspace
    assert added(set()) == 2 * thin + workspace


def test_of_plans_whose_programs_take_too_much_the_least_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the first step says so; each plan is for less than the one before whose programs were written in the same way. Those after
    the first begin with the schedule before, and share the time of one search."""
    model, x = made()
    limits: dict[int | None, list[int]] = {}
    asked: list[tuple[float, object]] = []
    found: list[object] = [None]
    make = step_plan.make_plan

    def noted(graph: checkmate.Graph, options: Any, *more: Any, **own: Any) -> Any:
        plan = make(graph, options, *more, **own)
        asked.append((options.time_limit, more[-1]))
        found.append(plan.schedule)
        return plan

    monkeypatch.setattr(step_plan, "make_plan", noted)
    budget = 6 << 20
    peaks = iter(budget + more for more in (9000, 8000, 3000, 5000, 2000, 4000, 6000))

    class Seen(step_plan.StepPlan):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            limits.setdefault(self.apart_above, []).append(self.plan.allowance.limit)
            self.said = next(peaks)

        @property
        def compiled_peak(self) -> int:
            return self.said

    monkeypatch.setattr(step_plan, "StepPlan", Seen)
    compiled = checkmate.torch.compile(model, budget, **INNER)
    compiled(x)
    (plan,) = checkmate.torch.plans(compiled)
    assert len(limits) == 3  # as the compiler likes them, with groups apart in parts of the step, and everywhere
    assert len({tried[0] for tried in limits.values()}) == 1
    assert sum(map(len, limits.values())) == 7
    assert all(len(set(tried)) == len(tried) and tried == sorted(tried, reverse=True) for tried in limits.values())
    assert plan.predicted_peak == budget + 2000
    assert [seconds for seconds, _ in asked] == [INNER["time_limit"]] + [pytest.approx(INNER["time_limit"] / 5)] * 4
    assert all(start is before for (_, start), before in zip(asked, found, strict=False))


@pytest.mark.parametrize(("dear", "same"), [(0.0, True), (100.0, False)])
def test_what_costs_least_is_tried_next(dear: float, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that take too much: the same plan with groups apart, or one that leaves more room."""
    model, x = made()
    tried: list[step_plan.StepPlan] = []

    class Seen(step_plan.StepPlan):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            tried.append(self)

        @property
        def compiled_peak(self) -> int:
            return super().compiled_peak if self is not tried[0] else self.plan.budget * 103 // 100

    monkeypatch.setattr(step_plan, "StepPlan", Seen)
    monkeypatch.setattr(step_plan, "_APART", dear)
    checkmate.torch.compile(model, "80%", **INNER)(x)
    first, second = tried
    assert first.apart_above is None
    assert (second.plan is first.plan, second.apart_above is None) == (same, not same)
    assert same or second.plan.allowance.limit < first.plan.allowance.limit


def test_other_sizes_run_under_the_plan() -> None:
    model, _ = made(depth=2)
    expected = torch.compile(copy.deepcopy(model))
    compiled = checkmate.torch.compile(model, "1GiB", **INNER)
    for examples in (64, 32):
        x = torch.randn(examples, 16)
        for run in (expected, compiled):
            torch.manual_seed(examples)
            run(x).backward()
    for one, other in zip(compiled.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_errors_reach_the_caller_as_they_are() -> None:
    model, x = made(depth=2)
    with pytest.raises(UnknownMethod, match="unknown inner='xla': choose among eager, inductor"):
        checkmate.torch.compile(model, inner="xla")
    compiled = checkmate.torch.compile(model, "1KiB", **INNER)
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        compiled(x)
    enough = checkmate.torch.compile(made(depth=2)[0], caught.value.smallest_found, **INNER)
    enough(x).backward()
    (plan,) = checkmate.torch.plans(enough)
    assert plan.measured_peak is not None and plan.measured_peak <= caught.value.smallest_found


def test_a_compiler_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first call, in its own words."""

    def broken(*arguments: Any, **keywords: Any) -> Any:
        raise NotImplementedError("no kernel for this")

    monkeypatch.setattr(inner, "lower", broken)
    model, x = made(depth=2)
    compiled = checkmate.torch.compile(model, "1GiB", **INNER)
    with pytest.raises(NotImplementedError, match="^no kernel for this$"):
        compiled(x)


def test_programs_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process has to write none of them anew."""
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, x = made()
    written: list[object] = []
    write = GraphLowering.codegen

    def noticed(self: GraphLowering) -> Any:
        written.append(self)
        return write(self)

    monkeypatch.setattr(GraphLowering, "codegen", noticed)
    found = []
    with config.patch(fx_graph_cache=True):
        for _ in range(2):
            compiled = checkmate.torch.compile(copy.deepcopy(model), "75%", **INNER)
            found.append(losses(compiled, compiled, x))
            (plan,) = checkmate.torch.plans(compiled)
            found.append([plan.schedule.cost, plan.modelled_peak, plan.measured_peak])
    assert plan.schedule.overhead > 1
    assert found[:2] == found[2:]
    assert len(written) == 2


def test_how_many_outputs_are_visible_matters_to_what_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution's result is in channels-last, unless the caller sees it."""
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with internals.sized_mode():
        given = torch.empty(2, 16, 12, 12), torch.empty(16, 16, 3, 3)

    # A lambda: Inductor keeps no graph whose function has annotations.
    graph = partial(
        make_fx(lambda x, w: [torch.ops.aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)]), *given
    )
    with config.patch(fx_graph_cache=True):
        seen, hidden = (internals.lower(graph(), given, visible).output_strides for visible in (1, 0))
    assert seen != hidden


def planned(model: nn.Module, x: Tensor) -> checkmate.Graph:
    """The graph of a step."""
    compiled = checkmate.torch.compile(model, "1GiB", **INNER)
    compiled(x).square().mean().backward()
    (plan,) = checkmate.torch.plans(compiled)
    return plan.graph


def test_a_gradient_that_is_scattered_into_zeros_takes_their_place() -> None:
    rows = planned(nn.Sequential(nn.Embedding(4096, 64), nn.Flatten(1), nn.Linear(256, 16)), torch.arange(64).view(16, 4))
    assert [value.keep for value in rows.values if value.size == 4 * 4096 * 64] == [True]
    # Where it is a call of a library, zeros are made and written over.

    class Picked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.gather(1, torch.arange(4).expand(len(x), 4))

    picked = planned(nn.Sequential(nn.Linear(16, 64), Picked()), torch.randn(256, 16))
    (scatter,) = [op for op in picked.ops if op.name == "scatter_add"]
    assert scatter.reuses is not None


def test_what_goes_into_a_concatenation_is_written_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where exponentials take longer than their memory traffic, they are computed once, in a kernel of their own.
    monkeypatch.setattr(planner, "rates_of", lambda device, dtype, limit: Rates(1e13, 1e11, 1e-6))

    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x.exp(), x.sin()], 1)

    graph = planned(nn.Sequential(nn.Linear(16, 48), Both(), nn.Linear(96, 4)), torch.randn(256, 16))
    forward = [value.size for op in graph.ops if op.phase == "forward" for value in map(graph.values.__getitem__, op.outputs)]
    assert sorted(forward) == [4 * 256 * 4, 4 * 256 * 48, 4 * 256 * 96]


def test_counters_are_counted_outside_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the model reads itself are not; and all of them count as in plain training, also where nothing is trained."""

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 16), nn.BatchNorm1d(16))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 2
            return self.norms(x) * self.calls

    taken: list[dict[int, int]] = []
    real = inner._take_counters_out

    def noted(module: torch.fx.GraphModule) -> dict[int, int]:
        taken.append(real(module))
        return taken[-1]

    monkeypatch.setattr(inner, "_take_counters_out", noted)
    model, x = Counted(), torch.randn(64, 16)
    plain = copy.deepcopy(model)
    compiled = checkmate.torch.compile(model, "1GiB", **INNER)
    for run in (plain, compiled):
        for _ in range(3):
            run(x).sum().backward()
        with torch.no_grad():
            run(x)
    assert [sorted(one.values()) for one in taken] == [[1, 1], [1, 1]]
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    assert [int(buffer) for buffer in model.buffers() if not buffer.dtype.is_floating_point] == [8, 4, 4]


def test_views_of_what_a_pattern_put_in_are_no_tensors() -> None:
    graph = planned(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64), nn.Dropout(0.5)), torch.randn(4, 8, 64))
    assert not [op.name for op in graph.ops if op.name.startswith(("view", "expand"))]
