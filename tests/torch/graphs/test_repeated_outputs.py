"""Graphs that return an output more than once: each place has a gradient of its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import checkmate.torch
from torch_models import twin


class Autoencoder(nn.Module):
    """Variational. The compiler is made to break it off: the first graph returns what `spread` holds, and once more what was just made."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
        self.decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = self.encoder(x).chunk(2, dim=1)
        spread = Normal(mean, F.softplus(deviation) + 1e-3)
        torch._dynamo.graph_break()
        return self.decoder(spread.rsample()), kl_divergence(spread, Normal(0.0, 1.0)).sum(1).mean()  # type: ignore[no-untyped-call]


# PyTorch looks at the gradient of what goes from one graph to the next, and the divergence runs outside of all graphs.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:a part of Autoencoder runs outside")
def test_a_variational_autoencoder_trains_as_without_a_plan() -> None:
    torch.manual_seed(0)
    plain = Autoencoder()
    model = twin(plain)
    checkmate.torch.compile(model, budget="1GiB")
    x = torch.randn(256, 64)
    for seed in range(2):
        for each in (plain, model):
            torch.manual_seed(seed)
            each.zero_grad()
            made, divergence = each(x)
            (F.mse_loss(made, x) + 0.01 * divergence).backward()
        assert all(torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), plain.parameters(), strict=True))
    assert all(plan.measured_peak is not None for plan in checkmate.torch.plans(model))
