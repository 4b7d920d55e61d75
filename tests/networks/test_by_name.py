"""Networks by name are those of the functions."""

from __future__ import annotations

import pytest

from checkmate import networks
from checkmate.networks import NETWORKS, network


@pytest.mark.parametrize("name", ["vgg16", "vgg19", "mobilenet", "resnet50", "unet", "fcn8", "segnet"])
def test_a_name_is_that_of_its_function(name: str) -> None:
    build = network(name.upper())
    assert build is not None
    assert build(3) == getattr(networks, name)(3)


def test_transformers_of_any_depth() -> None:
    for name, layers in (("transformer", 12), ("transformer1", 1), ("Transformer30", 30)):
        build = network(name)
        assert build is not None
        assert build(2) == networks.transformer(layers, batch=2)
    small, known = NETWORKS["gpt2"].build(2), networks.transformer(batch=2)
    assert (small.name, small.ops, small.values) == ("GPT-2 small", known.ops, known.values)
    large = NETWORKS["gpt2-xl"].build(1)
    # 1.56 billion parameters (Radford et al., 2019), and as many gradients, of four bytes.
    assert large.fixed_memory == pytest.approx(8 * 1.558e9, rel=0.06)


@pytest.mark.parametrize("name", ["", "resnet", "transformer0", "transformer01", "transformer9999", "transformer٣", "vgg16.json"])
def test_other_words_are_no_names(name: str) -> None:
    assert network(name) is None
