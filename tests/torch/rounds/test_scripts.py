"""What training scripts do besides a plain loop."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import checkmate
from checkmate.torch import BudgetWarning
from checkmate.torch.memory.held import Held
from torch_models import Case, ResidualNet, case, identical, state, step_peak, train, twin


def tight(model: nn.Module, budget: str = "60%") -> nn.Module:
    return checkmate.torch.compile(model, budget=budget, gap=0.02, time_limit=1)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def both(name: str) -> tuple[Case, nn.Module, nn.Module]:
    which = case(name)
    return which, twin(which.model), tight(twin(which.model))


def recomputes(model: nn.Module) -> bool:
    return all(plan.schedule.num_recomputations > 0 for plan in checkmate.torch.plans(model))


@pytest.mark.parametrize("name", ["residual", pytest.param("decoder", marks=pytest.mark.slow)])
def test_eval_and_no_grad_between_steps(name: str) -> None:
    which, plain, planned = both(name)
    results = []
    for model in (plain, planned):
        seen = train(which, model, steps=2)
        with torch.no_grad():  # training mode: batch norm moves on, dropout draws
            seen.append(model(*which.inputs))
        model.eval()
        with torch.no_grad():
            seen.append(model(*which.inputs))
        seen.append(which.step(model))  # gradients in eval mode
        model.train()
        results.append([*seen, *train(which, model, steps=2)])
    assert identical(*results)
    assert recomputes(planned)


def test_gradient_accumulation_and_tied_weights() -> None:
    which, plain, planned = both("decoder")
    results = []
    for model in (plain, planned):
        torch.manual_seed(3)
        losses = [which.step(model) for _ in range(3)]
        results.append([*losses, *gradients(model)])
    assert identical(*results)
    assert recomputes(planned)


def test_changing_batch_sizes_share_plans() -> None:
    which, plain, planned = both("residual")
    sizes = (4, 2, 3, 4, 1)
    results = []
    for model in (plain, planned):
        torch.manual_seed(3)
        seen = []
        for size in sizes:
            model.zero_grad()
            loss = model(which.inputs[0][:size].clone(), which.inputs[1][:size].clone())
            loss.backward()
            seen += [loss.detach(), *gradients(model)]
        results.append(seen + state(model))
    assert identical(*results)
    # The first size is traced alone, then PyTorch knows that sizes change; a batch of one is a graph of its own to it.
    assert len(checkmate.torch.plans(planned)) <= 3


def test_a_plan_for_larger_sizes_takes_the_place_of_those_for_smaller_ones() -> None:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
    plain, planned = twin(base), checkmate.torch.compile(twin(base), budget="90%", dynamic=True)
    results = []
    for model in (plain, planned):
        seen = []
        for size in (64, 96, 64, 128, 96):
            model.zero_grad()
            loss = model(torch.ones(size, 32)).square().mean()
            loss.backward()
            seen += [loss.detach(), *gradients(model)]
        results.append(seen)
    assert identical(*results)
    (plan,) = checkmate.torch.plans(planned)
    assert plan.executions == 2, "the largest size and the one after it"


def test_two_forwards_then_one_backward() -> None:
    """They are planned together once it is known that they come so."""
    which, plain, planned = both("residual")
    results: list[list[Tensor]] = [[], []]
    for model, seen in zip((plain, planned), results, strict=True):
        torch.manual_seed(3)
        for _ in range(3):
            model.zero_grad()
            loss = model(*which.inputs) + model(which.inputs[0].flip(3), which.inputs[1])
            loss.backward()
            seen += [loss.detach(), *gradients(model), *state(model)]
    assert identical(*results)
    plan = checkmate.torch.plans(planned)[-1]
    assert plan.executions == 2
    assert plan.graph.num_ops > 2 * 80
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget


def test_retain_graph() -> None:
    which, plain, planned = both("decoder")
    results = []
    for model in (plain, planned):
        torch.manual_seed(3)
        loss = model(*which.inputs)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loss.backward(retain_graph=True)
        if model is planned:
            # The saved tensors stay for the second pass: where the plan cannot hold therefore, it says so.
            (plan,) = checkmate.torch.plans(planned)
            said = [w for w in caught if issubclass(w.category, BudgetWarning) and "above the budget" in str(w.message)]
            assert said or (plan.measured_peak is not None and plan.measured_peak <= plan.budget)
        loss.backward()
        results.append([loss.detach(), *gradients(model)])
    assert identical(*results)
    assert recomputes(planned)


@pytest.mark.parametrize("name", ["residual", "decoder"])
def test_bfloat16_autocast(name: str) -> None:
    which, plain, planned = both(name)
    results = []
    for model in (plain, planned):
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(*which.inputs)
        loss.backward()
        results.append([loss.detach(), *gradients(model), *state(model)])
    assert identical(*results)
    assert recomputes(planned)


@pytest.mark.parametrize(("options", "told"), [({"foreach": True}, 1), ({"foreach": False}, 0)])
def test_an_optimizer_that_takes_more_than_the_budget(options: dict[str, bool], told: int) -> None:
    """There are hardly any activations: the peak is that of updating the parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
    optimizer = torch.optim.Adam(model.parameters(), **options)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    budget = int(4.75 * parameters)  # with gradients and two moments 4; all at a time 5, each layer by itself 4.25
    planned = checkmate.torch.compile(model, budget, time_limit=1)
    x = torch.randn(16, 256)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.zero_grad()
            planned(x).square().mean().backward()
            with checkmate.torch.measure("cpu") as peak:
                optimizer.step()
    messages = [str(one.message) for one in seen if isinstance(one.message, BudgetWarning)]
    assert [message.startswith("optimizer.step() takes") for message in messages] == [True] * told
    assert (4 * parameters + peak.peak - peak.base > budget) == bool(told)


