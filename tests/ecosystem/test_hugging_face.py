"""The recipes for Hugging Face's packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checkmate.torch
from checkmate.torch import BudgetWarning
from ecosystem_scripts import STEPS, Watch, gpt2, recipes, same_under_a_budget, text

transformers = pytest.importorskip("transformers", reason="recipes for Hugging Face need transformers")

# Other packages may warn of what they like.
pytestmark = pytest.mark.filterwarnings("default", "error::checkmate.torch.BudgetWarning")


def trainer_class(base: Any, watch: Watch) -> Any:
    """A Trainer that is watched."""

    class Steps(transformers.TrainerCallback):  # type: ignore[name-defined]  # imported if it is there
        def on_step_begin(self, *arguments: Any, **keywords: Any) -> None:
            watch.begin()

        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            watch.end()

    class Watched(base):
        def __init__(self, **keywords: Any):
            super().__init__(callbacks=[Steps()], **keywords)

        def training_step(self, *arguments: Any, **keywords: Any) -> Tensor:
            loss: Tensor = super().training_step(*arguments, **keywords)
            watch.losses.append(loss.detach().clone())
            return loss

    return Watched


def arguments(folder: Path, kind: Any = None, **settings: Any) -> Any:
    defaults: dict[str, Any] = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    defaults |= {"max_steps": STEPS, "per_device_train_batch_size": 8, "dataloader_pin_memory": False, "seed": 0}
    return (kind or transformers.TrainingArguments)(output_dir=str(folder), **defaults | settings)


def examples(count: int = 64) -> list[dict[str, Tensor]]:
    return [{"input_ids": ids, "labels": ids} for ids in text(1, count)]


FUNCTION, NAME, ADAPTERS = range(3)


@pytest.mark.parametrize("recipe", [FUNCTION, NAME], ids=["function", "name"])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_trainer(recipe: int, microbatches: int, tmp_path: Path) -> None:
    def script(watch: Watch) -> nn.Module:
        model = gpt2()
        with watch.environment():
            watch.run(
                recipes("transformers")[recipe],
                model=model,
                Trainer=trainer_class(transformers.Trainer, watch),
                arguments=arguments(tmp_path, gradient_accumulation_steps=microbatches),
                data=examples(),
            )
        return model

    same_under_a_budget(script)


def test_accelerate_has_a_closed_list_of_backends(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="CHECKMATE"):
        transformers.Trainer(
            model=gpt2(), args=arguments(tmp_path, torch_compile_backend="checkmate"), train_dataset=examples()
        ).train()


def test_adapters(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def script(watch: Watch) -> nn.Module:
        model = gpt2()
        made = watch.run(
            recipes("peft")[0],
            model=model,
            get_peft_model=peft.get_peft_model,
            LoraConfig=peft.LoraConfig,
            Trainer=trainer_class(transformers.Trainer, watch),
            arguments=arguments(tmp_path),
            data=examples(),
        )
        return made["model"]

    model = same_under_a_budget(script)
    assert any(parameter.requires_grad for parameter in model.parameters())
    assert sum(parameter.requires_grad for parameter in model.parameters()) < len(list(model.parameters()))


def test_preferences(tmp_path: Path) -> None:
    """As TRL trains from pairs of answers: two models, one of them without gradients, and the loss outside of both."""

    def logarithm(model: nn.Module, ids: Tensor) -> Tensor:
        scores = F.log_softmax(model(ids).logits[:, :-1], -1)
        return scores.gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)

    def script(watch: Watch) -> nn.Module:
        model, reference = gpt2(), gpt2().requires_grad_(False).eval()
        if watch.budget is not None:
            model = checkmate.torch.compile(model, budget=watch.budget)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for number in range(STEPS):
            with watch.step():
                chosen, rejected = text(2 * number, 4), text(2 * number + 1, 4)
                with torch.no_grad():
                    wanted = logarithm(reference, chosen) - logarithm(reference, rejected)
                both = logarithm(model, torch.cat([chosen, rejected])).chunk(2)
                loss = -F.logsigmoid(0.1 * (both[0] - both[1] - wanted)).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                watch.losses.append(loss.detach())
                del loss, both
        return model

    same_under_a_budget(script, 0.85)


def test_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(n): n for n in range(127)} | {"<e>": 127}, unk_token="<e>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    reader = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<e>", pad_token="<e>", unk_token="<e>")

    def script(watch: Watch) -> nn.Module:
        model = gpt2()
        watch.run(
            recipes("trl")[0],
            model=model,
            SFTTrainer=trainer_class(trl.SFTTrainer, watch),
            arguments=arguments(tmp_path, trl.SFTConfig, max_length=64, gradient_checkpointing=False, bf16=False),
            data=datasets.Dataset.from_dict({"input_ids": text(1, 64).tolist()}),
            tokenizer=reader,
        )
        return model

    with pytest.warns(BudgetWarning, match="a part of GPT2LMHeadModel runs outside the plan.*ChunkedLogProbFunction"):
        same_under_a_budget(script, 0.85)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # a process has one; a Trainer has made it

    def script(watch: Watch) -> nn.Module:
        net = gpt2()
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
        prepared = watch.run(
            recipes("accelerate")[0],
            model=net,
            optimizer=torch.optim.AdamW(net.parameters()),
            accelerator=accelerator,
            data=torch.utils.data.DataLoader(text(1, 2 * 8 * STEPS), batch_size=8),
        )
        model, optimizer, batches = prepared["model"], prepared["optimizer"], iter(prepared["data"])
        for _ in range(STEPS):
            with watch.step():
                for _ in range(2):
                    batch = next(batches)
                    with accelerator.accumulate(model):
                        loss = model(batch, labels=batch).loss
                        accelerator.backward(loss)
                        optimizer.step()
                        optimizer.zero_grad()
                    watch.losses.append(loss.detach())
                    del loss
        return net

    same_under_a_budget(script)
