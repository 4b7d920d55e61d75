"""What a batch looks like: specs of what the user shows, and batches that must look like them.

Messages name the part that is wrong and never show what is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import CheckmateError
from ..text import printable

#: Characters of a name or of a list of names in a message.
_MOST = 100


def read_specs(nest: Any, name: str) -> Any:
    """Specs of tensors, arrays, `tf.TensorSpec` or `keras.Input`, in the nest in which they are given.

    Args:
        name: of the argument, for messages.

    Raises:
        CheckmateError: something in it is none of these.
    """
    return tf.nest.map_structure(lambda given: _spec(given, name), nest)


def _spec(given: Any, name: str) -> tf.TensorSpec:
    if isinstance(given, tf.TensorSpec):
        return given
    _check_dense(given, name)
    if type(given).__name__ == "KerasTensor":  # of Keras 3 and of tf_keras
        spec = tf.TensorSpec(given.shape, tf.as_dtype(given.dtype))
        if not spec.shape.is_fully_defined():
            raise CheckmateError(
                f"{name} is a keras.Input of shape {spec.shape}, which leaves sizes open: give a batch, or tf.TensorSpec(shape, dtype) "
                "with the batch size filled in (a plan is made for each batch size that comes up)"
            )
        return spec
    tensor = dense(given, name)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def like(spec: Any, given: Any, name: str) -> Any:
    """A batch as tensors of the element types of a spec; lists of numbers count as arrays where the spec has one tensor.

    Args:
        name: of this part of the batch, for messages.

    Raises:
        CheckmateError: it has other parts, or other element types.
    """
    if isinstance(spec, tf.TensorSpec):
        _check_dense(given, name)
        if isinstance(given, Mapping):
            raise _unlike(name, "one tensor", given)
        return _tensor(given, spec.dtype, name)
    if isinstance(spec, Mapping):
        if not isinstance(given, Mapping) or set(given) != set(spec):
            raise _unlike(name, f"a dictionary of {_names(spec)}", given)
        parts: Any = {key: like(spec[key], given[key], f"{name}[{printable(repr(key), _MOST)}]") for key in spec}
    else:
        if not isinstance(given, list | tuple) or len(given) != len(spec):
            raise _unlike(name, f"{len(spec)} parts", given)
        parts = [like(one, part, f"{name}[{number}]") for number, (one, part) in enumerate(zip(spec, given, strict=True))]
    return tf.nest.pack_sequence_as(spec, tf.nest.flatten(parts))


def dense(given: Any, name: str) -> tf.Tensor:
    """A tensor or array of a batch as a tensor.

    Raises:
        CheckmateError: it is a number of a Python list that was meant as an array, or does not have its size in its shape.
    """
    _check_dense(given, name)
    if given is None or isinstance(given, bool | int | float | str | bytes):
        raise CheckmateError(
            f"{name} holds a Python {type(given).__name__} where an array is meant: make an array of every list of numbers, as by "
            "np.asarray"
        )
    return _tensor(given, None, name)


def _check_dense(given: Any, name: str) -> None:
    if isinstance(given, tf.RaggedTensor | tf.SparseTensor | tf.RaggedTensorSpec | tf.SparseTensorSpec):
        raise CheckmateError(
            f"{name} holds a {type(given).__name__}: its size in memory is not known before the step runs; give dense tensors"
        )


def _tensor(given: Any, dtype: tf.DType | None, name: str) -> tf.Tensor:
    if tf.is_tensor(given):
        if dtype is not None and given.dtype != dtype:
            raise CheckmateError(f"{name} has element type {given.dtype.name}, and the specs given to compile have {dtype.name}")
        return given
    try:
        return tf.convert_to_tensor(given, dtype)
    except (TypeError, ValueError, tf.errors.OpError):  # what TensorFlow says may hold all of the data
        wanted = "" if dtype is None else f" of {dtype.name}"
        raise CheckmateError(f"{name} cannot be made a tensor{wanted}: it is {_what(given)}") from None


def _unlike(name: str, wanted: str, given: Any) -> CheckmateError:
    return CheckmateError(f"{name} does not look like the specs given to compile: it should be {wanted}, and is {_what(given)}")


def _what(given: Any) -> str:
    """A few words for what something is, whatever it holds."""
    kind = type(given).__name__
    if isinstance(given, Mapping):
        return f"a {kind} of {_names(given)}"
    if isinstance(given, list | tuple):
        return f"a {kind} of {len(given)}"
    if isinstance(given, np.ndarray):
        return f"an array of {given.dtype.name} and shape {given.shape}"
    return f"a {kind} of shape {given.shape}" if tf.is_tensor(given) else f"a {kind}"


def _names(keys: Mapping[Any, Any]) -> str:
    return printable(", ".join(map(repr, keys)), _MOST) if keys else "nothing"
