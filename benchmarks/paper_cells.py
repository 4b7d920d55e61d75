"""The cells of `paper.py`: one search each, of one method on one graph at one budget, and what it came to.

A cell is plain data, so that it can be sent to a process or a machine; its key says everything that its result depends on, the code
and the versions of packages included.
"""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import paper_networks
import solver
import solver_scale

import checkmate
from checkmate import Graph, networks

#: Of the GPU of the paper's largest batches.
GPU_BYTES = 16 * 10**9
#: What results depend on: what of the package searches and checks, and these scripts.
_PARTS = (
    "solvers/**/*.py",
    "networks/*.py",
    "graph.py",
    "schedule.py",
    "units.py",
    "errors.py",
    "float_rounding.py",
    "verification.py",
)
_SCRIPTS = ("paper_cells.py", "paper_networks.py", "solver.py", "solver_scale.py")
#: A search that takes nearly as long as it may was ended by its limit.
_ENDED_BY_LIMIT = 0.97


@dataclass(frozen=True)
class Cell:
    """One search.

    Attributes:
        section: of the evaluation. graph: kind and name, see `graph_of`. batch: that it is trained at.
        budget: "30% of the way" from the least working set to the peak that keeps the whole forward pass; "90% of the peak" without
            recomputation; in the section of batches how parameters are counted, "once" or "twice".
        method, order, seconds, gap, seed: of `checkmate.solve`.
        contents: digest of the graph's file, if it has one.
    """

    section: str
    graph: str
    batch: int
    budget: str
    method: str
    order: str = "given"
    seconds: float = 60.0
    gap: float = 1e-3
    seed: int = 0
    contents: str = ""

    @property
    def key(self) -> str:
        """Of its result."""
        data = asdict(self) | {"graph": self.name, "version": version()}
        return _digest(json.dumps(data, sort_keys=True).encode())

    @property
    def name(self) -> str:
        """Of its graph: of a file, or of a network; of others with the kind."""
        kind, _, rest = self.graph.partition(":")
        return Path(rest).stem if kind == "file" else rest if kind in ("network", "modern") else self.graph


@cache
def version() -> str:
    """Digest of the code that results depend on, and of the packages it calls."""
    package = Path(checkmate.__file__).parent
    files = [file for part in _PARTS for file in package.glob(part)]
    files += [Path(__file__).parent / script for script in _SCRIPTS]
    parts = [f"{file.name} {_digest(file.read_bytes())}" for file in sorted(files)]
    return _digest(json.dumps([parts, solver.environment()["versions"]], sort_keys=True).encode())


def file_digest(path: Path) -> str:
    """For `Cell.contents`."""
    return _digest(path.read_bytes())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@lru_cache(maxsize=4)
def graph_of(name: str, batch: int) -> Graph:
    """network:NAME of the package, modern:NAME of `paper_networks`, FAMILY:OPS of `solver_scale`, file:PATH; activations times batch."""
    kind, _, rest = name.partition(":")
    if kind == "network":
        return networks.NETWORKS[rest].build(batch)
    if kind == "modern":
        return paper_networks.MODERN[rest](batch)
    if kind == "file":
        return Graph.load(rest) if batch == 1 else Graph.load(rest).scaled(batch)
    return solver_scale.graph_of(kind, int(rest)).scaled(batch)


def budget_in_bytes(graph: Graph, text: str) -> int:
    """See `Cell.budget`."""
    share = float(text.partition("%")[0]) / 100
    if text.endswith("of the peak"):
        return int(share * graph.no_recompute_peak)
    least = graph.min_working_set
    return least + int(share * (kept_forward_peak(graph) - least))


def kept_forward_peak(graph: Graph) -> int:
    """With the whole forward pass kept to the end, as the paper's code counts what it calls no rematerialization."""
    without_limit = graph.fixed_memory + sum(value.size for value in graph.values) + max(op.workspace for op in graph.ops)
    return checkmate.solve(graph, without_limit, "keep-all-forward").peak


def answer(cell: Cell) -> dict[str, Any]:
    """The result of a cell: plain data."""
    graph = graph_of(cell.graph, cell.batch)
    row: dict[str, Any] = {"key": cell.key, "version": version(), **asdict(cell), "graph": cell.name, "ops": graph.num_ops}
    if cell.section == "batches":
        return row | _largest_batch(cell, graph)
    budget = budget_in_bytes(graph, cell.budget)
    settings = Namespace(time_limit=cell.seconds, gap=cell.gap, seed=cell.seed)
    if cell.section == "times":  # the first search of a process loads the solvers
        solver.search(solver_scale.graph_of("residual", 45), 2**40, "auto", "given", settings)
    found = solver.search(graph, budget, cell.method, cell.order, settings)
    took = found.pop("seconds")
    del found["course"]
    ended = found["cost"] is not None and took < _ENDED_BY_LIMIT * cell.seconds
    return row | found | {"budget_bytes": budget, "took": took, "done": ended or cell.section != "times", **_sizes(graph)}


def _sizes(graph: Graph) -> dict[str, Any]:
    return {
        "ideal": graph.ideal_cost,
        "fixed": graph.fixed_memory,
        "least": graph.min_working_set,
        "plain": graph.no_recompute_peak,
    }


def is_of(row: dict[str, Any], cell: Cell) -> bool:
    """Whether a result of another version of the code is of a graph with the same costs and sizes."""
    graph = graph_of(cell.graph, cell.batch)
    return all(row.get(name, now) == now for name, now in ({"ops": graph.num_ops} | _sizes(graph)).items())


def _largest_batch(cell: Cell, graph: Graph) -> dict[str, Any]:
    """The largest batch on a GPU of 16 GB at the cost of at most one more forward pass, of a graph at batch 1."""
    forward = sum(op.cost for op in graph.ops if op.phase != "backward")
    most = 1 + forward / graph.ideal_cost
    room = GPU_BYTES - graph.fixed_memory * (2 if cell.budget == "twice" else 1)
    if cell.method == "auto":
        found = checkmate.max_batch_size(graph, graph.fixed_memory + room, most, time_limit=cell.seconds, seed=cell.seed)
        result = {"largest": found.batch, "upper_bound": found.upper_bound, "overhead": found.schedule.overhead}
        return result | {"took": found.seconds, "status": "found", "done": True, "contradicted": False}
    batch, overhead = 0, None
    above = room // max(1, graph.min_working_set - graph.fixed_memory) + 1
    while above - batch > 1:
        tried = (batch + above) // 2
        cost = _cost_at(cell, graph, graph.fixed_memory + room // tried)
        if cost is not None and cost <= most * graph.ideal_cost * (1 + 1e-12):
            batch, overhead = tried, cost / graph.ideal_cost
        else:
            above = tried
    return {"largest": batch, "upper_bound": None, "overhead": overhead, "status": "found", "done": True, "contradicted": False}


def _cost_at(cell: Cell, graph: Graph, budget: int) -> float | None:
    try:
        return checkmate.solve(graph, budget, cell.method, time_limit=cell.seconds, gap=0.0, seed=cell.seed).cost
    except checkmate.InfeasibleBudget:
        return None
