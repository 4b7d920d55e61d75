"""All that is to be measured on a GPU, in one go of less than half an hour, with a summary of one page.

    python benchmarks/gpu.py --output FOLDER [--device cuda|cpu] [--scale gpu|tiny] [--minutes 25]

It needs no network. In this order, each part in processes of its own, and written down as soon as it is known:

    tests          the tests of the PyTorch front end that know devices
    peers          `torch_peers.py` at full size: peaks that the allocator counted, reserved and allocated, times, predicted overhead
    segments       the same budgets with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    largest batch  plain and ours

Exit code 1 if a test fails or a step passes its budget. On a CPU it runs all the same, to be tested.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torch_peers import ratio
from torch_peers_networks import TASKS
from worker import result_of

HERE = Path(__file__).parent
#: Few enough for the time: what most people do by hand, what PyTorch does by itself, and its compiler.
PEERS = {"gpu": ("checkpoint 1", "checkpoint sqrt", "selective", "partitioner dp 0.5", "inductor"), "tiny": ("checkpoint 1",)}
NETWORKS = {"gpu": ("gpt2-xl", "resnet50", "unet", "vit-l"), "tiny": ("gpt",)}
SHARES = {"gpu": ("1.0", "0.8", "0.6", "0.4"), "tiny": ("0.6",)}
TESTS = {"gpu": "test", "tiny": "names_one"}
#: For the largest batch: of the memory that is free, what a process can have besides its tensors.
LEFT_OVER = 0.92
CPU_BUDGET = 8 * 2**20
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def part(command: list[str], seconds: float, log: Path, settings: dict[str, str] | None = None) -> int:
    """Run a script; its exit code, or 124 where it took longer."""
    with log.open("w", encoding="utf-8") as file:
        try:
            environment = {**os.environ, **(settings or {})}
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=max(1.0, seconds), env=environment)
        except subprocess.TimeoutExpired:
            return 124
    return done.returncode


def largest(scale: str, network: str, device: str, way: str) -> dict[str, Any]:
    """The largest batch, in this process: plain by doubling and halving, ours by planning and one real step."""
    import torch

    import checkmate.torch

    where = torch.device(device)
    cuda = where.type == "cuda"
    budget = int(LEFT_OVER * torch.cuda.mem_get_info(where)[0]) if cuda else CPU_BUDGET
    task = TASKS[scale][network]
    torch.manual_seed(0)
    model = task.build().train().to(where)
    if cuda:
        model.bfloat16()

    def inputs(examples: int) -> dict[str, torch.Tensor]:
        given, target = (x.to(where) for x in task.batch(examples))
        given = given.bfloat16() if cuda and given.is_floating_point() else given
        return dict(
            zip(("words", "following") if given.dtype == torch.int64 else ("pictures", "labels"), (given, target), strict=True)
        )

    def fits(examples: int) -> bool:
        try:
            with checkmate.torch.measure(where) as seen:
                model(**inputs(examples)).backward()
            return seen.peak <= budget
        except torch.OutOfMemoryError:
            return False
        finally:
            model.zero_grad(set_to_none=True)
            if cuda:
                torch.cuda.empty_cache()

    if way == "ours":
        began = time.perf_counter()
        found = checkmate.torch.max_batch_size(model, inputs, budget, time_limit=10.0, max_overhead=4 / 3)
        plan = found.plan
        return {
            "batch": int(found),
            "budget": budget,
            "overhead": plan.schedule.overhead,
            "measured_peak": plan.measured_peak,
            "seconds": time.perf_counter() - began,
        }
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {"batch": low, "budget": budget}


def peers(options: argparse.Namespace, name: str, seconds: float, settings: dict[str, str] | None = None) -> dict[str, Any]:
    """`torch_peers.py`, and what it wrote."""
    output = options.output / f"{name}.json"
    command = [sys.executable, str(HERE / "torch_peers.py"), "--scale", options.scale, "--device", options.device]
    command += ["--networks", *NETWORKS[options.scale], "--peers", *PEERS[options.scale], "--minutes", str(seconds / 60)]
    command += ["--shares", *SHARES[options.scale], "--rounds", "5", "--time-limit", "10", "--output", str(output)]
    code = part(command, seconds + 120, options.output / f"{name}.log", settings)
    found = json.loads(output.read_text(encoding="utf-8"))["networks"] if output.exists() else {}
    return {"code": code, "networks": found}


def over(networks: dict[str, Any]) -> list[str]:
    """Steps that passed their budget."""
    return [
        f"{name}, {row['way']}: {row['ours']['peak'] - row['budget']} bytes over"
        for name, kept in networks.items()
        for row in kept["rows"]
        if row["ours"].get("peak", 0) > row["budget"]
    ]


def summary(found: dict[str, Any]) -> str:
    """One page of Markdown."""
    lines = [
        "# Measured",
        "",
        f"{found['device']}; {found['minutes']:.1f} minutes. Memory in GiB, times as shares of plain training's.",
        "",
    ]
    lines += [
        f"Tests: exit code {found['tests']}.",
        "",
        "| network | way | peak | time | ours: budget | allocated | reserved | time | planned |",
    ]
    lines += ["|---|---|--:|--:|--:|--:|--:|--:|--:|"]
    for title in ("peers", "segments"):
        for name, kept in found.get(title, {}).get("networks", {}).items():
            for row in kept["rows"]:
                lines.append(_row(name if title == "peers" else f"{name}, expandable segments", row))
    lines += ["", "| network | largest batch, plain | ours | cost |", "|---|--:|--:|--:|"]
    for name, both in found.get("largest", {}).items():
        ours = both.get("ours", {})
        lines.append(
            f"| {name} | {both.get('plain', {}).get('batch', '-')} | {ours.get('batch', '-')} | {ours.get('overhead', '-')} |"
        )
    against = found["over"]
    lines += ["", *(f"- over its budget: {one}" for one in against), "" if against else "No step passed its budget."]
    return "\n".join(lines) + "\n"


def _row(name: str, row: dict[str, Any]) -> str:
    ours, peer = row["ours"], row.get("peer", {})

    def gib(said: dict[str, Any], what: str) -> str:
        return f"{said[what] / 2**30:.3f}" if said.get(what) else "-"

    def time_of(who: str) -> str:
        quartiles = ratio(row, who, "plain")
        return f"{quartiles[1]:.3f}" if quartiles else "-"

    planned = f"{ours['overhead']:.3f}" if "overhead" in ours else ours["error"][:60]
    budget = f"{row['budget'] / 2**30:.3f}"
    cells = [
        name,
        row["way"],
        gib(peer, "peak"),
        time_of("peer"),
        budget,
        gib(ours, "peak"),
        gib(ours, "reserved"),
        time_of("ours"),
    ]
    return f"| {' | '.join(cells)} | {planned} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("gpu"), help="folder for JSON files, logs, summary.md (default: gpu)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--scale", choices=tuple(NETWORKS), default="gpu")
    parser.add_argument("--minutes", type=float, default=25.0, help="in all (default: 25)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        print(json.dumps(largest(*json.loads(options.worker))))
        return 0
    began, seconds = time.monotonic(), 60 * options.minutes
    options.output.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"device": _device(options.device), "scale": options.scale}

    def left() -> float:
        return seconds - (time.monotonic() - began)

    def save() -> None:
        found["minutes"] = (time.monotonic() - began) / 60
        found["over"] = [one for title in ("peers", "segments") for one in over(found.get(title, {}).get("networks", {}))]
        (options.output / "gpu.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (options.output / "summary.md").write_text(summary(found), encoding="utf-8")

    tests = [sys.executable, "-m", "pytest", "-q", "-k", TESTS[options.scale], str(HERE.parent / "tests/torch/test_devices.py")]
    found["tests"] = part(tests, seconds / 6, options.output / "tests.log")
    save()
    found["peers"] = peers(options, "peers", 0.55 * seconds)
    save()
    found["largest"] = {}
    for network in NETWORKS[options.scale]:
        for way in ("plain", "ours"):
            if left() > seconds / 8:
                found["largest"].setdefault(network, {})[way] = _answer(options, network, way)
                save()
    if options.device == "cuda" and left() > 120:
        found["segments"] = peers(options, "segments", left() - 60, SEGMENTS)
        save()
    print((options.output / "summary.md").read_text(encoding="utf-8"))
    return 1 if found["tests"] or found["over"] else 0


def _answer(options: argparse.Namespace, network: str, way: str) -> dict[str, Any]:
    try:
        return result_of(__file__, [options.scale, network, options.device, way])
    except (subprocess.CalledProcessError, ValueError) as error:
        return {"error": str(error)[:300]}


def _device(kind: str) -> str:
    import torch

    return torch.cuda.get_device_name() if kind == "cuda" else f"CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    sys.exit(main())
