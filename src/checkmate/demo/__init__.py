"""Training three PyTorch models under several budgets, beside plain training: what `checkmate demo` runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .table import COLUMNS, NOTE, cells

__all__ = ["COLUMNS", "NOTE", "cells", "run_demo"]


def run_demo(
    output: Path,
    progress: Callable[[str], None] | None = None,
    models: Sequence[str] | None = None,
    *,
    small: bool = False,
) -> list[dict[str, Any]]:
    """Train each model plainly and under budgets, compare, draw, and write `demo.json` and pictures into `output`.

    Args:
        output: a folder; made if missing.
        progress: called with one line of text whenever something was done.
        models: of "resnet", "unet", "transformer"; all by default.
        small: tiny tensors, for a quick look; the times then mean nothing.

    Returns:
        One dictionary of plain data per model and budget; `cells` makes the lines of a table of them, and `COLUMNS` are its heads.

    Raises:
        UnknownMethod: a model that does not exist. CheckmateError: matplotlib is missing.
    """
    # torch's allocator would print a line for every tensor older than the measurement that dies in it; they are
    # accounted for. It reads this variable when torch is first imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from .run import run_models

    return run_models(Path(output), progress or (lambda line: None), models, small)
