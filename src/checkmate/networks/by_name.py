"""Networks by name: those of this package, and transformers of known sizes and of any depth."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..graph import Graph
from .classifiers import mobilenet, resnet50, vgg16, vgg19
from .segmentation import fcn8, segnet, unet
from .transformers import transformer

#: Layers of a `transformerN`; more make graphs that no search gets through.
_MOST_LAYERS = 1000


@dataclass(frozen=True)
class Network:
    """A network that has a name.

    Attributes:
        title: what it is, and for what inputs. build: from the batch size to the graph of a training step.
    """

    title: str
    build: Callable[[float], Graph]


def _gpt2(layers: int, width: int, heads: int, name: str | None = None) -> Callable[[float], Graph]:
    return lambda batch: transformer(layers, width, heads, batch=batch, name=name)


def _known_gpt2(name: str, layers: int, width: int, heads: int) -> Network:
    return Network(f"{name}, 1024 tokens", _gpt2(layers, width, heads, name))


NETWORKS: Mapping[str, Network] = {
    "vgg16": Network("VGG16, images of 224 x 224", vgg16),
    "vgg19": Network("VGG19, images of 224 x 224", vgg19),
    "mobilenet": Network("MobileNet v1, images of 224 x 224", mobilenet),
    "resnet50": Network("ResNet50 v1, images of 224 x 224", resnet50),
    "unet": Network("U-Net, images of 416 x 608", unet),
    "fcn8": Network("FCN8, images of 416 x 608", fcn8),
    "segnet": Network("SegNet, images of 416 x 608", segnet),
    "gpt2": _known_gpt2("GPT-2 small", 12, 768, 12),
    "gpt2-medium": _known_gpt2("GPT-2 medium", 24, 1024, 16),
    "gpt2-large": _known_gpt2("GPT-2 large", 36, 1280, 20),
    "gpt2-xl": _known_gpt2("GPT-2 XL", 48, 1600, 25),
}


def network(name: str) -> Callable[[float], Graph] | None:
    """What builds the network of this name, in letters of any case; None: there is none.

    `transformerN` is GPT-2 small with N layers, `transformer` with 12.
    """
    known = NETWORKS.get(name.lower())
    if known is not None:
        return known.build
    number = re.fullmatch(r"transformer([1-9][0-9]{0,3})?", name.lower(), re.ASCII)
    layers = 0 if number is None else int(number[1] or 12)
    if 0 < layers <= _MOST_LAYERS:
        return _gpt2(layers, 768, 12)
    return None
