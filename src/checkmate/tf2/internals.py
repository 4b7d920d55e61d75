"""Every private switch of TensorFlow that this front end needs, in one place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.eager import cancellation, record
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute as eager_execute
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import handle_data_util, resource_variable_ops
from tensorflow.python.util import _pywrap_util_port

#: Attribute of a loop or a branch that is to be taken apart before the graph runs.
_APART = "_lower_using_switch_merge"


def copy_op(op: tf.Operation, inputs: Sequence[tf.Tensor], name: str) -> tf.Operation:
    """The same op on other inputs, in the graph that is being built; control edges come from `tf.control_dependencies`.

    A loop ends one iteration before it begins the next: how many it has open at a time is a matter of chance, and so what it takes.
    """
    graph = framework_ops.get_default_graph()
    attributes = dict(op.node_def.attr.items())
    if "parallel_iterations" in attributes:
        attributes["parallel_iterations"] = attr_value_pb2.AttrValue(i=1)
    return graph._create_op_internal(
        op.type,
        list(inputs),
        [output.dtype for output in op.outputs],
        name=name,
        attrs=attributes,
        op_def=op.op_def,
    )


def captured_in(tensor: tf.Tensor) -> tf.Tensor:
    """What stands for a tensor from outside, such as the handle of a variable, in the graph that is being built."""
    return framework_ops.get_default_graph().capture(tensor)


def copy_functions(source: tf.Graph) -> None:
    """Make the functions that a traced graph calls (bodies of loops and branches) known to the graph being built."""
    graph = framework_ops.get_default_graph()
    for function in source._functions.values():
        if not graph._is_function(function.name):
            graph._add_function_recursive(function)


def op_definition(kind: str) -> Any:
    """The `OpDef` of a type of op."""
    return op_def_registry.get(kind)


def add_function(definition: Any, source: tf.Graph, others: Iterable[Any] = ()) -> None:
    """Make a `FunctionDef` known to TensorFlow, and others and what a traced graph calls where they are not known yet."""
    context = eager_context.context()
    context.ensure_initialized()
    for other in [*(function.cached_definition for function in source._functions.values()), *others]:
        if not context.has_function(other.signature.name):
            context.add_function_def(other)
    context.add_function_def(definition)


def remove_function(name: str) -> None:
    """Forget a function that `add_function` made known."""
    context = eager_context.context()
    if context.has_function(name):
        context.remove_function(name)


def call_function(name: str, inputs: Sequence[tf.Tensor], outputs: int) -> list[tf.Tensor]:
    """Run a function that `add_function` made known."""
    return eager_context.context().call_function(name.encode(), list(inputs), outputs) or []


def function_definition(graph: tf.Graph, name: str) -> Any:
    """The `FunctionDef` of a function that ops of a graph call; None if the graph does not know it."""
    function = graph._get_function(name)
    return None if function is None else function.cached_definition


def is_stateful(op: tf.Operation) -> bool:
    """The op reads or changes something besides its inputs."""
    return bool(op._is_stateful)


def is_stateful_type(kind: str) -> bool:
    """Ops of this type read or change something besides their inputs."""
    definition = op_def_registry.get(kind)
    return definition is None or bool(definition.is_stateful)


def new_variable(value: Any) -> Any:
    """A variable of its own, also where a `tf.function` is being traced, which may make none with `tf.Variable`."""
    with tf.init_scope():
        return resource_variable_ops.ResourceVariable(value, trainable=False)


def is_recording() -> bool:
    """A `tf.GradientTape` records what is computed now."""
    return bool(record.could_possibly_record())


def replace_input(op: tf.Operation, number: int, tensor: tf.Tensor) -> None:
    """Have an op of the graph that is being built read another tensor."""
    op._update_input(number, tensor)


def replace_op(op: tf.Operation, tensor: tf.Tensor, outputs: list[tf.Tensor]) -> None:
    """Have all that reads or waits for an op of a traced graph, which has one output, read a tensor, or wait for that, instead.

    Args:
        outputs: of the graph; the tensor stands among them where the op's output did.
    """
    (old,) = op.outputs
    outputs[:] = [tensor if output.name == old.name else output for output in outputs]
    for reader in old.consumers():
        for number, read in enumerate(reader.inputs):
            if read.name == old.name:
                replace_input(reader, number, tensor)
    for waiting in op._control_outputs:
        before = [tensor.op if other.name == op.name else other for other in waiting.control_inputs]
        waiting._remove_all_control_inputs()
        waiting._add_control_inputs(before)


def copy_handle_data(source: tf.Tensor, target: tf.Tensor) -> None:
    """What is known of the variable behind a resource handle."""
    handle_data_util.copy_handle_data(source, target)


def converting(model: Any) -> AbstractContextManager[Any]:
    """In this block tf_keras has AutoGraph convert what users write: the `call` of layers, losses and metrics. Keras 3 never does."""
    is_keras_3 = not hasattr(model, "_autographed_call")
    return nullcontext() if is_keras_3 else ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED)


def converted_where_keras_does(model: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """The `call` of a model as Keras runs it."""
    if not hasattr(model, "_autographed_call") or not model._should_use_autograph():
        return call
    return autograph.tf_convert(call, ag_ctx.control_status_ctx())  # type: ignore[no-any-return]  # TensorFlow is untyped


def is_optimizer(given: Any) -> bool:
    """It is an optimizer of Keras 3 or tf_keras, the legacy ones of the latter included."""
    makes_variables = callable(getattr(given, "build", None)) or callable(getattr(given, "_create_all_weights", None))
    return makes_variables and callable(getattr(given, "apply_gradients", None))


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Create what an optimizer keeps for the variables that it is to train."""
    (optimizer.build if hasattr(optimizer, "build") else optimizer._create_all_weights)(variables)


