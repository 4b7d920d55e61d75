"""What branches take that change variables."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate.tf2
from checkmate.errors import InfeasibleBudget
from checkmate.tf2.memory.branch_memory import in_turn
from checkmate.tf2.ops.nodes import Emitted

SIDE = 512
BYTES = 4 * SIDE * SIDE


def of_graph(graph: tf.Graph, inputs: list[tf.Tensor], outputs: list[tf.Tensor]) -> Emitted:
    nodes = [op.node_def for op in graph.get_operations() if op.type != "Placeholder"]
    for node in nodes:
        node.input[:] = [name if ":" in name else f"{name}:0" for name in node.input]
    return Emitted({x.op.name: x for x in inputs}, [], nodes, [x.name for x in outputs], [], graph)


def test_ops_run_in_turn_for_one_result_after_the_other() -> None:
    with tf.Graph().as_default() as graph:
        given = [tf.compat.v1.placeholder(tf.float32, (SIDE, SIDE), name=f"given_{n}") for n in range(4)]
        products = [tf.matmul(x, x, name=f"product_{n}") for n, x in enumerate(given)]
        sums = [tf.reduce_sum(x, name=f"sum_{n}") for n, x in enumerate(products)]
        ended, taken = in_turn(of_graph(graph, given, sums))
    assert taken == BYTES  # the first product; what it was given is gone before the next
    order = [node.name for node in ended.nodes if node.name.startswith(("product", "sum_"))]
    assert [name.partition("/")[0] for name in order if "Const" not in name and "range" not in name] == [
        f"{kind}_{n}" for n in range(4) for kind in ("product", "sum")
    ]
    waits = {node.name: [name for name in node.input if name.startswith("^")] for node in ended.nodes}
    assert waits["product_1"] == ["^sum_0"]


def test_what_is_written_over_takes_nothing() -> None:
    with tf.Graph().as_default() as graph:
        given = [tf.compat.v1.placeholder(tf.float32, (SIDE, SIDE), name="given")]
        made = tf.sqrt(tf.exp(given[0]) + 1.0)
        _, taken = in_turn(of_graph(graph, given, [made]))
    assert taken == 0


def test_the_update_of_an_optimizer_that_accumulates_is_planned() -> None:
    """It takes as much as the parameters, in every second step, and cannot be tried out."""
    x = np.random.default_rng(0).normal(size=(16, SIDE)).astype(np.float32)
    y = np.zeros((16, SIDE), np.float32)

    def compiled(budget: str | int) -> checkmate.tf2.TrainIteration:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((SIDE,)), *(keras.layers.Dense(SIDE, activation="relu") for _ in range(4))])
        optimizer = keras.optimizers.Adam(1e-3, gradient_accumulation_steps=2)
        settings = {"cost_model": "flops", "time_limit": 2}
        return checkmate.tf2.compile(model, keras.losses.MeanSquaredError(), optimizer, x, y, budget=budget, **settings)

    with pytest.raises(InfeasibleBudget) as error:
        compiled("1%")
    step = compiled(error.value.smallest_found)
    for _ in range(4):
        step(x, y)
    (plan,) = step.plans
    assert plan.measured_peak <= plan.budget  # and nothing was warned
