"""`profile_nodes` on graphs of real models, against known sizes and against running the ops."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.nn import functional as F

from checkmate.cache_directory import cache_directory
from checkmate.errors import UnknownMethod
from checkmate.planning import FREE, OpCost, op_costs
from checkmate.planning.cost_cache import close_cost_caches
from checkmate.torch.memory.measure import measure
from checkmate.torch.ops import profile as profile_module
from checkmate.torch.ops.op_work import as_kernels_want, batch_of, bytes_of_rows, concrete_arguments, parts_of_batch
from checkmate.torch.ops.profile import profile_nodes
from checkmate.torch.ops.sizes import Concrete, hint

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine two threads wait for each other
    yield
    torch.set_num_threads(threads)
    close_cost_caches()


Costs = dict[Node, OpCost]


def joint_nodes(model: nn.Module, *inputs: torch.Tensor, dynamic: bool = False, **options: Any) -> tuple[list[Node], Costs]:
    """The nodes of the joint graph and their costs, profiled where a backend would: inside the compiler."""
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    seen: list[tuple[list[Node], Costs]] = []

    def partition(module: GraphModule, joint_inputs: Any, **keywords: Any) -> Any:
        module.graph.eliminate_dead_code()
        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        seen.append((nodes, profile_nodes(nodes, **options)))
        return min_cut_rematerialization_partition(module, joint_inputs, **keywords)

    def keep(module: GraphModule, _: Any) -> Any:
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=partition)
    torch.compile(model, backend=backend, dynamic=dynamic)(*inputs).sum().backward()
    assert len(seen) == 1
    return seen[0]


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Node]:
    from torch.fx.experimental.proxy_tensor import make_fx

    module = make_fx(function, tracing_mode="fake")(*inputs)
    return [node for node in module.graph.nodes if node.op == "call_function"]


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(F.relu(self.norm(self.conv(x))))
        y: torch.Tensor = self.head(F.max_pool2d(x, 2).mean((2, 3)))
        return y


class GroupNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.layer(self.embed(x))).flatten(0, 1), x.flatten())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (ConvNet, lambda: (torch.randn(4, 3, 16, 16),)),
        (Words, lambda: (torch.randint(0, 11, (3, 7)),)),
    ],
)
def test_every_op_of_a_joint_graph_runs_on_made_up_inputs(
    monkeypatch: pytest.MonkeyPatch, model: type[nn.Module], inputs: Callable[[], tuple[torch.Tensor, ...]], dynamic: bool
) -> None:
    def refuse(node: Node, device: torch.device) -> OpCost:
        raise AssertionError(f"{node.target} did not run")

    monkeypatch.setattr(profile_module, "work_of", refuse)
    nodes, costs = joint_nodes(model(), *inputs(), dynamic=dynamic)
    assert set(costs) == set(nodes)
    for node in nodes:
        if node.target is operator.getitem:
            assert costs[node] == FREE
    kernels = [node for node in nodes if costs[node].seconds > 0]
    assert len(kernels) > 10
    targets = {node.target for node in kernels}
    assert aten.convolution_backward.default in targets or aten.embedding_dense_backward.default in targets


def test_random_numbers_and_modes_are_left_as_they_were() -> None:
    def f(x: torch.Tensor) -> Any:
        return F.dropout(x, 0.5)

    nodes = traced(f, torch.randn(100))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        profile_nodes(nodes)
        assert torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(torch.get_rng_state(), state)


def test_another_default_device_and_type_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "work_of", lambda *_: pytest.fail("did not run"))
    nodes = traced(lambda x: (x > 0.5).to(torch.float64) * x, torch.randn(100))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            costs = profile_nodes(nodes)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(cost.seconds > 0 for cost in costs.values())


def test_workspace_is_what_the_op_takes_beyond_its_output() -> None:
    n = 250_000

    def f(x: torch.Tensor, flags: torch.Tensor) -> Any:
        return torch.where(flags, torch.logcumsumexp(x, 0), x.sort()[0].to(torch.float64).mul(2.0))

    inputs = torch.randn(n), torch.rand(n) > 0.5
    nodes = traced(f, *inputs)
    costs = profile_nodes(nodes)
    by_target = {node.target: costs[node] for node in nodes}
    # Only the sorted values are read: their int64 positions live until the op returns.
    assert by_target[aten.sort.default].workspace >= 8 * n
    assert by_target[aten.mul.Tensor].workspace < 64
    assert by_target[aten._to_copy.default].workspace == 0


def test_workspace_of_real_ops_bounds_what_a_run_takes() -> None:
    """Independent truth: run each op again on other inputs of the same signature and measure from outside."""
    nodes, costs = joint_nodes(ConvNet(), torch.randn(4, 3, 32, 32))
    checked = 0
    for node in nodes:
        if node.target not in (aten.convolution.default, aten.native_batch_norm_backward.default, aten.relu.default):
            continue
        fakes = torch.fx.node.map_arg(node.args, lambda n: n.meta["val"])
        real = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda t: torch.rand(tuple(t.shape)).as_strided(t.shape, t.stride()), fakes
        )
        with torch.no_grad(), measure("cpu") as m:
            result = node.target(*real)
        outputs = sum(t.nbytes for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
        assert costs[node].workspace >= m.peak - m.base - outputs
        checked += 1
    assert checked == 3


def test_seconds_follow_the_work() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return a @ a, b @ b, c + 1

    nodes = traced(f, torch.randn(512, 512), torch.randn(64, 64), torch.randn(10))
    costs = profile_nodes(nodes)
    large, small, add = (costs[node].seconds for node in nodes)
    assert large > 20 * small > 0
    assert 0 < add < large
    a = torch.randn(512, 512)
    runs = []
    for _ in range(20):
        started = time.perf_counter()
        a @ a
        runs.append(time.perf_counter() - started)
    assert large > 0.3 * min(runs)


def test_measured_once_then_remembered_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = traced(lambda x: (x + 1) * (x + 1), torch.randn(10))
    calls: list[Any] = []
    real = profile_module._measured

    def counted(node: Node, *rest: Any, **more: Any) -> OpCost | None:
        calls.append(node.target)
        return real(node, *rest, **more)

    monkeypatch.setattr(profile_module, "_measured", counted)
    reports: list[tuple[int, int]] = []
    first = profile_nodes(nodes, progress=lambda done, total: reports.append((done, total)))
    assert calls == [aten.add.Tensor, aten.mul.Tensor], "one run per signature"
    assert reports == [(1, 2), (2, 2)]
    close_cost_caches()  # as in a new process
    assert profile_nodes(nodes) == first
    assert len(calls) == 2
    for path in cache_directory().glob("costs-*.json"):
        path.write_text(path.read_text()[:-20])
    close_cost_caches()
    assert set(profile_nodes(nodes)) == set(nodes)
    assert len(calls) == 4, "a damaged file is measured again"


def test_ops_of_a_step_that_caches_cannot_hold_are_timed_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ops next to a large one: each timed run comes after something else was read, if the limit has room for that."""
    small = traced(lambda x: x.exp() * x, torch.randn(500))
    large = traced(lambda x, y: (x.exp() * x, y.sin(), y.cos()), torch.randn(500), torch.randn(5 << 20))
    events: list[str] = []
    real, undisturbed = profile_module._something_else, profile_module.undisturbed

    class Else:
        def sum(self) -> None:
            events.append("else")

    def counted(once: Callable[[], float], *limits: Any, **more: Any) -> float:
        def run() -> float:
            events.append("run")
            return once()

        return undisturbed(run, *limits, **more)

    def something_else() -> Else:
        assert real().nbytes == profile_module._CACHES
        return Else()

    monkeypatch.setattr(something_else, "cache_clear", real.cache_clear, raising=False)
    monkeypatch.setattr(profile_module, "_something_else", something_else)
    monkeypatch.setattr(profile_module, "undisturbed", counted)
    alone = profile_nodes(small)
    assert events
    assert "else" not in events, "everything fits into the caches"
    events.clear()
    with measure() as m:
        in_large = profile_nodes(large)
    assert events[::2] == ["run"] * (len(events) // 2)
    assert events[1::2] == ["else"] * (len(events) // 2), "nothing is timed before something else was read"
    assert m.peak - m.base >= profile_module._CACHES
    assert m.timeline[-1][1] == m.base, "and it does not stay"
    assert not set(map(id, alone)) & set(map(id, in_large))
    events.clear()
    assert profile_nodes(large) == in_large, "remembered"
    assert profile_nodes(small) == alone, "and not mixed up"
    assert not events
    close_cost_caches()
    for path in cache_directory().iterdir():
        path.unlink()
    limit = profile_module._CACHES
    with measure() as m:
        profile_nodes(large, limit=limit)
    assert events
    assert "else" not in events, "there is no room for it"
    assert m.peak - m.base <= limit


def test_on_a_busy_machine_the_work_of_one_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every timed run is made to look a second longer, and disturbed."""
    nodes = traced(lambda x: x.exp(), torch.randn(50))
    undisturbed, clock = profile_module.undisturbed, time.perf_counter
    ran_with: list[int] = []
    real = profile_module._work_of_one_thread

    def late(once: Callable[[], float], *rest: Any, **more: Any) -> float:
        return undisturbed(lambda: once() + 1.0, *rest, **more)

    def work(call: Callable[[], Any]) -> float:
        def noted() -> Any:
            ran_with.append(torch.get_num_threads())
            return call()

        return real(noted)

    waits = iter(range(10_000))
    monkeypatch.setattr(op_costs, "seconds_waited", lambda: float(next(waits)))
    monkeypatch.setattr(profile_module, "undisturbed", late)
    monkeypatch.setattr(profile_module, "_work_of_one_thread", work)
    torch.set_num_threads(2)
    began = clock()
    (cost,) = profile_nodes(nodes).values()
    assert 0 < cost.seconds < min(0.5, clock() - began)
    assert set(ran_with) == {1}
    assert torch.get_num_threads() == 2


def test_where_there_is_no_time_left_ops_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "_ALL_SECONDS", 0.0)
    monkeypatch.setattr(profile_module, "undisturbed", lambda *_, **__: pytest.fail("ran it more often than memory asks for"))
    costs = profile_nodes(traced(lambda x: (x + 1) * x.exp(), torch.randn(7, 11, 13)))
    assert all(cost.seconds > 0 for cost in costs.values())


def test_an_op_that_would_pass_the_limit_is_modelled_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        large = x.exp() @ x  # 128 KiB and 192 KiB
        return y.sin(), F.conv1d(y[None], y[None]), large

    nodes = traced(f, torch.randn(128, 128), torch.randn(16, 32))
    ran: list[str] = []
    real = profile_module._measured

    def noted(node: Node, *rest: Any, **more: Any) -> OpCost | None:
        ran.append(node.name)
        return real(node, *rest, **more)

    monkeypatch.setattr(profile_module, "_measured", noted)
    costs = profile_nodes(nodes, limit=2 * 128 * 128 * 4)
    assert "mm" not in ran
    assert {"exp", "sin"} <= set(ran), "what fits to the byte is measured"
    assert [record.message for record in caplog.records if record.name == "checkmate"] == [
        "the budget leaves no room to run some ops, whose costs are estimated (1; mm needs 192.0 KiB, and 128.0 KiB is left)"
    ]
    mm = next(node for node in nodes if node.name == "mm")
    assert costs[mm] == profile_nodes([mm], "flops", limit=2 * 128 * 128 * 4)[mm]
    # An op that is known to copy needs room for its copies: 2 + 2 KiB of inputs, its output, and half as much again and more.
    convolution = next(node for node in nodes if node.target is aten.convolution.default)
    ran.clear()
    profile_nodes([convolution], limit=6000)
    assert not ran
    # Costs that are known need no memory.
    caplog.clear()
    profile_nodes([mm])
    assert ran == ["mm"]
    assert profile_nodes([mm], limit=1)[mm].seconds > 0
    assert ran == ["mm"]
    assert not caplog.records


@pytest.mark.parametrize("dynamic", [False, True])
def test_where_estimates_say_that_an_op_does_not_fit_a_part_of_its_batch_is_tried(
    dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Few copies are half as large again as all that an op reads and makes: batch norm's backward pass copies one input."""
    nodes, everything = joint_nodes(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), torch.randn(32, 3, 34, 34), dynamic=dynamic
    )
    norm = next(node for node in nodes if node.target is aten.native_batch_norm_backward.default)
    size = 32 * 8 * 32 * 32 * 4
    assert everything[norm].workspace <= size
    close_cost_caches()
    for path in cache_directory().iterdir():
        path.unlink()
    limit = 5 * size
    with measure() as m:
        found = profile_nodes([norm], limit=limit)[norm]
    assert m.peak - m.base <= limit < 7 * size, "which is what it was thought to need"
    assert (found.workspace, found.estimated) == (everything[norm].workspace, False)
    assert not [record for record in caplog.records if record.name == "checkmate"]
    close_cost_caches()
    for path in cache_directory().iterdir():
        path.unlink()
    with measure() as m:  # what it reads and makes, without the copy
        found = profile_nodes([norm], limit=3 * size)[norm]
    assert m.peak - m.base <= 3 * size
    assert found.estimated
    assert found.workspace <= 1.1 * size
    assert len([record for record in caplog.records if record.name == "checkmate"]) == 1
    assert not profile_nodes([norm])[norm].estimated, "what was estimated is not remembered"


@pytest.mark.parametrize("norm", [lambda: nn.BatchNorm2d(8), lambda: nn.GroupNorm(2, 8), lambda: nn.LayerNorm(32)])
def test_norms_of_mixed_precision_are_measured(norm: Callable[[], nn.Module]) -> None:
    """Their kernels want statistics of another type than PyTorch's compiler says: what does not run is estimated to copy a lot."""

    class Mixed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x)  # type: ignore[no-any-return]

    nodes, costs = joint_nodes(Mixed(nn.Conv2d(3, 8, 3), norm(), nn.ReLU()), torch.randn(32, 3, 34, 34))
    backward = next(node for node in nodes if "norm_backward" in str(node.target))
    assert isinstance(given := backward.args[1], torch.fx.Node)
    assert given.meta["val"].dtype == torch.bfloat16
    assert not costs[backward].estimated
    assert costs[backward].workspace <= 2 * given.meta["val"].nbytes


