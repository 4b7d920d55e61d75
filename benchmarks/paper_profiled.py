"""The networks of the paper with the costs of this machine: PyTorch models of the same layers, captured and profiled by the library.

What is captured is the training step as PyTorch differentiates it, so the graphs are not those of the FLOP costs: a pooling saves its
indices, a padding reads nothing, gradients of parameters are kept and do not grow with the batch.

    python benchmarks/paper_profiled.py NETWORK FILE

writes one graph.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from checkmate import networks
from checkmate.networks import layers

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Examples: on a CPU the step of the paper's batch takes a minute and more memory than there is.
BATCHES = {"vgg16": 8, "vgg19": 8, "mobilenet": 16, "resnet50": 8, "unet": 1, "fcn8": 1, "segnet": 1}
QUICK = ("vgg16", "mobilenet")
_KINDS = ("conv", "depthwise", "transposed", "dense", "norm", "activation", "add", "concat", "upsample", "pool", "pad", "reshape")


def measure(names: Sequence[str], folder: Path, quick: bool) -> None:
    """Writes the graphs of these networks that are not there yet; in a process each, which ends with its memory."""
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: measured costs are left out", file=sys.stderr)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = folder / f"{name}.json"
        if not path.exists() and (not quick or name in QUICK):
            print(f"measuring the ops of {name}", flush=True)
            subprocess.run([sys.executable, __file__, name, str(path)], check=True)


class _Recorder(layers.Layers):
    """Remembers the kind and the arguments of every layer. Layers that are made through another one count as the outer one."""

    made: dict[int, tuple[str, tuple[Any, ...], dict[str, Any]]]
    last: _Recorder

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in _KINDS:
            return method

        def recorded(*arguments: Any, **keywords: Any) -> layers.Tensor:
            tensor: layers.Tensor = method(*arguments, **keywords)
            self.made[tensor.layer] = (name, arguments, {"shape": tensor, **keywords})
            return tensor

        return recorded

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.made = {}
        type(self).last = self


def recorded(name: str) -> _Recorder:
    """The layers of a network by name."""
    with mock.patch.object(layers, "Layers", _Recorder):
        networks.NETWORKS[name].build(1)
    return _Recorder.last


def model_of(name: str) -> nn.Module:
    """A PyTorch model of these layers."""
    import torch
    from torch import nn

    made = recorded(name).made

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = [(_inputs(arguments), _step(kind, arguments, keywords)) for kind, arguments, keywords in made.values()]
            self.modules_ = nn.ModuleList(step for _, step in self.steps if isinstance(step, nn.Module))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tensors = {-1: x}
            for number, (inputs, step) in enumerate(self.steps):
                tensors[number] = step(*(tensors[place] for place in inputs))
            return tensors[len(self.steps) - 1].float().mean()

    return Model()


def _inputs(arguments: tuple[Any, ...]) -> list[int]:
    return [tensor.layer for tensor in arguments if isinstance(tensor, layers.Tensor)]


def _step(kind: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Callable[..., Tensor]:
    """What computes a layer from its inputs, of shape (batch, channels, height, width)."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    given, made = arguments[1], keywords["shape"]
    if kind == "conv":
        size, same = keywords.get("kernel", 3), keywords.get("same", True)
        padding = size // 2 if same else 0
        return nn.Conv2d(given.channels, made.channels, size, keywords.get("stride", 1), padding, bias=keywords.get("bias", True))
    if kind == "depthwise":
        stride = arguments[2] if len(arguments) > 2 else 1
        return nn.Conv2d(given.channels, given.channels, 3, stride, int(stride == 1), groups=given.channels, bias=False)
    if kind == "transposed":
        return nn.ConvTranspose2d(given.channels, made.channels, keywords["kernel"], keywords["stride"], bias=False)
    if kind == "dense":
        linear = nn.Linear(given.size, made.channels)
        return nn.Sequential(nn.Flatten(), linear, nn.Unflatten(1, (made.channels, 1, 1)))
    if kind == "norm":
        return nn.BatchNorm2d(given.channels)
    steps: dict[str, Callable[..., Tensor]] = {
        "activation": torch.relu,
        "add": torch.add,
        "concat": lambda x, y: torch.cat((x, y), 1),
        "upsample": lambda x: F.interpolate(x, scale_factor=2.0),
        "pool": lambda x: F.max_pool2d(x, 2),
        "pad": lambda x: F.pad(x, (arguments[2] // 2, arguments[2] - arguments[2] // 2) * 2),
        "reshape": _reshape(arguments[0], given, made),
    }
    return steps[kind]


def _reshape(name: str, given: layers.Tensor, made: layers.Tensor) -> Callable[[Tensor], Tensor]:
    import torch.nn.functional as F

    if name.startswith("dropout"):
        return lambda x: F.dropout(x, 0.5)
    if given.size == made.size:
        return lambda x: x.reshape(x.shape[0], made.channels, made.height, made.width)
    if made.height == made.width == 1:
        return lambda x: x.mean((2, 3), keepdim=True)
    if made.height < given.height // 2:
        return lambda x: F.max_pool2d(x, 3, 2)
    return lambda x: x[:, :, : made.height, : made.width]


def write(name: str, path: Path) -> None:
    """Captures and profiles a training step."""
    import torch

    import checkmate.torch

    shape = recorded(name).input
    x = torch.randn(BATCHES[name], shape.channels, shape.height, shape.width)
    graph = checkmate.torch.capture(model_of(name), x)
    type(graph)(graph.ops, graph.values, graph.fixed_memory, name).save(path)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
