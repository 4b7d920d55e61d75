"""Architectures of transformers, timm and diffusers from their configurations, with random weights, for torch_matrix.py.

None of these packages is needed: a row whose package is missing is skipped. timm asks for torchvision where it is imported, and
uses nothing of it for these networks: a stand-in will do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_matrix_networks import Batch, Task, _noisy, _pictures, _text

_SIZES = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def _transformer(name: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**settings))

    return build


class _Named(type):
    """Of classes in which every name stands for itself."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(ModuleType):
    """A module in which every name is a class that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {})


class _Finder:
    """Finds torchvision and all its modules."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torchvision" else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        if find_spec("torchvision") is None:
            sys.meta_path.append(_Finder())  # type: ignore[arg-type]
        import timm

        return timm.create_model(name, num_classes=10, **settings)

    return build


def _unet() -> nn.Module:
    from diffusers import UNet2DModel

    sizes: dict[str, Any] = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
    kinds = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    return UNet2DModel(sample_size=32, in_channels=3, out_channels=3, attention_head_dim=8, **sizes, **kinds)


def _masked(number: int, examples: int, length: int) -> Batch:
    ids, _ = _text(number, examples, length)
    return ids, ids.clone()


def _images64(number: int, examples: int, length: int) -> Batch:
    return _pictures(number, examples, length, 64)


def _sample(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(output.sample, target)


def _steps(number: int, examples: int, length: int) -> Batch:
    noisy, when, noise = _noisy(number, examples, length)
    return noisy, (when * 1000).to(torch.int64), noise


_LLAMA = {**_SIZES, "intermediate_size": 128, "num_key_value_heads": 2, "use_cache": False}
_T5 = {"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4, "use_cache": False}

#: The package of each, and what is trained. Those of transformers take labels.
PACKAGED: dict[str, tuple[str, Task]] = {
    "hf-gpt2": (
        "transformers",
        Task(
            _transformer(
                "GPT2LMHeadModel", "GPT2Config", vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64, use_cache=False
            ),
            _masked,
            None,
        ),
    ),
    "hf-llama": ("transformers", Task(_transformer("LlamaForCausalLM", "LlamaConfig", **_LLAMA), _masked, None)),
    "hf-bert": (
        "transformers",
        Task(
            _transformer("BertForMaskedLM", "BertConfig", **_SIZES, intermediate_size=256, max_position_embeddings=64),
            _masked,
            None,
        ),
    ),
    "hf-t5": (
        "transformers",
        Task(
            _transformer("T5ForConditionalGeneration", "T5Config", **_T5, decoder_start_token_id=0, pad_token_id=0), _masked, None
        ),
    ),
    "hf-vit": (
        "transformers",
        Task(
            _transformer(
                "ViTForImageClassification",
                "ViTConfig",
                **_SIZES | {"num_labels": 10},
                intermediate_size=256,
                image_size=32,
                patch_size=4,
            ),
            _pictures,
            None,
        ),
    ),
    "hf-mixtral": (
        "transformers",
        Task(
            _transformer("MixtralForCausalLM", "MixtralConfig", **_LLAMA | {"num_local_experts": 4, "num_hidden_layers": 1}),
            _masked,
            None,
        ),
    ),
    "hf-mamba": (
        "transformers",
        Task(
            _transformer(
                "MambaForCausalLM",
                "MambaConfig",
                vocab_size=128,
                hidden_size=64,
                num_hidden_layers=1,
                state_size=4,
                use_cache=False,
            ),
            _masked,
            None,
            length=16,
        ),
    ),
    "timm-resnet50": ("timm", Task(_timm("resnet50", channels=(16, 32, 64, 128)), _images64, F.cross_entropy, examples=12)),
    "timm-convnext": ("timm", Task(_timm("convnext_atto", dims=(16, 32, 64, 128)), _images64, F.cross_entropy)),
    "timm-efficientnet": ("timm", Task(_timm("efficientnet_b0"), _images64, F.cross_entropy)),
    "timm-densenet121": ("timm", Task(_timm("densenet121", growth_rate=8), _images64, F.cross_entropy)),
    "timm-swin": (
        "timm",
        Task(
            _timm("swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=32, depths=(1, 2), num_heads=(2, 4)),
            _images64,
            F.cross_entropy,
        ),
    ),
    "diffusers-unet": ("diffusers", Task(_unet, _steps, _sample)),
}
