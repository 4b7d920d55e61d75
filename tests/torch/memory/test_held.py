"""What training holds, against the storages that are alive and against real steps of optimizers."""

from __future__ import annotations

import copy
import gc
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils._python_dispatch import TorchDispatchMode

from checkmate.torch.memory.held import Held
from checkmate.torch.memory.measure import live_storages, measure

CPU = torch.device("cpu")


def network(width: int = 40) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Linear(width, 3))


def backward(net: nn.Module, width: int = 40) -> None:
    net(torch.randn(4, width)).square().sum().backward()


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def parameters(net: nn.Module) -> int:
    return bytes_of(*net.parameters())


def watching(net: nn.Module) -> Held:
    """As graphs watch: parameters alone."""
    held = Held()
    held.watch(net.parameters())
    return held


@pytest.fixture(autouse=True)
def _only_new_objects() -> Iterator[None]:
    """What was made before the test is not looked through, which would take most of the time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def alive() -> int:
    """Bytes of the storages made since the test began."""
    return sum(storage.nbytes() for storage in live_storages().values())


# --- prediction of optimizers ---


class Lion(torch.optim.Optimizer):
    """An optimizer that PyTorch does not know, with a list in its state, and state for matrices alone."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})
        self.rounds = {"made": 0}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.rounds["made"] += 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["averages"] = [torch.zeros_like(p)]
                    if p.ndim == 2:
                        state["rows"] = torch.zeros(p.shape[0], dtype=torch.bfloat16)
                average = state["averages"][0]
                p.add_((average * 0.9 + p.grad * 0.1).sign_(), alpha=-group["lr"])
                average.lerp_(p.grad, 0.01)


class Counting(torch.optim.AdamW):
    """One hooked `step` calls another."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


OPTIMIZERS = [
    (torch.optim.Adam, {}),
    (torch.optim.AdamW, {}),
    (torch.optim.AdamW, {"amsgrad": True}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.AdamW, {"lr": torch.tensor(1e-3)}),
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    (torch.optim.RMSprop, {}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.Adafactor, {}),
    (Lion, {}),
    (Counting, {}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=lambda value: getattr(value, "__name__", None) or ",".join(value))
def test_state_and_peak_of_the_step_are_known_before_the_first(
    kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    net = network(100)
    optimizer = kind(net.parameters(), **options)
    held = watching(net)
    expected, peak = held.expected(CPU), held.step_peak(CPU)
    before = held.now(CPU)
    assert not optimizer.state or kind is torch.optim.Adagrad  # which makes its state at once
    backward(net, 100)
    without_state = alive()
    optimizer.step()
    assert alive() - without_state == expected
    assert held.expected(CPU) == 0
    optimizer.zero_grad()
    assert held.now(CPU) == before + expected
    backward(net, 100)
    with measure("cpu") as m:
        optimizer.step()
    # Scalars between Python and torch come and go.
    assert abs((m.peak - m.base) - peak) <= 64


def test_prediction_changes_nothing() -> None:
    net = network(600)
    optimizer = Counting(net.parameters())
    called: list[Any] = []
    note: Callable[..., None] = lambda *arguments: called.append(arguments)  # noqa: E731 - it returns None, as hooks must
    optimizer.register_step_pre_hook(note)
    optimizer.register_step_post_hook(note)
    handles = [register_optimizer_step_pre_hook(note), register_optimizer_step_post_hook(note)]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    held = watching(net)
    held.on_step(steps := Steps())
    contents = [p.clone() for p in net.parameters()]
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    try:
        with measure("cpu") as m:
            assert held.expected(CPU) == 2 * parameters(net) + 4 * len(contents)
    finally:
        for handle in handles:
            handle.remove()
    assert m.peak - m.base < 50_000  # random states, not copies of 1.4 MB
    assert called == [] == steps.seen
    assert not optimizer.state
    assert all(p.grad is None and p.equal(old) for p, old in zip(net.parameters(), contents, strict=True))
    assert torch.get_rng_state().equal(torch_state)
    assert random.getstate() == python_state
    assert scheduler.last_epoch == 0


class Multiplies(torch.optim.Optimizer):
    """Its state depends on whether autocast is on."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["square"] = p @ p.T


def test_prediction_in_the_middle_of_a_forward_pass() -> None:
    weight = nn.Parameter(torch.ones(30, 30))
    optimizer = Multiplies([weight])
    held, expected = Held(), []
    held.watch([weight])

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError("the prediction is none of its business")

    @torch.compile(backend=lambda module, inputs: module.forward)
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    forward(torch.ones(3))  # PyTorch changes methods of optimizers when it compiles
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), Looks():
        expected.append(held.expected(CPU))
    optimizer.step()
    assert expected == [bytes_of(optimizer.state[weight]["square"])] == [weight.nbytes]


