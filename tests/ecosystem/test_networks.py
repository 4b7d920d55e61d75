"""The recipes for packages of networks, for training block by block, and for what comes after training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from checkmate.torch import BudgetWarning
from ecosystem_scripts import STEPS, Watch, gpt2, pictures, recipes, same_under_a_budget, text

# Other packages may warn of what they like.
pytestmark = pytest.mark.filterwarnings("default", "error::checkmate.torch.BudgetWarning")


def train(watch: Watch, model: Any, loss: Any) -> None:
    """`loss`: of the number of the step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number in range(STEPS):
        with watch.step():
            result = loss(number)
            result.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.losses.append(result.detach())
            del result


@pytest.mark.parametrize("name", ["convnext_atto", "vit_tiny_patch16_224"])
def test_timm_and_export_after_training(name: str) -> None:
    timm = pytest.importorskip("timm", exc_type=ImportError)  # without torchvision it cannot be imported
    smaller: dict[str, Any] = {
        "convnext_atto": {"dims": (8, 16, 32, 64)},
        "vit_tiny_patch16_224": {"img_size": 64, "patch_size": 8, "depth": 4, "embed_dim": 48},
    }[name]

    def create_model(ignored: str = "") -> nn.Module:
        made: nn.Module = timm.create_model(name, num_classes=10, **smaller)
        return made

    def script(watch: Watch) -> nn.Module:
        model = watch.run(recipes("timm")[0], timm=SimpleNamespace(create_model=create_model))["model"]

        def loss(number: int) -> Tensor:
            images, labels = pictures(number)
            return F.cross_entropy(model(images), labels)

        train(watch, model, loss)
        return model  # type: ignore[no-any-return]

    model = same_under_a_budget(script)
    fresh = create_model()
    fresh.load_state_dict(model.state_dict())
    images, _ = pictures(9)
    program = torch.export.export(fresh.eval(), (images,))
    assert torch.equal(program.module()(images), model.eval()(images))


def test_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    sizes: dict[str, Any] = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
    kinds = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    scheduler = diffusers.DDPMScheduler()

    def script(watch: Watch) -> nn.Module:
        net = diffusers.UNet2DModel(sample_size=32, in_channels=3, out_channels=3, attention_head_dim=8, **sizes, **kinds)
        model = watch.run(recipes("diffusers")[0], model=net)["model"]

        def loss(number: int) -> Tensor:
            clean, _ = pictures(number, 4, 32)
            noise, when = torch.randn_like(clean), torch.randint(0, 1000, (4,))
            return F.mse_loss(model(scheduler.add_noise(clean, noise, when), when).sample, noise)

        train(watch, model, loss)
        return model  # type: ignore[no-any-return]

    same_under_a_budget(script)


@pytest.mark.filterwarnings(
    "ignore:a part of GPT2Block runs outside the plan"
)  # what lies around the blocks; there is room for it
def test_blocks_by_name() -> None:
    """As torchtitan compiles: each block, by the name of the backend and nothing else."""
    pytest.importorskip("transformers")

    def script(watch: Watch) -> nn.Module:
        model = gpt2()
        with watch.environment():
            watch.run(recipes("torchtitan")[0], blocks=model.transformer.h)

            def loss(number: int) -> Tensor:
                ids = text(number, 8)
                return model(ids, labels=ids).loss  # type: ignore[no-any-return]

            train(watch, model, loss)
        return model  # type: ignore[no-any-return]

    with pytest.warns(
        BudgetWarning, match="a part of GPT2Block runs outside the plan"
    ):  # what lies around the blocks; there is room for it
        same_under_a_budget(script, 0.85)
