"""What README and docs say about PyTorch, beyond docs/pytorch.md, runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import checkmate
import checkmate.torch
from checkmate import cli
from docs_blocks import Block, blocks, commands, limited

#: The lines with which a model is compiled; those of other frameworks are run by their tests.
LINES = [
    line
    for page in ("README.md", "docs/index.md")
    for block in blocks(page, "python")
    for line in block.code.splitlines()
    if "torch" in line
]
COMMANDS = [words for words in commands("docs/command_line.md") if any(":" in word for word in words)]


@pytest.fixture(autouse=True)
def _imports() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)))


#: In a process of its own: what other tests compiled through PyTorch's wrapper of modules, it remembers of the wrapper.
PROGRAM = """
import warnings
import torch
from torch import nn
import checkmate.torch
from checkmate.torch import BudgetWarning

warnings.simplefilter("error", BudgetWarning)
model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)))
{line}
model(torch.randn(8, 16)).square().mean().backward()
(plan,) = checkmate.torch.plans(model)
print(plan.budget)
"""


@pytest.mark.parametrize("line", LINES)
def test_the_one_line(line: str) -> None:
    """Each by itself: two of them are two ways to do the same."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(line=line)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 4 << 30


def test_plans_of_a_model_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = checkmate.torch.compile(layers(), budget="4GiB")
    model(torch.randn(8, 16)).square().mean().backward()
    found = blocks("docs/report.md", "python", "after the first step")
    assert len(found) == 2
    for block in found:
        block.run({"checkmate": checkmate, "model": model})
    assert Path("report.html").stat().st_size
    overhead, budget, predicted, measured = capsys.readouterr().out.split()
    assert float(overhead) == 1.0 and int(budget) == 4 << 30 and int(predicted) > 0 and int(measured) > 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the file that the page shows."""
    found: list[Block] = blocks("docs/command_line.md", "python", "net.py")
    made = tmp_path_factory.mktemp("models")
    (made / "net.py").write_text(found[0].code, encoding="utf-8")
    return made


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_on_a_model(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(limited(words)[1:]) == 0
    if "-o" in words:
        assert Path(words[words.index("-o") + 1]).stat().st_size


def test_there_are_such_commands() -> None:
    assert len(LINES) == 3
    assert {words[1] for words in COMMANDS} == {"report", "max-batch", "trace"}
