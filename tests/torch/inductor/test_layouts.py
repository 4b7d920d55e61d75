"""Layouts in which programs of Inductor save what the backward pass needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from checkmate.torch.inductor.internals import lower

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")

MAPS, FILTERS = (4, 16, 8, 8), (16, 16, 3, 3)
CONTIGUOUS, CHANNELS_LAST = (1024, 64, 8, 1), (1024, 1, 128, 16)


def strides_of(
    function: Callable[..., object], *shapes: tuple[int, ...], visible: int = 0, backward: bool = False
) -> list[tuple[int, ...] | None]:
    """Of what the program for a function returns."""
    with FakeTensorMode() as mode:
        inputs = [torch.empty(shape) for shape in shapes]
        module = make_fx(function, tracing_mode="real")(*inputs)
    with mode:
        return lower(module, inputs, visible, backward=backward).output_strides


def after_a_convolution(
    saved: Callable[[Tensor], Tensor], seen: Callable[[Tensor], Tensor] = lambda y: y.sum((2, 3))
) -> list[tuple[int, ...] | None]:
    """Strides of what a program returns: what is computed from the tensor that is saved, which the caller sees, and that tensor."""

    def forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        tensor = saved(F.conv2d(x, weight, padding=1))
        return seen(tensor), tensor

    return strides_of(forward, MAPS, FILTERS, visible=1)


def test_what_follows_a_convolution_is_saved_as_it_was_written() -> None:
    assert after_a_convolution(lambda y: torch.relu(y * 2 + 1)) == [(16, 1), CHANNELS_LAST]


def test_what_is_rearranged_has_its_own_layout() -> None:
    """Heads of attention, for one."""
    assert after_a_convolution(lambda y: y.reshape(4, 8, 16, 8).permute(0, 2, 1, 3).sin()) == [(16, 1), (1024, 8, 128, 1)]


def test_what_the_caller_sees_is_no_copy() -> None:
    assert after_a_convolution(torch.relu, lambda y: y.view(4, 1024)) == [(1024, 1), CONTIGUOUS]


@pytest.mark.parametrize("again", [False, True])
def test_gradients_do_not_follow_a_convolution_that_is_computed_again(again: bool) -> None:
    """Plain Inductor has none in a backward pass; sums over what is in another layout would be rounded differently."""

    def backward(x: Tensor, weight: Tensor, saved: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        gradient = tangents * (F.conv2d(x, weight, padding=1) if again else saved).cos()
        return gradient.sum((2, 3)), gradient

    assert strides_of(backward, MAPS, FILTERS, MAPS, MAPS, backward=True) == [(16, 1), CONTIGUOUS]


def test_gradients_follow_convolutions_of_their_own() -> None:
    """Those of a gradient penalty."""

    def backward(weight: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        gradient = tangents.cos()
        return F.conv2d(gradient, weight, padding=1), gradient

    assert strides_of(backward, FILTERS, MAPS, backward=True) == [CHANNELS_LAST, CHANNELS_LAST]
