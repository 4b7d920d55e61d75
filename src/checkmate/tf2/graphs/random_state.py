"""TensorFlow's own random ops, with a state that outlasts the graph they are in.

An op such as `RandomUniform` keeps its state in the graph that it runs in. Plain training has one graph for batches of several sizes; here
each size, and each plan, has a graph of its own, in which the numbers would begin anew. So such an op is replaced by the stateless op
that draws the same numbers, and its state by a variable for all these graphs: the counter and the key of Philox, which
`RngReadAndSkip` moves on by as much as the kernel of the op would have, 256 for each number. Then a copy of the op also draws
the same again, so that its results can be computed again.

Left as they are: ops inside of branches, loops and functions, of other types (`RandomGamma`, `Multinomial`, `RandomShuffle`), and without a
seed, which plain training does not repeat either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..internals import copy_handle_data, new_variable, replace_op

#: The ops that draw the same from a state that they are given.
_STATELESS = {
    "RandomUniform": tf.raw_ops.StatelessRandomUniformV2,
    "RandomUniformInt": tf.raw_ops.StatelessRandomUniformIntV2,
    "RandomStandardNormal": tf.raw_ops.StatelessRandomNormalV2,
    "TruncatedNormal": tf.raw_ops.StatelessTruncatedNormalV2,
}

#: Philox, by the number that TensorFlow has for it; its state is a counter of two numbers, and a key.
_PHILOX, _COUNTER = 1, 2

#: No other op has this seed.
_OWN_SEED = 0x636865636B6D6174

#: Behind the name of an op the scope of what stands for it, and the name there of what moves its state on.
_SCOPE, _MOVE = "/drawn", "state"


class RandomStates:
    """States of the random ops of a step, by the names of the ops, for all graphs that are made of one trace."""

    def __init__(self) -> None:
        # With their first values. All are there as long as this is.
        self._states: dict[str, tuple[Any, list[int]]] = {}
        self._elsewhere: list[Any] = []
        self._resets: int | None = None  # that were seen before the last step

    def replace(self, graph: tf.Graph, inputs: list[tf.Tensor], outputs: list[tf.Tensor], captured: list[Any]) -> set[str]:
        """Replace the random ops of a graph.

        Args:
            inputs, outputs, captured: of the graph, as in `Traced`. The states are added to what is captured, and what is drawn stands
                where it was among outputs.

        Returns:
            The names of the ops that nothing needs any more.
        """
        ops = [op for op in graph.get_operations() if op.type in _STATELESS and (op.get_attr("seed") or op.get_attr("seed2"))]
        for op in ops:
            state = self._state_of(op)
            with graph.as_default():
                place = tf.compat.v1.placeholder(tf.resource, (), name=f"random_state__{len(inputs)}")
                copy_handle_data(state.handle, place)
                drawn = _drawn(op, place)
            drawn.set_shape(op.outputs[0].shape)
            replace_op(op, drawn, outputs)
            inputs.append(place)
            captured.append(state.handle)
        return {op.name for op in ops}

    def begun_anew(self, captured: Sequence[Any]) -> list[Any]:
        """What a graph captures, with new states: for a graph that is put into another, where plain training, too, begins anew."""
        first = {id(state.handle): numbers for state, numbers in self._states.values()}
        made = {id(handle): _new(first[id(handle)]) for handle in captured if id(handle) in first}
        self._elsewhere += made.values()
        return [made[id(handle)].handle if id(handle) in made else handle for handle in captured]

    def follow_resets(self) -> None:
        """Begin anew if TensorFlow's kernels have done so since the last step."""
        if not self._states:
            return
        resets = _seen.count()
        if self._resets is not None and resets > self._resets:
            for state, first in self._states.values():
                state.assign(first)
        self._resets = resets

    def _state_of(self, op: tf.Operation) -> Any:
        if op.name not in self._states:
            first = [0, op.get_attr("seed2"), op.get_attr("seed")]
            self._states[op.name] = _new(first), first
        return self._states[op.name][0]


class _Resets:
    """How often TensorFlow has forgotten its kernels, and with them the states of random ops: `tf.random.set_seed` has it do so, and
    Keras's `clear_session`. A random op of our own tells: it draws its first number again.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._count = 0

    def count(self) -> int:
        """So far, if it is asked before each step."""
        with tf.device("/device:CPU:0"):
            (drawn,) = tf.raw_ops.RandomUniform(shape=(1,), dtype=tf.float64, seed=_PHILOX, seed2=_OWN_SEED).numpy()
        if self._first is None:
            self._first = drawn
        elif drawn == self._first:
            self._count += 1
        return self._count


_seen = _Resets()


def replaced(name: str) -> str:
    """The random op whose state the op of this name moves on; the name itself if it is no such op."""
    return name.removesuffix(f"{_SCOPE}/{_MOVE}")


def _drawn(op: tf.Operation, state: tf.Tensor) -> tf.Tensor:
    """What an op draws, from the state behind a handle, in the graph that is being built."""
    shape, *bounds = op.inputs
    with tf.name_scope(f"{op.name}{_SCOPE}/"), tf.control_dependencies(op.control_inputs):
        with tf.device("/device:CPU:0"):  # where the kernels want these
            # Not as a constant where it is known: at the end of data that must wait for a batch which waits for one in plain training.
            count = tf.cast(tf.reduce_prod(tf.cast(shape, tf.int64)), tf.uint64)
            algorithm = tf.constant(_PHILOX)
        before = tf.raw_ops.RngReadAndSkip(resource=state, alg=algorithm, delta=count, name=_MOVE)
        counter, key = (tf.bitcast(part, tf.uint64) for part in (before[:_COUNTER], before[_COUNTER:]))
        with tf.device(op.device):
            given = {"minval": bounds[0], "maxval": bounds[1]} if bounds else {"dtype": op.outputs[0].dtype}
            return _STATELESS[op.type](shape=shape, key=key, counter=counter, alg=algorithm, **given)


def _new(numbers: Sequence[int]) -> Any:
    return new_variable(np.array(numbers, np.int64))
