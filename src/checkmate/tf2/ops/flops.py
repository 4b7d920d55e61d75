"""Arithmetic of one op from its shapes, for the roofline."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from .op_kinds import tensor_bytes

#: Operations per element of the largest tensor, for kernels that do more than one; the rest counts as one.
_PER_ELEMENT = {"Softmax": 5, "LogSoftmax": 5, "FusedBatchNormV3": 6, "FusedBatchNormGradV3": 11, "Exp": 4, "Tanh": 6, "Erf": 8}


_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
_GRADIENTS_OF_CONVOLUTIONS = ("Conv2DBackprop", "Conv3DBackprop", "DepthwiseConv2dNativeBackprop")
_MATRIX_PRODUCTS = ("MatMul", "BatchMatMulV2", "BatchMatMul", "BatchMatMulV3", "Einsum")


def is_product(op: tf.Operation) -> bool:
    """A convolution, a gradient of one, or a matrix product."""
    return _kind(op) in (*_CONVOLUTIONS, *_MATRIX_PRODUCTS) or op.type.startswith(_GRADIENTS_OF_CONVOLUTIONS)


def _kind(op: tf.Operation) -> str:
    return op.type.removeprefix("_Fused")  # what graph rewriting fuses with them is little beside them


def flops(op: tf.Operation) -> float:
    """Floating-point operations, a multiply-add counted as two."""
    outputs, inputs = list(op.outputs), list(op.inputs)
    kind = _kind(op)
    if kind in _CONVOLUTIONS:
        return _convolution(op, _elements(outputs[0]), inputs[1].shape)
    if op.type.startswith(_GRADIENTS_OF_CONVOLUTIONS):
        kernel = outputs[0].shape if op.type.endswith(("Filter", "FilterV2")) else inputs[1].shape
        return _convolution(op, _elements(inputs[2]), kernel)
    if kind in _MATRIX_PRODUCTS:
        if op.type == "Einsum":
            return 2.0 * _einsum(op)
        transposed = _attribute(op, "transpose_a") or _attribute(op, "adj_x")
        inner = inputs[0].shape[-2 if transposed else -1] or 1
        return 2.0 * _elements(outputs[0]) * inner
    largest = max((_elements(t) for t in (*inputs, *outputs)), default=0)
    return float(_PER_ELEMENT.get(op.type, 1) * largest)


def moved_bytes(op: tf.Operation) -> int:
    """Bytes read and written, each tensor once."""
    return sum(tensor_bytes(t) for t in (*op.inputs, *op.outputs))


def _elements(tensor: tf.Tensor) -> int:
    return int(tensor.shape.num_elements() or 0) if tensor.shape.is_fully_defined() else 0


def _attribute(op: tf.Operation, name: str) -> Any:
    return op.node_def.attr[name].b if name in op.node_def.attr else False


def _convolution(op: tf.Operation, outputs: int, kernel: tf.TensorShape) -> float:
    """Every output element sums over the kernel's window and the input channels it sees."""
    if not kernel.is_fully_defined():
        return 2.0 * outputs
    window = math.prod(kernel.as_list()[:-2])
    return 2.0 * outputs * window * (1 if "Depthwise" in op.type else kernel.as_list()[-2])


def _einsum(op: tf.Operation) -> float:
    """Product of the sizes of all letters."""
    left = op.get_attr("equation").decode().split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(left, op.inputs, strict=True):
        if "..." in term or not tensor.shape.is_fully_defined():
            return float(max(map(_elements, (*op.inputs, *op.outputs))))
        sizes.update(zip(term, tensor.shape.as_list(), strict=True))
    return float(math.prod(sizes.values()))