class Draws(Lion):
    def step(self, closure: Any = None) -> None:
        noise = [torch.rand_like(p) * random.random() for p in self.param_groups[0]["params"]]
        self.state["noise"] = {"kept": noise[0]}  # type: ignore[index]  # a key of its own


def test_random_numbers_of_a_prediction_are_not_missing_later() -> None:
    net = network()
    optimizer = Draws(net.parameters())
    held = watching(net)
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    assert held.expected(CPU) == next(net.parameters()).nbytes
    assert torch.get_rng_state().equal(torch_state)
    assert random.getstate() == python_state
    assert not optimizer.state


class Reaches(Lion):
    """Its step uses something that a copy must not touch."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.lock = threading.Lock()
        self.inner = torch.optim.AdamW(self.param_groups[0]["params"])

    def step(self, closure: Any = None) -> None:
        with self.lock:
            self.inner.step()


class Broken(Lion):
    def step(self, closure: Any = None) -> None:
        raise KeyError("no step today")


@pytest.mark.parametrize("kind", [Broken, torch.optim.LBFGS])
def test_what_cannot_be_predicted_is_nothing(kind: Any) -> None:
    net = network()
    optimizer = kind(net.parameters())
    held = watching(net)
    assert held.expected(CPU) == held.step_peak(CPU) == 0
    assert not optimizer.state


def test_an_optimizer_inside_another_counts_once_and_is_left_alone() -> None:
    net = network()
    optimizer = Reaches(net.parameters())
    held = watching(net)
    adam = 2 * parameters(net) + 4 * len(list(net.parameters()))
    assert held.expected(CPU) == adam
    assert not optimizer.inner.state
    before = held.now(CPU)
    backward(net)
    optimizer.step()
    optimizer.inner.zero_grad()
    assert held.now(CPU) == before + adam


# --- what is held now ---


@pytest.mark.parametrize("found", ["before its first step", "by its first step"])
def test_all_of_a_training_is_held(found: str) -> None:
    net = network()
    held = Held()
    held.watch_module(net)
    optimizer = torch.optim.AdamW(net.parameters())
    if found == "before its first step":
        held.look()
    assert held.now(CPU) == alive() == parameters(net) + bytes_of(*net.buffers())
    for _ in range(3):
        for _ in range(2):  # microbatches
            backward(net)
            assert held.now(CPU) == alive()
        optimizer.step()
        assert held.now(CPU) == alive()
        optimizer.zero_grad()
        assert held.now(CPU) == alive() == 3 * parameters(net) + 4 * len(list(net.parameters())) + bytes_of(*net.buffers())
    own = {p.untyped_storage()._cdata for p in net.parameters()}
    assert held.now(CPU, own) == alive() - parameters(net)
    assert held.now(torch.device("cuda:0")) == held.expected(torch.device("cuda:0")) == held.step_peak(torch.device("cuda")) == 0


def test_parameters_share_storages_and_modules_change() -> None:
    net = network()
    net.add_module("tied", nn.Linear(40, 40))
    net.tied.weight = net[0].weight  # type: ignore[assignment, union-attr]
    held = Held()
    held.watch_module(net)
    held.watch([*net.parameters(), None, 3, torch.ones(5)])  # a graph's inputs as they are
    count = parameters(net) + bytes_of(*net.buffers())
    assert held.now(CPU) == count
    net[2].running_mean = torch.zeros(1000)  # a new buffer, in the place of one of 40 numbers
    assert held.now(CPU) == count + 4 * 960
    net.to(torch.float64)
    assert held.now(CPU) == parameters(net) + bytes_of(*net.buffers())
    net.add_module("adapter", nn.BatchNorm1d(100))
    held.look()
    assert held.now(CPU) == parameters(net) + bytes_of(*net.buffers())
    del net
    gc.collect()
    assert held.now(CPU) == 0


def test_state_that_was_loaded_is_held_and_not_expected_again() -> None:
    net = network()
    optimizer = torch.optim.AdamW(net.parameters())
    backward(net)
    optimizer.step()
    saved = optimizer.state_dict()
    optimizer.zero_grad()
    state = 2 * parameters(net) + 4 * len(list(net.parameters()))
    held = watching(net)
    assert held.expected(CPU) == 0  # it has made its step before anyone looked
    assert held.now(CPU) == parameters(net) + state
    again = torch.optim.AdamW(net.parameters())
    del optimizer
    gc.collect()
    assert held.expected(CPU) == state
    assert held.now(CPU) == parameters(net)
    again.load_state_dict(saved)
    assert held.expected(CPU) == 0
    assert held.now(CPU) == parameters(net) + state
    again.state.clear()
    assert held.expected(CPU) == state
    assert held.now(CPU) == parameters(net)


class Late(Lion):
    """Its state grows after the first step."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for p in self.param_groups[0]["params"]:
            if self.rounds["made"] > 1:
                self.state[p]["averages"].append(p.detach().clone())