@pytest.mark.parametrize("when", [1, 10])
def test_an_optimizer_that_takes_more_once_parameters_are_unfrozen(when: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 2048), nn.Linear(2048, 16))
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model[1].parameters(), foreach=True)
    planned = checkmate.torch.compile(model, sum(4 * parameter.nbytes for parameter in model.parameters()) + 2**20, time_limit=1)
    x = torch.randn(16, 256)

    def step() -> None:
        planned(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(when):
        step()  # a warning would be an error
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    with pytest.warns(BudgetWarning, match=r"optimizer.step\(\) takes"):
        step()


def test_frozen_parameters() -> None:
    which, plain, planned = both("residual")
    for model in (plain, planned):
        for parameter in model.blocks[0].parameters():  # type: ignore[index, union-attr]  # nn.Module's attributes are untyped
            parameter.requires_grad_(False)
    assert identical(train(which, plain, 2), train(which, planned, 2))
    assert recomputes(planned)


class Broken(ResidualNet):
    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.blocks[:2](self.stem(x))
        torch._dynamo.graph_break()
        return F.cross_entropy(self.head(self.blocks[2:](x).mean((2, 3))), labels)


# PyTorch looks at the gradient of what goes from one graph to the next.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_graph_breaks_share_the_budget() -> None:
    which = case("residual")
    torch.manual_seed(0)
    base = Broken()
    plain = twin(base)
    expected = train(which, plain, 3)
    plain_peak = step_peak(which, plain)
    # How much workspace a convolution takes depends on the processor.
    for budget, recomputed in ((int(0.97 * plain_peak), False), ("2MiB", True), ("1.6MiB", True)):
        planned = checkmate.torch.compile(twin(base), budget=budget, time_limit=1)
        assert identical(train(which, planned, 3), expected)
        (plan,) = checkmate.torch.plans(planned)  # made when the first step had shown that there are two graphs
        assert plan.num_graphs == 2
        assert plan.executions == 2
        assert plan.measured_peak is not None
        assert plan.measured_peak <= plan.predicted_peak <= plan.budget == checkmate.parse_bytes(budget)
        assert step_peak(which, planned) <= plan.budget < plain_peak
        assert recomputes(planned) or not recomputed


class Noisy(nn.Module):
    """Little but dropout: the saved states of the random number generator weigh more than the values."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(12):
            x = F.dropout(torch.sigmoid(x), 0.1)
        return x.sum()


def test_replayed_random_ops_are_within_the_prediction() -> None:
    x = torch.randn(16, 16, requires_grad=True)
    least = checkmate.minimum_budget(checkmate.torch.capture(Noisy(), x, loss=lambda loss: loss))
    frozen = Held()  # by other tests, in models that live on
    frozen.look()
    budget = least.smallest_found + 64 + frozen.now(torch.device("cpu"))  # and what stands for the run
    planned = checkmate.torch.compile(Noisy(), budget=budget, time_limit=2)
    planned(x).backward()
    (plan,) = checkmate.torch.plans(planned)
    assert plan.schedule.num_recomputations > 6
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.predicted_peak


class Averaged(nn.Module):
    """A buffer that the forward pass both reads and overwrites, and that the gradient depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 1)
        self.register_buffer("mean", torch.ones(64))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) * self.mean.clone()
        self.mean.mul_(0.9).add_(0.1 * hidden.detach().mean(0))
        for _ in range(4):
            hidden = torch.sigmoid(hidden.sin() * self.mean)
        return torch.tanh(self.second(hidden * self.mean)).sum()


