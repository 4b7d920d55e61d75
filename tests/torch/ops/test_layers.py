"""The layers of ops are the names of the modules in the user's own model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import checkmate
import checkmate.torch
from checkmate import Graph, Op, Value
from checkmate.planning.parts import PartGraph, PartInput
from checkmate.torch.ops.layers import Layers, names_of, with_own_layers


class Block(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(width), nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    """Modules in modules, in lists and in dictionaries; one is called under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.heads = nn.ModuleDict({"main": nn.Sequential(nn.Linear(8, 8), nn.ReLU())})
        self.out = self.heads["main"][0]

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.out(self.heads["main"](x) * 2)


class Broken(nn.Module):
    """PyTorch makes several graphs of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def leaves(model: nn.Module) -> set[str]:
    """Names of the modules that compute something themselves, as `named_modules` has them."""
    return {name for name, module in model.named_modules() if not list(module.children())}


def check(graph: Graph, model: nn.Module) -> None:
    """Nothing but names of modules, every leaf in both passes, and backward ops with modules that are in the forward pass."""
    layers = {phase: {op.layer for op in graph.ops if op.phase == phase} for phase in ("forward", "backward")}
    assert layers["forward"] | layers["backward"] <= set(dict(model.named_modules()))
    assert leaves(model) <= layers["forward"]
    assert leaves(model) <= layers["backward"]
    assert layers["backward"] <= layers["forward"] | {""}


def by_name(model: nn.Module) -> Callable[..., Any]:
    return torch.compile(model, backend="checkmate", options={"budget": "1GiB", "cost_model": "flops"})


def in_place(model: nn.Module) -> Callable[..., Any]:
    return checkmate.torch.compile(model, budget="1GiB", cost_model="flops")


def test_captured() -> None:
    model = Net()
    graph = checkmate.torch.capture(model, torch.randn(2, 4), cost_model="flops")
    check(graph, model)
    layers = {op.name: op.layer for op in graph.ops}
    assert layers["native_layer_norm_1"] == "blocks.1.norm"
    assert layers["gelu_backward_1"] == "blocks.0.act"
    assert layers["add"] == "blocks.0"


@pytest.mark.parametrize("compiled", [by_name, in_place])
def test_planned(compiled: Callable[[nn.Module], Callable[..., Any]]) -> None:
    model = Net()
    compiled(model)(torch.randn(2, 4)).sum().backward()
    (plan,) = checkmate.torch.plans(model)
    check(plan.graph, model)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch's compiler looks, at what a graph begins with
@pytest.mark.parametrize("compiled", [by_name, in_place])
def test_several_graphs(compiled: Callable[[nn.Module], Callable[..., Any]]) -> None:
    model = Broken()
    compiled(model)(torch.randn(2, 8)).sum().backward()
    graph = checkmate.torch.plans(model)[0].graph
    check(graph, model)
    assert all(not op.layer for op in graph.ops if op.name.startswith("script"))


class Twice(nn.Module):
    """PyTorch makes two graphs of what this computes, and runs the same for every module of the class but the first."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x).relu()
        torch._dynamo.graph_break()
        return x + self.down(y)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_graph_that_runs_for_several_modules_has_the_names_of_each() -> None:
    model = nn.Sequential(Twice(), Twice(), Twice())
    by_name(model)(torch.randn(2, 8)).sum().backward()
    graph = checkmate.torch.plans(model)[0].graph
    assert [op.layer for op in graph.ops if op.phase == "forward"] == [
        *("0.up", "0", "0.down", "0", "1.up", "1", "1.down", "1", "2.up", "2", "2.down", "2")
    ]
    names = {name: set(dict(module.named_modules(prefix=name))) for name, module in model.named_children()}
    backward = [op.layer for op in graph.ops if op.phase == "backward" and op.layer]
    assert {layer.partition(".")[0]: {*backward} & names[layer.partition(".")[0]] for layer in backward} == names
    assert backward == sorted(backward, key=lambda layer: layer.partition(".")[0], reverse=True), "the last module comes first"


def test_a_function_around_the_model() -> None:
    """The model is not known: what is left of the expressions that lead to the modules is the same."""
    model = Net()

    @torch.compile(backend="checkmate", options={"budget": "1GiB", "cost_model": "flops"})
    def step(x: Tensor) -> Tensor:
        return model(x).square().mean()

    step(torch.randn(2, 4)).backward()
    (plan,) = checkmate.torch.plans(model)
    layers = {op.layer for op in plan.graph.ops}
    assert layers - {"out"} <= set(dict(model.named_modules())), "a module with two names may be called by the second"
    assert {"embed", "blocks.0.norm", "blocks.1.down", "heads.main.1"} <= layers


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_what_compiled_modules_inside_are_called() -> None:
    names = names_of(nn.Sequential(torch.compile(nn.Sequential(nn.Linear(2, 2))), nn.ReLU()))
    assert sorted(names.values()) == ["", "0", "0", "0.0", "1"]
    assert names_of(lambda x: x) == {}


