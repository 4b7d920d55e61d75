"""Odd words, damaged files and command lines for `command_line_fuzz.py`."""

from __future__ import annotations

import json
import os
import random
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import checkmate
from checkmate import Graph

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support import random_graph, training_chain

NAMES = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "two\nlines",
    "\r\x1b[2K",
    "[bold red]markup[/]",
    "[/]",
    "$x_$",
    "$\\frac{1}$ $",
    "\u202egnp.exe",
    "\x9b31m",
    "卷积层",
    "%s %d {0} {{x}}",
    "<script>alert(1)</script>",
    "-",
    "--help",
    " ",
    "\udcff",
    "x" * 3000,
]
#: Only in JSON: no file name has them.
MORE_NAMES = ["\ud800", "\x00", "", "a/b"]
BUDGETS = [
    *("0", "-1", "nan", "inf", "-inf", "1e999", "1e-999", "", " ", "%", "-5%", "0%", "1e9%", "101%", "75%", "50%", "100%"),
    *("2GiB", "1 TB", "9007199254740992", "9007199254740991", "1e16", "9" * 5000, "٣GiB", "½GiB", "²", "0x10", "1_000"),
    *("2 parsec", "1e", "--", "GiB", "1,5GB", "\x1b[31m5GB", "5GB\n", "50%%", "$5", "[red]5GB", "1.5.5", "+5"),
]
NUMBERS = [
    *(
        "nan",
        "inf",
        "-inf",
        "-1",
        "-0.0",
        "1e-320",
        "1e308",
        "1e400",
        "",
        "ten",
        "1_0",
        "0x1",
        "٣",
        "0",
        "0.01",
        "1",
        "1.5",
        "\x1b[5m",
    ),
]
SEEDS = ["-1", "0", "1", "2147483646", "2147483647", "99999999999999999999", "9" * 5000, "1.5", "x", "", "nan", "1_0", "\x1b[5m"]
ORDERS = ["given", "any", "", "chaos", "\x1b[5m", "GIVEN"]
OUTPUTS = [
    *("out.json", "old.json", "none/out.json", "folder", "", ".", "/", "/dev/null", "/dev/full", "/proc/none/x", "link.json"),
    *("x" * 300, "/dev/null/x", "loop", "out", "-", "a b.json", "\x1b[31m.json", "two\nlines.json", "chain.json"),
]
PICTURES = [
    *("p.png", "old.png", "p.svg", "p.pdf", "p.xyz", "p", "p.pgf", ".png", "none/p.png", "folder", "/dev/full", "p.PNG", "p.eps"),
    *("$x_$.png", "\x1b[31m.png", "p.png.", "x" * 300 + ".png", "loop.png", "chain.json"),
]
#: Networks, and models that there are none of.
SOURCES = [
    *(
        "vgg16",
        "VGG16",
        "resnet51",
        "transformer1",
        "transformer0",
        "none:make",
        "none.py:make",
        "os:getcwd",
        "os:none",
        "os:sep",
    ),
    *(":", "x:", ":x", "a b:c", "os:path.join", "chain.json:make", "\x1b[31m:x", "$x_$:\\n", "x" * 3000 + ":x", "folder:x"),
    "folder.py:x",
]
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1.5, 2**53, 2**53 - 1, 2**63, 2**64, 10**400, 1e-320, 1e308, 1e16, float("nan"), float("inf")),
    *("", "x", "1", "\x1b[31m", [], {}, [[]], [0], [0, 0], [10**9], {"a": 1}, [None], "\ud800", "x" * 5000),
]


def materials(folder: Path) -> None:
    """Graphs, a schedule, and files that are in the way."""
    folder.mkdir()
    graph = training_chain(8, size=1000)
    graph.save(folder / "chain.json")
    checkmate.solve(graph, "60%", method="greedy").save(folder / "schedule.json")
    for seed in range(4):
        random_graph(random.Random(seed), max_ops=10).save(folder / f"random{seed}.json")
    long_graph().save(folder / "long.json")
    (folder / "folder").mkdir()
    (folder / "old.json").write_text('{"as it was": 1}')
    (folder / "report.html").write_text("<html>as it was</html>")
    (folder / "link.json").symlink_to("old.json")
    (folder / "loop").symlink_to("loop")
    (folder / "loop.png").symlink_to("loop.png")
    checkmate.solve(graph, "60%", method="greedy").plot(folder / "old.png")


