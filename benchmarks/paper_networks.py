"""Networks that Checkmate's evaluation did not have, as layer lists: DenseNet-161, ViT-L, Llama of a billion parameters, and the
U-Net of a diffusion model. Costs are multiply-adds, tensors float32, each layer makes one value, as in `checkmate.networks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from checkmate import Graph, networks
from checkmate.networks.layers import Layers, Tensor, build


def densenet161(batch: float = 1) -> Graph:
    """DenseNet-161 (Huang et al., 2017), images of 224 x 224; every concatenation is a copy."""
    return build("densenet161", (224, 224, 3), batch, _densenet)


def _densenet(net: Layers) -> None:
    growth = 48
    x = net.activation("relu0", net.norm("norm0", net.conv("conv0", net.input, 2 * growth, kernel=7, stride=2, bias=False)))
    x = net.pool("pool0", x)
    for block, layers in enumerate((6, 12, 36, 24), 1):
        for number in range(1, layers + 1):
            name = f"block{block}_{number}"
            y = net.activation(f"{name}_relu1", net.norm(f"{name}_norm1", x))
            y = net.conv(f"{name}_conv1", y, 4 * growth, kernel=1, bias=False)
            y = net.activation(f"{name}_relu2", net.norm(f"{name}_norm2", y))
            x = net.concat(f"{name}_concat", x, net.conv(f"{name}_conv2", y, growth, bias=False))
        x = net.activation(f"transition{block}_relu", net.norm(f"transition{block}_norm", x))
        if block < 4:
            x = net.pool(f"transition{block}_pool", net.conv(f"transition{block}_conv", x, x.channels // 2, kernel=1, bias=False))
    net.dense("classifier", net.reshape("average", x, 1, 1), 1000)


def vit_l(batch: float = 1) -> Graph:
    """ViT-L/16 (Dosovitskiy et al., 2021), images of 224 x 224: 24 layers of width 1024."""
    return build("vit-l", (224, 224, 3), batch, _vit)


def _vit(net: Layers) -> None:
    x = net.conv("patches", net.input, 1024, kernel=16, stride=16, same=False)
    x = net.reshape("tokens", x, 1, x.height * x.width)
    for number in range(1, 25):
        name = f"layer{number}"
        y = net.layer_norm(f"{name}_norm1", x)
        x = net.add(f"{name}_add1", x, _attention(net, name, y, heads=16, groups=16))
        y = net.conv(f"{name}_up", net.layer_norm(f"{name}_norm2", x), 4096, kernel=1)
        x = net.add(f"{name}_add2", x, net.conv(f"{name}_down", net.activation(f"{name}_gelu", y), 1024, kernel=1))
    net.dense("head", net.reshape("mean", net.layer_norm("norm", x), 1, 1), 1000)


def llama_1b(batch: float = 1) -> Graph:
    """The shape of Llama 3.2 1B at 2048 tokens: 16 layers of width 2048, 32 heads in 8 groups, gated units of 8192."""
    return build("llama-1b", (1, 2048, 1), batch, _llama)


def _llama(net: Layers) -> None:
    vocabulary, width = 128256, 2048
    x = net.embedding("embedding", net.input, width, vocabulary)
    for number in range(1, 17):
        name = f"layer{number}"
        y = net.layer_norm(f"{name}_norm1", x)
        x = net.add(f"{name}_add1", x, _attention(net, name, y, heads=32, groups=8, rotary=True))
        y = net.layer_norm(f"{name}_norm2", x)
        gate = net.activation(f"{name}_silu", net.conv(f"{name}_gate", y, 8192, kernel=1, bias=False))
        y = net.product(f"{name}_gated", gate, net.conv(f"{name}_up", y, 8192, kernel=1, bias=False), (1, x.width, 8192), 1)
        x = net.add(f"{name}_add2", x, net.conv(f"{name}_down", y, width, kernel=1, bias=False))
    x = net.conv("head", net.layer_norm("norm", x), vocabulary, kernel=1, bias=False)
    net.activation("softmax", x)


def _attention(net: Layers, name: str, x: Tensor, heads: int, groups: int, rotary: bool = False) -> Tensor:
    """With every tensor in memory; keys and values in so many groups of heads."""
    width, inner = x.channels, x.channels * groups // heads
    query, key, value = (
        net.conv(f"{name}_{kind}", x, size, kernel=1) for kind, size in (("q", width), ("k", inner), ("v", inner))
    )
    if rotary:
        query, key = net.activation(f"{name}_q_rotary", query), net.activation(f"{name}_k_rotary", key)
    tokens = x.height * x.width
    scores = net.product(f"{name}_scores", query, key, (tokens, tokens, heads), width // heads)
    mixed = net.product(f"{name}_context", net.activation(f"{name}_softmax", scores), value, (x.height, x.width, width), tokens)
    return net.conv(f"{name}_out", mixed, width, kernel=1)


def diffusion_unet(batch: float = 1) -> Graph:
    """The shape of Stable Diffusion's U-Net (Rombach et al., 2022) on latents of 64 x 64, without cross-attention and time."""
    return build("diffusion-unet", (64, 64, 4), batch, _diffusion)


def _diffusion(net: Layers) -> None:
    widths = (320, 640, 1280, 1280)
    x = net.conv("conv_in", net.input, widths[0])
    kept = [x]
    for level, width in enumerate(widths):
        for number in (1, 2):
            x = _residual(net, f"down{level}_{number}", x, width)
            if level < 3:
                x = _transformer_block(net, f"down{level}_{number}_attention", x)
            kept.append(x)
        if level < 3:
            x = net.conv(f"down{level}_half", x, width, stride=2)
            kept.append(x)
    x = _residual(net, "middle_1", x, 1280)
    x = _residual(net, "middle_2", _transformer_block(net, "middle_attention", x), 1280)
    for level in reversed(range(4)):
        for number in (1, 2, 3):
            x = _residual(net, f"up{level}_{number}", net.concat(f"up{level}_{number}_concat", x, kept.pop()), widths[level])
            if level < 3:
                x = _transformer_block(net, f"up{level}_{number}_attention", x)
        if level:
            x = net.conv(f"up{level}_twice_conv", net.upsample(f"up{level}_twice", x), widths[level])
    x = net.activation("silu_out", net.norm("norm_out", x))
    net.conv("conv_out", x, 4)


def _residual(net: Layers, name: str, x: Tensor, width: int) -> Tensor:
    y = net.conv(f"{name}_conv1", net.activation(f"{name}_silu1", net.norm(f"{name}_norm1", x)), width)
    y = net.conv(f"{name}_conv2", net.activation(f"{name}_silu2", net.norm(f"{name}_norm2", y)), width)
    return net.add(f"{name}_add", x if x.channels == width else net.conv(f"{name}_side", x, width, kernel=1), y)


def _transformer_block(net: Layers, name: str, x: Tensor) -> Tensor:
    x = net.add(f"{name}_add1", x, _attention(net, name, net.layer_norm(f"{name}_norm1", x), heads=8, groups=8))
    y = net.activation(f"{name}_gelu", net.conv(f"{name}_up", net.layer_norm(f"{name}_norm2", x), 4 * x.channels, kernel=1))
    return net.add(f"{name}_add2", x, net.conv(f"{name}_down", y, x.channels, kernel=1))


#: name -> from the batch to the graph. The transformers of the package are here by the same names.
MODERN: Mapping[str, Callable[[float], Graph]] = {
    "densenet161": densenet161,
    **{name: networks.NETWORKS[name].build for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
    "vit-l": vit_l,
    "llama-1b": llama_1b,
    "diffusion-unet": diffusion_unet,
}
