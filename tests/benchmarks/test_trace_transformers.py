"""The transformers that the solver is measured on can be traced and scheduled."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import checkmate
import checkmate.torch

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "trace_transformers.py"


@pytest.mark.parametrize("layer", ["Layer", "LlamaLayer"])
def test_a_small_one(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("trace_transformers", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)  # where the compiler looks its classes up
    spec.loader.exec_module(script)
    ids = torch.randint(0, 50, (2, script.LENGTH))
    graph = checkmate.torch.capture(script.Transformer(getattr(script, layer), 2, 50), ids, ids, cost_model="flops")
    assert graph.num_ops > 100
    assert checkmate.solve(graph, "80%", time_limit=5).num_recomputations > 0
