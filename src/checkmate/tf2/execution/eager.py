"""A schedule as a list of eager ops: slow, but in exactly the order of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ...schedule import Compute, Step
from ..graphs.capture import Captured
from ..internals import eager_attributes, run_op
from ..ops.op_kinds import ALIASES, is_shape, needs, shape_value, source


@dataclass(slots=True)
class _Instruction:
    kind: str
    inputs: list[int]
    attributes: list[Any]
    outputs: list[int]
    dead: list[int] = field(default_factory=list)


class EagerProgram:
    """Call it with the step's flat arguments; it returns the flat outputs."""

    def __init__(self, captured: Captured, steps: Sequence[Step]):
        traced = captured.traced
        self.captures = traced.captured
        self.slots = len(traced.inputs)
        self.constants: list[tuple[int, tf.Tensor]] = []
        self.instructions: list[_Instruction] = []
        self._slot = {tensor.name: number for number, tensor in enumerate(traced.inputs)}
        self._views: dict[str, list[str]] = {}
        seen: set[int] = set()
        for step in steps:
            if isinstance(step, Compute):
                group = captured.groups[step.op]
                for op in group.ops if step.op in seen else group.first:
                    self._add(op)
                seen.add(step.op)
        self.outputs = [self._get(tensor) for tensor in traced.outputs]
        self._free()

    def __call__(self, *flat: tf.Tensor) -> list[tf.Tensor]:
        slots: list[Any] = [*flat, *self.captures, *[None] * (self.slots - len(flat) - len(self.captures))]
        del flat
        for slot, constant in self.constants:
            slots[slot] = constant
        for instruction in self.instructions:
            inputs = [slots[slot] for slot in instruction.inputs]
            results = run_op(instruction.kind, inputs, instruction.attributes, len(instruction.outputs))
            del inputs
            for number, slot in enumerate(instruction.outputs):
                slots[slot] = results[number]
            del results
            for slot in instruction.dead:
                slots[slot] = None
        return [slots[slot] for slot in self.outputs]

    def _get(self, tensor: tf.Tensor) -> int:
        stack = [tensor]
        while stack:
            wanted = stack[-1]
            passed_on = source(wanted)
            missing = [t for t in needs(wanted) if t.name not in self._slot]
            if wanted.name in self._slot:
                stack.pop()
            elif missing:
                stack.append(missing[0])
            elif passed_on is not wanted:
                self._slot[wanted.name] = self._slot[passed_on.name]
                self._views.setdefault(passed_on.name, []).append(wanted.name)
            else:
                self._add(wanted.op)
        return self._slot[tensor.name]

    def _add(self, op: tf.Operation) -> None:
        if is_shape(op):
            self.constants += [(self._new(tensor), tf.constant(shape_value(tensor))) for tensor in op.outputs]
            return
        if op.type == "Const":
            value = tf.constant(tf.make_ndarray(op.get_attr("value")), dtype=op.outputs[0].dtype)
            self.constants.append((self._new(op.outputs[0]), value))
            return
        inputs = [self._get(tensor) for tensor in op.inputs]
        if op.type in ALIASES:
            for number, output in enumerate(op.outputs):
                self._views.setdefault(op.inputs[number].name, []).append(output.name)
        outputs = [self._new(output) for output in op.outputs]
        self.instructions.append(_Instruction(op.type, inputs, eager_attributes(op), outputs))

    def _new(self, tensor: tf.Tensor) -> int:
        for view in self._views.pop(tensor.name, ()):
            self._forget(view)
        self._slot[tensor.name] = self.slots
        self.slots += 1
        return self.slots - 1

    def _forget(self, name: str) -> None:
        self._slot.pop(name, None)
        for view in self._views.pop(name, ()):
            self._forget(view)

    def _free(self) -> None:
        """Every slot is cleared after its last use."""
        last: dict[int, int] = {}
        for number, instruction in enumerate(self.instructions):
            for slot in (*instruction.inputs, *instruction.outputs):
                last[slot] = number
        kept = {*self.outputs, *(slot for slot, _ in self.constants)}
        for slot, number in last.items():
            if slot not in kept:
                self.instructions[number].dead.append(slot)
