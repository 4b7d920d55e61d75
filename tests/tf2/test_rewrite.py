"""The graph that is planned is the one that plain training runs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate.tf2
from checkmate.tf2.keras_step import training_step
from checkmate.tf2.sums import with_sums
from checkmate.tf2.trace import Traced, trace
from tf2_models import CASES, identical, state, train_plain


def traced(name: str, **of_the_optimizer: Any) -> tuple[Traced, Any, Any]:
    case = CASES[name]()
    model = case.make()
    optimizer = keras.optimizers.Adam(1e-3, **of_the_optimizer) if of_the_optimizer else case.optimizer()
    optimizer.build(model.trainable_variables)
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), (case.x, case.y))
    before = state(model, optimizer)
    found = trace(training_step(model, case.loss, optimizer), specs)
    assert identical(state(model, optimizer), before)  # nothing has run
    return found, model, optimizer


@pytest.mark.parametrize(("name", "fused"), [("conv", "_FusedConv2D"), ("transformer", "AddN")])
def test_a_trace_is_what_tensorflow_runs(name: str, fused: str) -> None:
    found, _, _ = traced(name)
    assert found.rewritten
    assert fused in {op.type for op in found.ops}
    names = [op.name for op in found.ops]
    assert all(names.index(t.op.name) < n for n, op in enumerate(found.ops) for t in op.inputs if t.op.name in names)
    assert all(t.shape.is_fully_defined() for op in found.ops for t in op.outputs if t.dtype != tf.resource)


def test_sizes_that_set_shape_tells_are_known() -> None:
    """No shape of TensorFlow follows from the inputs of a Python function, and what reads its result has none either."""

    def step(x: Any) -> Any:
        y = tf.numpy_function(lambda array: array[:, ::-1].copy(), [x], tf.float32)
        y.set_shape(x.shape)
        return tf.reduce_sum(tf.nn.relu(y * 2.0) @ tf.transpose(y))

    found = trace(step, [tf.TensorSpec((64, 64))])
    assert found.rewritten
    assert not found.of_unknown_size
    assert {"PyFunc", "Relu"} <= {op.type for op in found.ops}


def _branches(x: Any) -> Any:
    """Added up in a row, with sizes that a trace for batches of any size does not tell."""
    terms = [tf.reshape(tf.reshape(x, (-1, 8)) @ tf.fill((8, 8), number), (-1, 16, 8)) for number in (1.0, 2.0)]
    return x + terms[0] + terms[1]


def _normalized(x: Any) -> Any:
    """All that is added up has the sizes of one tensor."""
    x = tf.reshape(x, (-1, 8))
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return x * variance + (1.0 - mean) + tf.square(x)


@pytest.mark.parametrize(
    ("function", "sums", "apart", "traces"),
    [(_branches, 1, 0, 2), (_normalized, 1, 1, 1), (lambda x: _normalized(_branches(x)), 2, 1, 2)],
)
def test_additions_in_a_row_stay_apart_where_plain_training_cannot_know_sizes(
    function: Any, sums: int, apart: int, traces: int
) -> None:
    specs = [tf.TensorSpec((4, 16, 8))]
    calls = []

    def step(x: Any) -> Any:
        calls.append(x.shape)
        return function(x)

    def count(found: Traced) -> int:
        return sum("AddOpsRewrite" in op.name and op.type == "AddN" for op in found.ops)

    assert count(trace(step, specs)) == sums
    calls.clear()
    found = trace(step, specs, varying_batch=True)
    assert count(found) == apart
    assert len(calls) == traces
    assert all(tensor.shape.is_fully_defined() for op in found.ops for tensor in op.outputs)


def test_loops_stay_whole() -> None:
    """TensorFlow takes them apart into ops in a cycle; the trace has them as one op."""
    found, _, _ = traced("recurrent")
    assert not found.rewritten
    assert any(op.type in ("While", "StatelessWhile") for op in found.ops)


def test_a_branch_that_only_changes_variables_stays_whole() -> None:
    """The rest of the step is what plain training runs, which takes such branches apart."""
    found, _, _ = traced("transformer", gradient_accumulation_steps=2)
    assert found.rewritten
    kinds = {op.type for op in found.ops}
    assert "If" in kinds
    assert "AddN" in kinds


def test_accumulated_gradients_are_those_of_plain_training() -> None:
    case = CASES["transformer"]()
    case.optimizer = lambda: keras.optimizers.Adam(1e-3, gradient_accumulation_steps=2)
    expected, losses, _ = train_plain(case, steps=5)
    model, optimizer = case.make(), case.optimizer()
    settings = {"cost_model": "flops", "gap": 0.05, "time_limit": 2}
    step = checkmate.tf2.compile(model, case.loss, optimizer, case.x, case.y, budget="80%", **settings)
    assert [float(step(case.x, case.y)[1]) for _ in range(5)] == losses
    assert identical(state(model, optimizer), expected)


def test_a_constant_does_not_wait_for_what_it_was_made_of() -> None:
    """A shape becomes a constant that TensorFlow orders behind the tensor of that shape, which a plan would keep for it."""
    variable = tf.Variable(np.ones((64, 64), np.float32))

    def step(x: tf.Tensor) -> tf.Tensor:
        shape = tf.raw_ops.Shape(input=tf.matmul(x, variable))
        return tf.fill(shape, x[0, 0])

    found = trace(step, [tf.TensorSpec((64, 64))])
    assert found.rewritten
    assert not any(op.type == "MatMul" for op in found.ops)


def test_sums_of_large_tensors_stay_sums() -> None:
    """Where memory is short TensorFlow adds them up in a temporary variable, which no other op may make."""
    variables = [tf.Variable(np.ones((4096, 1), np.float32)) for _ in range(5)]

    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_max(tf.add_n([tf.exp(x * variable) for variable in variables]))

    kinds = {op.type for op in trace(step, [tf.TensorSpec((4096, 4096))]).ops}
    assert "AddN" in kinds
    assert "TemporaryVariable" not in kinds


def test_terms_of_sums_of_large_tensors_are_added_as_plain_training_adds_them() -> None:
    """Each as soon as it is there, in whatever order the script names them."""
    variable = tf.Variable(np.ones((4096, 1), np.float32))

    def step(x: tf.Tensor) -> tf.Tensor:
        first = tf.exp(x * variable)
        second = tf.tanh(first)
        third = tf.sin(second)
        return tf.reduce_max(tf.add_n([third, second, first]))

    (total,) = (op for op in trace(step, [tf.TensorSpec((4096, 4096))]).ops if op.type == "AddN")
    assert [term.op.type for term in total.inputs] == ["Exp", "Tanh", "Sin"]


def test_sums_of_many_terms_are_added_one_after_the_other() -> None:
    """The kernel of AddN would add the tenth term and those behind it by themselves before."""
    end = tf.compat.v1.NodeDef(name="sum", op="DestroyTemporaryVariable", input=["zeros"])
    end.attr["T"].type = tf.float32.as_datatype_enum
    definition = tf.compat.v1.GraphDef()
    definition.node.add(name="variable", op="TemporaryVariable")
    definition.node.add(name="zero", op="Const")
    definition.node.add(name="zeros", op="Assign", input=["variable", "zero"])
    for number in range(12):
        definition.node.add(name=f"term{number}", op="_Arg")
        definition.node.add(name=f"adding{number}", op="AssignAdd", input=["zeros", f"term{number}"])
        end.input.append(f"^adding{number}")
    definition.node.append(end)
    sums = [node for node in with_sums(definition) if not node.name.startswith("term")]
    assert [(node.op, node.attr["N"].i) for node in sums] == [("AddN", 9), ("AddN", 4)]
    assert sums[1].name == "sum"
    assert sums[1].input[0] == sums[0].name
    assert {*sums[0].input, *sums[1].input} == {sums[0].name, *(f"term{number}" for number in range(12))}
