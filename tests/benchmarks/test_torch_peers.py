"""PyTorch's own ways to save memory: what speaks against ours, and the least peak that checkpoints reach on a GPT with tied embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

#: What `torch.utils.checkpoint` over pairs of blocks peaks at, as measured: 136.4 MiB.
PAIRS = int(136.4 * 2**20)


def row(way: str, peer: tuple[int, float] | None, ours: tuple[int, float], budget: int) -> dict[str, Any]:
    said = {"peer": peer, "ours": ours, "plain": (100, 1.0)}
    return {"way": way, "budget": budget} | {
        name: {"peak": one[0], "seconds": [one[1]] * 3} for name, one in said.items() if one is not None
    }


@pytest.mark.parametrize(
    ("way", "peer", "ours", "against"),
    [
        ("checkpoint 2", (50, 1.3), (50, 1.3), []),
        ("checkpoint 1", (50, 1.3), (50, 1.3), ["checkpoint 1 takes 1.00 of our time at its peak"]),
        ("selective", (50, 1.3), (50, 1.625), ["selective takes 0.80 of our time at its peak"]),
        ("selective", (50, 1.3), (51, 1.2), ["at the peak of selective ours is 1 bytes over"]),
        ("checkpoint 2", (30, 1.3), (30, 1.2), ["checkpoint 2 peaks at 0.750 of our lowest"]),
    ],
)
def test_what_speaks_against_ours(load: Any, way: str, peer: Any, ours: Any, against: list[str]) -> None:
    peers = load("torch_peers")
    rows = [row(way, peer, ours, peer[0]), row(peers.LOWEST, None, (40, 2.0), 40)]
    assert peers.verdict("gpt2", {"rows": rows}) == against


def test_a_peer_that_fails_is_a_row(load: Any) -> None:
    peers = load("torch_peers")
    budget, failed = peers._budget("selective", {"error": "RuntimeError: no"}, None)
    assert not budget
    assert failed["ours"] == {"error": "the peer fails"}
    assert peers.verdict("gpt2", {"rows": [failed]}) == []
    assert peers._budget("selective", {"peak": 1000}, None) == (1001, None)


class Process:
    """Of a training whose steps take so long each."""

    def __init__(self, name: str, *seconds: float):
        self.name, self.seconds = name, iter(seconds)

    def ask(self, request: dict[str, str]) -> dict[str, float]:
        assert request == {"do": "step", "as": self.name}
        return {"seconds": next(self.seconds)}


def test_of_several_processes_the_mean_counts(load: Any) -> None:
    peers = load("torch_peers")
    said = {"peak": 100}
    with peers.Comparison("gpt2", {"rounds": 2}) as comparison:
        found = comparison.timed(
            {"plain": [(Process("plain", 3, 3), said)], "peer": [(Process("peer", 1, 2), said), (Process("peer", 2, 5), said)]}
        )
    assert found == {
        "plain": {**said, "seconds": [3, 3]},
        "peer": {**said, "seconds": [1.5, 3.5], "apart": [[1, 2], [2, 5]]},
    }


def test_beside_inductor_both_share_processes_and_who_is_there_first_takes_turns(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = load("torch_peers")
    made: list[tuple[str, int | None, int]] = []

    def make(_self: Any, _stack: Any, name: str, _way: str, budget: int | None = None, worker: Any = None) -> Any:
        worker = worker or object()
        made.append((name, budget, id(worker)))
        return worker, {"peak": 1000}

    monkeypatch.setattr(peers.Comparison, "make", make)
    monkeypatch.setattr(
        peers.Comparison, "timed", lambda _self, made: {name: [one[0] for one in each] for name, each in made.items()}
    )
    settings = {"device": "cpu", "processes": 2}
    with peers.Comparison("gpt2", settings) as comparison:
        row = comparison.run("inductor", {"error": "not measured"}, None)
        assert [one[:2] for one in made] == [("peer", None), ("ours", 1001), ("ours", 1001), ("peer", None)]
        assert row["peer"] == row["ours"]
        assert len(set(row["peer"])) == 2
        row = comparison.run("selective", {"error": "not measured"}, None)
        assert len({*row["peer"], *row["ours"]}) == 4


def test_reported_networks_have_ways_of_their_own(load: Any) -> None:
    peers, networks = load("torch_peers"), load("torch_peers_networks")
    assert set(peers.REPORTED) <= set(networks.TASKS["cpu"])
    assert peers.peers("issue-193193") == ["checkpoint 1", "compiled checkpoint 1", "inductor checkpoint 1"]
    assert "checkpoint 2" not in peers.peers("unet")


@pytest.mark.slow
def test_tied_embeddings_take_no_more_than_with_checkpoints_over_pairs_of_blocks(load: Any) -> None:
    import torch

    import checkmate.torch

    task = load("torch_peers_networks").TASKS["cpu"]["tied-gpt"]
    batch = task.batch(task.examples)
    results = []
    for planned in (False, True):
        torch.manual_seed(0)
        net = task.build().train()
        run = checkmate.torch.compile(net, PAIRS, time_limit=10, wait=True) if planned else net
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses, peaks = [], []
        for _ in range(3):
            with checkmate.torch.measure("cpu") as seen:
                loss = run(*batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            peaks.append(seen.peak)
            del loss
        # As arrays, which are not counted while the other one trains.
        results.append((losses, [parameter.detach().numpy().copy() for parameter in net.parameters()], peaks))
        del net, run, optimizer
    (expected, weights, plain), (found, trained, peaks) = results
    assert max(peaks[1:]) <= PAIRS < min(plain)
    assert found == expected
    assert all(map(np.array_equal, trained, weights))
