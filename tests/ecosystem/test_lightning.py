"""The recipes for Lightning, with Lightning itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checkmate.torch
from ecosystem_scripts import STEPS, Watch, pictures, recipes, same_under_a_budget

lightning = pytest.importorskip("lightning", reason="recipes for Lightning need it")

# Other packages may warn of what they like.
pytestmark = pytest.mark.filterwarnings("default", "error::checkmate.torch.BudgetWarning")

CALLBACK, INSIDE = range(2)


def make_net() -> nn.Module:
    layers: list[nn.Module] = []
    for number in range(4):
        layers += [nn.Conv2d(16 if number else 3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class Task(lightning.LightningModule):  # type: ignore[misc,name-defined]  # imported if it is there
    """Trains a net, in parts that it calls one after the other."""

    def __init__(self) -> None:
        super().__init__()
        net = make_net()
        self.body, self.head = net[:-1], net[-1]

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, labels = batch
        return F.cross_entropy(self.head(self.body(x)), labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def watched(watch: Watch, folder: Path) -> Any:
    """Lightning, with a Trainer that is watched."""
    from checkmate.torch.lightning import MemoryBudget

    class Steps(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_start(self, *arguments: Any, **keywords: Any) -> None:
            watch.begin()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *arguments: Any, **keywords: Any) -> None:
            watch.losses.append(outputs["loss"].detach().clone())
            watch.end()

    def trainer(callbacks: Any = ()) -> Any:
        chosen = [one for one in callbacks if watch.budget is not None or not isinstance(one, MemoryBudget)]
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "logger": False}
        made = lightning.Trainer(
            max_steps=STEPS, accelerator="cpu", callbacks=[*chosen, Steps()], default_root_dir=folder, **quiet
        )
        assert sum(isinstance(one, MemoryBudget) for one in made.callbacks) <= 1
        return made

    return SimpleNamespace(Trainer=trainer, LightningModule=lightning.LightningModule)


def batches() -> Any:
    data = torch.utils.data.TensorDataset(*pictures(1, 16 * STEPS, 32))
    return torch.utils.data.DataLoader(data, batch_size=16)


@pytest.mark.parametrize("way", ["callback", "environment"])
def test_callback(way: str, tmp_path: Path) -> None:
    def script(watch: Watch) -> nn.Module:
        module = Task()
        if way == "callback":
            watch.run(recipes("lightning")[CALLBACK], lightning=watched(watch, tmp_path), module=module, data=batches())
        else:
            with watch.environment():
                watched(watch, tmp_path).Trainer().fit(module, batches())
        return module

    same_under_a_budget(script)


def test_compiled_module_inside(tmp_path: Path) -> None:
    def script(watch: Watch) -> nn.Module:
        ours = watched(watch, tmp_path)
        module = watch.run(recipes("lightning")[INSIDE], lightning=ours, make_net=make_net, F=F)["Classifier"]()
        module.configure_optimizers = Task.configure_optimizers.__get__(module)
        ours.Trainer().fit(module, batches())
        return module

    same_under_a_budget(script)


def test_the_whole_module_compiled_is_told(tmp_path: Path) -> None:
    class Whole(Task):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.body(x))
            return out

    module = checkmate.torch.compile(Whole(), budget="1GiB")
    with pytest.warns(checkmate.torch.BudgetWarning, match="may go around"):
        watched(Watch(None), tmp_path).Trainer().fit(module, batches())