def long_graph() -> Graph:
    """A training step whose search goes on for longer than any test waits."""
    layers = 120
    chain = training_chain(layers)
    costs = [1.0 + (i * 53) % 17 for i in range(2 * layers)]
    sizes = [7 + (i * 37) % 23 for i in range(2 * layers)]
    edges = [(value, i) for i, op in enumerate(chain.ops) for value in op.inputs]
    return Graph.from_arrays(costs, sizes, edges, name="long", phases=[op.phase for op in chain.ops])


def bad_command(rng: random.Random, folder: Path) -> list[str]:
    """A command line that is wrong in most cases; makes the files that it names in this folder."""
    if rng.random() < 0.04:
        return [rng.choice([*NAMES, "fly", "", "--version", "--help", "-h", "--colour"]) for _ in range(rng.randint(0, 3))]
    if rng.random() < 0.03:  # the demo trains for minutes where it can
        return ["demo", "-o", rng.choice(["old.json", "/dev/null/x", "/proc/none/x", "loop", "x" * 300, "old.json/\x1b[31m"])]
    if rng.random() < 0.03:
        return [
            rng.choice(["networks", "devices", "completion"]),
            *rng.sample(["--json", "bash", "zsh", *NAMES], rng.randint(0, 2)),
        ]
    command = rng.choice(["info", "trace", "solve", "solve", "report", "report", "compare", "sweep", "max-batch"])
    words = [command]
    if rng.random() < 0.97:
        words.append(graph_file(rng, folder) if rng.random() < 0.9 else rng.choice(SOURCES))
    if command != "max-batch":
        words += optional(rng, "--batch", "2", NUMBERS) if rng.random() < 0.2 else []
    words += optional(rng, "--device-model", "a100", ["h200", "", "\x1b[31m", "cpu", "--"]) if rng.random() < 0.2 else []
    if command in ("solve", "compare", "max-batch", "report") and rng.random() < (0.5 if command == "report" else 0.95):
        words.append(f"--budget={odd(rng, '75%', BUDGETS)}")
    elif command == "report" and rng.random() < 0.6:
        words.append(f"--schedule={schedule_file(rng, folder)}")
    if command not in ("info", "trace"):
        words.append(f"--time-limit={odd(rng, '0.5', NUMBERS)}")
        words += optional(rng, "--seed", "1", SEEDS)
    if command in ("solve", "report", "compare", "sweep"):
        words += [*optional(rng, "--gap", "0.1", NUMBERS), *optional(rng, "--order", "any", ORDERS)]
    if command in ("solve", "report", "trace"):
        words += optional(rng, "-o", "out.html" if command == "report" else "out.json", OUTPUTS)
    if command in ("solve", "sweep"):
        words += [*optional(rng, "--plot", "p.png", PICTURES), *optional(rng, "--method", "greedy", some_methods())]
    if command == "compare":
        words += ["--methods", *(odd(rng, "greedy", some_methods()) for _ in range(rng.randint(1, 4)))]
    if command == "sweep" and rng.random() < 0.7:
        words += ["--budgets", *(odd(rng, "75%", BUDGETS) for _ in range(rng.randint(0, 4)))]
    if command == "report":
        words.append(f"--curve={odd(rng, '0.5', NUMBERS)}")
    if command == "max-batch":
        words += optional(rng, "--max-overhead", "1.2", NUMBERS)
    words += [word for word in ("--json", "--quiet") if rng.random() < 0.25]
    if rng.random() < 0.03:
        words.insert(rng.randrange(len(words) + 1), rng.choice(NAMES))
    # No argument of a program has a null, and file systems take bytes.
    return [word.replace("\x00", "") for word in words]


