"""`import checkmate` is fast and touches no framework."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

from docs_blocks import ROOT


def test_no_framework_is_imported() -> None:
    code = "import checkmate, sys; print('torch' in sys.modules, 'tensorflow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False False\n"


def test_fast() -> None:
    """What takes long to load is loaded by what needs it, and NumPy is all that `import checkmate` brings along."""
    code = "import numpy, sys; before = set(sys.modules); import checkmate; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    packages = {name.split(".")[0] for name in result.stdout.split()}
    assert packages <= {"checkmate", *sys.stdlib_module_names}


def test_the_command_line_imports_next_to_nothing_before_it_answers_ctrl_c() -> None:
    code = "import sys; before = set(sys.modules); import checkmate.cli; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = {name for name in result.stdout.split() if name.startswith("checkmate")}
    assert own == {"checkmate", "checkmate.version", "checkmate.cli"}
    assert not {"argparse", "importlib", "numpy", "tqdm", "signal", "typing"} & set(result.stdout.split())


def test_core_works_without_any_framework() -> None:
    """Planning, the command line and its help need neither torch nor tensorflow nor matplotlib."""
    code = """
import sys
for name in ("torch", "tensorflow", "matplotlib"):
    sys.modules[name] = None  # every import of it fails
import checkmate
from checkmate.cli import main
graph = checkmate.Graph.from_arrays([1, 1, 1], [5, 5, 5], [(0, 1), (0, 2), (1, 2)])
assert checkmate.solve(graph, "100%", method="keep-all").overhead == 1.0
assert main(["demo", "--quiet"]) == 2
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == "checkmate: error: the demo needs torch: run pip install 'checkmate-remat[torch]'\n"


def test_the_core_needs_no_package_that_it_does_not_ask_for() -> None:
    """Which is what makes it small. Searches, bounds and baselines between them load all that there is."""
    code = """
import sys
for name in ("numba", "llvmlite", "scipy", "networkx", "Cython"):
    sys.modules[name] = None  # every import of it fails
import checkmate
for graph in (checkmate.networks.vgg16(), checkmate.networks.transformer(layers=4)):
    budget = (graph.min_working_set + graph.no_recompute_peak) // 2
    for method, order in (("auto", "given"), ("auto", "any"), ("greedy", "given")):
        checkmate.solve(graph, budget, method, order=order, time_limit=5, gap=0.05)
    checkmate.solve(graph, graph.no_recompute_peak, "chen-greedy-ap", time_limit=5)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {re.match(r"[\w-]+", one).group() for one in project["dependencies"]}  # type: ignore[union-attr]
    assert asked == {"numpy", "highspy", "platformdirs", "psutil", "tqdm", "jinja2"}


def test_without_compiled_kernels_it_says_what_to_do() -> None:
    code = """
import sys
sys.modules["checkmate.solvers.representation.graph_kernels"] = None
import checkmate
try:
    checkmate.solve(checkmate.networks.vgg16(), "80%")
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.count("\n") == 1 and "in a clone, python setup.py build_ext --inplace" in result.stdout


def test_public_names() -> None:
    import checkmate

    assert all(hasattr(checkmate, name) for name in checkmate.__all__)
    assert {*checkmate.__all__, "torch", "__version__"} <= set(dir(checkmate))
    assert not hasattr(checkmate, "no_such_name")
