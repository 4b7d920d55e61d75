"""The built-in networks: figures known from elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import checkmate
from checkmate import Graph, networks

# Name, ops, bytes of weights and gradients, no-recompute peak and minimum working set without them.
KNOWN = [
    (networks.vgg16, "VGG16", 45, 1106860352, 61816832, 51380224),
    (networks.vgg19, "VGG19", 51, 1149337920, 66633728, 51380224),
    (networks.mobilenet, "MobileNet", 185, 34030912, 67775500, 12960256),
    (networks.resnet50, "ResNet50", 353, 205093696, 148669360, 14450688),
    (networks.unet, "vgg_unet", 71, 98662040, 654983168, 258998272),
    (networks.fcn8, "fcn_8_vgg", 73, 1075655880, 421399860, 258998272),
    (networks.segnet, "segnet", 77, 29659288, 623246384, 258998272),
    # By hand, at the gradient of the head: 68 tensors of 1024 x 768 per layer and three more, and four of 1024 x 50257.
    (networks.transformer, "transformer12", 419, 1304297472, 819 * 4 * 1024 * 768 + 4 * 4 * 1024 * 50257, 4 * 4 * 1024 * 50257),
]


@pytest.mark.parametrize(("network", "name", "ops", "fixed", "peak", "working_set"), KNOWN, ids=[known[1] for known in KNOWN])
def test_figures(network: Callable[..., Graph], name: str, ops: int, fixed: int, peak: int, working_set: int) -> None:
    graph = network()
    assert (graph.name, graph.num_ops, graph.fixed_memory) == (name, ops, fixed)
    assert graph.no_recompute_peak - fixed == peak
    assert graph.min_working_set - fixed == working_set
    forward = [op.cost for op in graph.ops if op.phase == "forward"]
    backward = [op.cost for op in graph.ops if op.phase == "backward"]
    assert backward == [2 * cost for cost in reversed(forward)]
    double = network(batch=2)
    assert (double.ideal_cost, double.fixed_memory) == (2 * graph.ideal_cost, fixed)
    assert double.no_recompute_peak - fixed == 2 * peak


@pytest.mark.parametrize(("network", "name"), [known[:2] for known in KNOWN], ids=[known[1] for known in KNOWN])
def test_every_op_but_the_loss_has_its_layer(network: Callable[..., Graph], name: str) -> None:
    """An op of the backward pass has that of its forward op."""
    ops = network().ops
    forward = {op.name: op.layer for op in ops if op.phase == "forward"}
    assert all(layer.replace(".", "_") == name for name, layer in forward.items())
    assert {op.name.removeprefix("grad_"): op.layer for op in ops if op.phase == "backward"} == forward
    assert [op.layer for op in ops if op.phase == "loss"] == [""]


def test_layers_of_a_transformer_have_levels() -> None:
    layers = {op.layer for op in networks.transformer(2, width=64, heads=4, length=32, vocabulary=100).ops}
    assert {"embedding", "block1.attention.query", "block2.attention.scores_dropout", "block2.mlp.up", "head"} <= layers


def test_parameters_are_those_of_keras() -> None:
    """Published counts; fixed memory is the float32 weights and their gradients."""
    assert networks.vgg16().fixed_memory == 8 * 138_357_544
    assert networks.vgg19().fixed_memory == 8 * 143_667_240
    assert networks.resnet50().fixed_memory == 8 * 25_636_712
    assert networks.mobilenet().fixed_memory == 8 * 4_253_864
    assert networks.transformer().fixed_memory == 8 * (124_439_808 + 768 * 50257), "GPT-2, and a head of its own"


def test_transformers_of_any_depth() -> None:
    for layers in (1, 3, 30):
        graph = networks.transformer(layers, width=64, heads=4, length=32, vocabulary=100)
        assert graph.num_ops == 34 * layers + 11
        assert sum(op.phase == "backward" for op in graph.ops) == 17 * layers + 5
    # Multiply-adds of the forward pass per layer and token: 12 width^2 in the linear layers, 2 width length in the products.
    one, two = (
        sum(op.cost for op in networks.transformer(layers, length=1024).ops if op.phase == "forward") for layers in (1, 2)
    )
    assert two - one == pytest.approx(1024 * (12 * 768**2 + 2 * 768 * 1024), rel=0.02)


def test_reached_from_the_package() -> None:
    assert checkmate.networks.vgg19 is networks.vgg19
    assert checkmate.networks.vgg19().ideal_cost == 58896187392
