"""A quick demo run with tiny tensors: what it promises holds, whatever the sizes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from checkmate.demo import COLUMNS, cells, run, run_demo
from checkmate.demo.models import workloads
from checkmate.errors import UnknownMethod


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "cache"))


def check_rows(rows: list[dict[str, float]]) -> None:
    for number, row in enumerate(rows):
        first = number == 0 or rows[number - 1]["model"] != row["model"]
        assert row["predicted_peak"] <= row["budget"]
        assert row["measured_peak"] <= row["budget"]
        assert (row["plain_peak"] > row["budget"]) is not first
        assert row["largest_difference"] == 0.0
        assert row["gap"] >= 0
        assert row["plain_seconds"] > 0
        assert row["measured_overhead"] == pytest.approx(row["planned_seconds"] / row["plain_seconds"])
        if first:
            assert row["predicted_overhead"] == 1.0


def test_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_SOLVE_SECONDS", 3.0)  # near the least memory, the gap stays open
    lines: list[str] = []
    rows = run_demo(tmp_path / "out", lines.append, ["resnet"], small=True)
    check_rows(rows)
    assert len(rows) == 4
    assert rows[-1]["recomputations"] > 0
    assert any("planning" in line for line in lines)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"demo.json", "resnet-memory.png", "resnet-schedule.png"}
    saved = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert saved["rows"] == rows
    assert saved["environment"]["torch"] == torch.__version__
    table = cells(rows)
    assert [line and line[0] for line in table] == ["resnet"] * 4
    assert table[3] is not None and table[3][COLUMNS.index("budget")] == f"{rows[-1]['budget'] / 2**20:.1f}"
    assert cells([{**rows[0], "model": "unet"}, *rows])[1] is None, "an empty line between models"


def test_a_difference_would_be_seen() -> None:
    from checkmate.demo.run import _largest_difference, _new_model, _train

    workload = workloads(small=True)["unet"]
    one = _train(workload, _new_model(workload))
    assert _largest_difference(one, _train(workload, _new_model(workload))) == 0.0
    for change in (1e-30, float("nan")):
        other = copy.deepcopy(one)
        name = next(name for name in other.arrays[2] if name.startswith("gradient"))
        other.arrays[2][name].flat[0] += 1.0 if change == 1e-30 else change
        assert _largest_difference(one, other) > 0
    other = copy.deepcopy(one)
    other.losses[-1] += 1e-9
    assert 0 < _largest_difference(one, other) < 1e-8
    other = copy.deepcopy(one)
    del other.arrays[0][next(iter(other.arrays[0]))]
    assert _largest_difference(one, other) == float("inf")


@pytest.mark.parametrize("name", ["resnet", "unet", "transformer"])
def test_models_learn_from_seeded_data(name: str) -> None:
    workload = workloads(small=True)[name]
    torch.manual_seed(0)
    model = workload.build()
    first, again, other = workload.batch(0), workload.batch(0), workload.batch(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = workload.loss(model, first)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-5:]) < 0.9 * losses[0]


def test_unknown_model(tmp_path: Path) -> None:
    with pytest.raises(UnknownMethod, match="resnet, unet, transformer"):
        run_demo(tmp_path, models=["vgg"])


@pytest.mark.slow
def test_whole_demo(tmp_path: Path) -> None:
    rows = run_demo(tmp_path)
    check_rows(rows)
    assert len(rows) == 12
    assert json.loads((tmp_path / "demo.json").read_text())["seconds"] < 300
