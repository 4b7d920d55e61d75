"""Ours beside PyTorch's own ways to train in less memory: time and peak of the same step, on one network after the other.

Every way trains in a process of its own (the ways are in `torch_peers_worker.py`). A peer is measured first; ours then gets the peer's own
measured peak as its budget. Steps of plain training, the peer and ours take turns, so that what else the machine does falls on all
of them; a ratio is the median over the rounds. On a GPU, whose memory they would share, they run one after the other. After the
peers come budgets that are shares of plain training's peak, and the least that there is.

    python benchmarks/torch_peers.py [--networks NAME ...] [--scale tiny|cpu|gpu] [--device cpu|cuda] [--rounds 9] [--output torch_peers.json]

What the output has is not run again. Exit code 1 if a peer's peak is lower than our lowest, or ours is slower at a peer's peak.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch_peers_networks import TASKS
from worker import Worker

SCRIPT = "torch_peers_worker.py"
MEBI = 2**20
ROW = ("checkpoint 1", "checkpoint 2", "checkpoint sqrt", "selective")
COMPILED = (
    *(f"partitioner dp {ratio}" for ratio in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)),
    "partitioner greedy 0.5",
    "partitioner ilp 0.5",
    "inductor",
    "inductor 0.5",
)
NOT_IN_ROW = ("unet",)  # its blocks have several readers: one is a region
SHARES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3)
LOWEST = "lowest"
#: Of a budget, for what PyTorch's own measurement of a peer's step cannot be lower by: sizes of blocks are rounded to 64 bytes.
ROOM = 1.001


def peers(network: str) -> list[str]:
    """PyTorch's own ways for a network."""
    return [way for way in (*ROW, *COMPILED) if network not in NOT_IN_ROW or way not in ("checkpoint 2", "checkpoint sqrt")]


class Comparison:
    """Trainings of one network.

    Args:
        settings: scale, device, the seconds for a search, and rounds.
    """

    def __init__(self, network: str, settings: dict[str, Any]):
        self.network, self.settings = network, settings
        self.rounds = settings["rounds"]

    def make(self, stack: ExitStack, way: str, budget: int | None = None) -> tuple[Worker, dict[str, Any]]:
        """A process that trains this way, warm, and what it said."""
        worker = stack.enter_context(Worker(SCRIPT))
        asked = {name: self.settings[name] for name in ("scale", "device", "time_limit", "examples")}
        return worker, worker.ask({"do": "make", "network": self.network, "way": way, "budget": budget, **asked})

    def warm(self, way: str, budget: int | None = None) -> dict[str, Any]:
        """What one way says once it is warm."""
        with ExitStack() as stack:
            return self.make(stack, way, budget)[1]

    def alone(self, way: str, budget: int | None = None) -> dict[str, Any]:
        """One way, with the seconds of its steps."""
        with ExitStack() as stack:
            worker, said = self.make(stack, way, budget)
            if "error" not in said:
                said["seconds"] = [worker.ask({"do": "step"})["seconds"] for _ in range(self.rounds)]
            return said

    def together(self, ways: dict[str, tuple[str, int | None]]) -> dict[str, dict[str, Any]]:
        """Several ways, whose steps take turns. They must be known to work."""
        with ExitStack() as stack:
            made = {name: self.make(stack, *way) for name, way in ways.items()}
            found = {name: said for name, (_, said) in made.items()}
            running = {name: worker for name, (worker, said) in made.items() if "error" not in said}
            for name in running:
                found[name]["seconds"] = []
            for _ in range(self.rounds):
                for name, worker in running.items():
                    found[name]["seconds"].append(worker.ask({"do": "step"})["seconds"])
            return found

    def run(self, way: str, plain: dict[str, Any], budget: int) -> dict[str, Any]:
        """A row: ours under the budget beside plain training, and beside the peer if `way` is one."""
        is_peer = way in peers(self.network)
        ways: dict[str, tuple[str, int | None]] = {"plain": ("eager", None)} if "error" not in plain else {}
        if is_peer:
            ways["peer"] = (way, None)
        ways["ours"] = ("checkmate", budget)
        if self.settings["device"] == "cpu":
            found = self.together(ways)
        else:  # plain training has been timed already
            found = {name: plain if name == "plain" else self.alone(*given) for name, given in ways.items()}
        return {"way": way, "budget": budget, **found}


def ratio(row: dict[str, Any], one: str, other: str) -> tuple[float, float, float] | None:
    """Quartiles of time over time, round by round."""
    a, b = (row.get(name, {}).get("seconds") for name in (one, other))
    if not a or not b:
        return None
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    if len(ratios) == 1:
        return ratios[0], ratios[0], ratios[0]
    first, middle, third = statistics.quantiles(ratios, n=4, method="inclusive")
    return first, middle, third


