"""A graph that knows of the former values of variables, for schedules in which they count.

In the graph of a step variables are fixed memory. A schedule may compute an op again after a variable has changed that it reads: then
what the variable was is still in memory beside what it is, and a step with large variables can take much more than the graph says.
Here what a variable was is a value that is there from the beginning and goes with its last reader, and what it becomes is another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...graph import Graph, Op, Value
from ...schedule import Compute, Free, Step
from ..graphs.capture import Captured
from ..ops.functions import changes_something
from ..ops.op_kinds import is_handle, root, tensor_bytes

#: Variables of less than this part of all fixed memory are left out; by less than this part of it a budget may be passed for them.
LITTLE = 1000


@dataclass(eq=False)
class _Variable:
    """A variable that changes.

    Attributes:
        size: bytes. readers: ops of the graph that read what it was. change: the op of the graph that changes it first.
    """

    size: int = 0
    readers: set[int] = field(default_factory=set)
    change: int | None = None


class FormerValues:
    """The step of `captured`, with what its variables were, the smallest left out.

    Attributes:
        graph: first come ops that stand for the variables, one each; then those of the step. num_variables: how many.
    """

    def __init__(self, captured: Captured):
        plain = captured.graph
        self._num_values = plain.num_values
        ops, values = list(plain.ops), list(plain.values)
        readers = Counter(value for op in ops for value in op.inputs)
        before: list[Op] = []
        fixed = plain.fixed_memory
        for name, variable in _variables(captured).items():
            if not any(ops[number].recomputable for number in variable.readers):
                continue
            assert variable.change is not None
            changing = _in_place(ops[variable.change], variable.size, values, readers)
            was, becomes = len(values), len(values) + 1
            values += [Value(f"{name} before", variable.size), Value(f"{name} after", variable.size, keep=True)]
            ops[variable.change] = replace(changing, outputs=(*changing.outputs, becomes))
            for number in {*variable.readers, variable.change}:
                ops[number] = replace(ops[number], inputs=(*ops[number].inputs, was))
            before.append(Op(f"{name} is read", 0.0, (), (was,), recomputable=False))
            fixed -= variable.size
        self.num_variables = len(before)
        self.graph = Graph([*before, *ops], values, fixed, plain.name)

    def of_step(self, steps: Sequence[Step]) -> list[Step]:
        """A schedule of `graph` as one of the step."""
        found: list[Step] = []
        for step in steps:
            if isinstance(step, Compute):
                if step.op >= self.num_variables:
                    found.append(Compute(step.op - self.num_variables))
            elif step.value < self._num_values:
                found.append(Free(step.value))
        return found


def _in_place(op: Op, size: int, values: Sequence[Value], readers: Counter[int]) -> Op:
    """The op that changes a variable, such that it takes no more than before where both values of the variable are values of the graph.

    It writes over what the variable was. So its workspace or the last of what it reads makes up for one of the two. Where neither can, as
    with several small variables that change together, a little too much is counted while the op runs.
    """
    if op.workspace >= size:
        return replace(op, workspace=op.workspace - size)
    for value in op.inputs:
        if op.reuses is None and values[value].size == size and readers[value] == 1 and not values[value].keep:
            return replace(op, reuses=value)
    return op


def _variables(captured: Captured) -> dict[str, _Variable]:
    """Variables that change, by name, without the smallest."""
    found: defaultdict[str, _Variable] = defaultdict(_Variable)
    former: dict[str, str] = {}  # tensor -> the variable that it was read from before that changed
    for number, group in enumerate(captured.groups):
        for op in group.first:
            for handle in filter(is_handle, op.inputs):
                variable = found[handle.name]
                if variable.change is None and changes_something(op):
                    variable.change = number
                elif variable.change is None and op.type == "ReadVariableOp":
                    former[op.outputs[0].name] = handle.name
                    variable.size = tensor_bytes(op.outputs[0])
            for read in map(root, op.inputs):
                if read.name in former:
                    found[former[read.name]].readers.add(number)
    least = captured.graph.fixed_memory // LITTLE
    return {name: one for name, one in found.items() if one.size > least and one.change is not None}
