"""A user's own model on the command line: what a factory may be, and what is said where it is not."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import checkmate
from checkmate import Graph, cli
from support import error_line

FILE = Path(__file__).with_name("user_models.py")


@pytest.fixture(autouse=True)
def _imports() -> Iterator[None]:
    """Factories are looked for in folders that are added to the path."""
    before = list(sys.path)
    yield
    sys.path[:] = before


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert cli.main(list(words)) == code, capsys.readouterr().err
    captured = capsys.readouterr()
    return captured.out, captured.err


def info(capsys: pytest.CaptureFixture[str], factory: str, *words: str) -> Any:
    return json.loads(run(capsys, "info", f"{FILE}:{factory}", "--device-model", "a100", "--json", *words)[0])


def test_the_graph_is_that_of_the_front_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fake tensors and a device model change neither ops nor sizes, up to the blocks of a GPU."""
    from checkmate.torch import capture

    path = tmp_path / "g.json"
    out, err = run(capsys, "trace", f"{FILE}:small", "--batch", "64", "--device-model", "cpu", "-o", str(path))
    assert out.startswith("Sequential: ") and f"wrote {path}" in out
    assert err == "made a small model\n", "what a factory prints is not the result"
    traced = Graph.load(path)
    model, batch, loss = sys.modules["user_models"].small(64)
    capsys.readouterr()
    real = capture(model, batch, loss=loss, cost_model="flops")
    assert [op.name for op in traced.ops] == [op.name for op in real.ops]
    assert traced.values == real.values
    assert traced.fixed_memory == real.fixed_memory
    assert all(op.cost > 0 for op in traced.ops if op.phase != "loss" and op.name != "between forward and backward")


def test_a_plan_for_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("h100", "rtx4090")]
    for path in paths:
        run(capsys, "trace", f"{FILE}:small", "--batch", "4096", "--device-model", path.name, "-o", str(path), "--quiet")
    h100, rtx4090 = map(Graph.load, paths)
    assert {value.size % 512 for value in h100.values} == {0}
    assert h100.values == rtx4090.values
    assert all(one.cost <= other.cost for one, other in zip(h100.ops, rtx4090.ops, strict=True))
    assert h100.ideal_cost < rtx4090.ideal_cost


def test_a_model_of_any_size(capsys: pytest.CaptureFixture[str]) -> None:
    """A terabyte of parameters on the machine of the tests."""
    figures = info(capsys, "huge", "--batch", "16")
    assert figures["fixed_memory"] > 10**12
    assert figures["no_recompute_peak"] > 2 * 10**12, "parameters and their gradients"
    assert 5 * 10**11 < info(capsys, "converted")["fixed_memory"] < 6 * 10**11