def test_buffers_that_the_forward_reads_and_overwrites() -> None:
    torch.manual_seed(0)
    base = Averaged()
    which = Case("averaged", base, (torch.randn(512, 16),), lambda loss: loss)
    plain, planned = twin(base), tight(twin(base), "75%")
    assert identical(train(which, plain, 3), train(which, planned, 3))
    assert recomputes(planned)


def test_functions_and_floats_that_change() -> None:
    def f(x: Tensor, scale: float) -> Tensor:
        return (x.sin() * scale).exp().sum()

    planned = checkmate.torch.compile(f, budget="1GiB")
    for scale in (1.0, 2.0, 0.5):
        x, y = (torch.arange(5.0, requires_grad=True) for _ in range(2))
        f(x, scale).backward()
        planned(y, scale).backward()
        assert x.grad is not None
        assert y.grad is not None
        assert torch.equal(x.grad, y.grad)
    assert len(checkmate.torch.plans(planned)) <= 2  # once it changes, a number is an input like any other


class Mixed(nn.Module):
    """A middle layer that the compiler is told to leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 16), nn.LSTM(16, 16), nn.Linear(16, 1)

    @torch.compiler.disable
    def apart(self, x: Tensor) -> Tensor:
        return self.middle(x)[0]  # type: ignore[no-any-return]  # modules return Any

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.apart(self.first(x))).sum()  # type: ignore[no-any-return]  # modules return Any


def test_parts_outside_the_plan_are_reported_once() -> None:
    torch.manual_seed(0)
    planned = checkmate.torch.compile(Mixed(), budget="1GiB")
    x = torch.randn(5, 2, 8)
    with pytest.warns(BudgetWarning, match="outside the plan"):
        planned(x).backward()
    assert [plan.num_graphs for plan in checkmate.torch.plans(planned)] == [2]
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        planned(x).backward()


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def test_buckets_of_distributed_data_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch cuts the graph of a model at the buckets' borders, and calls each piece once on fake tensors while it compiles."""
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 1 << 12)
    torch.manual_seed(0)
    plain = Stack()
    planned = copy.deepcopy(plain)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(planned, bucket_cap_mb=1 / 128)
        compiled = torch.compile(wrapped, backend="checkmate", options={"budget": "1MiB", "cost_model": "flops"})
        for number in range(3):
            x = torch.randn(5, 32, generator=torch.Generator().manual_seed(number))
            for model in (plain, compiled):
                model.zero_grad()
                model(x).square().mean().backward()
            for one, other in zip(plain.parameters(), planned.parameters(), strict=True):
                assert one.grad is not None and other.grad is not None
                assert torch.equal(one.grad, other.grad)
        assert {plan.num_graphs for plan in checkmate.torch.plans(compiled)} == {3}
    finally:
        dist.destroy_process_group()


