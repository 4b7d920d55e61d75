"""What gpu.py has found, on one page."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from torch_peers import ROOM
from worker import quartiles_of_ratios

GIBI = 2**30
LEADER = "100%"
#: Of what a way says: peaks in bytes, none of which may pass its budget; and where that is on what the allocator reserves.
PEAKS = ("first_peak", "peak", "later_peak")
RESERVED = ("first_reserved", "reserved")
_COLUMNS = ("network", "way", "peak", "time", "ours: budget", "first", "later", "reserved", "time", "x peer", "planned")


def seconds(said: dict[str, Any]) -> list[float]:
    """Of a step, by round."""
    return [statistics.fmean(one) for one in said.get("rounds", ())]


def ratio(said: dict[str, Any], other: dict[str, Any]) -> float | None:
    """Time over time: the median over the rounds that both have."""
    rounds = list(zip(seconds(said), seconds(other), strict=False))
    return quartiles_of_ratios([a for a, _ in rounds], [b for _, b in rounds])[1] if rounds else None


def ways(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All of ours that have been tried, by name."""
    for network, known in found["networks"].items():
        yield from ((f"{network}, {name}", said) for name, said in known["ours"].items() if said)
    full = found["full"]
    for name, said in full.get("ways", {}).items():
        if "budget" in said:
            yield f"{full['network']} at full size, {name}", said


def over(found: dict[str, Any]) -> list[str]:
    """Steps that passed their budget."""
    return [
        f"{name}: {what} is {said[what] - said['budget']} bytes over"
        for name, said in ways(found)
        for what in (RESERVED if said.get("way", "").endswith("reserved") else PEAKS)
        if (said.get(what) or 0) > said.get("budget", 0)
    ]


def differences(known: dict[str, Any]) -> list[float]:
    """Planned overhead and measured overhead of a network's plans, in percentage points: of time beyond the run that computes least again."""
    leader = known["ours"].get(LEADER, {})
    return [
        100 * abs(both - said["overhead"] / leader["overhead"])
        for name, said in known["ours"].items()
        if name != LEADER and said.get("way") == "checkmate" and "overhead" in said and (both := ratio(said, leader)) is not None
    ]


def _gib(said: dict[str, Any], what: str) -> str:
    return f"{said[what] / GIBI:.3f}" if said.get(what) else "-"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _planned(said: dict[str, Any]) -> str:
    return f"{said['overhead']:.3f}" if "overhead" in said else said.get("error", "-")[:80].replace("|", "/")


def _row(network: str, name: str, known: dict[str, Any]) -> str:
    """Of the table: ours, and the peer whose peak is its budget if there is one."""
    plain, peer, ours = known["plain"], known["peers"].get(name, {}), known["ours"].get(name, {})
    cells = [network, name, _gib(peer, "peak"), _share(ratio(peer, plain)), _gib(ours, "budget"), _gib(ours, "first_peak")]
    cells += [_gib(ours, "later_peak" if ours.get("later_peak") else "peak"), _gib(ours, "reserved"), _share(ratio(ours, plain))]
    planned = _planned(ours) if ours or not peer.get("error") else f"peer: {_planned(peer)}"
    return f"| {' | '.join([*cells, _share(ratio(ours, peer)), planned])} |"


def _networks(found: dict[str, Any]) -> list[str]:
    lines = [f"| {' | '.join(_COLUMNS)} |", f"|---|---|{'--:|' * (len(_COLUMNS) - 2)}"]
    for network, known in found["networks"].items():
        plain = known["plain"]
        step = statistics.median(seconds(plain)) if seconds(plain) else None
        state = plain.get("error", "-" if step is None else f"{step * 1e3:.1f} ms")[:80]
        cells = [network, "plain", _gib(plain, "peak"), "1", "-", "-", "-", _gib(plain, "reserved"), "-", "-", state]
        lines.append(f"| {' | '.join(cells)} |")
        names = dict.fromkeys([*known["peers"], *known["ours"]])
        lines += [_row(network, name, known) for name in names if known["ours"].get(name) or known["peers"].get(name)]
    return lines


def _overheads(found: dict[str, Any]) -> list[str]:
    lines = ["", "Planned overhead against time beside ours at 100%, without Inductor; median difference in percentage points:"]
    for network, known in found["networks"].items():
        points = differences(known)
        leader, step = known["ours"].get(LEADER, {}), seconds(known["plain"])
        of_ops = (
            f"; plain's ops take {leader['op_seconds'] / statistics.median(step):.2f} of its step"
            if step and leader.get("op_seconds")
            else ""
        )
        lines.append(f"- {network}: {f'{statistics.median(points):.1f} of {len(points)}' if points else 'unknown'}{of_ops}")
    return lines


def _full(found: dict[str, Any]) -> list[str]:
    full = found["full"]
    if not full:
        return []
    lines = [
        "",
        f"{full['network']} at full size, each way by itself:",
        "",
        "| way | budget | first | peak | reserved | ms | planned |",
    ]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for name, said in full["ways"].items():
        step = f"{statistics.median(seconds(said)) * 1e3:.1f}" if seconds(said) else "-"
        cells = [
            name,
            _gib(said, "budget"),
            _gib(said, "first_peak"),
            _gib(said, "peak"),
            _gib(said, "reserved"),
            step,
            _planned(said),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _largest(found: dict[str, Any]) -> list[str]:
    return [
        f"Largest batch of {network} within {both['budget'] / GIBI:.3f} GiB: plain {_batch(both['plain'])}, "
        f"ours {_batch(both['ours'])} at overhead {_planned(both['ours'])}."
        for network, both in found["largest"].items()
    ]


def _batch(said: dict[str, Any]) -> str:
    return str(said.get("batch", said.get("error", "-")[:80]))


def summary(found: dict[str, Any]) -> str:
    """One page of Markdown."""
    versions = ", ".join(f"{name} {what}" for name, what in found["environment"].items())
    lines = ["# Measured", "", f"{found['device']}; {versions}; {found['minutes']:.1f} minutes.", ""]
    lines += [f"Tests: exit code {found['tests']}.", ""]
    lines += ["Memory in GiB, times as shares of plain training's, medians of rounds. A peer's row has ours within its peak", ""]
    lines[-2] += f" x {ROOM}; the last column is planned overhead, or what went wrong."
    lines += [*_networks(found), *_overheads(found), *_full(found), "", *_largest(found), ""]
    lines += [f"- over its budget: {one}" for one in found["over"]] or ["No step passed its budget."]
    warned = [f"- {name} warns: {text}" for name, said in ways(found) for text in said.get("warnings", ())]
    late = [f"- {name} failed later: {said['failed'][:100]}" for name, said in ways(found) if "failed" in said]
    left = [f"- left out: {one}" for one in found["skipped"]]
    broken = [f"- broken: {one.strip().splitlines()[-1][:200]} ({one.split(':')[0]})" for one in found["broken"]]
    return "\n".join([*lines, *warned, *late, *left, *broken]) + "\n"
