"""What README and docs say about Keras and TensorFlow runs as it stands."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate
import checkmate.tf2
from docs_blocks import Block, blocks

FOUND = [
    block
    for page in ("README.md", "docs/index.md", "docs/keras.md")
    for block in blocks(page, "python")
    if ".tf2" in block.code or page == "docs/keras.md"
]


def network() -> keras.Model:
    return keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(16, "tanh") for _ in range(3))])


def sentences() -> tf.data.Dataset:
    """Of 3 to 250 tokens, and of at most four lengths in batches when they are padded."""
    rng = np.random.default_rng(0)
    made = [rng.integers(0, 9, length) for length in rng.integers(3, 250, 200)]
    return tf.data.Dataset.from_generator(
        lambda: ((tokens, 1) for tokens in made),
        output_signature=(tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int32)),
    )


def test_there_are_blocks() -> None:
    assert len(FOUND) >= 3


@pytest.mark.parametrize("block", FOUND, ids=str)
def test_blocks_run(block: Block) -> None:
    model = network()
    x = np.random.default_rng(0).standard_normal((32, 16)).astype(np.float32)
    names: dict[str, Any] = {"checkmate": checkmate, "tf": tf, "keras": keras, "model": model, "x": x, "y": x, "loss": "mse"}
    names["data"] = sentences()
    code = block.code.replace("callbacks=[...]", "callbacks=[], verbose=0")
    Block(block.page, block.line, block.language, block.title, code).run(names)
    if "bucket" in code:
        shapes = {tuple(tokens.shape) for tokens, _ in names["data"]}
        assert shapes == {(64, 64), (32, 128), (16, 256)} & shapes and len(shapes) >= 2
    elif "prepare" in code:
        if "fit(" not in code.split("#")[0]:
            model.compile("sgd", "mse")
            model.fit(x, x, verbose=0)
        assert checkmate.tf2.plans(model)[0].budget == 4 << 30