def test_a_graph_that_comes_late_counts_the_state_of_the_optimizer() -> None:
    torch.manual_seed(0)
    model = Stack()
    options = {"budget": "1MiB", "cost_model": "flops"}
    compiled = torch.compile(model, backend="checkmate", options=options, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for size in (8, 6):  # a graph for each
        compiled(torch.randn(size, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = 2 * sum(parameter.nbytes for parameter in model.parameters())
    outside = [plan.outside for plan in checkmate.torch.plans(compiled)]
    assert len(outside) == 2
    assert min(outside) >= state


def test_capture_changes_nothing() -> None:
    which = case("residual")
    before, random = state(which.model), torch.get_rng_state()
    graph = checkmate.torch.capture(which.model, *which.inputs)
    assert identical(before, state(which.model))
    assert torch.equal(random, torch.get_rng_state())
    assert all(p.grad is None for p in which.model.parameters())
    assert {op.phase for op in graph.ops} == {"forward", "loss", "backward"}
    kept = sum(value.size for value in graph.values if value.keep)
    parameters = sum(p.untyped_storage().nbytes() for p in which.model.parameters())
    assert parameters < kept <= parameters + 16
    with pytest.raises(checkmate.CheckmateError, match="gradient"):
        checkmate.torch.capture(nn.ReLU(), torch.randn(3))


class Contrast(nn.Module):
    """As in MoCo: features of earlier batches, read through a copy, then replaced by those of this one."""

    def __init__(self) -> None:
        super().__init__()
        hidden = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())]
        self.net = nn.Sequential(nn.Linear(32, 256), *hidden, nn.Linear(256, 16))
        self.register_buffer("queue", torch.randn(16, 512))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.queue: Tensor
        self.place: Tensor

    def forward(self, x: Tensor) -> Tensor:
        features = F.normalize(self.net(x))
        scores = features @ self.queue.clone()
        place = int(self.place)  # where PyTorch ends a graph
        self.queue[:, place : place + len(x)] = features.detach().T
        self.place[0] = (place + len(x)) % 512
        return F.cross_entropy(scores, torch.zeros(len(x), dtype=torch.long))


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # PyTorch's compiler looks at it
def test_a_copy_of_what_the_script_changes_is_kept_for_the_backward_pass() -> None:
    torch.manual_seed(0)
    plain = Contrast()
    planned = tight(twin(plain), "80%")
    batches = torch.randn(5, 512, 32)
    results = []
    for model in (plain, planned):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for x in batches:
            loss = model(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.detach())
        results.append([*seen, *state(model)])
    assert identical(*results)


class Residual(nn.Module):
    """What a network leaves of a differential equation, by forward-mode derivatives, in which constants have zeros without memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 if first else 64, 64) for first in [True] + 5 * [False])

    def network(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).sin()
        return x.sum(1)

    def forward(self, x: Tensor) -> Tensor:
        value, slope = torch.func.jvp(self.network, (x,), (torch.ones_like(x),))
        return (slope - value.square()).square().mean()


# PyTorch imports modules of its own that are deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
# With PyTorch 2.11 the first step takes 16 KiB more than is planned, as much as zeros of the size of a weight.
@pytest.mark.filterwarnings("ignore:the first step peaked:checkmate.errors.BudgetWarning")
def test_forward_mode_derivatives() -> None:
    torch.manual_seed(0)
    plain, x = Residual(), torch.randn(512, 2)
    model = tight(twin(plain))
    for _ in range(2):
        losses = []
        for each in (plain, model):
            losses.append(each(x))
            losses[-1].backward()
        assert torch.equal(*losses)
    assert identical(gradients(plain), gradients(model))
    assert recomputes(model)
