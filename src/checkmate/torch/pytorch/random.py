"""Random ops that are computed again draw the numbers that they drew the first time.

All ops of a process draw from one generator per device. Before the first computation its state is saved; for another one
it is brought back, and afterwards the generator is put to where it was. In between no other op may draw, or both would
get wrong numbers: ops of planned graphs take turns. What other threads draw outside of planned graphs does not wait for its
turn, as in plain training, where threads disturb each other's random numbers too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

#: Types of devices whose generators are known here.
RANDOM_DEVICES = ("cpu", "cuda")

#: Of generators, by device.
States: TypeAlias = Sequence[tuple[torch.device, torch.Tensor]]

#: Held by whoever draws from a generator or sets it.
_turn = threading.RLock()


def draw(
    state: torch.Tensor | None, device: torch.device, op: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Run `op`, which draws from the generator of `device`. The state it begins with is written into `state`, if given."""
    with _turn:
        if state is not None:
            state.copy_(_get(device))
        return op(*arguments, **keywords)


def draw_again(
    state: torch.Tensor, device: torch.device, op: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Run `op` with the generator of `device` in `state`; the generator is then put back to where it was."""
    with _turn:
        now = _get(device)
        _set(state, device)
        try:
            return op(*arguments, **keywords)
        finally:
            _set(now, device)


def empty_state(device: torch.device) -> torch.Tensor:
    """Room for a state of the generator of `device`. It is on the CPU, whatever the device."""
    return torch.empty_like(_get(device))


@contextmanager
def preserved_random_state(devices: Iterable[torch.device]) -> Iterator[None]:
    """Leave the generators of the CPU and of these devices as they were."""
    states = random_states(devices)
    try:
        yield
    finally:
        _set_all(states)


@contextmanager
def drawing_from(states: States) -> Iterator[None]:
    """What is drawn in here is what was drawn from these states on; then the generators are put back to where they were."""
    with _turn, preserved_random_state([device for device, _ in states]):
        _set_all(states)
        yield


def random_states(devices: Iterable[torch.device]) -> States:
    """States of the generators of the CPU and of these devices."""
    every = [torch.device("cpu"), *(device for device in devices if device.type == "cuda")]
    with _turn:
        return [(device, _get(device)) for device in every]


def _set_all(states: States) -> None:
    with _turn:
        for device, state in states:
            _set(state, device)


def _get(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set(state: torch.Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