@pytest.mark.parametrize("factory", ["keywords", "several"])
def test_batches(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert info(capsys, factory)["name"] == "Pair"


def test_by_module(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder counts, as in `python -m`."""
    monkeypatch.chdir(FILE.parent)
    monkeypatch.delitem(sys.modules, "user_models", raising=False)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry).resolve() != FILE.parent])
    out, _ = run(capsys, "info", "user_models:small", "--device-model", "cpu")
    assert out.startswith("Sequential: ")


def test_costs_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(run(capsys, "info", f"{FILE}:small", "--json")[0])
    assert 0 < figures["ideal_cost"] < 60


def test_data_that_is_needed_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "info", f"{FILE}:needs_data", "--device-model", "cpu")
    assert out.startswith("Linear: ")
    assert "was made with all its data" in err and err.count("\n") == 1


FAILURES = {
    "missing file": ("none.py:small", 2, "cannot read none.py: there is no such file"),
    "missing module": ("no_such_module:small", 2, "there is no module no_such_module here"),
    "missing part of a module": ("os.none:small", 2, "there is no module os.none here"),
    "no name of a module": ("two words:small", 2, "two words is neither the name of a module nor of a .py file"),
    "missing function": ("FILE:none", 2, "none is not there in .*user_models.py: name a function"),
    "no function": ("FILE:not_a_function", 2, "not_a_function is nothing that can be called"),
    "no pair": ("FILE:returns_a_model", 2, r"returned a Linear: a factory returns \(model, batch\)"),
    "no model": ("FILE:returns_no_model", 2, "returned a int for a model"),
    "more parameters": ("FILE:needs_more", 2, "needs width: a factory is called with nothing, or with batch"),
    "batch needed": ("FILE:huge", 2, "has to be told the batch size: give --batch"),
    "ends the program": ("FILE:ends", 2, "ended the program"),
    "nothing to train": ("FILE:frozen", 1, "nothing in this model has a gradient"),
    "several graphs": ("FILE:branches", 1, r"cannot make one graph of this model.*user_models.py, line \d+"),
    "something of the library": ("os:getcwd", 2, "returned a str"),
}


@pytest.mark.parametrize(("factory", "code", "message"), FAILURES.values(), ids=FAILURES)
def test_what_is_no_factory(factory: str, code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "info", factory.replace("FILE", str(FILE)), "--device-model", "cpu", code=code)
    assert out == ""
    assert re.search(message, error_line(err))


def test_batch_for_a_factory_without(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "info", f"{FILE}:without_batch", "--batch", "8", code=2)
    assert "has no parameter named batch" in error_line(err)


@pytest.mark.parametrize(
    ("factory", "kind", "text", "frame"),
    [
        ("raises", "LookupError", r"no such \\x1b\[31mlayer", 'raise LookupError("no such'),
        ("fails_in_its_forward_pass", "RuntimeError", "same reduction dim", "y: Tensor = self.linear(x)"),
    ],
)
def test_an_exception_of_the_user_is_shown(
    factory: str, kind: str, text: str, frame: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the lines of the user's files that led to it, and those of nobody else."""
    out, err = run(capsys, "info", f"{FILE}:{factory}", "--device-model", "cpu", code=1)
    *shown, last, _ = err.split("\n")
    assert out == "" and re.search(f"^checkmate: error: .*user_models.py:{factory} failed with {kind}: .*{text}", last)
    assert frame in "\n".join(shown) and f"{kind}: " in "\n".join(shown)
    assert all(line.isprintable() for line in shown)
    files = re.findall(r'File "(.*?)"', "\n".join(shown))
    assert files and set(files) == {str(FILE)}


def test_a_file_that_does_not_parse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own_net.py"
    path.write_text("def make(:\n")
    _, err = run(capsys, "info", f"{path}:make", code=1)
    assert "def make(:" in err
    assert re.search("checkmate: error: .*own_net.py:make failed with SyntaxError", err.splitlines()[-1])


def test_an_import_that_fails_in_the_users_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own_net.py").write_text("import no_such_package\n")
    _, err = run(capsys, "info", f"{tmp_path}/own_net.py:make", code=1)
    assert err.splitlines()[-1].endswith("failed with ModuleNotFoundError: No module named 'no_such_package'")


def test_what_can_be_refused_before_the_model_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own_net.py"
    path.write_text("raise AssertionError('this should not have been imported')\n")
    model = f"{path}:make"
    for words, message in (
        (("solve", model, "--budget", "abc"), "cannot read 'abc'"),
        (("solve", model, "--budget", "50%", "--method", "magic"), "unknown method 'magic'"),
        (("solve", model, "--budget", "50%", "-o", "none/s.json"), "there is no folder none"),
        (("sweep", model, "--budgets", "50%", "3 parsec"), "unknown unit 'parsec'"),
        (("solve", model, "--budget", "auto"), "say which with --device-model"),
        (("solve", model, "--budget", "auto", "--device-model", "cpu"), "say which with --device-model"),
        (("info", model, "--device-model", "b200"), "unknown device model 'b200': choose one of h100"),
        (("info", model, "--batch", "0"), "--batch is a whole number from 1 on"),
    ):
        _, err = run(capsys, *words, code=2)
        assert message in error_line(err)


def test_the_memory_of_the_device_is_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("solve", f"{FILE}:small", "--budget", "auto", "--device-model", "rtx4090", "--json")
    assert json.loads(run(capsys, *words)[0])["budget"] == 24 * 10**9 * 9 // 10


def test_the_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """Gradients of parameters do not grow with the batch: the graph of one batch does not tell that of another."""
    words = ("max-batch", f"{FILE}:small", "--device-model", "cpu", "--max-overhead", "1", "--json", "--budget")
    out, err = run(capsys, *words, "16KB")
    found = json.loads(out)
    assert found["schedule"]["overhead"] == 1.0 and found["schedule"]["peak"] <= 16_000
    assert "fits; largest so far" in err

    def peak(batch: int) -> int:
        words = ("info", f"{FILE}:small", "--device-model", "cpu", "--batch", str(batch), "--json")
        return int(json.loads(run(capsys, *words)[0])["no_recompute_peak"])

    assert peak(found["batch"]) <= 16_000 < peak(found["batch"] + 1)
    assert found["batch"] <= found["upper_bound"]
    _, err = run(capsys, *words, "50%", code=2)
    assert "there is nothing here for it to refer to" in error_line(err)


def test_help_says_what_a_factory_is(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("info", "solve", "report", "compare", "sweep", "max-batch", "trace"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        text = capsys.readouterr().out
        assert "returns (model, batch) or (model, batch, loss)" in text and "--device-model" in text


def test_no_framework_before_a_model_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; from checkmate.cli import main; main(['info', 'vgg16', '--json']); "
        "print([name for name in ('torch', 'tensorflow', 'keras', 'checkmate.cli.models') if name in sys.modules])"
    )
    from subprocess import run as start

    environment = {**os.environ, "PYTHONPATH": str(Path(checkmate.__file__).parents[1])}
    done = start([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.endswith("\n[]\n")
