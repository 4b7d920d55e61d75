"""What the graphs of a model hold for each other, and what those of other models do not see."""

from __future__ import annotations

import torch

from checkmate.graph import Graph, Op
from checkmate.planning import Allowance
from checkmate.schedule import Compute, Schedule
from checkmate.torch.plan import Plan
from checkmate.torch.sharing import Holdings, storages

CPU = torch.device("cpu")


def plan() -> Plan:
    graph = Graph([Op("op", 1.0, (), ())], [], 0)
    return Plan(graph, Schedule(graph, (Compute(0),)), Allowance(1), 1, device=CPU)


def test_forward_passes_hold_until_their_backward_pass() -> None:
    holdings, another, first, second = Holdings(), Holdings(), plan(), plan()
    weight, x = torch.empty(10), torch.empty(20)
    results = [x.view(4, 5), torch.empty(30), torch.empty(40), None]
    holdings.begin(first, storages([weight, x]), results)
    assert holdings.held(first) == 280
    expected = {t.untyped_storage()._cdata: t.nbytes for t in (weight, x, results[1], results[2]) if t is not None}
    assert holdings.outside([weight], second, CPU) == expected
    assert set(holdings.outside([weight], first, CPU)) == {weight.untyped_storage()._cdata}
    assert holdings.outside([], second, torch.device("cuda:0")) == {}
    assert another.held(first) == 0
    assert another.outside([], second, CPU) == {}
    del results[2]  # the script drops an output
    assert holdings.held(first) == 120
    holdings.end(first)
    assert holdings.held(first) == 0
    assert holdings.outside([], second, CPU) == {}
