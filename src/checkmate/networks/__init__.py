"""The networks of Checkmate's evaluation (Jain et al., MLSys 2020) and transformers as graphs.

Each function takes the batch size and returns the graph of one training step: one value per layer, a loss, one gradient op per
layer at twice the layer's cost. Costs are multiply-adds, tensors are float32, fixed memory is the weights and their gradients.
"""

from __future__ import annotations

from .by_name import NETWORKS, Network, network
from .classifiers import mobilenet, resnet50, vgg16, vgg19
from .segmentation import fcn8, segnet, unet
from .transformers import transformer

__all__ = [
    "NETWORKS",
    "Network",
    "fcn8",
    "mobilenet",
    "network",
    "resnet50",
    "segnet",
    "transformer",
    "unet",
    "vgg16",
    "vgg19",
]
