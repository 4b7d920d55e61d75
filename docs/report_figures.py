"""The pictures of the report's page in report.md: `python docs/report_figures.py`.

The networks are those of transformers in their full size, made of tensors without data, on the device model of an A100. Needs
transformers, Pillow and a Chromium on the path. Pictures differ a little between machines, so nothing checks that they are up to date.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from PIL import Image, ImageChops
from torch._subclasses import FakeTensorMode

import checkmate
from checkmate.report.page import page
from checkmate.report.page_data import even_budgets

FIGURES = Path(__file__).parent / "figures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1240, 3000
#: Which sections of the page a picture has, and its colours.
PICTURES = {"gpt2": ("-n+2", "light"), "resnet50": ("n+3", "dark")}


def gpt2() -> tuple[Any, torch.Tensor, Any, str]:
    tokens = torch.zeros(8, 1024, dtype=torch.long)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    return model, tokens, lambda out: F.cross_entropy(out.logits.flatten(0, 1), tokens.flatten()), "GPT-2 small, 8 x 1024 tokens"


def resnet50() -> tuple[Any, torch.Tensor, Any, str]:
    labels = torch.zeros(64, dtype=torch.long)
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    return model, torch.zeros(64, 3, 224, 224), lambda out: F.cross_entropy(out.logits, labels), "ResNet-50, batch 64"


def report(make: Any) -> str:
    """The page on the network's step in half the memory."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, batch, loss, name = make()
        found = checkmate.torch.capture(model.train(), batch, loss=loss, device="a100")
    graph = checkmate.Graph(found.ops, found.values, found.fixed_memory, name)
    schedule = checkmate.solve(graph, "50%", time_limit=10)
    budgets = even_budgets(graph, 6, apart_from=schedule.budget)
    others = []
    for budget in budgets:
        try:
            others.append(checkmate.solve(graph, budget, time_limit=4))
        except checkmate.InfeasibleBudget as error:
            print(error)
    return page(schedule, others)


def photograph(text: str, target: Path, sections: str, theme: str) -> None:
    """Write a picture of some sections of the page, the first of the children of `main` not among them."""
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    style = f"section:not(:nth-of-type({sections})), section:last-of-type, footer {{ display: none }}"
    text = text.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">', 1).replace(
        "</style>", f"{style}</style>", 1
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page.html").write_text(text, encoding="utf-8")
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        ]
        command += [f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=2000", f"--screenshot={target.absolute()}"]
        subprocess.run([*command, (Path(folder) / "page.html").as_uri()], check=True, capture_output=True)
    with Image.open(target) as picture:
        whole = picture.convert("RGB")
    background = Image.new("RGB", whole.size, whole.getpixel((0, 0)))
    bottom = ImageChops.difference(whole, background).getbbox()[3]
    whole.crop((0, 0, WIDTH, bottom + 24)).quantize(192).save(target, optimize=True)


def main() -> None:
    for make in (gpt2, resnet50):
        target = FIGURES / f"report_{make.__name__}.png"
        photograph(report(make), target, *PICTURES[make.__name__])
        print(target, target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
