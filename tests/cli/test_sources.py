"""What a word on the command line means: a graph file, a network, or a model; and the lists of names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from checkmate import Graph, cli, networks
from checkmate.networks import NETWORKS
from support import error_line, training_chain


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert cli.main([*words, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return error_line(captured.err)


def test_a_network_at_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, "info", "ResNet50", "--batch", "64")
    graph = networks.resnet50(64)
    assert (found["ops"], found["no_recompute_peak"]) == (graph.num_ops, graph.no_recompute_peak)
    assert (found["ideal_cost"], found["cost_unit"]) == (graph.ideal_cost, "multiply-adds")
    assert figures(capsys, "info", "resnet50")["no_recompute_peak"] == networks.resnet50().no_recompute_peak


def test_a_network_on_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds from a roofline: never less than arithmetic at the peak rate, and never less than the traffic of the activations."""
    flops = 2 * networks.vgg16(32).ideal_cost
    on = {name: figures(capsys, "info", "vgg16", "--batch", "32", "--device-model", name) for name in ("h100", "a100", "cpu")}
    assert 66.9e12 > flops / float(str(on["h100"]["ideal_cost"])) > 0.4 * 66.9e12, "VGG16 is bound by arithmetic"
    assert on["h100"]["ideal_cost"] < on["a100"]["ideal_cost"] < on["cpu"]["ideal_cost"]  # type: ignore[operator]
    assert on["h100"]["cost_unit"] == "seconds"
    assert on["h100"]["no_recompute_peak"] == networks.vgg16(32).no_recompute_peak


def test_the_largest_batch_of_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule at batch 1 serves all batches, and costs no more than computing all once, which some free ops leave room for."""
    assert cli.main(["max-batch", "vgg16", "--budget", "4GB", "--max-overhead", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schedule, batch, fixed = found["schedule_at_batch_1"], found["batch"], networks.vgg16().fixed_memory
    assert schedule["overhead"] == 1.0 and fixed + batch * (schedule["peak"] - fixed) <= 4 * 10**9
    plain = max(batch for batch in range(1, 99) if networks.vgg16(batch).no_recompute_peak <= 4 * 10**9)
    assert plain <= batch <= found["upper_bound"]


def test_a_network_is_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.json"
    assert figures(capsys, "trace", "unet", "--batch", "2", "-o", str(path))["graph"] == str(path)
    assert Graph.load(path) == networks.unet(2)
    assert cli.main(["trace", "unet", "-o", str(path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_file_and_a_network_of_one_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("vgg16", "vgg16.json", "net.py:make"):
        training_chain(3).save(name)
    assert figures(capsys, "info", "vgg16")["ops"] == 45
    for word in ("./vgg16", "vgg16.json", "net.py:make"):
        assert figures(capsys, "info", word)["ops"] == 6


def test_words_that_are_close_to_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "info", "resnet51")
    assert line.startswith("cannot read resnet51: No such file") and "did you mean resnet50?" in line
    assert "`checkmate networks` lists them" in refused(capsys, "info", "bert")
    assert "did you mean resnet50?" in refused(capsys, "info", "resnet51", "--batch", "2")
    assert refused(capsys, "info", "none.json") == "cannot read none.json: No such file or directory"


@pytest.mark.parametrize("words", [["--batch", "2"], ["--device-model", "h100"]], ids=lambda words: words[0])
def test_a_file_is_as_it_is(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training_chain(3).save(tmp_path / "g.json")
    assert f"{words[0]} is for networks by name and for models" in refused(capsys, "info", f"{tmp_path}/g.json", *words)


@pytest.mark.parametrize("batch", ["0", "-1", "two", "1.5"])
def test_batches_that_there_are_none_of(batch: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--batch" in refused(capsys, "info", "vgg16", "--batch", batch)


def test_networks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["networks", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(NETWORKS)
    (vgg19,) = (row for row in rows if row["name"] == "vgg19")
    graph = networks.vgg19()
    assert (vgg19["ops"], vgg19["min_working_set"], vgg19["multiply_adds"]) == (51, graph.min_working_set, graph.ideal_cost)
    assert cli.main(["networks"]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^{name} ", text, re.MULTILINE) for name in NETWORKS)


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["devices", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["a100"]["flops"]["bfloat16"] == 312e12 and rows["a100"]["memory"] == 80 * 10**9
    assert cli.main(["devices"]) == 0
    text = capsys.readouterr().out
    assert all(row["source"] in text for row in rows.values())


def test_very_long_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are shown without their middle, in text, on the page and in pictures."""
    name = "a" * 3000 + "<script>" + "\x1b[31m" + "z" * 3000
    graph = Graph.from_arrays([1, 1], [5, 5], [(0, 1)], name=name, names=[f"{name}0", f"{name}1"])
    graph.save(tmp_path / "g.json")
    page, picture = tmp_path / "r.html", tmp_path / "p.png"
    for words in (
        ["info", f"{tmp_path}/g.json"],
        ["solve", f"{tmp_path}/g.json", "--budget", "100%", "--plot", str(picture)],
        ["report", f"{tmp_path}/g.json", "-o", str(page), "--curve", "0"],
        ["compare", f"{tmp_path}/g.json", "--budget", "100%", "--methods", "keep-all"],
        ["sweep", f"{tmp_path}/g.json", "--budgets", "100%"],
        ["max-batch", f"{tmp_path}/g.json", "--budget", "100"],
        ["trace", f"{tmp_path}/g.json", "-o", f"{tmp_path}/h.json"],
    ):
        assert cli.main(words) == 0
        captured = capsys.readouterr()
        assert "a" * 50 in captured.out and "z" * 50 in captured.out
        assert max(map(len, captured.out.splitlines())) < 1000
        assert (captured.out + captured.err).replace("\n", "").isprintable()
    assert picture.stat().st_size < 10**6
    text = page.read_text(encoding="utf-8")
    assert text.count("<script") == 2 and "a" * 500 not in text and "a" * 90 in text
    assert Graph.load(tmp_path / "h.json") == graph, "in files and JSON names are whole"
