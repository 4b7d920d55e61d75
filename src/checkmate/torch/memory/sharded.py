"""What FSDP2 (`fully_shard`) takes besides the shards and what graphs read and return: copies that are on their way.

A group of parameters is gathered into one buffer and copied out of it, and its gradients are copied into one before they are reduced.
Both buffers live on until the next group's turn, and the one of the next group may be gathered early. Groups that no graph reads (the
root, which PyTorch does not compile) stay gathered throughout the step.

Limits: the graphs of a step count every gathered parameter and gradient from the beginning of the step to its end, though most
of them come and go with their block: what is planned takes less than was said. Pipelines that prefetch several blocks by hand
(`set_modules_to_forward_prefetch`) may take more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..pytorch.internals import sharded_groups
from .measure import same_device


class Sharded:
    """The groups of parameters under `fully_shard` that belong to one training."""

    def __init__(self) -> None:
        self._groups: list[weakref.ref[Any]] = []

    def look(self, knows: Callable[[torch.Tensor], bool]) -> list[torch.Tensor]:
        """Find the groups of models that have a known parameter; the shards of parameters that are known whole."""
        shards: list[torch.Tensor] = []
        models: dict[Any, list[Any]] = {}
        ours = set()
        for model, group in sharded_groups():
            models.setdefault(model, []).append(group)
            for parameter in group.fsdp_params:
                if knows(_whole(parameter)) or knows(parameter.sharded_param):
                    ours.add(model)
                    shards.append(parameter.sharded_param)
        self._groups = [weakref.ref(group) for model in ours for group in models[model]]
        return shards

    def gradients(self) -> Iterable[torch.Tensor]:
        """Of whole parameters, kept because they are reduced after a later microbatch."""
        for parameter in self._parameters():
            for gradient in (_whole(parameter).grad, getattr(parameter, "unsharded_accumulated_grad", None)):
                if isinstance(gradient, torch.Tensor):
                    yield gradient

    def buffers(self, device: torch.device, knows: Callable[[torch.Tensor], bool]) -> int:
        """Bytes on a device of what is on its way, at most, and of parameters that stay gathered."""
        most = unread = 0
        for reference in self._groups:
            group = reference()
            parameters = [] if group is None else [p for p in group.fsdp_params if same_device(p.sharded_param.device, device)]
            gathered = sum(p.sharded_param.numel() * _whole(p).element_size() for p in parameters)
            reduced = sum(
                p.sharded_param.numel() * (getattr(p, "reduce_dtype", None) or _whole(p).dtype).itemsize for p in parameters
            )
            most = max(most, gathered + reduced)
            if not any(knows(_whole(parameter)) for parameter in parameters):
                unread += gathered
        return most + unread

    def _parameters(self) -> list[Any]:
        return [parameter for reference in self._groups if (group := reference()) is not None for parameter in group.fsdp_params]


def _whole(parameter: Any) -> torch.Tensor:
    """What the model computes with; before the first time that is gathered, the shard."""
    whole: torch.Tensor = getattr(parameter, "_unsharded_param", parameter.sharded_param)
    return whole