def test_state_that_grows_later() -> None:
    net = network()
    optimizer = Late(net.parameters())
    held = watching(net)
    for _ in range(3):
        backward(net)
        optimizer.step()
        optimizer.zero_grad()
        assert held.now(CPU) == alive() - bytes_of(*net.buffers())


def test_optimizers_of_known_parameters_count_each_once() -> None:
    first, second, stranger = network(), network(50), network(60)
    optimizers = [torch.optim.Adam(net.parameters()) for net in (first, first, second, stranger)]
    held = watching(first)
    held.watch(second.parameters())
    state = 2 * parameters(first) + 2 * parameters(second) + 4 * 12
    assert held.expected(CPU) == state
    backward(stranger, 60)
    optimizers[3].step()
    assert held.now(CPU) == parameters(first) + parameters(second)
    backward(second, 50)
    optimizers[2].step()
    optimizers[2].zero_grad()
    assert held.expected(CPU) == 2 * parameters(first) + 4 * 6
    assert held.now(CPU) == parameters(first) + 3 * parameters(second) + 4 * 6
    del optimizers
    gc.collect()
    assert held.expected(CPU) == 0
    assert held.now(CPU) == parameters(first) + parameters(second)


def test_parameters_that_only_the_optimizer_has_shown() -> None:
    net = network()
    extra = nn.Parameter(torch.ones(500))
    held = watching(net)
    optimizer = torch.optim.SGD([*net.parameters(), extra], momentum=0.9)
    assert held.expected(CPU) == parameters(net) + extra.nbytes
    extra.grad = torch.ones(500)
    assert held.now(CPU) == parameters(net) + 2 * extra.nbytes
    extra.requires_grad_(False)  # frozen before the first step
    assert held.expected(CPU) == parameters(net)
    optimizer.zero_grad()


def test_sparse_gradients_are_indices_and_values() -> None:
    table = nn.Embedding(1000, 8, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    held = watching(table)
    table(torch.tensor([3, 5, 3])).sum().backward()
    assert table.weight.grad is not None and table.weight.grad.is_sparse
    assert held.now(CPU) == table.weight.nbytes + 3 * 8 + 3 * 8 * 4
    optimizer.step()
    optimizer.zero_grad()
    assert held.now(CPU) == table.weight.nbytes


class Steps:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self) -> None:
        self.seen.append(1)

    def method(self) -> None:
        self.seen.append(2)


def test_steps_are_told_to_who_still_listens() -> None:
    net, stranger = network(), network()
    held = watching(net)
    listener, other = Steps(), Steps()
    held.on_step(listener)
    held.on_step(other.method)
    optimizer, strange = torch.optim.SGD(net.parameters()), torch.optim.SGD(stranger.parameters())
    strange.step()
    assert listener.seen == other.seen == []
    optimizer.step()
    assert (listener.seen, other.seen) == ([1], [2])
    seen = other.seen
    del other
    gc.collect()
    optimizer.step()
    assert (listener.seen, seen) == ([1, 1], [2])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    scheduler.step()
    assert listener.seen == [1, 1, 1]


@pytest.mark.parametrize("early", [True, False])
def test_averaged_copies(early: bool) -> None:
    held = Held()
    net, other = network(), network(30)
    held.watch_module(net)
    if early:
        averaged, unrelated = AveragedModel(net, use_buffers=True), AveragedModel(other)
        held.look()
    else:
        assert held.now(CPU) == parameters(net) + bytes_of(*net.buffers())
        averaged, unrelated = AveragedModel(net, use_buffers=True), AveragedModel(other)
    outside = bytes_of(*unrelated.parameters(), *unrelated.buffers(), *other.parameters(), *other.buffers())
    assert held.now(CPU) == alive() - outside == 2 * (parameters(net) + bytes_of(*net.buffers())) + 8
    averaged.update_parameters(net)
    assert held.now(CPU) == alive() - outside
    del averaged
    gc.collect()
    assert held.now(CPU) == parameters(net) + bytes_of(*net.buffers())


