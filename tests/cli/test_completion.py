"""Completion in a real bash: what it offers is what the parser knows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from checkmate import cli
from checkmate.cli.parser import parser
from checkmate.networks import NETWORKS
from support import error_line

#: Words of a command line -> what is offered for the last one.
OFFERED = {
    "checkmate s": "solve sweep",
    "checkmate --v": "--version",
    "checkmate solve resn": "resnet50",
    "checkmate info ": " ".join(NETWORKS),
    "checkmate solve --b": "--batch --budget",
    "checkmate solve --quiet --bu": "--budget",
    "checkmate solve g.json --order ": "given any",
    "checkmate solve g.json --device-model ": "h100 a100 rtx4090 cpu",
    "checkmate solve g.json --method mi": "milp milp-cbc milp-gurobi",
    "checkmate solve --budget 50% gpt2-": "gpt2-medium gpt2-large gpt2-xl",
    "checkmate compare g.json --methods auto gree": "greedy",
    "checkmate compare g.json --methods auto --j": "--json",
    "checkmate sweep g.json --plot vgg": "",  # a file, which bash completes by itself
    "checkmate demo vgg": "",
    "checkmate completion ": "bash zsh",
    "checkmate networks --": "--help --json",
}


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", "bash"]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash(script: str, tmp_path: Path) -> None:
    lines = [script, 'offer() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _checkmate; echo "${COMPREPLY[*]}"; }']
    for words in OFFERED:
        lines.append(f"offer {' '.join(repr(word) for word in words.split(' '))}")
    (tmp_path / "test.bash").write_text("\n".join(lines))
    done = subprocess.run(["bash", "-u", str(tmp_path / "test.bash")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert dict(zip(OFFERED, done.stdout.split("\n"), strict=False)) == OFFERED


def test_every_option_is_in_it(script: str) -> None:
    commands = parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert len(commands) == 11  # type: ignore[arg-type]
    for name, command in commands.items():  # type: ignore[union-attr]
        (line,) = (line for line in script.splitlines() if line.strip().startswith(f"{name}) "))
        assert all(option in line for action in command._actions for option in action.option_strings)


def test_zsh_reads_it_through_its_own_bash_completion(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == f"autoload -U +X bashcompinit && bashcompinit\n{script}"


def test_other_shells(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in error_line(capsys.readouterr().err)
