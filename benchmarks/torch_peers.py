"""Ours beside PyTorch's own ways to train in less memory: time and peak of the same step, on one network after the other.

Every way trains in a process of its own (the ways are in `torch_peers_worker.py`). A peer is measured first; ours then gets the peer's own
measured peak as its budget. Steps of plain training, the peer and ours take turns, in another order each round, so that what else the machine
does falls on all of them; a ratio is the median over the rounds. Beside a peer on Inductor's kernels ours runs on them, too, often the very
same. The same program in two processes can differ by 5%, for as long as they live, so these two share a process: with `--processes 2` there
are two such, in the second of which ours is there first, and their mean counts. On a GPU, whose memory they would share, all run one after the
other. After the peers come budgets that are shares of plain training's peak, and the least that there is.

    python benchmarks/torch_peers.py [--networks NAME ...] [--scale tiny|cpu|gpu|full] [--device cpu|cuda] [--rounds 9] [--output torch_peers.json]

What the output has is not run again. Exit code 1 if a peer's peak is lower than our lowest, or ours is slower at a peer's peak.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean
from typing import Any

from torch_peers_networks import TASKS
from worker import Worker, quartiles_of_ratios

SCRIPT = "torch_peers_worker.py"
#: For all ways alike: what a process has freed stays with it, as how long new pages take is up to the system; and threads that wait let
#: others run, or whatever else runs for a moment holds up both threads of an op.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "OMP_WAIT_POLICY": "PASSIVE"}
MEBI = 2**20
#: A process that trains, and what it said when it was warm.
Made = tuple[Worker, dict[str, Any]]
ROW = ("checkpoint 1", "checkpoint 2", "checkpoint sqrt", "selective")
COMPILED = (
    *(f"partitioner dp {ratio}" for ratio in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)),
    "partitioner greedy 0.5",
    "partitioner ilp 0.5",
    "inductor",
    "inductor 0.5",
)
NOT_IN_ROW = ("unet",)  # its blocks have several readers: one is a region
#: What users of PyTorch have reported, by its issue's number, and the ways that the report is about.
REPORTED = {
    "issue-197838": tuple(f"partitioner dp {ratio}" for ratio in (0.05, 0.1, 0.15, 0.2, 0.3)),
    "issue-193193": ("checkpoint 1", "compiled checkpoint 1", "inductor checkpoint 1"),
    "issue-194696": ("checkpoint 1", "partitioner dp 0.5"),
}
SHARES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3)
LOWEST = "lowest"
#: Of a budget, for what PyTorch's own measurement of a peer's step cannot be lower by: sizes of blocks are rounded to 64 bytes.
ROOM = 1.001
#: How often the budget that an error names is tried.
_NAMED = 3


def peers(network: str) -> list[str]:
    """PyTorch's own ways for a network."""
    if network in REPORTED:
        return list(REPORTED[network])
    return [way for way in (*ROW, *COMPILED) if network not in NOT_IN_ROW or way not in ("checkpoint 2", "checkpoint sqrt")]


