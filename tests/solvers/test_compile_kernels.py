"""What is compiled ahead is what searches need."""

from __future__ import annotations

import subprocess
import sys

_SEARCHES = """
import checkmate
from checkmate.solvers.compile_kernels import _training_step, compile_kernels
from checkmate.solvers.representation.kernels import all_kernels

def known():
    return {kernel.py_func.__module__ + "." + kernel.py_func.__name__: len(kernel.signatures) for kernel in all_kernels}

before = compile_kernels(), known()
assert before[0] == len(before[1]) > 50
graph = _training_step(24)
for order in ("given", "any"):
    checkmate.solve(graph, "60%", order=order, time_limit=3, gap=0)
checkmate.solve(graph, "60%", "greedy")
checkmate.solve(graph, "60%", "griewank")
checkmate.minimum_budget(graph)
assert known() == before[1], sorted(set(known().items()) ^ set(before[1].items()))
"""


def test_searches_find_all_kernels_compiled() -> None:
    done = subprocess.run([sys.executable, "-c", _SEARCHES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