def test_a_part_of_a_batch_for_which_another_kernel_runs_says_nothing_of_the_whole() -> None:
    """For a single small example of three dimensions a kernel runs that writes each input 27 times."""
    nodes, everything = joint_nodes(nn.Sequential(nn.Conv3d(16, 8, 3, padding=1), nn.Tanh()), torch.randn(2, 16, 8, 16, 16))
    node = next(node for node in nodes if node.target is aten.convolution.default)
    alone = profile_module._given_and_made(node, hint)
    assert list(parts_of_batch(node, hint)) == []
    close_cost_caches()
    for path in cache_directory().iterdir():
        path.unlink()
    found = profile_nodes([node], limit=2 * alone)[node]
    assert found.estimated
    assert everything[node].workspace <= found.workspace <= 2 * alone
    large, _ = joint_nodes(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh()), torch.randn(32, 3, 34, 34))
    assert list(parts_of_batch(next(node for node in large if batch_of(node, hint)), hint))[:2] == [16, 8]


@pytest.mark.parametrize(("model", "inputs"), [(ConvNet, (64, 3, 8, 8)), (Words, (64, 7)), (GroupNormed, (64, 3, 8, 8))])
def test_ops_that_copy_run_on_a_part_of_their_batch(
    model: type[nn.Module], inputs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = torch.randint(0, 11, inputs) if model is Words else torch.randn(inputs)
    nodes, measured = joint_nodes(model(), batch)
    copying = [node for node in nodes if batch_of(node, hint)]
    assert len({node.target for node in copying}) >= 2
    for node in copying:
        part = profile_module._measured(node, hint, 0.0, rows=batch_of(node, hint) // 4)
        assert part is not None, node.target
        assert part.workspace <= measured[node].workspace + 4096
        assert bytes_of_rows(node, hint, batch_of(node, hint)) == profile_module._given_and_made(node, hint)


def test_modelling_keeps_to_the_limit() -> None:
    nodes = traced(lambda x: x.exp() @ x, torch.randn(300, 300))
    limit = 300_000  # below the inputs of each op, and far below what measuring the device usually takes
    with measure() as m:
        costs = profile_nodes(nodes, limit=limit)
    assert m.peak - m.base <= limit
    assert all(cost.seconds > 0 for cost in costs.values())


def test_an_op_that_refuses_made_up_inputs_is_modelled() -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.linalg.cholesky(x) + 1  # random matrices are not positive definite

    nodes = traced(f, torch.eye(40))
    costs = profile_nodes(nodes)
    cholesky = next(cost for node, cost in costs.items() if "cholesky" in str(node.target))
    assert cholesky.seconds > 0


def test_flops_model_ranks_without_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "_measured", lambda *_: pytest.fail("ran an op"))

    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a @ a, b @ b, b + 1

    nodes = traced(f, torch.randn(512, 512), torch.randn(64, 64))
    costs = profile_nodes(nodes, "flops")
    large, small, add = (costs[node] for node in nodes)
    assert large.seconds > 10 * small.seconds > 0
    assert add.seconds > 0
    assert large.workspace == 0
    rates = profile_module.rates_of(torch.device("cpu"), torch.float32)
    assert large.seconds == pytest.approx(rates.latency + 2 * 512**3 / rates.flops_per_second)
    assert add.seconds == pytest.approx(rates.latency + 2 * 64 * 64 * 4 / rates.bytes_per_second)


def test_flops_model_bounds_the_workspace() -> None:
    for model, inputs in ((ConvNet(), torch.randn(8, 3, 32, 32)), (Words(), torch.randint(0, 11, (16, 40)))):
        nodes, measured = joint_nodes(model, inputs)
        modelled = profile_nodes(nodes, "flops")
        for node in nodes:
            assert modelled[node].workspace + 4096 >= measured[node].workspace, node.target


def test_views_cost_nothing_and_writes_do() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.view(-1).unsqueeze(0).expand(3, -1).t() * 1, x.add_(1)

    nodes = traced(f, torch.randn(100, 100))
    costs = profile_nodes(nodes)
    free = {node.target for node in nodes if costs[node] == FREE}
    assert free == {aten.view.default, aten.unsqueeze.default, aten.expand.default, aten.t.default}


def test_inside_a_profiler_or_a_measurement_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation, and with it profiling, often happens inside one; neither may disturb the other."""
    monkeypatch.setattr(profile_module, "work_of", lambda *_: pytest.fail("did not run"))
    nodes = traced(lambda x: x.sort()[0], torch.randn(250_000))
    alone = [cost.workspace for cost in profile_nodes(nodes).values()]
    assert max(alone) >= 2_000_000
    for name, around in (
        ("a", lambda: measure("cpu")),
        ("b", lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])),
    ):
        monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(cache_directory() / name))
        with around() as m:
            inside = [cost.workspace for cost in profile_nodes(nodes).values()]
            kept = torch.empty(5_000_000)
        assert inside == alone
        if name == "a":
            assert m.peak - m.base >= kept.nbytes, "the outer measurement went on"


def test_unknown_cost_model_lists_the_valid_ones() -> None:
    with pytest.raises(UnknownMethod, match="profile, flops"):
        profile_nodes([], "guess")


def test_the_state_of_the_random_generator_is_made_up_where_its_reader_looks_for_it() -> None:
    """On the device, where PyTorch's compiler says it is, reading it ends the process."""
    fake = FakeTensorMode()
    with fake:
        q, log = torch.empty(2, 4, 8, 16, device="cuda"), torch.empty(2, 4, 32, device="cuda")
        state = torch.empty((), dtype=torch.int64, device="cuda")
    graph = torch.fx.Graph()
    names = {"q": q, "log": log, "seed": state, "offset": state}
    nodes = {name: graph.placeholder(name) for name in names}
    for name, node in nodes.items():
        node.meta["val"] = names[name]
    q_, log_, seed, offset = nodes.values()
    target = aten._scaled_dot_product_efficient_attention_backward.default
    node = graph.call_function(target, (q_, q_, q_, q_, None, q_, log_, seed, offset, 0.1, [True, True, True, False], True))
    given = concrete_arguments(node, hint)
    arguments, _ = as_kernels_want(node, given)
    assert [a.device.type for a in arguments if isinstance(a, Concrete)] == ["cuda"] * 6 + ["cpu"] * 2
    node.target = aten._scaled_dot_product_flash_attention_backward.default
    assert as_kernels_want(node, given) == given