@pytest.mark.parametrize("rest", [nn.Module.eval, lambda copied: copied.requires_grad_(False)])
def test_copies_that_do_not_train(rest: Callable[[nn.Module], nn.Module]) -> None:
    held = Held()
    net = network()
    held.watch_module(net)
    average, trained, unrelated = rest(copy.deepcopy(net)), copy.deepcopy(net), network(30).eval()
    held.look()
    own = parameters(net) + bytes_of(*net.buffers())
    assert held.now(CPU) == 2 * own
    backward(trained)
    rest(trained)  # between two steps of its own
    held.look()
    assert held.now(CPU) == 2 * own
    del average
    gc.collect()
    assert held.now(CPU) == own
    assert len(list(unrelated.parameters())) > 0  # alive until here, and not counted


def test_frozen_parameters_of_other_models() -> None:
    """Teachers, encoders, losses that are networks: whatever their classes and shapes."""
    held = Held()
    net = network()
    held.watch_module(net)
    frozen, trained = nn.Embedding(30, 70).requires_grad_(False), nn.Linear(30, 70)
    held.look()
    own = parameters(net) + bytes_of(*net.buffers())
    assert held.now(CPU) == own + parameters(frozen)
    assert held.trained(CPU) == parameters(net)
    frozen.itself = [frozen]  # type: ignore[assignment]
    del frozen
    held.look()  # it waits for Python's collector, and counts no more
    assert held.now(CPU) == own
    assert len(list(trained.parameters())) == 2  # alive until here, and not counted: it has a budget of its own


# --- several processes ---


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("views", [True, False])
def test_buckets_of_distributed_data_parallel(views: bool, early: bool) -> None:
    net = nn.Sequential(nn.Linear(500, 500), nn.Linear(500, 500), nn.Linear(500, 3))
    count = parameters(net)
    held = watching(net)
    gc.collect()
    with measure("cpu") as m:
        # What is sent to the other processes at the start would be released by another thread at some time.
        wrapped = DistributedDataParallel(net, gradient_as_bucket_view=views, bucket_cap_mb=1, init_sync=False)
        if early:
            held.look()
    # The allocator's own account of what the wrapper keeps; it also makes some tensors of a few bytes.
    assert 0 <= m.timeline[-1][1] - m.base - count < 1000
    assert held.now(CPU) == 2 * count
    for _ in range(3):  # buckets are made anew after the first
        wrapped(torch.randn(2, 500)).sum().backward()
        assert held.now(CPU) == (2 if views else 3) * count
        wrapped.zero_grad()
        assert held.now(CPU) == 2 * count
    del wrapped
    gc.collect()
    assert held.now(CPU) == count


@pytest.mark.usefixtures("one_process")
def test_sparse_gradients_have_no_bucket() -> None:
    net = nn.Sequential(nn.Embedding(1000, 8, sparse=True), nn.Linear(8, 3))
    held = watching(net)
    wrapped = DistributedDataParallel(net)
    assert held.now(CPU) == parameters(net) + parameters(net[1])
    assert wrapped.module is net


@pytest.mark.usefixtures("one_process")
def test_shards_of_fully_shard() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    held = Held()

    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held.watch([self.weight, self.bias])  # what a graph is called with: the whole parameters
            return super().forward(x)

    net = nn.Sequential(Layer(50, 50), Layer(50, 50))
    count = parameters(net)
    mesh = init_device_mesh("cpu", (1,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters())
    buffers = count  # one of the layers is on its way, gathered, and its gradients are
    other = alive() - count
    assert 0 <= other < 100  # the mesh's own
    net(torch.randn(2, 50)).sum().backward()
    state = 2 * count + 4 * len(list(net.parameters()))
    assert held.expected(CPU) == state
    assert held.now(CPU) - buffers == alive() - other == 2 * count
    optimizer.step()
    assert held.now(CPU) - buffers == alive() - other == 2 * count + state
    optimizer.zero_grad()
    assert held.now(CPU) - buffers == alive() - other == count + state


def test_tensors_of_the_script_are_parameters_where_an_optimizer_has_them() -> None:
    weight, given = (torch.randn(40, 40, requires_grad=True) for _ in range(2))  # as for torch.func.functional_call
    held = Held()
    held.watch([weight, given, torch.randn(4, 40)])
    assert held.now(CPU) == 0
    optimizer = torch.optim.Adam([weight])
    assert held.expected(CPU) == bytes_of(weight, weight.clone()) + 4  # both averages, and the count of steps
    (given @ weight).sum().backward()
    optimizer.step()
    assert weight.grad is not None
    state = [value for values in optimizer.state.values() for value in values.values()]
    assert held.now(CPU) == bytes_of(weight, weight.grad, *state)  # and nothing of what no optimizer has
