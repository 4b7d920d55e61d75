"""Recomputing random ops: the state of the generator is saved before the first computation and brought back for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def save_random_state(device: torch.device) -> torch.Tensor:
    """The state of the device's default generator, as bytes on the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def replay(state: torch.Tensor, op: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Run `op` with the generator of its device in `state`; the generator is then put back to where it was."""
    device = next((a.device for a in (*arguments, *keywords.values()) if isinstance(a, torch.Tensor)), keywords.get("device"))
    device = torch.device(device) if device is not None else torch.device("cpu")
    now = save_random_state(device)
    _set_random_state(state, device)
    try:
        return op(*arguments, **keywords)
    finally:
        _set_random_state(now, device)


def _set_random_state(state: torch.Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