class Comparison(ExitStack):
    """Trainings of one network. The process of plain training stays for all rows, on a CPU.

    Args:
        settings: scale, device, the seconds for a search, and rounds.
    """

    def __init__(self, network: str, settings: dict[str, Any]):
        super().__init__()
        self.network, self.settings = network, settings
        self._plain: Made | None = None

    def make(self, stack: ExitStack, name: str, way: str, budget: int | None = None, worker: Worker | None = None) -> Made:
        """A process that trains this way, warm, and what it said.

        Args:
            name: what requests call it by. worker: a process that trains another way, too.
        """
        worker = worker or stack.enter_context(Worker(SCRIPT, **KEPT))
        asked = {setting: self.settings[setting] for setting in ("scale", "device", "time_limit", "examples")}
        return worker, worker.ask({"do": "make", "as": name, "network": self.network, "way": way, "budget": budget, **asked})

    def alone(self, way: str, budget: int | None = None) -> dict[str, Any]:
        """One way, with the seconds of its steps."""
        with ExitStack() as stack:
            return self.timed({"alone": [self.make(stack, "alone", way, budget)]})["alone"]

    def timed(self, made: dict[str, list[Made]]) -> dict[str, dict[str, Any]]:
        """What the first process of each way said, with the seconds of the way's steps, which take turns.

        Of several processes it is their mean, and `apart` has the seconds of each.
        """
        found = {name: dict(processes[0][1]) for name, processes in made.items()}
        running = {name: processes for name, processes in made.items() if "error" not in found[name]}
        apart: dict[str, list[list[float]]] = {name: [[] for _ in processes] for name, processes in running.items()}
        turns = [
            (worker, name, seconds)
            for name, processes in running.items()
            for (worker, _said), seconds in zip(processes, apart[name], strict=True)
        ]
        for number in range(self.settings["rounds"]):
            # Each comes first and last in turn, so that no way profits from where it stands.
            first = number // 2 % len(turns)
            order = turns[first:] + turns[:first]
            for worker, name, seconds in order if number % 2 == 0 else reversed(order):
                seconds.append(worker.ask({"do": "step", "as": name})["seconds"])
        for name, each in apart.items():
            found[name]["seconds"] = [fmean(one) for one in zip(*each, strict=True)]
            if len(each) > 1:
                found[name]["apart"] = each
        return found

    def run(self, way: str, plain: dict[str, Any], budget: int | None) -> dict[str, Any]:
        """A row: ours under the budget beside plain training, and beside the peer if `way` is one.

        Args:
            budget: None: what the peer is measured to take.
        """
        ours = "checkmate inductor" if way.startswith("inductor") else "checkmate"
        if self.settings["device"] != "cpu":
            peer = self.alone(way) if way in peers(self.network) else None
            budget, failed = _budget(way, peer, budget)
            return failed or {
                "way": way,
                "budget": budget,
                "plain": plain,
                **({"peer": peer} if peer else {}),
                "ours": self.alone(ours, budget),
            }
        with ExitStack() as stack:
            made: dict[str, list[Made]] = {}
            if "error" not in plain:
                self._plain = self._plain or self.make(self, "plain", "eager")
                made["plain"] = [self._plain]
            ways = {"peer": way, "ours": ours} if way in peers(self.network) else {"ours": ours}
            together = way.startswith("inductor")
            for number in range(self.settings["processes"]):
                worker = None
                # Who is there first takes turns; the first of all is the peer, which tells our budget.
                for name in list(ways)[:: -1 if number % 2 else 1]:
                    if name == "ours" and budget is None:
                        budget, failed = _budget(way, made["peer"][0][1], None)
                        if failed:
                            return failed
                    one = self.make(stack, name, ways[name], budget if name == "ours" else None, worker)
                    made.setdefault(name, []).append(one)
                    worker = one[0] if together else None
            return {"way": way, "budget": budget, **self.timed(made)}

    def lowest(self, plain: dict[str, Any]) -> dict[str, Any]:
        """The row of the least budget. The first error that names one comes before anything has been measured."""
        with ExitStack() as stack:
            named = self.make(stack, "ours", "checkmate", 1)[1]["named"]
        for _ in range(_NAMED):
            row = self.run(LOWEST, plain, int(named))
            named = row["ours"].get("named")
            if named is None:
                break
        return row


def _budget(way: str, peer: dict[str, Any] | None, budget: int | None) -> tuple[int, dict[str, Any] | None]:
    """What ours gets, or the row where the peer fails."""
    if peer is not None and "error" in peer:
        return 0, {"way": way, "budget": 0, "peer": peer, "ours": {"error": "the peer fails"}}
    return (budget if peer is None or budget is not None else math.ceil(ROOM * peer["peak"])) or 0, None


def ratio(row: dict[str, Any], one: str, other: str) -> tuple[float, float, float] | None:
    """Quartiles of time over time, round by round."""
    a, b = (row.get(name, {}).get("seconds") for name in (one, other))
    if not a or not b:
        return None
    return quartiles_of_ratios(a, b)


def line(row: dict[str, Any], plain: int | None) -> str:
    """Of the table."""
    ours, peer = row["ours"], row.get("peer", {})

    def times(one: str, other: str) -> str:
        found = ratio(row, one, other)
        return "-" if found is None else f"{found[1]:.2f}"

    def spread(one: str, other: str) -> str:
        found = ratio(row, one, other)
        return "" if found is None else f"{found[0]:.2f}-{found[2]:.2f}"

    def memory(said: dict[str, Any]) -> str:
        return f"{said['peak'] / MEBI:.1f}" if "peak" in said else "-"

    said = [ours["error"][:90]] if "error" in ours else [f"overhead {ours['overhead']:.3f} planned, gap {ours['gap']:.3f}"]
    share = f"{row['budget'] / plain:.2f}" if plain else "-"
    return (
        f"  {row['way']:22} {memory(peer):>8} {times('peer', 'plain'):>6} {row['budget'] / MEBI:8.1f} {share:>5} {memory(ours):>8} "
        f"{times('ours', 'plain'):>6} {times('ours', 'peer'):>6} {spread('ours', 'peer'):>9}  {'; '.join(said)}"
    )


