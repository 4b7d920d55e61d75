"""The networks of Checkmate's evaluation (Jain et al., MLSys 2020) as graphs: costs in multiply-adds, float32 tensors.

Each function takes the batch size and returns the graph of one training step: one value per layer, a loss, one gradient op per
layer at twice the layer's cost. Fixed memory is the weights and their gradients.
"""

from __future__ import annotations

from .classifiers import mobilenet, resnet50, vgg16, vgg19
from .segmentation import fcn8, segnet, unet

__all__ = ["fcn8", "mobilenet", "resnet50", "segnet", "unet", "vgg16", "vgg19"]