def not_converted(function: Callable[..., Any]) -> None:
    """AutoGraph is to call a function as it is; what that calls may still be converted."""
    autograph.autograph_artifact(function)


def layers_in(model: Any) -> Iterable[Any]:
    """A Keras model, its layers, and the layers inside of those, in Keras 3 and in tf_keras; none of anything else."""
    return model._flatten_layers() if hasattr(model, "_flatten_layers") else ()


def rewritten_graph(function: Any, inputs: Sequence[tf.Tensor]) -> tf.compat.v1.GraphDef | None:
    """The graph that TensorFlow would run for a concrete function: calls inlined, placed on devices, rewritten.

    Of the rewriting that is to save memory only that of sums is done, see `sums`: what moves tensors to the host and back cannot be repeated.

    TensorFlow makes it when the function is called first, and hands it out with its statistics. The call is cancelled before
    it starts, so that nothing runs.

    Args:
        inputs: all that the function takes.

    Returns:
        None if it cannot be told from the graphs of functions that other threads call first at the same time.
    """
    outputs = len(function.outputs)
    if not any(_APART in node.attr for node in function.function_def.node_def):
        return rewritten_function(function.name.decode(), inputs, outputs, whole=False)
    with known_with_whole_branches(function.function_def, function.graph) as name:
        return rewritten_function(name, inputs, outputs)


def rewritten_function(
    name: str, inputs: Sequence[tf.Tensor], outputs: int, *, whole: bool = True
) -> tf.compat.v1.GraphDef | None:
    """The same of a function that TensorFlow knows by name.

    Args:
        inputs: all that it takes. outputs: how many it has. whole: it may have branches that stay whole.
    """
    context = eager_context.context()
    cancelled = cancellation.CancellationManager()
    cancelled.start_cancel()
    other = tf.function(lambda: tf.constant(0), autograph=False).get_concrete_function()
    other()  # not to be among the graphs that are collected
    context.enable_graph_collection()
    try:
        try:
            with cancellation.CancellationManagerContext(cancelled), _as_can_be_repeated(whole):
                # Not by calling the function itself, which would collect where each op was made in order to say it in the error.
                call_function(name, inputs, outputs)
        except tf.errors.CancelledError:
            pass
        else:
            raise AssertionError("TensorFlow ran a call that was cancelled")
        other()  # the statistics come with a call that runs
        found = context.export_run_metadata().function_graphs
    finally:
        context.disable_graph_collection()
    return found[0].post_optimization_graph if len(found) == 1 else None


def take_apart(nodes: Iterable[Any], apart: bool) -> None:
    """Whether TensorFlow takes the branches and loops among nodes apart before it rewrites a graph, or runs it."""
    for node in nodes:
        if _APART in node.attr:
            node.attr[_APART].b = apart