@pytest.mark.parametrize(
    ("expression", "layer"),
    [
        ("L['self']", ""),
        ("L['self'].blocks.0.norm", "blocks.0.norm"),
        ("L['model']._modules['h']._modules['3'].mlp", "h.3.mlp"),
        ("L['self'].blocks[2].heads['main']", "blocks.2.heads.main"),
        ("G['m'].emb", "emb"),
        ("L['run'].__self__.emb", "emb"),
        ("L['step'].__closure__[0].cell_contents.emb", "emb"),
        ("L['models'][0].emb", "emb"),
        ("L['self']._orig_mod.emb", "emb"),
        ("L['self'].encoder._orig_mod.emb", "encoder.emb"),
        ("L['self'].not_orig_mod", "not_orig_mod"),
    ],
)
def test_paths_from_expressions(expression: str, layer: str) -> None:
    node = torch.fx.Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"1": ("L['self']", nn.Module), "2@1": (expression, nn.Module)}
    assert Layers({}).of(node, "forward") == layer
    assert Layers({"2": "known"}).of(node, "forward") == "known"
    assert Layers({"1": "root"}).of(node, "forward") == "root"
    assert Layers({"3": "other"}).of(node, "forward") == ""


def test_the_names_of_a_run_are_those_of_the_owners_of_its_parameters() -> None:
    ops = [
        Op("up", 1.0, (), (0,), layer="h.1.up"),
        Op("add", 1.0, (0,), (1,), layer="h.1"),
        Op("other", 1.0, (1,), (2,), layer="h.12.up"),
        Op("loss", 1.0, (2,), (3,)),
    ]
    graph = Graph(ops, [Value(name, 8) for name in "abcd"])
    part = PartGraph(graph, None, (PartInput(8, (0, 3)), PartInput(8, (0,)), PartInput(8, (2,)), PartInput(8)), (3,))
    own = with_own_layers(part, [10, 11, None, 13], {10: "h.5.up", 11: "h.5.up", 13: "embed"})
    assert [op.layer for op in own.graph.ops] == ["h.5.up", "h.5", "h.12.up", ""]
    assert [replace(op, layer="") for op in own.graph.ops] == [replace(op, layer="") for op in ops]
    assert with_own_layers(part, [10, 11, None, None], {10: "h.1.up"}) is part
    assert with_own_layers(part, [10, 11, None, None], {}) is part


def test_where_a_sum_of_gradients_comes_from() -> None:
    """From what its terms have in common, or from the block around the one that came last if the other came from outside."""
    graph = torch.fx.Graph()
    layers = Layers({})

    def node(path: str | None, *inputs: torch.fx.Node) -> torch.fx.Node:
        made = graph.call_function(torch.add, inputs)
        if path is not None:
            made.meta["fwd_nn_module_stack"] = {"1": (f"L['self'].{path}", nn.Module)}
        return made

    terms = [node(path) for path in ("out", "h.3.mlp.up", "h.3.norm", "h.2.mlp", "h.2", "h.1.q", "h.1.k")]
    for one in terms:
        layers.of(one, "backward")
    out, up, norm, mlp, block, query, key = terms
    sums = [(out, up), (up, norm), (out, norm), (norm, mlp), (mlp, block), (norm, block), (query, key), (key, query), (key, out)]
    assert [layers.of(node(None, *terms), "backward") for terms in sums] == [
        *("h.3.mlp", "h.3", "h.3", "h.2", "h.2", "h.2", "h.1", "h.1", "h.1")
    ]
    assert layers.of(node(None, out), "backward") == "out"
    assert layers.of(node(None), "backward") == ""


def test_sums_of_gradients_of_a_residual_network_belong_to_its_blocks() -> None:
    model = Net()
    graph = checkmate.torch.capture(model, torch.randn(2, 4), cost_model="flops")
    sums = [op.layer for op in graph.ops if op.phase == "backward" and op.name.startswith("add")]
    assert sums == ["heads.main.0", "heads.main.0", "blocks.1", "blocks.0"], (
        "weight and bias of the module that runs twice come first"
    )
