"""Ways of calling, and that nothing which PyTorch leaves out of a plan stays unsaid."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

import checkmate
import checkmate.torch
from checkmate.torch import BudgetWarning
from checkmate.torch.coverage import is_compiled, more_to_come
from torch_models import identical, twin

Compile = Callable[..., Any]


def in_place(model: Any, budget: str = "1GiB", cost_model: str = "flops", **keywords: Any) -> Any:
    return checkmate.torch.compile(model, budget, cost_model=cost_model, **keywords)


def by_name(model: Any, budget: str = "1GiB", cost_model: str = "flops", **keywords: Any) -> Any:
    return torch.compile(model, backend="checkmate", options={"budget": budget, "cost_model": cost_model}, **keywords)


BOTH = pytest.mark.parametrize("compile", [in_place, by_name])


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return scale * self.second(torch.tanh(self.first(x)))


def batch() -> Tensor:
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def step(model: nn.Module, run: Callable[[], Tensor], optimizer: torch.optim.Optimizer | None = None) -> None:
    """One training step; `run` gives what the loss is the sum of."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    run().sum().backward()
    optimizer.step()


def told(caught: pytest.WarningsRecorder) -> list[str]:
    """What was said about the budget; under some releases of Python, PyTorch has warnings of its own."""
    return [str(one.message) for one in caught if issubclass(one.category, BudgetWarning)]


# --- options of both ways of calling ---


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune"])
def test_modes_are_accepted_and_change_nothing(mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_BUDGET", "1GiB")
    plain = Layers()
    plain(batch()).sum().backward()
    first, second = twin(plain), twin(plain)
    for model, compiled in (
        (first, checkmate.torch.compile(first, mode=mode)),
        (second, torch.compile(second, backend="checkmate", mode=mode)),
    ):
        model.zero_grad()
        compiled(batch()).sum().backward()
        assert identical(gradients(model), gradients(plain))
        assert len(checkmate.torch.plans(model)) == 1


class Breaking(Layers):
    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        hidden = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return self.second(hidden)  # type: ignore[no-any-return]  # modules return Any


@BOTH
def test_fullgraph_reaches_the_compiler(compile: Compile) -> None:
    whole = Layers()
    compile(whole, fullgraph=True)(batch()).sum().backward()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compile(Breaking(), fullgraph=True)(batch())


@pytest.mark.parametrize("dynamic", [None, True, False])
@BOTH
def test_dynamic_reaches_the_compiler(compile: Compile, dynamic: bool | None) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin().sum()

    torch._dynamo.reset()  # it remembers which sizes of this code change
    counters.clear()
    compiled = compile(f, dynamic=dynamic)
    for size in (5, 6, 7):
        compiled(torch.randn(size, requires_grad=True)).backward()
    # Compiled once for all, after the second size once more, or for each size.
    assert counters["stats"]["unique_graphs"] == {True: 1, None: 2, False: 3}[dynamic]


@BOTH
def test_budget_from_the_environment(compile: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_BUDGET", " 3MiB ")
    said, unsaid = Layers(), Layers()
    compile(said, budget="2MiB")(batch()).sum().backward()
    if compile is in_place:
        checkmate.torch.compile(unsaid)(batch()).sum().backward()
    else:
        torch.compile(unsaid, backend="checkmate")(batch()).sum().backward()
    assert [plan.budget for plan in checkmate.torch.plans(said)] == [2 * 2**20]
    assert [plan.budget for plan in checkmate.torch.plans(unsaid)] == [3 * 2**20]


def test_budget_from_the_environment_beside_other_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_BUDGET", "3MiB")
    model = Layers()
    torch.compile(model, backend="checkmate", options={"method": "auto"})(batch()).sum().backward()
    assert [plan.budget for plan in checkmate.torch.plans(model)] == [3 * 2**20]


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_BUDGET", "plenty")
    with pytest.raises(checkmate.BudgetError, match="environment variable CHECKMATE_BUDGET: cannot read 'plenty'"):
        checkmate.torch.compile(Layers())
    with pytest.raises(checkmate.BudgetError, match="environment variable CHECKMATE_BUDGET: cannot read 'plenty'"):
        torch.compile(Layers(), backend="checkmate")(batch())
    with pytest.raises(checkmate.BudgetError) as caught:  # the script's own mistake
        checkmate.torch.compile(Layers(), reserved="some")
    assert "CHECKMATE_BUDGET" not in str(caught.value)
    in_place(Layers())(batch()).sum().backward()  # it is not needed


# --- what PyTorch does not compile by itself ---


class Language(nn.Module):
    def __init__(self, inner: nn.RNNBase, packed: bool = False):
        super().__init__()
        self.tokens, self.inner, self.packed = nn.Embedding(20, 8), inner, packed
        self.head = nn.LazyLinear(20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.packed:
            whole = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 5]), batch_first=True)
            out = nn.utils.rnn.pad_packed_sequence(self.inner(whole)[0], batch_first=True)[0]
        else:
            out = self.inner(x)[0]
        return F.cross_entropy(self.head(out).flatten(0, 1), ids.flatten())