def search_command(rng: random.Random, folder: Path) -> list[str]:
    """A command that takes long, and writes over files that are there."""
    command = rng.choice(["solve", "solve", "solve", "report", "report", "compare", "sweep", "sweep", "max-batch", "demo"])
    graph = rng.choice(["long.json", "long.json", "chain.json"])
    budget = rng.choice(["16%", "30%", "60%"])
    search = ["--gap=0", f"--time-limit={rng.choice([3, 30])}"]
    return {
        "solve": ["solve", graph, "--budget", budget, *search, "-o", "old.json", "--plot", "old.png"],
        "report": ["report", graph, "--budget", budget, *search],
        "compare": ["compare", graph, "--budget", budget, *search, "--methods", "auto", "milp", "greedy"],
        "sweep": ["sweep", graph, *search, "--plot", "old.png"],
        "max-batch": ["max-batch", graph, "--budget", "20KB", "--time-limit=30"],
        "demo": ["demo", "-o", "demo-output"],
    }[command]


def some_methods() -> list[str]:
    return [*checkmate.methods(), "magic", "", "\x1b[31m", "AUTO"]


def odd(rng: random.Random, usual: str, others: list[str]) -> str:
    """Most often the usual word, so that what comes after it is reached."""
    return usual if rng.random() < 0.8 else rng.choice(others)


def optional(rng: random.Random, option: str, usual: str, others: list[str]) -> list[str]:
    """Nothing, or an option and its word."""
    return [option, odd(rng, usual, others)] if rng.random() < 0.4 else []


def graph_file(rng: random.Random, folder: Path) -> str:
    """The name of a graph: a good one, a damaged one, or none."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(["chain.json", "random0.json", "random1.json", "random2.json", "random3.json"])
    if kind < 0.52:
        return rng.choice(["none.json", "folder", "", "/dev/null", "loop", "x" * 300, "schedule.json", *NAMES])
    return damaged(rng, folder, rng.choice(["chain.json", "random0.json", "random1.json", "random2.json", "random3.json"]))


def schedule_file(rng: random.Random, folder: Path) -> str:
    """The name of a schedule, as `graph_file`."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(["schedule.json", "none.json", "folder", "chain.json", "/dev/null", *NAMES])
    return damaged(rng, folder, "schedule.json")


def damaged(rng: random.Random, folder: Path, source: str) -> str:
    """A copy of a file with something wrong in it, often under an odd name."""
    text = (folder / source).read_text(encoding="utf-8")
    kind = rng.random()
    if kind < 0.7:
        data = json.loads(text)
        for _ in range(rng.choice([1, 1, 2, 5])):
            spoil(rng, data)
        raw = json.dumps(data).encode()
    elif kind < 0.8:
        raw = text[: rng.randrange(len(text))].encode()
    elif kind < 0.9:
        raw = bytearray(text.encode())
        for _ in range(rng.choice([1, 3, 30])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    else:
        raw = rng.choice(
            [b"", b"\xff\xfe", b"null", b"[]", b"[" * 50_000, b'{"a":' * 50_000, b"\xef\xbb\xbf" + text.encode(), b"1" * 5000]
        )
    name = rng.choice(NAMES).replace("/", "")[:200] if rng.random() < 0.3 else "damaged"
    path = folder / f"{name}.json"
    path.write_bytes(bytes(raw))
    return os.fspath(path) if rng.random() < 0.3 else path.name


def spoil(rng: random.Random, data: Any) -> None:
    """Change one entry somewhere in the data."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return
        deep = [key for key in keys if isinstance(data[key], (dict, list)) and data[key]]
        key = rng.choice(deep if deep and rng.random() < 0.8 else keys)
        if key in deep and rng.random() < 0.9:
            data = data[key]
            continue
        kind = rng.random()
        if kind < 0.08:
            del data[key]
        elif kind < 0.16 and isinstance(data, list):
            data.insert(key, deepcopy(data[rng.randrange(len(data))]))
        elif isinstance(data[key], str) and kind < 0.95:
            data[key] = rng.choice([*NAMES, *MORE_NAMES])
        else:
            data[key] = deepcopy(rng.choice(VALUES))  # the next change must not reach the original, or put it into itself
        return
