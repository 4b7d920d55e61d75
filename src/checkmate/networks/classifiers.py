"""VGG, MobileNet and ResNet at 224 x 224 pixels and 1000 classes, as in Keras applications."""

from __future__ import annotations

from ..graph import Graph
from .layers import Layers, Tensor, build

_IMAGE = (224, 224, 3)
_CLASSES = 1000


def vgg_blocks(net: Layers, convolutions: tuple[int, ...]) -> list[Tensor]:
    """The first len(convolutions) blocks of VGG, with that many convolutions each; returns what their pools make."""
    x, pools = net.input, []
    for block, (count, channels) in enumerate(zip(convolutions, (64, 128, 256, 512, 512), strict=False), 1):
        for number in range(1, count + 1):
            x = net.conv(f"block{block}_conv{number}", x, channels)
        x = net.pool(f"block{block}_pool", x)
        pools.append(x)
    return pools


def vgg16(batch: float = 1) -> Graph:
    """VGG16 (Simonyan and Zisserman, 2015): 45 ops."""
    return build("VGG16", _IMAGE, batch, lambda net: _vgg(net, (2, 2, 3, 3, 3)))


def vgg19(batch: float = 1) -> Graph:
    """VGG19 (Simonyan and Zisserman, 2015): 51 ops."""
    return build("VGG19", _IMAGE, batch, lambda net: _vgg(net, (2, 2, 4, 4, 4)))


def _vgg(net: Layers, convolutions: tuple[int, ...]) -> None:
    x = vgg_blocks(net, convolutions)[-1]
    x = net.reshape("flatten", x, 1, 1, x.size)
    for name, features in (("fc1", 4096), ("fc2", 4096), ("predictions", _CLASSES)):
        x = net.dense(name, x, features)


def mobilenet(batch: float = 1) -> Graph:
    """MobileNet v1 (Howard et al., 2017), width 1: 185 ops."""
    return build("MobileNet", _IMAGE, batch, _mobilenet)


def _mobilenet(net: Layers) -> None:
    x = net.pad("conv1_pad", net.input, 1)
    x = net.conv("conv1", x, 32, stride=2, same=False, bias=False)
    x = net.activation("conv1_relu", net.norm("conv1_bn", x))
    channels = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
    for block, width in enumerate(channels, 1):
        stride = 2 if block in (2, 4, 6, 12) else 1
        if stride == 2:
            x = net.pad(f"conv_pad_{block}", x, 1)
        for kind in ("dw", "pw"):
            name = f"conv_{kind}_{block}"
            x = net.depthwise(name, x, stride) if kind == "dw" else net.conv(name, x, width, kernel=1, bias=False)
            x = net.activation(f"{name}_relu", net.norm(f"{name}_bn", x))
    for name in ("global_average_pooling2d", "reshape_1", "dropout"):
        x = net.reshape(name, x, 1, 1)
    x = net.conv("conv_preds", x, _CLASSES, kernel=1)
    net.activation("act_softmax", net.reshape("reshape_2", x, 1, 1))


def resnet50(batch: float = 1) -> Graph:
    """ResNet50 v1 (He et al., 2016), as Keras orders its layers: 353 ops."""
    return build("ResNet50", _IMAGE, batch, _resnet50)


def _resnet50(net: Layers) -> None:
    x = net.conv("conv1_conv", net.pad("conv1_pad", net.input, 6), 64, kernel=7, stride=2, same=False)
    x = net.activation("conv1_relu", net.norm("conv1_bn", x))
    x = net.pad("pool1_pad", x, 2)
    x = net.reshape("pool1_pool", x, x.height // 2 - 1, x.width // 2 - 1)  # 3 x 3 windows
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 2):
        for block in range(1, blocks + 1):
            x = _bottleneck(net, f"conv{stage}_block{block}", x, width, block == 1, 2 if block == 1 and stage > 2 else 1)
    x = net.reshape("avg_pool", x, 1, 1)
    net.dense("probs", x, _CLASSES)


def _bottleneck(net: Layers, name: str, x: Tensor, width: int, project: bool, stride: int) -> Tensor:
    y = net.conv(f"{name}_1_conv", x, width, kernel=1, stride=stride)
    y = net.activation(f"{name}_1_relu", net.norm(f"{name}_1_bn", y))
    y = net.conv(f"{name}_2_conv", y, width)
    y = net.activation(f"{name}_2_relu", net.norm(f"{name}_2_bn", y))
    shortcut = net.conv(f"{name}_0_conv", x, 4 * width, kernel=1, stride=stride) if project else x
    y = net.conv(f"{name}_3_conv", y, 4 * width, kernel=1)
    if project:
        shortcut = net.norm(f"{name}_0_bn", shortcut)
    y = net.norm(f"{name}_3_bn", y)
    return net.activation(f"{name}_out", net.add(f"{name}_add", shortcut, y))
