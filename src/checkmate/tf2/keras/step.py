"""The training step of a Keras model as a function of tensors: what `compile` and `capture` plan. Keras 3 and tf_keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...errors import CheckmateError
from ...text import printable
from ..graphs.layers import note_layers
from ..internals import build_optimizer, is_optimizer
from .coverage import covered, trained_as_at_first


def check_backend(model: Any) -> None:
    """Raise for a model whose Keras does not compute with TensorFlow."""
    keras = keras_of(model)
    name = keras.backend.backend()
    if name != "tensorflow":
        raise CheckmateError(
            f"Keras computes with {printable(name)} here, and checkmate.tf2 plans steps of TensorFlow: set KERAS_BACKEND=tensorflow "
            "before Keras is imported"
        )


def build(model: Any, optimizer: Any, input_spec: Any) -> None:
    """Create every variable, so that the step creates none. Nothing is trained and no random number is drawn.

    Args:
        optimizer: may be None. input_spec: nest of `tf.TensorSpec`.
    """
    if not is_complete(model):
        call = covered(model)(lambda inputs: model(inputs, training=False))
        tf.function(call, autograph=False).get_concrete_function(input_spec)
    if not model.trainable_variables:
        raise CheckmateError("the model has no trainable variables: there is nothing to train")
    if optimizer is not None:
        build_optimizer(optimizer, model.trainable_variables)
    refuse_distributed(model, [*model.variables, *_variables_of(optimizer)], fitted=False)


def _variables_of(optimizer: Any) -> Sequence[Any]:
    """What an optimizer keeps; in legacy ones of tf_keras it is a method that tells."""
    found = getattr(optimizer, "variables", ())
    return list((found() if callable(found) else found) or ())


def refuse_distributed(model: Any, variables: Sequence[Any], *, fitted: bool) -> None:
    """Raise for a model under a `tf.distribute` strategy.

    Args:
        variables: of the model. fitted: Keras trains it; then one of Keras 3 may be under a strategy of one device, whose step is that of
            no strategy.
    """
    strategy, own = tf.distribute.get_strategy(), getattr(model, "distribute_strategy", None)
    mirrored = [_plain(v).values for v in variables if isinstance(_plain(v), tf.distribute.DistributedValues)]
    if not mirrored and own in (None, strategy) and not tf.distribute.has_strategy():
        return
    most = max(strategy.num_replicas_in_sync, 1 if own is None else own.num_replicas_in_sync, *map(len, mirrored))
    if most > 1 or not fitted or keras_of(model).__name__ == "tf_keras":
        raise CheckmateError(
            f"this model lives under a tf.distribute strategy (replicas: {most}): checkmate plans the step of one device; make the model "
            "outside of the strategy's scope, or with Keras 3, checkmate.tf2.prepare and fit give the strategy one device"
        )


def training_step(model: Any, loss: Any, optimizer: Any, metrics: Sequence[Any] = ()) -> Callable[[Any, Any], Any]:
    """`step(x, y) -> (prediction, loss)`: forward, backward, and the optimizer's update.

    Args:
        loss: `loss(y_true, y_pred)`, a Keras loss or its name; if it gives one number per sample, their mean counts.
        metrics: Keras metrics, updated with the step's predictions.
    """
    loss_function = loss_of(model, loss)
    _check_metrics(metrics)

    @covered(model)
    @trained_as_at_first(model)
    def step(x: Any, y: Any) -> Any:
        prediction, value, gradients = _gradients(model, loss_function, optimizer, x, y)
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))
        for metric in metrics:
            metric.update_state(y, prediction)
        return prediction, value

    return step


def gradient_step(model: Any, loss: Any) -> Callable[[Any, Any], Any]:
    """`step(x, y) -> (prediction, loss, gradients)`: nothing is updated but what the layers update themselves."""
    loss_function = loss_of(model, loss)
    return covered(model)(lambda x, y: _gradients(model, loss_function, None, x, y))


def loss_of(model: Any, loss: Any) -> Callable[[Any, Any], tf.Tensor]:
    """A loss by name or as a function; its result is a scalar."""
    if isinstance(loss, str):
        try:
            loss = keras_of(model).losses.get(loss)
        except ValueError:
            raise CheckmateError(f"Keras has no loss of the name {printable(repr(loss), 60)}") from None
    if isinstance(loss, type) or not callable(loss):
        kind = f"the class {loss.__name__}" if isinstance(loss, type) else f"a {type(loss).__name__}"
        raise CheckmateError(f"loss must be a function of (labels, predictions) or the name of a Keras loss; it is {kind}")

    def scalar(labels: Any, prediction: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(loss(labels, prediction))
        return value if value.shape.rank == 0 else tf.reduce_mean(value)

    return scalar


def _gradients(model: Any, loss: Callable[[Any, Any], tf.Tensor], optimizer: Any, x: Any, y: Any) -> tuple[Any, tf.Tensor, Any]:
    note_layers(model)
    with tf.GradientTape() as tape:
        prediction = model(x, training=True)
        value = loss(y, prediction)
        for extra in model.losses:
            value += tf.cast(extra, value.dtype)
        scaled = _scaled(optimizer, value)
    gradients = tape.gradient(scaled, [_plain(variable) for variable in model.trainable_variables])
    if hasattr(optimizer, "get_unscaled_gradients"):
        gradients = optimizer.get_unscaled_gradients(gradients)  # tf_keras; the optimizers of Keras 3 do it in apply
    return prediction, value, gradients


def _scaled(optimizer: Any, value: tf.Tensor) -> tf.Tensor:
    for name in ("scale_loss", "get_scaled_loss"):  # Keras 3, tf_keras
        if hasattr(optimizer, name):
            return getattr(optimizer, name)(value)
    return value


def _plain(variable: Any) -> Any:
    """The TensorFlow variable behind a variable of Keras 3."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


def is_complete(model: Any) -> bool:
    """Every layer has its variables: a subclassed model may say that it is built when its layers are not."""
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else ()
    return all(getattr(layer, "built", True) for layer in (model, *layers))


def optimizer_of(model: Any, optimizer: Any) -> Any:
    """An optimizer by name or as an object."""
    if isinstance(optimizer, str):
        try:
            return keras_of(model).optimizers.get(optimizer)
        except ValueError:
            raise CheckmateError(f"Keras has no optimizer of the name {printable(repr(optimizer), 60)}") from None
    if isinstance(optimizer, type) or not is_optimizer(optimizer):
        kind = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
        raise CheckmateError(
            f'optimizer must be a Keras optimizer, such as keras.optimizers.Adam(), or its name, "adam"; it is {kind}'
        )
    return optimizer


def _check_metrics(metrics: Sequence[Any]) -> None:
    for metric in metrics:
        if isinstance(metric, type | str) or not callable(getattr(metric, "update_state", None)):
            what = printable(repr(metric), 60) if isinstance(metric, str) else f"a {type(metric).__name__}"
            raise CheckmateError(
                f"metrics must be Keras metrics, such as keras.metrics.SparseCategoricalAccuracy(), and one of them is {what}"
            )


def keras_of(model: Any) -> Any:
    """The package that a model is of: Keras 3 or tf_keras."""
    for base in type(model).__mro__:
        if base.__module__.partition(".")[0] == "tf_keras":
            import tf_keras

            return tf_keras
    import keras

    return keras
