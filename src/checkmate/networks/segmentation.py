"""U-Net, FCN8 and SegNet at 416 x 608 pixels and 19 classes, on the encoders that Checkmate's evaluation gave them."""

from __future__ import annotations

from ..graph import Graph
from .classifiers import vgg_blocks
from .layers import Layers, Tensor, build

_IMAGE = (416, 608, 3)
_CLASSES = 19


def unet(batch: float = 1) -> Graph:
    """U-Net (Ronneberger et al., 2015) on the first four blocks of VGG16: 71 ops."""
    return build("vgg_unet", _IMAGE, batch, _unet)


def _unet(net: Layers) -> None:
    pools = vgg_blocks(net, (2, 2, 3, 3))
    x = _padded_conv(net, "", pools[3], 512)
    for number, (skip, channels) in enumerate(zip(reversed(pools[:3]), (256, 128, 64), strict=True)):
        x = net.upsample(f"up_sampling2d{_suffix(number)}", x)
        x = net.concat(f"concatenate{_suffix(number)}", x, skip)
        x = _padded_conv(net, _suffix(number + 1), x, channels)
    _head(net, net.conv("conv2d_4", x, _CLASSES), "activation")


def segnet(batch: float = 1) -> Graph:
    """SegNet (Badrinarayanan et al., 2017) on a small encoder: 77 ops."""
    return build("segnet", _IMAGE, batch, _segnet)


def _segnet(net: Layers) -> None:
    x = net.input
    for number, channels in enumerate((64, 128, 256, 256)):
        x = net.activation(f"activation{_suffix(number)}", _padded_conv(net, _suffix(number), x, channels))
        x = net.pool(f"max_pooling2d{_suffix(number)}", x)
    x = _padded_conv(net, "_5", x, 512)
    for number, channels in enumerate((256, 128, 64)):
        x = net.upsample(f"up_sampling2d{_suffix(number)}", x)
        x = _padded_conv(net, _suffix(number + 6), x, channels)
    _head(net, net.conv("conv2d_9", x, _CLASSES), "activation_5")


def fcn8(batch: float = 1) -> Graph:
    """FCN8 (Long et al., 2015) on VGG16: 73 ops."""
    return build("fcn_8_vgg", _IMAGE, batch, _fcn8)


def _fcn8(net: Layers) -> None:
    pools = vgg_blocks(net, (2, 2, 3, 3, 3))
    x = net.conv("conv2d", pools[4], 4096, kernel=7)
    x = net.reshape("dropout", x, x.height, x.width)
    x = net.conv("conv2d_1", x, 4096, kernel=1)
    x = net.reshape("dropout_1", x, x.height, x.width)
    x = net.conv("conv2d_2", x, _CLASSES, kernel=1)
    x = net.transposed("conv2d_transpose", x, _CLASSES, kernel=4, stride=2)
    x = net.reshape("cropping2d", x, x.height, x.width - 2)
    x = net.reshape("cropping2d_1", x, x.height - 2, x.width)
    skip = net.conv("conv2d_3", pools[3], _CLASSES, kernel=1)
    x = net.transposed("conv2d_transpose_1", net.add("add", x, skip), _CLASSES, kernel=4, stride=2)
    x = net.reshape("cropping2d_2", x, x.height, x.width - 2)
    skip = net.conv("conv2d_4", pools[2], _CLASSES, kernel=1)
    x = net.reshape("cropping2d_3", x, x.height - 2, x.width)
    x = net.add("add_1", skip, x)
    _head(net, net.transposed("conv2d_transpose_2", x, _CLASSES, kernel=16, stride=8), "activation")


def _padded_conv(net: Layers, suffix: str, x: Tensor, channels: int) -> Tensor:
    x = net.pad(f"zero_padding2d{suffix}", x, 2)
    return net.norm(f"batch_normalization{suffix}", net.conv(f"conv2d{suffix}", x, channels, same=False))


def _head(net: Layers, x: Tensor, name: str) -> None:
    x = net.reshape("reshape", x, x.height * x.width, 1)
    net.activation(name, x)


def _suffix(number: int) -> str:
    """Keras numbers layers of one kind: the first has no number."""
    return f"_{number}" if number else ""