@contextmanager
def known_with_whole_branches(definition: Any, source: tf.Graph, others: Iterable[Any] = ()) -> Iterator[str]:
    """The name by which TensorFlow knows, in this block, a function whose branches and loops it does not take apart.

    Args:
        definition: of a function with the same ops. source, others: as in `add_function`.
    """
    copy = type(definition)()
    copy.CopyFrom(definition)
    copy.signature.name += "_with_whole_branches"
    take_apart(copy.node_def, False)
    add_function(copy, source, others)
    try:
        yield copy.signature.name
    finally:
        remove_function(copy.signature.name)


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Calls of functions in this block that take longer are cancelled: they raise `tf.errors.CancelledError`."""
    cancelled = cancellation.CancellationManager()
    timer = threading.Timer(seconds, cancelled.start_cancel)
    timer.daemon = True
    timer.start()
    try:
        with cancellation.CancellationManagerContext(cancelled):
            yield
    finally:
        timer.cancel()


def run_op(kind: str, inputs: Sequence[Any], attributes: Sequence[Any], outputs: int) -> list[tf.Tensor]:
    """Run one op eagerly. Inputs are flat, as in the graph; for the attributes see `eager_attributes`."""
    return eager_execute.quick_execute(kind, outputs, list(inputs), tuple(attributes), eager_context.context())


def eager_attributes(op: tf.Operation) -> list[Any]:
    """The attributes of an op as `run_op` takes them: names and values in turn."""
    flat: list[Any] = []
    for attribute in op.op_def.attr:
        flat += [attribute.name, _plain(op.node_def.attr[attribute.name])]
    return flat


def _plain(attribute: Any) -> Any:
    kind = attribute.WhichOneof("value")
    if kind == "list":
        for field in ("s", "i", "f", "b", "type", "shape", "tensor", "func"):
            if len(entries := getattr(attribute.list, field)):
                return list(entries)
        return []
    return getattr(attribute, kind)


def without_graph_rewriting() -> AbstractContextManager[None]:
    """Calls of functions in this block run their graphs as they were built (Grappler off)."""
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return _calls_with(config)


def _as_can_be_repeated(whole: bool) -> AbstractContextManager[None]:
    """Calls of functions in this block are rewritten into graphs that can be run elsewhere."""
    options = eager_context.context().function_call_options
    config = tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
    config.graph_options.rewrite_options.memory_optimization = rewriter_config_pb2.RewriterConfig.SCHEDULING_HEURISTICS
    # For whole branches it makes functions that are not handed out. In plain training it finds none: they have been taken apart.
    config.graph_options.rewrite_options.disable_tfg_optimizer = whole
    return _calls_with(config)


@contextmanager
def _calls_with(config: tf.compat.v1.ConfigProto) -> Iterator[None]:
    context = eager_context.context()
    before = context.function_call_options
    options = eager_context.FunctionCallOptions(executor_type=before.executor_type)
    options.config_proto_serialized = config
    context.function_call_options = options
    try:
        yield
    finally:
        context.function_call_options = before


def onednn_is_on() -> bool:
    """TensorFlow runs ops of oneDNN on the CPU where it can."""
    return bool(_pywrap_util_port.IsMklEnabled())


def address(tensor: tf.Tensor) -> int:
    """Where a tensor of the CPU begins in memory."""
    return int(tensor._numpy().ctypes.data)


def variable_bytes(handle: tf.Tensor) -> int:
    """Bytes of the variable (or whatever else) behind a resource handle; 0 where that is not known."""
    total = 0
    for dtype, size in variable_shapes(handle):
        shape = tf.TensorShape(size)
        if shape.is_fully_defined():
            total += (shape.num_elements() or 0) * tf.dtypes.as_dtype(dtype).size
    return total


def variable_shapes(handle: tf.Tensor) -> list[tuple[Any, Any]]:
    """Types and shapes, as TensorFlow stores them, of the variable (or whatever else) behind a resource handle, where they are known."""
    data = getattr(handle, "_handle_data", None)
    return [(entry.dtype, entry.shape) for entry in data.shape_and_type] if data is not None and data.is_set else []


def rows_behind(handle: tf.Tensor) -> int | None:
    """The first size of the variable behind a resource handle in a graph; None where that is not known."""
    data = handle_data_util.get_resource_handle_data(handle)
    shapes = [tf.TensorShape(entry.shape) for entry in data.shape_and_type] if data.is_set else []
    return shapes[0][0] if len(shapes) == 1 and shapes[0].rank else None


def variable_type(handle: tf.Tensor) -> tf.DType | None:
    """The type of element of the variable behind a resource handle; None where that is not known."""
    known = variable_shapes(handle)
    return tf.as_dtype(known[0][0]) if len(known) == 1 else None