def line(row: dict[str, Any], plain: int | None) -> str:
    """Of the table."""
    ours, peer = row["ours"], row.get("peer", {})

    def times(one: str, other: str) -> str:
        found = ratio(row, one, other)
        return "-" if found is None else f"{found[1]:.2f}"

    def memory(said: dict[str, Any]) -> str:
        return f"{said['peak'] / MEBI:.1f}" if "peak" in said else "-"

    said = [ours["error"][:90]] if "error" in ours else [f"overhead {ours['overhead']:.3f} planned, gap {ours['gap']:.3f}"]
    share = f"{row['budget'] / plain:.2f}" if plain else "-"
    return (
        f"  {row['way']:22} {memory(peer):>8} {times('peer', 'plain'):>6} {row['budget'] / MEBI:8.1f} {share:>5} {memory(ours):>8} "
        f"{times('ours', 'plain'):>6} {times('ours', 'peer'):>6}  {'; '.join(said)}"
    )


HEADER = f"  {'way':22} {'peak':>8} {'x plain':>6} {'budget':>8} {'share':>5} {'ours':>8} {'x plain':>6} {'x peer':>6}"


def compare(network: str, data: dict[str, Any], options: argparse.Namespace, deadline: float) -> None:
    """All rows of a network that are not there yet; each is written as soon as it is known."""
    kept: dict[str, Any] = data["networks"].setdefault(network, {"rows": []})
    comparison = Comparison(network, data["settings"])

    def save() -> None:
        options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    if "plain" not in kept:
        kept["plain"] = comparison.alone("eager")
        save()
    plain = kept["plain"]
    known = plain.get("peak")
    print(f"{network}: plain {f'{known / MEBI:.1f} MiB' if known else plain['error'][:90]}\n{HEADER}", flush=True)
    done = {row["way"]: row for row in kept["rows"]}
    wanted: list[tuple[str, float | None]] = [
        (way, None) for way in peers(network) if options.peers is None or way in options.peers
    ]
    wanted += [(f"{share:.0%} of plain", share) for share in options.shares if known]
    for way, share in [*wanted, (LOWEST, None)]:
        if way not in done and time.monotonic() < deadline:
            budget = int(share * known) if share else _budget(comparison, way)
            if isinstance(budget, dict):
                row = {"way": way, "budget": 0, "peer": budget, "ours": {"error": "the peer fails"}}
            else:
                row = comparison.run(way, plain, budget)
            kept["rows"].append(row)
            done[way] = row
            save()
        if way in done:
            print(line(done[way], known), flush=True)
    kept["verdict"] = verdict(network, kept)
    save()
    print("  " + ("; ".join(kept["verdict"]) or "no peer's peak is lower, and none is faster at its own"), flush=True)


def _budget(comparison: Comparison, way: str) -> Any:
    """What ours gets beside a peer: its measured peak, or what the peer said where it fails. For the lowest: what an error names."""
    if way == LOWEST:
        return int(comparison.warm("checkmate", 1)["smallest"])
    said = comparison.warm(way)
    return said if "error" in said else math.ceil(ROOM * said["peak"])


def verdict(network: str, kept: dict[str, Any]) -> list[str]:
    """What speaks against ours."""
    found = []
    rows = {row["way"]: row for row in kept["rows"]}
    lowest = rows.get(LOWEST, {}).get("ours", {}).get("peak")
    for way in peers(network):
        row = rows.get(way)
        if row is None or "peak" not in row["peer"]:
            continue
        if lowest is not None and row["peer"]["peak"] < lowest:
            found.append(f"{way} peaks at {row['peer']['peak'] / lowest:.3f} of our lowest")
        faster = ratio(row, "ours", "peer")
        if faster is not None and faster[1] > 1:
            found.append(f"{way} takes {1 / faster[1]:.2f} of our time at its peak")
        if "peak" in row["ours"] and row["ours"]["peak"] > row["budget"]:
            found.append(f"at the peak of {way} ours is {row['ours']['peak'] - row['budget']} bytes over")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--scale", choices=tuple(TASKS), default="cpu")
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="(default: all of the scale)")
    parser.add_argument("--peers", nargs="+", metavar="WAY", help='of PyTorch\'s ways these, as in "checkpoint 1" (default: all)')
    parser.add_argument(
        "--shares", nargs="+", type=float, default=SHARES, help="of plain training's peak, besides (default: %(default)s)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--examples", type=int, help="in a batch (default: what the scale says)")
    parser.add_argument("--rounds", type=int, default=9, help="(default: 9)")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each search of a plan (default: 20)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after so long")
    parser.add_argument("--output", type=Path, default=Path("torch_peers.json"), help="JSON file (default: torch_peers.json)")
    options = parser.parse_args()
    networks = options.networks or list(TASKS[options.scale])
    if unknown := [name for name in networks if name not in TASKS[options.scale]]:
        parser.error(f"no network {unknown[0]!r} at scale {options.scale}: choose among {', '.join(TASKS[options.scale])}")
    settings = {name: getattr(options, name) for name in ("scale", "device", "examples", "rounds", "time_limit")}
    data: dict[str, Any] = {"settings": settings, "networks": {}}
    if options.output.exists():
        data["networks"] = json.loads(options.output.read_text(encoding="utf-8"))["networks"]
    from torch_lengths import surroundings

    data["environment"] = surroundings()
    deadline = time.monotonic() + 60 * options.minutes
    for network in networks:
        compare(network, data, options, deadline)
    against = [word for network in networks for word in data["networks"][network]["verdict"]]
    print(f"{len(against)} things speak against ours" if against else "passed")
    return 1 if against else 0


if __name__ == "__main__":
    sys.exit(main())
