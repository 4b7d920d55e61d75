"""What a command plans: a graph file, a network by name, or a user's own model."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import GraphError
from ..graph import Graph
from ..networks import NETWORKS, network
from ..planning.device_models import DeviceModel, device_model
from ..planning.roofline import roofline_seconds
from ..units import Budget, parse_bytes
from .interrupts import Interrupts
from .parser import BadUsage
from .terminal import Live

#: Characters of a word in a message.
_WORD = 60


@dataclass(frozen=True)
class Source:
    """What was named, as something that graphs can be had from.

    Attributes:
        graph: at the batch that was asked for; the batch-1 graph of a file or a network where none was.
        device: model of the device that it is planned for.
        unit: of costs; None where nobody knows.
        at: from a batch size to the graph of a model; None for files and networks, whose costs and sizes grow with the batch.
    """

    device: DeviceModel | None
    unit: str | None
    _graph: Callable[[], Graph]
    at: Callable[[int], Graph] | None = None

    @property
    def graph(self) -> Graph:
        return self._graph()

    def budget(self, given: str) -> Budget:
        """The budget that was given; "auto" is the memory of the device model less 10%.

        Raises:
            BadUsage: "auto", and there is no device model with a memory of its own.
        """
        if given.strip().lower() != "auto":
            return given
        if self.device is None or self.device.memory is None:
            raise BadUsage(
                "--budget auto is the memory of a GPU less 10%: say which with --device-model, or give --budget in bytes"
            )
        return self.device.memory * 9 // 10


def find_source(options: argparse.Namespace, interrupts: Interrupts, live: Live, budgets: Sequence[str | None] = ()) -> Source:
    """What `options.graph` names.

    Args:
        live: shows how the making of a model goes.
        budgets: that will be used; those that cannot be read are refused before a model is made.

    Raises:
        BadUsage, GraphError: nothing, or not with these options. BudgetError: a budget cannot be read.
    """
    word: str = options.graph
    batch: int | None = getattr(options, "batch", None)
    device = None if options.device_model is None else device_model(options.device_model)
    if batch is not None and batch < 1:
        raise BadUsage(f"--batch is a whole number from 1 on, not {batch}")
    build = network(word)
    if build is not None:
        found = build(1 if batch is None else batch)
        if device is None:
            return Source(None, "multiply-adds", lambda: found)
        return Source(device, "seconds", lambda: _on_device(found, device))
    if _is_model(word):
        return _model(word, batch, device, interrupts, live, budgets)
    loaded = _load(word)  # first: a name that is not known is not taken for a file
    for option, given in (("--batch", batch), ("--device-model", device)):
        if given is not None:
            raise BadUsage(
                f"{option} is for networks by name and for models: the costs and sizes in a graph file are as they are"
            )
    return Source(None, None, lambda: loaded)


def _load(word: str) -> Graph:
    try:
        return Graph.load(word)
    except GraphError as error:
        plain = word.isascii() and word.replace("-", "").isalnum() and len(word) <= _WORD
        if not plain or os.path.lexists(word):
            raise
        close = difflib.get_close_matches(word.lower(), NETWORKS, 1)
        hint = f"did you mean {close[0]}?" if close else "`checkmate networks` lists them"
        raise GraphError(f"{error}; nor is there a network of that name ({hint})") from None


def _is_model(word: str) -> bool:
    """module:factory or file.py:factory, unless a file has that name."""
    where, colon, name = word.rpartition(":")
    return bool(colon and where) and name.replace(".", "").isidentifier() and not os.path.lexists(word)


def _model(
    word: str,
    batch: int | None,
    device: DeviceModel | None,
    interrupts: Interrupts,
    live: Live,
    budgets: Sequence[str | None],
) -> Source:
    from .models import ModelFactory, Watch

    unknown = Source(device, None, lambda: Graph([], [], 0, ""))
    for given in budgets:
        if given is not None and isinstance(amount := unknown.budget(given), str) and not amount.strip().endswith("%"):
            parse_bytes(amount)
    interrupts.working()
    with live:
        factory = ModelFactory(word, Watch(live.say, live.describe))

    def at(size: int | None) -> Graph:
        with live:
            graph = factory.graph(size, device)
            live.describe(f"batch {size}: searching")
            return graph

    return Source(device, "seconds", lambda: at(batch), at)


def _on_device(graph: Graph, device: DeviceModel) -> Graph:
    """The graph of a network, whose costs are multiply-adds, with seconds on a device in their place; weights are not counted as traffic."""
    rates = device.rates("float32")
    sizes = [value.size for value in graph.values]
    ops = [
        replace(op, cost=roofline_seconds(2 * op.cost, sum(sizes[value] for value in (*op.inputs, *op.outputs)), rates))
        for op in graph.ops
    ]
    return Graph(ops, graph.values, graph.fixed_memory, graph.name)
