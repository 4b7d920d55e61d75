"""Every command on a file, a network and a model, in a pipe and in terminals of 60 and 200 columns."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from tqdm.utils import disp_len

import checkmate
from checkmate import Graph, cli
from support import training_chain

MODEL = f"{Path(__file__).with_name('user_models.py')}:small"
COMMANDS = {
    "info": [],
    "solve": ["--budget", "100%"],
    "report": ["-o", "r.html", "--curve", "1"],
    "compare": ["--budget", "100%", "--methods", "keep-all", "greedy"],
    "sweep": ["--budgets", "100%", "--method", "keep-all"],
    "max-batch": ["--budget", "auto", "--time-limit", "3", "--max-overhead", "1"],
    "trace": ["-o", "g.json"],
}
#: 0 columns: a pipe.
WIDTHS = (0, 60, 200)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def cases() -> list[tuple[str, str, int]]:
    """All of them on a file and a network; a model, which takes longer, and a page at one width each."""
    found = [(c, s, w) for c, s, w in product(COMMANDS, ("file", "network"), WIDTHS) if c != "report"]
    found += [(command, "model", WIDTHS[number % 3]) for number, command in enumerate(COMMANDS)]
    return [*found, ("report", "file", 60), ("report", "network", 200)]


@pytest.mark.parametrize(("command", "source", "width"), cases())
def test_output(
    command: str, source: str, width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(variable, raising=False)
    if width:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(width))
    training_chain(6, size=1000).save("chain.json")
    options = list(COMMANDS[command])
    if command == "max-batch" and source != "network":
        options[1] = "100%" if source == "file" else "1MB"
    words = [command, {"file": "chain.json", "network": "vgg16", "model": MODEL}[source], *options]
    device = [] if source == "file" else ["--device-model", "rtx4090"]
    assert cli.main([*words, *device]) == 0
    out, err = capsys.readouterr()
    name = {"file": "chain6", "network": "VGG16", "model": "Sequential"}[source]
    assert _COLOURS.sub("", out).startswith(f"{name}: ")
    if width:
        assert "\x1b[1m" in out, "the title is bold"
        assert max(disp_len(line) for line in _COLOURS.sub("", out).splitlines()) <= width
    else:
        assert "\x1b" not in out + err
    assert _COLOURS.sub("", out).replace("\n", "").isprintable()


@pytest.mark.parametrize("command", COMMANDS)
def test_json_has_no_colours(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a terminal would show some, and with what a model prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    source = MODEL if command == "info" else "mobilenet"
    assert cli.main([command, source, *COMMANDS[command], "--device-model", "h100", "--json"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert isinstance(json.loads(out), dict)


@pytest.mark.parametrize("command", ["networks", "devices"])
@pytest.mark.parametrize("width", WIDTHS)
def test_lists(command: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if width:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(width))
    assert cli.main([command]) == 0
    lines = _COLOURS.sub("", capsys.readouterr().out).splitlines()
    assert not width or max(map(disp_len, lines)) <= width


#: Runs each command of a list, and says on both streams where the next one begins.
_DRIVER = """
import json, sys
from checkmate import Graph, cli
for words in json.loads(sys.argv[1]):
    code = cli.main(words)
    for stream in (sys.stdout, sys.stderr):
        print(f"\\n[exit code {code}]", file=stream, flush=True)
"""


def in_terminal(columns: int, folder: Path, commands: list[list[str]], **variables: str) -> list[tuple[int, str, str]]:
    """Exit code, standard output and standard error of each command, in one program with two terminals of its own."""
    ends = [pty.openpty(), pty.openpty()]
    for terminal, _ in ends:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    path = str(Path(checkmate.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, json.dumps(commands)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=ends[0][1],
        stderr=ends[1][1],
        env={**kept, "PYTHONPATH": path, "TERM": "xterm", **variables},
    )
    for _, its_end in ends:
        os.close(its_end)
    with ThreadPoolExecutor(2) as threads:  # a terminal that nobody reads is full soon
        shown = list(threads.map(_all_of, (terminal for terminal, _ in ends)))
    assert process.wait() == 0
    outs, errors = (re.split(r"\r\n\[exit code (\d)\]\r\n", text) for text in shown)
    assert outs[1::2] == errors[1::2]
    found = [(int(code), out, error) for code, out, error in zip(outs[1::2], outs[::2], errors[::2], strict=False)]
    assert len(found) == len(commands)
    return found


def _all_of(terminal: int) -> str:
    raw = b""
    with suppress(OSError):  # the program has closed its end
        while part := os.read(terminal, 65536):
            raw += part
    os.close(terminal)
    return raw.decode()


def on_screen(text: str) -> str:
    """What is left of lines that go back to their beginning and write over themselves."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return "\n".join(lines).strip()


@pytest.mark.parametrize("columns", WIDTHS[1:])
def test_real_terminals(columns: int, tmp_path: Path) -> None:
    """In the C locale every command on a file and a network, and one on a model, with live lines that are gone in the end."""
    training_chain(6, size=1000).save(tmp_path / "chain.json")
    commands = []
    for command, options in COMMANDS.items():
        commands.append([command, "chain.json", *("100%" if option == "auto" else option for option in options)])
        commands.append([command, "vgg16", *options, "--device-model", "rtx4090"])
    commands += [["solve", MODEL, "--budget", "100%", "--device-model", "cpu"], ["networks"], ["devices"]]
    for words, (code, out, err) in zip(commands, in_terminal(columns, tmp_path, commands, LANG="C", LC_ALL="C"), strict=True):
        assert code == 0, (words, err)
        lines = _COLOURS.sub("", out).replace("\r\n", "\n").splitlines()
        assert max(map(disp_len, lines)) <= columns
        assert all(line.isprintable() for line in lines)
        if words[0] not in ("networks", "devices"):
            assert re.match("chain6: |VGG16: |Sequential: ", lines[0])
        if words[0] in ("solve", "compare", "sweep", "max-batch") or words[1:2] == [MODEL]:
            assert "00:0" in err and max(map(disp_len, re.split("[\r\n]+", err))) <= columns
            assert "00:0" not in on_screen(err), "the live line is gone"


def test_a_terminal_that_lacks_letters(tmp_path: Path) -> None:
    Graph.from_arrays([1], [1], [], name="\u5377").save(tmp_path / "g.json")
    commands = [["solve", "g.json", "--budget", "100%"], ["info", "none.json"]]
    found, refused = in_terminal(200, tmp_path, commands, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert found[0] == 0 and "\\u5377: 1 ops" in found[1] and (found[1] + found[2]).isascii()
    assert refused == (2, "", "checkmate: error: cannot read none.json: No such file or directory\r\n")
