"""A graph, a schedule and what is between them as arrays: the forms that the methods work on."""

from __future__ import annotations

try:
    from .graph_kernels import useful_until as useful_until
except ImportError as error:
    raise ImportError(
        f"checkmate's compiled kernels cannot be loaded ({error}): run pip install checkmate-remat, "
        "or, in a clone, python setup.py build_ext --inplace"
    ) from None
