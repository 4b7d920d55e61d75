"""What a step changes though there is no batch.

Where it is not known beforehand how many batches there are (a generator, records of a file, a filter), plain Keras begins one step more
at the end of an epoch, and TensorFlow stops it because there is no batch for it. What waits for none has been done by then: the optimizer
has counted a step, seeds have moved on, weights have decayed. The next epoch starts from there. So it is done here, too.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from ..internals import captured_in, copy_functions, copy_op, without_graph_rewriting
from ..ops.functions import changes_something
from ..ops.op_kinds import source
from ..ops.order import apart_from, in_creation_order
from .random_state import replaced
from .trace import Traced


def without_batch(traced: Traced) -> Callable[[], None]:
    """What does of a step what waits for nothing of its batch."""
    arguments = traced.argument_count
    order = apart_from(traced.inputs[:arguments], traced.ops)
    begun = {op.name for op in order}
    if traced.plain is not None:  # what follows from sizes waits for a batch there, and not here
        apart = apart_from(traced.plain.inputs[:arguments], in_creation_order(traced.plain.graph.get_operations()))
        names = {op.name for op in apart}
        begun = {name for name in begun if replaced(name) in names}
    needed: set[str] = set()
    for op in reversed(order):
        if op.name in needed or (op.name in begun and changes_something(op)):
            needed |= {op.name, *(source(tensor).op.name for tensor in op.inputs), *(other.name for other in op.control_inputs)}
    ops = [op for op in order if op.name in needed]

    def step() -> None:
        copy_functions(traced.graph)
        tensors = {name: captured_in(outer) for name, outer in traced.handles.items()}
        copies: dict[str, tf.Operation] = {}
        for op in ops:
            with tf.control_dependencies([copies[other.name] for other in op.control_inputs if other.name in copies]):
                copies[op.name] = copy_op(op, [tensors[source(tensor).name] for tensor in op.inputs], op.name)
            tensors.update(zip((tensor.name for tensor in op.outputs), copies[op.name].outputs, strict=True))

    function = tf.function(step, autograph=False)

    def run() -> None:
        with without_graph_rewriting():
            function()

    return run
