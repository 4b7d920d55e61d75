"""What a step takes where nothing has to be recomputed, and what recomputation adds beside what was planned.

First table: a forward and backward pass under a budget of 110% of plain training's peak, beside eager and aot_eager. Second table: a budget
that makes recomputation necessary, beside that of 110%; "planned" is what the schedule's overhead says of that ratio. Every way
trains in a process of its own, and their steps take turns, so that what else the machine does falls on all of them. A ratio is
the median over the rounds, with its quartiles, of seconds on the clock and below or behind that of the seconds that processors
worked, which say more on a busy machine; all ways must come to the same losses, to the bit.

    python benchmarks/torch_overhead.py [--networks NAME ...] [--rounds 40] [--by cpu] [--before FOLDER] [--output torch_overhead.json]

`--before` names a folder with another version of the package, which takes its turns, too. What the output has is not run again.
Exit code 1 if ours takes longer than aot_eager, more than 1.03 times eager on GPT-2, or if planned and measured ratios are more than 5
percentage points apart at the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch_lengths import surroundings
from worker import Worker, quartiles_of_ratios

SCRIPT = "torch_overhead_worker.py"
#: By scale the networks of each table.
PLAIN = {"tiny": ("gpt", "resnet"), "cpu": ("gpt2", "resnet", "llama", "tiny-gpt")}
RECOMPUTING = {"tiny": ("gpt",), "cpu": ("long-gpt", "long-llama", "long-resnet", "unet")}
ENOUGH = "110%"
BUDGETS = ("80%", "60%", "50%")
#: Of each step: on the clock, by processors, and pages that the process was given.
MEASURED = ("seconds", "cpu", "faults")
#: Which ratios are judged.
RATIOS = {"clock": "ratios", "cpu": "cpu_ratios"}
#: Steps before the first that is timed: the first of a plan is measured, and the memory that is freed first settles.
WARM = 4
#: What a user is promised: of eager on GPT-2, of aot_eager everywhere, and between planned and measured ratios at the median.
MOST_OF_EAGER, MOST_OF_AOT_EAGER, MOST_APART = 1.03, 1.0, 0.05


def train(network: str, ways: dict[str, tuple[str, str | None, str | None]], settings: dict[str, Any]) -> dict[str, Any]:
    """Train several ways in turns.

    Args:
        ways: by name the way, its budget, and the folder of the package, if not this one.
    """
    asked = {"do": "make", "network": network, "warm": WARM, "scale": settings["scale"], "time_limit": settings["time_limit"]}
    with ExitStack() as stack:
        workers, found = {}, {}
        for name, (way, budget, folder) in ways.items():
            worker = Worker(SCRIPT, **({} if folder is None else {"PYTHONPATH": folder}))
            stack.enter_context(worker)
            found[name] = worker.ask({**asked, "way": way, "budget": budget})
            if "error" not in found[name]:
                workers[name] = worker
                found[name] |= {what: [] for what in MEASURED}
        for number in range(settings["rounds"]):
            names = list(workers)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                said = workers[name].ask({"do": "step"})
                found[name]["losses"].append(said["loss"])
                for what in MEASURED:
                    found[name][what].append(said[what])
    return found


def ratio(found: dict[str, Any], one: str, other: str, what: str) -> tuple[float, float, float]:
    """Quartiles of time over time, round by round."""
    return quartiles_of_ratios(found[one][what], found[other][what])


def summary(found: dict[str, Any], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """What is kept of a training."""
    ways = {}
    for name, said in found.items():
        kept = {key: value for key, value in said.items() if key not in (*MEASURED, "losses")}
        ways[name] = kept | {what: statistics.median(said[what]) for what in MEASURED if what in said}
    trained = [name for name, said in found.items() if "error" not in said]
    both = [(one, other) for one, other in pairs if one in trained and other in trained]
    ratios, cpu = ({f"{one} / {other}": ratio(found, one, other, what) for one, other in both} for what in ("seconds", "cpu"))
    return {
        "ways": ways,
        "ratios": ratios,
        "cpu_ratios": cpu,
        "equal": len({tuple(found[name]["losses"]) for name in trained}) == 1,
    }


def plain_row(network: str, settings: dict[str, Any], before: str | None) -> dict[str, Any]:
    """Of the first table."""
    ways: dict[str, tuple[str, str | None, str | None]] = {
        "eager": ("eager", None, None),
        "aot_eager": ("aot_eager", None, None),
        "ours": ("checkmate", ENOUGH, None),
    }
    if before is not None:
        ways["before"] = ("checkmate", ENOUGH, before)
    pairs = [("aot_eager", "eager"), ("ours", "eager"), ("ours", "aot_eager"), ("before", "eager"), ("ours", "before")]
    return {"network": network, "rounds": settings["rounds"], **summary(train(network, ways, settings), pairs)}


def recomputing_row(network: str, budgets: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Of the second table: all budgets of a network."""
    ways: dict[str, tuple[str, str | None, str | None]] = {budget: ("checkmate", budget, None) for budget in (ENOUGH, *budgets)}
    made = summary(train(network, ways, settings), [(budget, ENOUGH) for budget in budgets])
    overheads = {budget: said["overhead"] for budget, said in made["ways"].items() if "overhead" in said}
    planned = {budget: overheads[budget] / overheads[ENOUGH] for budget in budgets if budget in overheads}
    return {"network": network, "rounds": settings["rounds"], "planned": planned, **made}