RNNS = {
    "LSTM": lambda: nn.LSTM(8, 16, num_layers=2, batch_first=True),
    "LSTM with dropout": lambda: nn.LSTM(8, 16, num_layers=2, batch_first=True, bidirectional=True, dropout=0.3),
    "GRU": lambda: nn.GRU(8, 16, num_layers=2, batch_first=True),
    "RNN": lambda: nn.RNN(8, 16, num_layers=2, batch_first=True, bias=False, dropout=0.3),
}


def trained(model: nn.Module, compiled: nn.Module, ids: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    for _ in range(2):
        compiled(ids).backward()
    model.eval()
    with torch.no_grad():
        evaluated = compiled(ids)
    model.train()
    return [evaluated, *gradients(model)]


@pytest.mark.parametrize(("compile", "kind"), [*((in_place, kind) for kind in RNNS), (by_name, "LSTM")])
def test_rnns_are_planned_with_the_numbers_of_plain_training(compile: Compile, kind: str) -> None:
    torch.manual_seed(0)
    plain, ids = Language(RNNS[kind]()), torch.randint(0, 20, (2, 7))
    plain(ids)  # makes the head
    planned = twin(plain)
    compiled = compile(planned, cost_model="profile")
    assert identical(trained(plain, plain, ids), trained(planned, compiled, ids))
    (plan,) = checkmate.torch.plans(planned)
    assert plan.executions == 2
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.predicted_peak


# PyTorch looks at the gradient of what goes from one graph to the next.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@BOTH
def test_rnns_of_packed_inputs_are_told_once(compile: Compile) -> None:
    torch.manual_seed(0)
    plain, ids = Language(nn.GRU(8, 16, batch_first=True), packed=True), torch.randint(0, 20, (2, 7))
    plain(ids)
    planned = twin(plain)
    compiled = compile(planned)
    with pytest.warns(BudgetWarning, match="a part of Language runs outside the plan") as caught:
        compiled(ids).backward()
    assert len(told(caught)) == 1
    planned.zero_grad()
    assert identical(trained(plain, plain, ids), trained(planned, compiled, ids))


def test_rnns_alone_and_in_capture() -> None:
    layer, x = nn.LSTM(8, 16), torch.randn(5, 2, 8)
    graph = checkmate.torch.capture(layer, x, loss=lambda results: results[0].sum(), cost_model="flops")
    assert sum("recurrent" in op.name for op in graph.ops) == 2
    model = in_place(layer)
    model(x)[0].sum().backward()
    assert len(checkmate.torch.plans(model)) == 1


def test_rnns_under_other_backends_stay_as_they_are() -> None:
    by_name(Layers())(batch())
    found: list[Any] = []

    def other(module: Any, inputs: Any) -> Any:
        found.append(module)
        return module

    torch.compile(nn.LSTM(8, 16), backend=other)(torch.randn(5, 2, 8))
    assert not found
    assert not torch._dynamo.config.allow_rnn


class Disabled(Layers):
    @torch.compiler.disable
    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return super().forward(x, scale=scale)


@BOTH
def test_a_model_without_any_graph_is_named_once(compile: Compile) -> None:
    model = Disabled()
    compiled = compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(BudgetWarning, match="no part of Disabled is under the budget") as caught:
        step(model, lambda: compiled(batch()), optimizer)
    assert len(told(caught)) == 1
    for _ in range(2):
        step(model, lambda: compiled(batch()), optimizer)  # warnings are errors
    assert checkmate.torch.plans(model) == []


class Loop(Layers):
    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        x = self.first(x)
        for _ in range(3):
            x = torch.tanh(x) * x
            torch._dynamo.graph_break()
        return self.second(x)  # type: ignore[no-any-return]  # modules return Any


@BOTH
def test_loops_with_breaks_are_named_once(compile: Compile) -> None:
    model = Loop()
    compiled = compile(model)
    with pytest.warns(BudgetWarning, match="Loop") as caught:
        compiled(batch()).sum().backward()
    assert len(told(caught)) == 1
    compiled(batch()).sum().backward()


class Trained(nn.Module):
    """As LightningModule is used: the script calls `training_step`, and not the module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layers()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]  # modules return Any

    def training_step(self, x: Tensor) -> Tensor:
        return self.inner(x).square().mean()  # type: ignore[no-any-return]  # modules return Any


@BOTH
def test_a_method_that_goes_around_the_compiled_call_is_told_once(compile: Compile) -> None:
    model = Trained()
    compiled = compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(BudgetWarning, match="parameters of Trained has ended without a call.*training_step") as caught:
        step(model, lambda: compiled.training_step(batch()), optimizer)
    assert len(told(caught)) == 1
    step(model, lambda: compiled.training_step(batch()), optimizer)


@BOTH
def test_evaluation_through_the_compiled_call_is_no_training(compile: Compile) -> None:
    model = Trained()
    compiled = compile(model)
    with torch.no_grad():
        compiled(batch())
    with pytest.warns(BudgetWarning, match="parameters of Trained has ended without a call"):
        step(model, lambda: compiled.training_step(batch()))


@BOTH
def test_the_compiled_module_inside_counts(compile: Compile) -> None:
    model = Trained()
    model.inner = compile(model.inner)
    outer = compile(model)  # bypassed, but what it would run is planned
    for _ in range(2):
        step(model, lambda: outer.training_step(batch()))
    assert len(checkmate.torch.plans(model)) == 1


@BOTH
def test_a_compiler_around_that_takes_the_place_is_told(compile: Compile) -> None:
    model = Layers()
    around = torch.compile(compile(model), backend="aot_eager")
    with pytest.warns(BudgetWarning, match="another torch.compile around") as caught:
        step(model, lambda: around(batch()))
    assert len(told(caught)) == 1


def test_copies_of_a_module_that_pytorch_compiled_in_place_are_told_once() -> None:
    model = Layers()
    model.compile(backend="checkmate", options={"budget": "1GiB"})
    average, copy_ = copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model))
    step(model, lambda: model(batch()))
    assert len(checkmate.torch.plans(model)) == 1
    with pytest.warns(BudgetWarning, match="this Layers is a copy of a module .* compile the copy too") as caught:
        step(copy_, lambda: copy_(batch()))
    assert len(told(caught)) == 1
    step(copy_, lambda: copy_(batch()))  # not told again, which would be an error
    average.compile(backend="checkmate", options={"budget": "1GiB"})
    step(average, lambda: average(batch()))
    assert len(checkmate.torch.plans(average)) == 1
    compiled = checkmate.torch.compile(copy.deepcopy(model), budget="1GiB")
    assert is_compiled(compiled)
    assert more_to_come()  # nobody has called it yet
    step(compiled, lambda: compiled(batch()))
    assert not more_to_come()


@BOTH
def test_steps_that_are_planned_are_not_told(compile: Compile) -> None:
    model = Trained()
    compiled = compile(model)
    first = torch.optim.SGD(model.inner.first.parameters(), lr=0.1)
    second = torch.optim.AdamW([{"params": model.inner.second.parameters(), "lr": 0.0}])
    for group in second.param_groups:
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    second.step()  # as scripts fill its state before they load it
    second.param_groups[0]["lr"] = 0.1
    for _ in range(2):
        compiled(batch()).sum().backward()
        first.step()
        second.step()
        second.zero_grad()
    first.zero_grad()
    first.step()  # nothing to update


def test_a_step_without_plan_after_planned_ones_is_told() -> None:
    model = in_place(Layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, lambda: model(batch()), optimizer)
    with pytest.warns(BudgetWarning, match="without a call"):
        step(model, lambda: model.forward(batch()), optimizer)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without torch.distributed")
@BOTH
def test_the_root_of_fsdp_is_told(compile: Compile) -> None:
    from torch.distributed.fsdp import fully_shard

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        model = fully_shard(Disabled(), mesh=mesh)
        compiled = compile(model)
        with pytest.warns(BudgetWarning, match="Disabled is under the budget: .*FSDP"):
            compiled(batch()).sum().backward()
    finally:
        torch.distributed.destroy_process_group()


def test_modules_of_pytorchs_own_that_are_compiled_in_place_by_name() -> None:
    """PyTorch itself compiles nothing where `nn.Sequential.compile` is called: the frame is its own."""
    torch.manual_seed(0)
    for plain, x in (
        (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), batch()),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), batch()[None]),
    ):
        model = twin(plain)
        model.compile(backend="checkmate", options={"budget": "1GiB", "cost_model": "flops"})
        for seed in range(2):
            for each in (plain, model):
                torch.manual_seed(seed)
                step(each, lambda each=each, x=x: each(x).square())  # type: ignore[misc]  # bound here
        assert identical(list(model.parameters()), list(plain.parameters()))
        assert [plan.executions for plan in checkmate.torch.plans(model)] == [2]


# --- copies, files, wrappers ---


@BOTH
def test_a_model_that_was_thrown_away_is_not_waited_for(compile: Compile) -> None:
    thrown: Any = Layers()
    thrown.itself = [thrown]
    compile(thrown)
    gc.collect()  # what lives through this is looked at again in a full collection only
    gc.disable()
    try:
        del thrown
        model = Layers()
        compiled = compile(model)
        for _ in range(2):
            step(model, lambda: compiled(batch()))
    finally:
        gc.enable()
    assert [plan.executions for plan in checkmate.torch.plans(model)] == [2]


@BOTH
def test_copies_are_compiled_too(compile: Compile) -> None:
    torch.manual_seed(0)
    original = Layers()
    compiled = compile(original)
    compiled(batch()).sum().backward()
    made = copy.deepcopy(compiled)
    made.zero_grad()
    assert checkmate.torch.plans(made) == []
    for _ in range(2):
        made.zero_grad()
        step(made, lambda: made(batch()))
    (plan,) = checkmate.torch.plans(made)
    assert plan.executions == 2
    assert plan.budget == 2**30
    assert [plan.executions for plan in checkmate.torch.plans(compiled)] == [1]
    again = copy.deepcopy(made)
    again(batch()).sum().backward()
    assert [plan.executions for plan in checkmate.torch.plans(again)] == [1]


def test_a_copy_outlives_its_original() -> None:
    model = in_place(nn.Sequential(Layers(), nn.Linear(4, 2)))
    inside = copy.deepcopy(nn.ModuleList([model]))[0]
    del model
    inside(batch()).sum().backward()
    assert len(checkmate.torch.plans(inside)) == 1


@BOTH
def test_files_can_be_read_without_this_package(compile: Compile) -> None:
    model = Layers()
    compiled = compile(model)
    compiled(batch()).sum().backward()
    stored = io.BytesIO()
    torch.save(compiled.state_dict(), stored)
    stored.seek(0)
    compiled.load_state_dict(torch.load(stored))
    if compile is in_place:
        data = pickle.dumps(model)
        assert b"checkmate.torch" not in data
        loaded = pickle.loads(data)
        assert identical(loaded(batch()), model(batch()))


@BOTH
def test_export_after_training(compile: Compile) -> None:
    model = Layers()
    compiled = compile(model)
    step(model, lambda: compiled(batch()))
    expected = model.forward(batch())
    exported = torch.export.export(model, (batch(),))
    assert torch.equal(exported.module()(batch()), expected)
    step(model, lambda: compiled(batch()))
    assert [plan.executions for plan in checkmate.torch.plans(model)] == [2]


class Model(Layers):
    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:  # type: ignore[override]  # another model
        out: Tensor = super().forward(ids)
        return out if labels is None else F.cross_entropy(out, labels)


@BOTH
def test_scripts_that_ask_for_the_inputs(compile: Compile) -> None:
    """A trainer drops the columns of a data set that `model.forward` does not take."""
    own = inspect.signature(Model().forward)
    for model in (Model(), nn.Sequential(nn.Linear(8, 4))):
        own = inspect.signature(model.forward)
        compiled = compile(model)
        assert inspect.signature(compiled.forward) == own
        assert inspect.signature(copy.deepcopy(compiled).forward) == own
    row = {"ids": batch(), "labels": torch.tensor([0, 1, 2]), "text": "dropped"}
    compiled = compile(Model())
    taken = {name: row[name] for name in row if name in inspect.signature(compiled.forward).parameters}
    compiled(**taken).backward()
    assert len(checkmate.torch.plans(compiled)) == 1


@BOTH
def test_a_forward_that_is_wrapped_after_compiling(compile: Compile) -> None:
    """As launchers do: they put the forward under autocast and give its outputs back in float32."""
    torch.manual_seed(0)
    base = Layers()
    results = []
    for way in (lambda model: model, compile):
        compiled = way(twin(base))
        original = compiled.forward
        function = getattr(original, "__func__", None)
        wrapped = torch.autocast("cpu", dtype=torch.bfloat16)(function or original)

        def forward(*arguments: Any, wrapped: Any = wrapped, **keywords: Any) -> Tensor:
            return wrapped(*arguments, **keywords).float()  # type: ignore[no-any-return]  # untyped

        compiled.forward = forward.__get__(compiled) if function else forward
        out = compiled(batch())
        out.sum().backward()
        results.append([out.detach(), *gradients(compiled)])
    assert identical(*results)
    assert len(checkmate.torch.plans(compiled)) == 1


def train_alike(plain: Layers, model: Layers, compiled: Any) -> None:
    """A step of each comes to the same."""
    for each, called in ((plain, plain), (model, compiled)):
        each.zero_grad()
        called(batch()).sum().backward()
    assert identical(gradients(model), gradients(plain))


def pair(compile: Compile) -> tuple[Layers, Layers, Any]:
    """A model, its twin, and that compiled."""
    torch.manual_seed(0)
    plain = Layers()
    model = twin(plain)
    return plain, model, compile(model)


@BOTH
def test_hooks_that_come_and_go_between_steps(compile: Compile) -> None:
    plain, model, compiled = pair(compile)
    for factor in (None, 1.5, None, 2.5):
        hooked = (plain, model) if factor is not None else ()
        handles = [each.first.register_forward_hook(lambda module, given, output, by=factor: by * output) for each in hooked]
        train_alike(plain, model, compiled)
        for handle in handles:
            handle.remove()
    assert sorted(plan.executions for plan in checkmate.torch.plans(model)) == [1, 1, 2]


@BOTH
def test_a_hook_that_each_step_adds_anew_costs_no_new_plan(compile: Compile) -> None:
    plain, model, compiled = pair(compile)
    seen: dict[nn.Module, Tensor] = {}
    for _ in range(3):
        handles = [
            each.first.register_forward_hook(lambda module, given, output: seen.__setitem__(module, output))
            for each in (plain, model)
        ]
        train_alike(plain, model, compiled)
        for handle in handles:
            handle.remove()
        assert torch.equal(seen.pop(model.first), seen.pop(plain.first))
    assert [plan.executions for plan in checkmate.torch.plans(model)] == [3]


@BOTH
def test_hooks_of_a_layer_that_came_later(compile: Compile) -> None:
    plain, model, compiled = pair(compile)
    for _ in range(2):
        train_alike(plain, model, compiled)
        for each in (plain, model):
            each.first = copy.deepcopy(each.first)
    train_alike(plain, model, compiled)
    for each in (plain, model):
        each.first.register_forward_hook(lambda module, given, output: 1.5 * output)
    train_alike(plain, model, compiled)


@BOTH
def test_layers_that_are_frozen_and_unfrozen(compile: Compile) -> None:
    plain, model, compiled = pair(compile)
    for learns in (False, True, False):
        for each, called in ((plain, plain), (model, compiled)):
            each.first.requires_grad_(learns)
            each.zero_grad()
            called(batch()).sum().backward()
        trained = [p for p in plain.parameters() if p.grad is not None]
        assert len(trained) < len(list(plain.parameters())) if not learns else len(trained) == len(list(plain.parameters()))
        for mine, own in zip(model.parameters(), plain.parameters(), strict=True):
            assert (mine.grad is None) == (own.grad is None)
            assert own.grad is None or torch.equal(mine.grad, own.grad)  # type: ignore[arg-type]


# --- functions ---


# PyTorch imports modules of its own that are deprecated, and looks at the gradient of what goes from one graph to the next.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated", "ignore:The .grad attribute of a Tensor")
@BOTH
def test_backward_and_optimizer_step_inside_a_compiled_function(compile: Compile) -> None:
    torch.manual_seed(0)
    base = Layers()
    results, models = [], []
    for way in (lambda f: f, partial(torch.compile, backend="eager"), compile):
        model = twin(base)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def whole(x: Tensor, model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = way(whole)
        losses = [run(batch()) for _ in range(3)]
        results.append([*losses, *model.parameters()])
        models.append(model)
    plain, traced, planned = results
    # Before 2.12 PyTorch's compiler writes the optimizer's step out in operations that round differently, whichever backend runs them.
    assert identical(traced, planned) and (identical(plain, planned) or not identical(plain, traced))
    assert [plan.executions for plan in checkmate.torch.plans(models[-1])] == [2]  # the first step shows which graphs there are


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.drop = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)]), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        return x.square().mean()


# PyTorch looks at the gradient of what goes from one graph to the next.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@BOTH
def test_passes_are_not_compiled_once_more_where_a_compiled_function_calls_backward(compile: Compile) -> None:
    model, x = Deep(), torch.randn(512, 32)

    def whole(x: Tensor) -> Tensor:
        loss: Tensor = model(x)
        loss.backward()
        return loss.detach()

    run = compile(whole, budget="70%")
    for _ in range(2):
        run(x)  # a backward pass that is compiled again holds what its plan has freed: above the budget
    plan = checkmate.torch.plans(model)[-1]  # the one for the gradients of an earlier step besides
    assert plan.schedule.num_recomputations > 0
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget


@BOTH
def test_compiled_functions_keep_their_name_and_signature(compile: Compile) -> None:
    def loss_of(x: Tensor, scale: float = 2.0) -> Tensor:
        """The loss."""
        return (x * scale).sin().sum()

    compiled = compile(loss_of)
    assert inspect.signature(compiled) == inspect.signature(loss_of)
    assert (compiled.__name__, compiled.__doc__) == ("loss_of", "The loss.")


@BOTH
def test_second_derivatives_are_refused_in_one_line(compile: Compile) -> None:
    model = Layers()
    compiled = compile(model)
    x = batch().requires_grad_()
    (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    with pytest.raises(checkmate.CheckmateError, match="second derivative.*model.forward"):
        first.square().sum().backward()
    (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    with pytest.raises(checkmate.CheckmateError, match="second derivative.*model.forward"):
        torch.autograd.grad(first.sum(), x)  # of which PyTorch would say that it does not depend on the input
    (plain,) = torch.autograd.grad(model.forward(x).sum(), x, create_graph=True)  # what the message says
    assert torch.equal(first, plain)
    plain.square().sum().backward()
    assert x.grad is not None
    compiled(x).sum().backward()


def test_plans_of_what_was_not_compiled() -> None:
    unplanned = torch.compile(Layers(), backend="aot_eager")
    unplanned(batch())
    for thing in (Layers(), unplanned, unplanned.forward, len, 3, [Layers()], None):
        with pytest.raises(checkmate.CheckmateError, match="is not a compiled model: pass what"):
            checkmate.torch.plans(thing)
    for model in (by_name(Layers()), in_place(Layers()), in_place(lambda x: x.sin())):
        assert checkmate.torch.plans(model) == []
    whole = Trained()
    by_name(whole.inner)
    assert checkmate.torch.plans(whole) == []
