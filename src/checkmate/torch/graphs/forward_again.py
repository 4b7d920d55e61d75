"""A forward pass that runs once more when its backward pass comes.

The first graph of a step is planned as if it were all, until another one is called before its backward pass: a model that is called
twice, or two models. What it has saved is then let go of, and computed again from what it was called with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..ops.batch_norm import is_batch_norm
from ..ops.nodes import arguments_of, depends_on_tangents, has_side_effects, is_clone, reached_from
from ..ops.sizes import Bindings
from ..pytorch.internals import Boxed
from ..pytorch.random import States, drawing_from, random_states
from .capture import RNG_STATE_BYTES, Captured
from .halves import Halves, draws, unready
from .part import Ticket, versions


class Called:
    """What a forward pass is called with, and with which random numbers it goes on.

    Args:
        captured: what runs; see `can_run_again`.
    """

    def __init__(self, captured: Captured, arguments: Sequence[Any]):
        self._captured = captured
        self._written = _written(captured)
        # `data` has a count of changes of its own: what the pass itself, or the next one, writes there is no mistake.
        self._arguments = [x.data if place in self._written else x for place, x in enumerate(arguments)]
        self._versions = versions(self._arguments)
        self._states = random_states([captured.device]) if draws(captured) else []

    def exchange(self, ticket: Ticket) -> bool:
        """Have the ticket hold this and nothing else. False if it was changed in place since: what was saved is still right."""
        if versions(self._arguments) != self._versions:
            return False
        ticket.exchange(self._arguments, self._versions)
        return True

    def halves(self, safe: Halves) -> Halves:
        """What runs in the backward pass of such a ticket.

        Args:
            safe: both passes of the same graph, ready for its sizes.
        """
        numbers = safe.forward_numbers, safe.backward_numbers
        return _Again(
            unready, unready, *numbers, safe=safe, written=self._written, states=self._states, count=len(self._captured.outputs)
        )


@dataclass(frozen=True)
class _Again(Halves):
    """Both passes of a graph in its backward pass.

    Attributes:
        written: places of arguments that the forward pass writes. states: of the random number generators, when it ran.
        count: of its outputs.
    """

    safe: Halves = field(kw_only=True)
    written: frozenset[int] = field(kw_only=True)
    states: States = field(kw_only=True)
    count: int = field(kw_only=True)

    def for_backward(self, sizes: Bindings, saved: list[Any], tangents: list[Any]) -> tuple[Boxed, list[Any]]:
        """What was saved is what the forward pass was called with."""
        return partial(self._run, sizes, len(saved)), [*saved, *tangents]

    def _run(self, sizes: Bindings, count: int, given: list[Any]) -> Any:
        arguments, tangents = given[:count], given[count:]
        given.clear()
        arguments = [x.clone() if place in self.written else x for place, x in enumerate(arguments)]
        arguments += self.safe.forward_numbers(sizes)
        with drawing_from(self.states):
            saved = list(self.safe.forward(arguments)[self.count :])
        function, given = self.safe.for_backward(sizes, saved, tangents)
        saved.clear()
        tangents.clear()
        return function(given)


def bytes_of(captured: Captured) -> int:
    """What `Called` takes on the device of the budget, beyond what lives anyway."""
    return RNG_STATE_BYTES if captured.device.type == "cpu" and draws(captured) else 0


def can_run_again(captured: Captured) -> bool:
    """A second forward pass changes nothing but what it writes into inputs, and what the backward pass needs of it is the same."""
    nodes = [node for node in captured.nodes[: captured.between] if node is not None]
    # A copy of an input is made because the script may be about to change it.
    if any(has_side_effects(node) or (is_clone(node) and node.all_input_nodes[0].op == "placeholder") for node in nodes):
        return False
    written = [entry.nodes for entry in captured.inputs if entry.overwritten]
    if any(len(nodes) > 1 for nodes in written):  # views of one storage, which copies of them would not be
        return False
    reads = {user for (node,) in written for user in node.users if not is_batch_norm(user)}
    return reached_from(reads).isdisjoint(depends_on_tangents(captured.module))


def _written(captured: Captured) -> frozenset[int]:
    """Places of arguments that the forward pass overwrites."""
    places = {node: place for place, node in enumerate(arguments_of(captured.module))}
    return frozenset(places[node] for entry in captured.inputs if entry.overwritten for node in entry.nodes)