def quartiles(found: list[float]) -> str:
    first, middle, third = found
    return f"{middle:6.3f} ({first:.3f}-{third:.3f})"


def plain_line(row: dict[str, Any]) -> str:
    ratios = row["ratios"]
    names = ("aot_eager / eager", "ours / eager", "ours / aot_eager", "before / eager", "ours / before")
    shown = "  ".join(quartiles(ratios[name]) if name in ratios else f"{'-':>20}" for name in names)
    faults = ", ".join(f"{said['faults']:.0f}" for said in row["ways"].values())
    cpu = "  ".join(quartiles(row["cpu_ratios"][name]) if name in ratios else f"{'-':>20}" for name in names)
    first = f"{row['network']:>10} {row['ways']['eager']['seconds'] * 1e3:8.1f}  {shown}  {'yes' if row['equal'] else 'NO':>5}  {faults}"
    return f"{first}\n{'cpu':>10} {row['ways']['eager']['cpu'] * 1e3:8.1f}  {cpu}"


def recomputing_lines(row: dict[str, Any]) -> Iterator[str]:
    seconds = row["ways"][ENOUGH]["seconds"] * 1e3
    for budget, said in row["ways"].items():
        if budget == ENOUGH:
            continue
        begun = f"{row['network']:>10} {budget:>6} {seconds:8.1f}"
        if "error" in said:
            yield f"{begun} {said['error'][:100]}"
            continue
        planned, measured = row["planned"][budget], row["ratios"][f"{budget} / {ENOUGH}"]
        rest = f"{100 * (measured[1] - planned):+6.1f} {'yes' if row['equal'] else 'NO':>5} {said['faults']:7.0f}"
        rest += f"   {quartiles(row['cpu_ratios'][f'{budget} / {ENOUGH}'])}"
        yield f"{begun} {planned:7.3f} {quartiles(measured)} {rest}"


def apart(rows: Sequence[dict[str, Any]], ratios: str) -> float | None:
    """Median of what lies between planned and measured ratios, without its sign."""
    found = [abs(row[ratios][f"{budget} / {ENOUGH}"][1] - planned) for row in rows for budget, planned in row["planned"].items()]
    return statistics.median(found) if found else None


def verdict(data: dict[str, Any]) -> list[str]:
    """What falls short."""
    found = [f"{row['network']} comes to other losses" for row in (*data["plain"], *data["recomputing"]) if not row["equal"]]
    ratios = RATIOS[data["settings"]["by"]]
    for row in data["plain"]:
        of_aot_eager, of_eager = row[ratios]["ours / aot_eager"][1], row[ratios]["ours / eager"][1]
        if of_aot_eager > MOST_OF_AOT_EAGER:
            found.append(f"{row['network']} takes {of_aot_eager:.3f} of aot_eager")
        if row["network"] == "gpt2" and of_eager > MOST_OF_EAGER:
            found.append(f"gpt2 takes {of_eager:.3f} of eager")
    if (median := apart(data["recomputing"], ratios)) is not None and median > MOST_APART:
        found.append(f"planned and measured ratios are {100 * median:.1f} points apart at the median")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=tuple(PLAIN), default="cpu")
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="(default: all of the scale)")
    parser.add_argument("--budgets", nargs="+", default=BUDGETS, help="of the second table (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="(default: 40)")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each search of a plan (default: 5)")
    parser.add_argument(
        "--by",
        choices=tuple(RATIOS),
        default="clock",
        help="which seconds are judged: on the clock, or those that processors worked",
    )
    parser.add_argument("--before", help="folder of another version of the package, for the first table")
    parser.add_argument("--output", type=Path, default=Path("torch_overhead.json"))
    options = parser.parse_args()
    known = [*PLAIN[options.scale], *RECOMPUTING[options.scale]]
    networks = options.networks or known
    if unknown := [name for name in networks if name not in known]:
        parser.error(f"no network {unknown[0]!r} at scale {options.scale}: choose among {', '.join(known)}")
    settings = {name: getattr(options, name) for name in ("scale", "rounds", "time_limit", "by")}
    data: dict[str, Any] = {"plain": [], "recomputing": []}
    if options.output.exists():
        data = json.loads(options.output.read_text(encoding="utf-8"))
    data |= {"environment": surroundings(), "seed": 0, "settings": settings}

    def save() -> None:
        options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    print(
        f"{'network':>10} {'eager ms':>8}  aot_eager / eager     ours / eager          ours / aot_eager      before / eager        ours / before"
    )
    for network in networks:
        if network in PLAIN[options.scale] and all(row["network"] != network for row in data["plain"]):
            data["plain"].append(plain_row(network, settings, options.before))
            save()
            print(plain_line(data["plain"][-1]), flush=True)
    print(f"{'network':>10} {'budget':>6} {'110% ms':>8} planned  measured             apart equal  faults   cpu")
    for network in networks:
        if network in RECOMPUTING[options.scale] and all(row["network"] != network for row in data["recomputing"]):
            data["recomputing"].append(recomputing_row(network, options.budgets, settings))
            save()
            print("\n".join(recomputing_lines(data["recomputing"][-1])), flush=True)
    short = verdict(data)
    print("\n".join(short) if short else "passed")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
