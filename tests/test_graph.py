"""Graphs: figures, validation, files."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from checkmate import CheckmateError, Graph, GraphError, Op, Value
from support import graphs, renamed, training_chain, vgg19_like


def diamond(**changes: Any) -> Graph:
    """a -> (b, c) -> d, with a workspace and a kept value."""
    ops = [
        Op("a", 1.0, (), (0,)),
        Op("b", 2.0, (0,), (1,), workspace=5),
        Op("c", 3.0, (0,), (2,)),
        Op("d", 4.0, (1, 2), (3,), phase="backward", layer="net.last"),
    ]
    values = [Value("x", 10), Value("y", 20), Value("z", 30), Value("out", 1, keep=True)]
    arguments: dict[str, Any] = {"ops": ops, "values": values, "fixed_memory": 100, "name": "diamond"}
    return Graph(**arguments | changes)


# --- figures ---


def test_figures_by_hand() -> None:
    graph = diamond()
    assert (graph.num_ops, graph.num_values, graph.ideal_cost) == (4, 4, 10.0)
    assert graph.producer == (0, 1, 2, 3)
    assert graph.last_use == (2, 3, 3, 3)
    # a: x. b: x, y and 5 of workspace. c: x, y, z. d: y, z, out.
    assert graph.no_recompute_profile == (110, 135, 160, 151)
    assert graph.no_recompute_peak == 160
    assert [graph.working_set(i) for i in range(4)] == [10, 35, 40, 51]
    assert graph.min_working_set == 151


def test_kept_values_bound_the_working_set() -> None:
    graph = Graph([Op("a", 1, (), (0,)), Op("b", 1, (), (1,))], [Value("x", 7, True), Value("y", 8, True)], 1)
    assert graph.min_working_set == 16 == graph.no_recompute_peak


def test_values_that_nobody_reads_die_with_their_op() -> None:
    graph = Graph([Op("a", 1, (), (0, 1)), Op("b", 1, (0,), (2,))], [Value("x", 5), Value("unread", 50), Value("y", 5)])
    assert graph.no_recompute_profile == (55, 10)


def test_empty_graph() -> None:
    graph = Graph([], [], 12)
    assert (graph.ideal_cost, graph.no_recompute_peak, graph.min_working_set) == (0, 12, 12)


@given(graphs())
def test_profile_against_the_definition(graph: Graph) -> None:
    """A value is live from its producer to its last reader, or to the end if kept."""
    for now, op in enumerate(graph.ops):
        live = graph.fixed_memory + op.workspace
        for v, value in enumerate(graph.values):
            born = next(i for i, maker in enumerate(graph.ops) if v in maker.outputs)
            readers = [i for i, reader in enumerate(graph.ops) if v in reader.inputs]
            if born <= now and (value.keep or now <= max(readers, default=born)):
                live += value.size
        assert graph.no_recompute_profile[now] == live
    assert graph.min_working_set <= graph.no_recompute_peak


def test_vgg19_like_is_as_large_as_vgg19() -> None:
    graph = vgg19_like()
    assert graph.num_ops == 48
    assert 64e6 < graph.no_recompute_peak - graph.fixed_memory < 70e6
    assert graph.min_working_set - graph.fixed_memory < 30e6


# --- making graphs ---


def test_from_arrays() -> None:
    graph = Graph.from_arrays([1, 2.5], list(np.array([8, 16])), [(0, 1), [0, 1]], fixed_memory=4, name="two")
    assert graph.ops == (Op("op0", 1.0, (), (0,)), Op("op1", 2.5, (0,), (1,)))
    assert graph.values == (Value("op0", 8), Value("op1", 16))
    assert graph.no_recompute_peak == 28
    assert json.loads(json.dumps(graph.to_dict())) == graph.to_dict(), "NumPy numbers must become plain ones"


def test_scaled() -> None:
    graph = diamond().scaled(batch=32)
    assert graph.ideal_cost == 320
    assert [value.size for value in graph.values] == [320, 640, 960, 32]
    assert graph.ops[1].workspace == 160
    assert graph.fixed_memory == 100
    assert graph.values[3].keep
    assert [op.layer for op in graph.ops] == ["", "", "", "net.last"]


@pytest.mark.parametrize("batch", [0, -1, float("nan"), float("inf"), "2", True])
def test_scaled_refuses(batch: Any) -> None:
    with pytest.raises(GraphError, match="batch must be a positive number"):
        diamond().scaled(batch)


# --- validation ---

BAD_GRAPHS: dict[str, tuple[dict[str, Any], str]] = {
    "cycle": ({"ops": [Op("a", 1, (1,), (0,)), Op("b", 1, (0,), (1,))]}, "cycle through ops 'a' and 'b'"),
    "reads itself": ({"ops": [Op("a", 1, (0,), (0,)), Op("b", 1, (0,), (1,))]}, "cycle through ops 'a' and 'a'"),
    "bad order": ({"ops": [Op("a", 1, (1,), (0,)), Op("b", 1, (), (1,))]}, "'a' comes before op 'b'.*topological order"),
    "dangling input": ({"ops": [Op("a", 1, (), (0,)), Op("b", 1, (7,), (1,))]}, "'b' names value 7.*2 values"),
    "negative id": ({"ops": [Op("a", 1, (), (0,)), Op("b", 1, (-1,), (1,))]}, "'b' names value -1"),
    "id of a wrong type": ({"ops": [Op("a", 1, (), ("x",)), Op("b", 1, (), (1,))]}, "op 'a' must be ids"),  # type: ignore[arg-type]  # on purpose
    "negative cost": ({"ops": [Op("a", -1, (), (0,)), Op("b", 1, (), (1,))]}, "cost of op 'a' must be a finite number >= 0"),
    "NaN cost": ({"ops": [Op("a", float("nan"), (), (0,)), Op("b", 1, (), (1,))]}, "cost of op 'a'.*nan"),
    "infinite cost": ({"ops": [Op("a", float("inf"), (), (0,)), Op("b", 1, (), (1,))]}, "cost of op 'a'.*inf"),
    "cost beyond floats": ({"ops": [Op("a", 10**400, (), (0,)), Op("b", 1, (), (1,))]}, "cost of op 'a' must be a finite number"),
    "negative workspace": ({"ops": [Op("a", 1, (), (0,), -3), Op("b", 1, (), (1,))]}, "workspace of op 'a'.*-3"),
    "layer of a wrong type": (
        {"ops": [Op("a", 1, (), (0,), layer=3), Op("b", 1, (), (1,))]},
        "layer of op 'a' must be a string, not 3",
    ),  # type: ignore[arg-type]  # on purpose
    "two ops of a name": ({"ops": [Op("a", 1, (), (0,)), Op("a", 1, (), (1,))]}, "two ops are called 'a'"),
    "two values of a name": ({"values": [Value("x", 1), Value("x", 1)]}, "two values are called 'x'"),
    "negative size": ({"values": [Value("x", -1), Value("y", 1)]}, "size of value 'x' must not be negative"),
    "fractional size": ({"values": [Value("x", 1.5), Value("y", 1)]}, "size of value 'x' must be a whole number"),  # type: ignore[arg-type]  # on purpose
    "two producers": ({"ops": [Op("a", 1, (), (0, 1)), Op("b", 1, (), (1,))]}, "'y' is produced by two ops, 'a' and 'b'"),
    "no producer": ({"ops": [Op("a", 1, (), (0,)), Op("b", 1)]}, "'y' is produced by no op"),
    "named twice": ({"ops": [Op("a", 1, (), (0,)), Op("b", 1, (0, 0), (1,))]}, "'b' names a value twice"),
    "negative fixed memory": ({"fixed_memory": -1}, "fixed_memory must not be negative"),
    "NaN fixed memory": ({"fixed_memory": float("nan")}, "fixed_memory must be a whole number"),
}


@pytest.mark.parametrize(("changes", "message"), BAD_GRAPHS.values(), ids=BAD_GRAPHS.keys())
def test_bad_graphs_are_refused(changes: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "ops": [Op("a", 1, (), (0,)), Op("b", 1, (), (1,))],
        "values": [Value("x", 1), Value("y", 1)],
        "fixed_memory": 0,
    }
    assert Graph(**good).num_ops == 2
    with pytest.raises(GraphError, match=message) as caught:
        Graph(**good | changes)
    assert isinstance(caught.value, CheckmateError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], [1, 2], []), "cost has 1 entries but memory has 2"),
        (([1, 1], [1, 1], [(0, 2)]), "names an op that does not exist: there are 2 ops"),
        (([1, 1], [1, 1], [(0, 1, 1)]), "an edge is a pair"),
        (([1, 1], [1, 1], [5]), "an edge is a pair"),
        (([1, 1], [1, 1], [(1, 0), (0, 1)]), "cycle"),
        (([1, "a"], [1, 1], []), "cost must be a number"),
        (([1, 1], [1, None], []), "whole number of bytes"),
    ],
)
def test_from_arrays_refuses(arguments: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph.from_arrays(*arguments)


def test_from_arrays_refuses_too_few_names() -> None:
    with pytest.raises(GraphError, match="names has 1"):
        Graph.from_arrays([1, 1], [1, 1], [], names=["a"])
    with pytest.raises(GraphError, match="layers has 3"):
        Graph.from_arrays([1, 1], [1, 1], [], layers=["a", "b", "c"])


# --- files ---


@given(graphs())
def test_json_round_trip(graph: Graph) -> None:
    again = Graph.from_dict(json.loads(json.dumps(graph.to_dict())))
    assert again == graph
    assert (again.ops, again.values, again.fixed_memory, again.name) == (graph.ops, graph.values, graph.fixed_memory, graph.name)
    assert hash(again) == hash(graph)


def test_save_and_load(tmp_path: Path) -> None:
    diamond().save(tmp_path / "g.json")
    assert Graph.load(tmp_path / "g.json") == diamond()
    assert Graph.load(str(tmp_path / "g.json")) != renamed(diamond(), "other")


def test_layers_are_written_where_they_are_known() -> None:
    """They are part of what is read back equal, but not of the problem that a schedule solves."""
    graph = diamond()
    assert [op.get("layer") for op in graph.to_dict()["ops"]] == [None, None, None, "net.last"]
    elsewhere = diamond(ops=[*graph.ops[:3], replace(graph.ops[3], layer="other.name")])
    assert elsewhere != graph and elsewhere.to_dict() != graph.to_dict()
    assert elsewhere.to_dict(names=False) == graph.to_dict(names=False)
    assert "layer" not in json.dumps(graph.to_dict(names=False))


def test_names_are_no_part_of_the_problem() -> None:
    graph = diamond()
    other = diamond(
        ops=[replace(op, name=f"other.{op.name}") for op in graph.ops],
        values=[replace(value, name=f"other.{value.name}") for value in graph.values],
    )
    other = renamed(other, "other")
    assert other != graph
    assert other.to_dict(names=False) == graph.to_dict(names=False)
    assert not {"name", "other"} & set(json.dumps(other.to_dict(names=False)).replace(".", '"').split('"'))
    larger = diamond(values=[replace(graph.values[0], size=graph.values[0].size + 1), *graph.values[1:]])
    assert larger.to_dict(names=False) != graph.to_dict(names=False)


def test_pickle() -> None:
    assert pickle.loads(pickle.dumps(diamond())) == diamond()


def test_nodes_and_edges_form(tmp_path: Path) -> None:
    data = {
        "name": "pair",
        "source": "a test",
        "batch": 1,
        "fixed_memory": 9,
        "nodes": [
            {"name": "n0", "cost": 3, "memory": 4, "phase": "op"},
            {"name": "n1", "cost": 5, "memory": 6, "phase": "loss", "layer": "a.b"},
        ],
        "edges": [[0, 1]],
    }
    (tmp_path / "g.json").write_text(json.dumps(data))
    graph = Graph.load(tmp_path / "g.json")
    assert graph.ops == (Op("n0", 3.0, (), (0,), phase="op"), Op("n1", 5.0, (0,), (1,), phase="loss", layer="a.b"))
    assert graph.values == (Value("n0", 4), Value("n1", 6))
    assert (graph.name, graph.fixed_memory, graph.no_recompute_peak) == ("pair", 9, 19)


BAD_FILES: dict[str, tuple[str, str]] = {
    "empty": ("", "not valid JSON"),
    "cut off": ('{"name": "g", "ops": [', "not valid JSON"),
    "deep": ("[" * 100_000, "not valid JSON"),
    "a list": ("[]", "a graph is a JSON object"),
    "a number": ("3", "a graph is a JSON object"),
    "no ops": ('{"values": []}', "'ops' is missing"),
    "no edges": ('{"nodes": []}', "'edges' is missing"),
    "no cost": ('{"nodes": [{"memory": 1}], "edges": []}', "'cost' is missing"),
    "nodes of a wrong type": ('{"nodes": 3, "edges": []}', "wrong type"),
    "node of a wrong type": ('{"nodes": ["a"], "edges": []}', "wrong type"),
    "edges of a wrong type": ('{"nodes": [], "edges": 3}', "wrong type"),
    "cost of a wrong type": ('{"nodes": [{"cost": "1", "memory": 1}], "edges": []}', "cost must be a number"),
    "NaN": ('{"nodes": [{"cost": NaN, "memory": 1}], "edges": []}', "finite number"),
    "infinite memory": ('{"nodes": [{"cost": 1, "memory": Infinity}], "edges": []}', "whole number of bytes"),
    "memory of 8 PiB": (
        '{"nodes": [{"cost": 1, "memory": 9007199254740992}], "edges": []}',
        "9007199254740992 bytes: .* below 2..53",
    ),
    "fixed memory of 8 PiB": ('{"nodes": [], "edges": [], "fixed_memory": 9007199254740992}', "below 2..53"),
    "workspace of 8 PiB": (
        '{"values": [], "ops": [{"name": "a", "cost": 1, "workspace": 9007199254740992}]}',
        "below 2..53",
    ),
    "sum of 8 PiB": (
        '{"nodes": [{"cost": 1, "memory": 9007199254740991}], "edges": [], "fixed_memory": 1}',
        "add up to 9007199254740992 bytes",
    ),
    "costs overflow": (
        '{"nodes": [{"cost": 1e308, "memory": 1}, {"cost": 1e308, "memory": 1}], "edges": []}',
        "up to inf: use a unit",
    ),
    "huge costs": ('{"nodes": [{"cost": 1e101, "memory": 1}], "edges": []}', "up to 1e.101: use a unit"),
    "denormal costs": ('{"nodes": [{"cost": 5e-324, "memory": 1}], "edges": []}', "use a unit in which the sum is 0 or between"),
    "memory null": ('{"nodes": [{"cost": 1, "memory": null}], "edges": []}', "whole number of bytes"),
    "cycle": (
        '{"nodes": [{"name": "a", "cost": 1, "memory": 1}, {"name": "b", "cost": 1, "memory": 1}], "edges": [[0, 1], [1, 0]]}',
        "cycle through ops 'a' and 'b'",
    ),
    "unknown version": ('{"format": "checkmate-graph", "version": 99, "ops": [], "values": []}', "version 99 is not known"),
    "keep of a wrong type": (
        '{"values": [{"name": "x", "size": 1, "keep": "false"}], "ops": []}',
        "keep must be true or false, not 'false'",
    ),
    "layer of a wrong type": (
        '{"nodes": [{"cost": 1, "memory": 1, "layer": null}], "edges": []}',
        "layer of op 'op0' must be a string",
    ),
    "inputs of a wrong type": (
        '{"values": [{"name": "x", "size": 1}], "ops": [{"name": "a", "cost": 1, "inputs": [null], "outputs": [0]}]}',
        "must be ids of values",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(GraphError, match=message) as caught:
        Graph.load(path)
    assert str(path) in str(caught.value), "the message must name the file"


def test_largest_and_smallest_sums_that_do() -> None:
    assert Graph.from_arrays([0.0], [2**53 - 1], []).no_recompute_peak == 2**53 - 1
    assert Graph.from_arrays([1e-100, 5e-324], [1, 1], []).ideal_cost == 1e-100
    with pytest.raises(GraphError, match="not finite"):
        training_chain(3).scaled(1e308).scaled(1e308)
    with pytest.raises(GraphError, match="below 2..53"):
        training_chain(3).scaled(1e30)


def test_a_file_name_is_shown_without_its_control_characters(tmp_path: Path) -> None:
    with pytest.raises(GraphError) as caught:
        Graph.load(tmp_path / "a\x1b[31m\nb.json")
    assert str(caught.value).isprintable() and "a\\x1b[31m\\nb.json" in str(caught.value)


def test_names_of_any_characters_are_kept(tmp_path: Path) -> None:
    graph = Graph([Op("\ud800\x1b[31m", 1.0, (), (0,))], [Value("$x_$\n", 8)], name="[red]\u202e")
    graph.save(tmp_path / "g.json")
    assert Graph.load(tmp_path / "g.json") == graph


def test_binary_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GraphError, match="not valid JSON"):
        Graph.load(tmp_path / "b.json")
    with pytest.raises(GraphError, match="cannot read .*No such file"):
        Graph.load(tmp_path / "none.json")
    with pytest.raises(GraphError, match="cannot read"):
        Graph.load(tmp_path)


def test_repr_says_what_it_is() -> None:
    assert repr(training_chain(3)) == "Graph('chain3', 6 ops, 6 values, no-recompute peak 40 B)"