HEADER = f"  {'way':22} {'peak':>8} {'x plain':>6} {'budget':>8} {'share':>5} {'ours':>8} {'x plain':>6} {'x peer':>6} {'quartiles':>9}"


def compare(network: str, data: dict[str, Any], options: argparse.Namespace, deadline: float) -> None:
    """All rows of a network that are not there yet; each is written as soon as it is known."""
    kept: dict[str, Any] = data["networks"].setdefault(network, {"processes": KEPT, "rows": []})

    def save() -> None:
        options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    with Comparison(network, data["settings"]) as comparison:
        if "plain" not in kept:
            kept["plain"] = comparison.alone("eager")
            save()
        plain = kept["plain"]
        known = plain.get("peak")
        print(f"{network}: plain {f'{known / MEBI:.1f} MiB' if known else plain['error'][:90]}\n{HEADER}", flush=True)
        done = {row["way"]: row for row in kept["rows"]}
        for way, share in _ways(network, options, bool(known)):
            if way not in done and time.monotonic() < deadline:
                budget = int(share * known) if share else None
                done[way] = comparison.lowest(plain) if way == LOWEST else comparison.run(way, plain, budget)
                kept["rows"].append(done[way])
                save()
            if way in done:
                print(line(done[way], known), flush=True)
    kept["verdict"] = verdict(network, kept)
    save()
    print("  " + ("; ".join(kept["verdict"]) or "no peer's peak is lower, and none is faster at its own"), flush=True)


def _ways(network: str, options: argparse.Namespace, shares: bool) -> list[tuple[str, float | None]]:
    """The rows that are wanted: peers, then shares of plain training's peak where that is known, then the least budget if asked for."""
    wanted: list[tuple[str, float | None]] = [
        (way, None) for way in peers(network) if options.peers is None or any(fnmatch(way, one) for one in options.peers)
    ]
    if shares:
        wanted += [(f"{share:.0%} of plain", share) for share in options.shares]
    return [*wanted, (LOWEST, None)] if options.lowest else wanted


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
        if faster is not None and (faster[1] > 1 or (way == "checkpoint 1" and faster[1] == 1)):
            found.append(f"{way} takes {1 / faster[1]:.2f} of our time at its peak")
        if "peak" in row["ours"] and row["ours"]["peak"] > row["budget"]:
            found.append(f"at the peak of {way} ours is {row['ours']['peak'] - row['budget']} bytes over")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--scale", choices=tuple(TASKS), default="cpu")
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="(default: all of the scale)")
    parser.add_argument("--peers", nargs="*", metavar="WAY", help='of PyTorch\'s ways these, as in "checkpoint *" (default: all)')
    parser.add_argument(
        "--shares", nargs="*", type=float, default=SHARES, help="of plain training's peak, besides (default: %(default)s)"
    )
    parser.add_argument(
        "--lowest", action=argparse.BooleanOptionalAction, default=True, help="the least budget, too (default: yes)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--examples", type=int, help="in a batch (default: what the scale says)")
    parser.add_argument("--rounds", type=int, default=9, help="(default: 9)")
    parser.add_argument("--processes", type=int, default=1, help="of a peer, and of ours (default: 1; on a GPU always)")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each search of a plan (default: 20)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after so long")
    parser.add_argument("--output", type=Path, default=Path("torch_peers.json"), help="JSON file (default: torch_peers.json)")
    options = parser.parse_args()
    networks = options.networks or list(TASKS[options.scale])
    if unknown := [name for name in networks if name not in TASKS[options.scale]]:
        parser.error(f"no network {unknown[0]!r} at scale {options.scale}: choose among {', '.join(TASKS[options.scale])}")
    settings = {name: getattr(options, name) for name in ("scale", "device", "examples", "rounds", "processes", "time_limit")}
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
