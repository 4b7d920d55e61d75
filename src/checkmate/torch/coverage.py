"""Say so when a part of a model runs outside every plan."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..errors import BudgetWarning

#: Autograd nodes that hold no activations: parameters, planned graphs, and views of what those return.
_FREE = (
    "AccumulateGrad",
    "CompiledFunction",
    "AliasBackward",
    "AsStrided",
    "ViewBackward",
    "UnsafeView",
    "Slice",
    "Select",
    "TBackward",
    "Transpose",
    "Permute",
    "Expand",
    "Squeeze",
    "Unsqueeze",
    "Split",
    "Unbind",
    "Detach",
    "Unfold",
    "Diagonal",
    "Graph",
)


def check_inputs(inputs: Sequence[Any], warned: set[str]) -> None:
    """Warn once if activations come in from ops that no plan covers."""
    outside = sorted({name for x in inputs if isinstance(x, torch.Tensor) for name in _outside(x)})
    if outside:
        _warn(outside, warned)


def check_outputs(outputs: Any, ran: bool, warned: set[str]) -> None:
    """Warn once if a model's outputs depend on ops that no plan covers.

    Args:
        outputs: of the model, any nesting.
        ran: a planned graph was run by this call.
    """
    tensors = [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    if tensors and not ran:
        _tell(
            "no part of this model is under the budget: PyTorch did not compile any of it, and it trains as without checkmate",
            warned,
        )
        return
    outside = sorted({name for x in tensors for name in _outside(x)})
    if outside:
        _warn(outside, warned)


def _outside(tensor: torch.Tensor) -> set[str]:
    found: set[str] = set()
    stack, seen = [tensor.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = type(node).__name__
        if not name.startswith(_FREE):
            found.add(name)
        stack.extend(following for following, _ in node.next_functions)
    return found


def _warn(names: list[str], warned: set[str]) -> None:
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    _tell(
        f"a part of this model runs outside the plan and its memory is not under the budget (autograd nodes {shown}): PyTorch "
        "does not compile every module (nn.LSTM, for one); set reserved= to what that part needs",
        warned,
    )


def _tell(message: str, warned: set[str]) -> None:
    if "coverage" not in warned:
        warned.add("coverage")
        warnings.warn(message, BudgetWarning, stacklevel=3)
