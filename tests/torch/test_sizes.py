"""One symbolic trace for all shapes: its numbers are those of a static trace at each, and so are the results."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from checkmate.graph import Graph
from checkmate.schedule import Step, steps_from_sequence
from support import random_sequence
from torch_models import Decoder, ResidualNet, UNet, identical, state, twin
from torch_symbolic import SymbolicTraining

Batches = Sequence[tuple[Any, ...]]


def images(*shapes: tuple[int, int]) -> Batches:
    return [(torch.randn(batch, 3, side, side), torch.randint(0, 10, (batch,))) for batch, side in shapes]


def tokens(*shapes: tuple[int, int]) -> Batches:
    return [(torch.randint(0, 50, shape), torch.randint(0, 50, shape)) for shape in shapes]


class Half(nn.Module):
    """bfloat16, and a scale that is worked out from the sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16, dtype=torch.bfloat16), nn.Linear(16, 4, dtype=torch.bfloat16)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, int]:
        hidden = F.dropout(F.gelu(self.first(x)), 0.2) * (x.shape[0] * 0.37) ** -0.5
        scores = self.second(hidden.flatten(0, 1)).float()
        return F.cross_entropy(scores, labels.flatten()), x.shape[0] * x.shape[1] + 1


def halves(*shapes: tuple[int, int]) -> Batches:
    return [(torch.randn(*shape, 8, dtype=torch.bfloat16), torch.randint(0, 4, shape)) for shape in shapes]


class Bag(nn.Module):
    """Sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 50)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.tokens(ids).exp().sin()).flatten(0, 1), targets.flatten())


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batches]]] = {
    "attention": (lambda: Decoder(blocks=2), lambda: tokens((4, 32), (3, 17), (5, 8), (4, 32))),
    "batch norm": (lambda: ResidualNet(4, 2), lambda: images((4, 12), (3, 12), (7, 10))),
    "skips": (UNet, lambda: [(torch.randn(n, 3, s, s),) for n, s in ((2, 16), (3, 16), (4, 24))]),
    "bfloat16": (Half, lambda: halves((4, 6), (3, 5), (9, 2))),
    "sparse": (Bag, lambda: tokens((4, 7), (3, 5), (2, 9))),
}


def trained(model: nn.Module, call: Callable[..., Any], batches: Batches) -> list[Tensor]:
    """What some steps of training give, with all that they change."""
    torch.manual_seed(1)
    found: list[Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in batches:
        optimizer.zero_grad()
        output = call(*batch)
        if isinstance(output, tuple):
            output, number = output
            found.append(torch.tensor(number))
        loss = output if output.dim() == 0 else output.square().mean()
        loss.backward()
        optimizer.step()
        found += [loss.detach(), *(p.grad.to_dense().clone() for p in model.parameters() if p.grad is not None)]
    return [*found, *state(model), torch.get_rng_state()]


@pytest.mark.parametrize("name", CASES)
def test_one_trace_runs_any_schedule_at_any_size(name: str) -> None:
    torch.manual_seed(0)
    make, draw = CASES[name]
    model, batches, rng = make(), draw(), random.Random(0)

    def choose(graph: Graph) -> Sequence[Step]:
        return steps_from_sequence(graph, random_sequence(rng, graph, 0.3))

    other = twin(model)
    backend = SymbolicTraining(choose)
    torch._dynamo.reset()
    found = trained(other, torch.compile(other, backend=backend, dynamic=True), batches)
    expected = trained(model, model, batches)
    assert identical(found, expected)
    assert len(backend.captured) == 1
    assert len(set(backend.seen)) == len({tuple(batch[0].shape) for batch in batches})
    assert not backend.crossing
