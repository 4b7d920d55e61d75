"""What writing in inputs is worth: the least budget of training steps with and without ops that reuse the storage of an input.

The networks are those of torch_peers.py. At the size for a CPU ops are measured on this machine; at the size for a GPU the step is
planned for a device, on tensors without data. Each row gives the least budget that is proven and the least that was found, in bytes
with everything fixed, as the graph was captured ("with") and with `reuses` left out ("without"), beside the step's plain peak.

    python benchmarks/in_place.py [--scales cpu gpu] [--networks NAME ...] [--device h100] [--output in_place.json]

Exit code 1 if a least budget without reuse is proven to be below one found with it.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

import checkmate
import checkmate.torch
from checkmate import Graph

sys.path.insert(0, str(Path(__file__).parent))

from torch_matrix import environment
from torch_peers_networks import TASKS, Task


def captured(task: Task, scale: str, device: str) -> Graph:
    """A training step; as `device` would run it where it is larger than this machine."""
    if scale != "full":
        torch.manual_seed(0)
        return checkmate.torch.capture(task.build().train(), *task.batch(task.examples))
    with FakeTensorMode():
        model = task.build().train()
        inputs = [torch.empty(task.examples, *one.shape[1:], dtype=one.dtype) for one in task.batch(1)]
    return checkmate.torch.capture(model, *inputs, device=device)


def without_reuse(graph: Graph) -> Graph:
    """The same step, in which every op writes its result to memory of its own."""
    return Graph([replace(op, reuses=None) for op in graph.ops], graph.values, graph.fixed_memory, graph.name)


def row(graph: Graph) -> dict[str, Any]:
    """Least budgets of a graph."""
    found = {"ops": graph.num_ops, "in place": sum(op.reuses is not None for op in graph.ops), "fixed": graph.fixed_memory}
    for name, one in (("without", without_reuse(graph)), ("with", graph)):
        least = checkmate.minimum_budget(one)
        found[name] = {"plain": one.no_recompute_peak, "proven": least.proven_minimum, "found": least.smallest_found}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", nargs="+", default=["cpu", "full"], choices=sorted(TASKS))
    parser.add_argument("--networks", nargs="+", help="default: all of the scales")
    parser.add_argument("--device", default="h100", help="that the steps of scale full are planned for (default: h100)")
    parser.add_argument("--output", type=Path, default=Path("in_place.json"))
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    print(f"{'network':>18} {'ops':>5} {'in place':>8} {'plain, MiB':>11} {'least without':>14} {'least with':>11} {'ratio':>6}")
    for scale in options.scales:
        for name, task in TASKS[scale].items():
            if options.networks and name not in options.networks:
                continue
            found = rows[f"{scale}/{name}"] = row(captured(task, scale, options.device))
            before, after = (found[way]["found"] / 2**20 for way in ("without", "with"))
            print(
                f"{scale + '/' + name:>18} {found['ops']:5} {found['in place']:8} {found['with']['plain'] / 2**20:11.1f} "
                f"{before:14.1f} {after:11.1f} {after / before:6.3f}",
                flush=True,
            )
            data = {"environment": environment(seed=0), "settings": {"device": options.device}, "rows": rows}
            options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return int(any(found["with"]["proven"] > found["without"]["found"] for found in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
