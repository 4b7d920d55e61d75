"""Ops that draw again draw the same, on the device whose generator they use."""

from __future__ import annotations

import pytest
import torch

from checkmate.torch.pytorch.random import draw, draw_again, empty_state, preserved_random_state

CPU = torch.device("cpu")
DROPOUT = torch.ops.aten.native_dropout.default


def test_drawing_again_gives_the_same_and_moves_nothing_on() -> None:
    torch.manual_seed(0)
    expected = [DROPOUT(torch.ones(100), 0.5, True)[0] for _ in range(2)]
    torch.manual_seed(0)
    saved = empty_state(CPU)
    first, _ = draw(saved, CPU, DROPOUT, (torch.ones(100), 0.5), {"train": True})
    again, _ = draw_again(saved, CPU, DROPOUT, (torch.ones(100), 0.5), {"train": True})
    second, _ = draw(None, CPU, DROPOUT, (torch.ones(100), 0.5, True), {})
    assert torch.equal(first, again)
    assert torch.equal(torch.stack([first, second]), torch.stack(expected))
    assert not torch.equal(first, second)


def test_the_generator_is_put_back_after_an_error() -> None:
    before = torch.get_rng_state()

    def fails() -> None:
        torch.rand(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        draw_again(empty_state(CPU).copy_(before), CPU, fails, (), {})
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ZeroDivisionError), preserved_random_state([CPU]):
        fails()
    assert torch.equal(torch.get_rng_state(), before)


def test_every_cuda_device_has_a_generator_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {0: torch.zeros(16, dtype=torch.uint8), 1: torch.zeros(16, dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device.index].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states[device.index].copy_(state))
    device = torch.device("cuda:1")

    def op() -> int:
        states[1] += 1
        return int(states[1][0])

    cpu = torch.get_rng_state()
    saved = empty_state(device)
    assert (saved.device, saved.shape) == (CPU, (16,))
    assert draw(saved, device, op, (), {}) == 1
    assert draw(None, device, op, (), {}) == 2
    assert draw_again(saved, device, op, (), {}) == 1
    assert states[1][0] == 2
    with preserved_random_state([device]):
        op()
        torch.rand(3)
    assert states[1][0] == 2
    assert not states[0].any()
    assert torch.equal(torch.get_rng_state(), cpu)
