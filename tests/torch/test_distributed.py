"""Training in two processes that share gradients or parameters: the same results, each process within its own budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.fx import Graph as FxGraph

from checkmate.planning import OpCost
from checkmate.torch.ops import profile
from checkmate.torch.ops.nodes import has_side_effects
from checkmate.torch.ops.sizes import hint

WORKER = Path(__file__).parents[1] / "torch_distributed.py"
RANKS = 2
#: Bytes that a collective inside a graph returns.
GATHERED = RANKS * 256 * 32 * 4
#: Schedules are this close to the best ones.
GAP = 1e-3
#: Seconds, for a machine that has much else to do.
PATIENCE = 1500

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch was built without gloo")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process has shown."""
    folder = tmp_path_factory.mktemp("ranks")
    outputs = [(folder / f"{rank}.out").open("w+") for rank in range(RANKS)]
    errors = [(folder / f"{rank}.err").open("w+") for rank in range(RANKS)]
    ranks = [
        subprocess.Popen([sys.executable, str(WORKER), str(rank), str(folder / "store")], stdout=output, stderr=error)
        for rank, (output, error) in enumerate(zip(outputs, errors, strict=True))
    ]
    try:
        codes = [process.wait(PATIENCE) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
        said = [Path(error.name).read_text(errors="replace")[-2000:] for error in errors]
        results = [Path(output.name).read_text() for output in outputs]
        for file in (*outputs, *errors):
            file.close()
    assert codes == [0] * RANKS, said
    return [dict(json.loads(line) for line in result.splitlines() if line.startswith("[")) for result in results]


SCRIPTS = ["ddp, compiled before", "ddp, compiled after", "ddp, no_sync", "fsdp", "fsdp, accumulation", "collectives inside"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_two_processes(shown: list[dict[str, Any]], script: str) -> None:
    for rank, scripts in enumerate(shown):
        plain, again, planned = (scripts[script][name] for name in ("plain", "again", "planned"))
        for key in ("losses", "state"):
            assert plain[key] == again[key], f"rank {rank}: plain training differs from itself"
            assert planned[key] == plain[key], f"rank {rank}"
        budget = planned["plans"][-1][0]
        # What a collective reads and returns is let go by a thread of the process group, some time after.
        late = 2 * GATHERED if script == "collectives inside" else 0
        assert max(planned["peaks"]) <= budget + late, f"rank {rank}: {planned}"
        assert budget < max(plain["peaks"]) or "fsdp" in script
        graphs = planned["plans"][-1][1]  # one for each bucket, or for each block
        assert graphs >= 3 if "ddp" in script else graphs == (3 if "fsdp" in script else 1)
        assert planned["warnings"] == [] or late
    # Each process has its own budget, and what that leads to.
    first, second = (scripts[script]["planned"]["plans"][-1] for scripts in shown)
    assert first[0] < second[0]
    assert first[2] >= second[2] - GAP
    assert first[2] > 1 or "fsdp" in script


@pytest.mark.parametrize("name", ["all_reduce", "wait_tensor", "all_gather_into_tensor", "reduce_scatter_tensor"])
def test_collectives_run_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Other processes take part in them, under plans of their own: they are neither computed again nor run to see what they cost."""
    graph = FxGraph()
    node = graph.call_function(getattr(torch.ops._c10d_functional, name).default, (graph.placeholder("x"),))
    assert has_side_effects(node)
    monkeypatch.setattr(profile, "_measured", lambda *_, cold: OpCost(1.0, 0))
    monkeypatch.setattr(profile, "_device_of", lambda _: torch.device("cpu"))
    other = graph.call_function(torch.ops.aten.sin.default, (node,))
    nodes = profile._Nodes(hint, None, None, cold=False)
    assert [nodes.measure(each) for each in (node, other)] == [None, OpCost(1.0, 0)]
