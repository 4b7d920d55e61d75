"""All that is to be measured on a GPU, in one go of a few minutes, with a summary of one page.

    python benchmarks/gpu.py --output FOLDER [--device cuda|cpu] [--scale gpu|tiny] [--minutes 7]

It needs no network. Each way of training is a process of its own (`torch_peers_worker.py`). Most of the time goes into loading, capturing
and planning, so the ways of two networks are made side by side, and take turns on the device where they would disturb each other; then
the network's ways are timed, one step after the other, with nothing else running. The parts, each written down as soon as it is known:

    tests          the tests of the PyTorch front end that know devices, while the first networks are made
    pairs          peers, and ours at their peaks and at shares of plain training's; also with expandable segments, and on Inductor's kernels
    largest batch  plain and ours within one budget, while the last networks are made
    full size      a batch that plain training has no room for

A part that does not fit into the time is left out, and the summary says so. Exit code 1 if a test fails, a step passes its budget, or a
part breaks. On a CPU it runs all the same, to be tested.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from gpu_summary import LEADER, over, summary
from torch_peers import KEPT, LOWEST, ROOM, SCRIPT
from worker import Worker

HERE = Path(__file__).parent
GIBI = 2**30
#: Networks that are made side by side.
PAIRS = {"gpu": (("gpt2-xl", "resnet50"), ("unet", "vit-l")), "tiny": (("gpt",),)}
#: Few enough for the time: what most people do by hand, what PyTorch does by itself, and its compiler.
PEERS = {"gpu": ("checkpoint 1", "checkpoint sqrt", "selective", "partitioner dp 0.5", "inductor"), "tiny": ("checkpoint 1",)}
#: No row of blocks; and Inductor takes minutes of all processors to compile a network so many ways, so that two have to do.
LEFT_OUT = {("unet", "checkpoint sqrt"), ("unet", "inductor"), ("vit-l", "inductor")}
#: Of plain training's peak, besides all of it; where the least has no plan, what its error names is tried.
SHARES = {"gpu": {"80%": 0.8, "60%": 0.6, "40%": 0.4}, "tiny": {"60%": 0.6, "5%": 0.05}}
#: Once more, with other settings: by name the share, the way and the environment.
MORE: dict[str, dict[str, tuple[float, str, dict[str, str]]]] = {
    "gpu": {
        "60%, inductor": (0.6, "checkmate inductor", {}),
        "60%, segments": (0.6, "checkmate", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        "80% of reserved": (0.8, "checkmate reserved", {}),
    },
    "tiny": {},
}
NOT_TIMED = ("60%, segments", "80% of reserved")
#: Scale, network, and a budget in bytes besides a peer's peak.
FULL = {"gpu": ("full", "gpt2-xl", 60 * GIBI), "tiny": ("tiny", "gpt", 3 * 2**20)}
#: Network, and a budget in bytes.
LARGEST = {"gpu": ("resnet50", 6 * GIBI), "tiny": ("gpt", 8 * 2**20)}
LARGEST_SECONDS, LARGEST_OVERHEAD = 150.0, 4 / 3
LARGEST_MULTIPLE_OF = {"gpu": 8, "tiny": 1}
TESTS = {"gpu": "test", "tiny": "names_one"}
#: Seconds for the search of a plan.
TIME_LIMIT = {"gpu": 8.0, "tiny": 5.0}
#: The same for each size that is tried, about ten of them.
LARGEST_TIME_LIMIT = {"gpu": 2.0, "tiny": 1.0}
#: In each round each way takes so many steps that count.
ROUNDS, TIMES = {"gpu": 5, "tiny": 3}, 3
#: The part of all the time after which each pair has to be timed, and all be done; and what is kept free to time one network.
PAIRS_UNTIL, FULL_UNTIL, TIMING = (0.46, 0.81), 0.98, 0.045
#: So many processes may step at the same time while others are made: each has a whole step's memory then, and all others parameters.
AT_ONCE = 3
#: Seconds within which nothing more can be made.
LEAST = 15.0


class Run:
    """What all parts share.

    Args:
        scratch: a folder for the caches and locks of this run alone.

    Attributes:
        found: what is known; what is added to while others may write it down is added with the lock.
        began, until: on the monotonic clock. locks: of ways that are made side by side.
    """

    def __init__(self, options: argparse.Namespace, scratch: Path):
        self.options, self.scratch = options, scratch
        self.began = time.monotonic()
        self.until = self.began + 60 * options.minutes
        # All that there will be, for threads add to it while others write it down.
        self.found: dict[str, Any] = {"device": _device(options.device), "environment": environment(), "scale": options.scale}
        self.found.update(tests=None, networks={}, largest={}, full={}, over=[], skipped=[], broken=[], minutes=0.0)
        self.pool = ThreadPoolExecutor(100)
        self.cuda = options.device == "cuda"
        self.settings = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "4"} if self.cuda else dict(KEPT)
        self.settings["CHECKMATE_CACHE_DIR"] = str(scratch / "cache")
        self.lock = threading.Lock()
        self.locks = [str(scratch / f"lock{number}") for number in range(AT_ONCE)]

    def after(self, part: float) -> float:
        """When so much of the time will have passed."""
        return self.began + part * (self.until - self.began)

    def script(self, arguments: list[str], until: float, log: str) -> int:
        """Run Python; its exit code, or 124 where it takes longer."""
        with (self.options.output / log).open("w", encoding="utf-8") as file:
            try:
                seconds = max(1.0, until - time.monotonic())
                command = [sys.executable, *arguments]
                return subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=seconds, check=False).returncode
            except subprocess.TimeoutExpired:
                return 124

    def save(self) -> None:
        """Write down what is known."""
        with self.lock:
            self.found["minutes"] = (time.monotonic() - self.began) / 60
            self.found["over"] = over(self.found)
            folder = self.options.output
            (folder / "gpu.json").write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
            (folder / "summary.md").write_text(summary(self.found), encoding="utf-8")

    def part(self, name: str, until: float, work: Callable[[float], None]) -> None:
        """Do a part if there is time for it. Others go on where it breaks."""
        if until - time.monotonic() < LEAST:
            self.found["skipped"].append(f"{name}: no time left")
        else:
            try:
                work(until)
            except Exception:  # noqa: BLE001 - what is known otherwise must not be lost; it is said, and the exit code is 1
                self.found["broken"].append(f"{name}: {traceback.format_exc()}")
        print(f"{time.monotonic() - self.began:6.1f} s: {name}", flush=True)
        self.save()


class Way:
    """A way of training, in a process that begins at once to load what it needs.

    Args:
        locks: files of which the process has one while it steps, and all while it profiles.

    Attributes:
        said: what is known of it: nothing yet, an error, or what the worker says, with seconds of steps by round.
    """

    def __init__(self, run: Run, task: tuple[str, str], way: str, locks: list[str], settings: dict[str, str] | None = None):
        self.run, self.way = run, way
        self.asked = {"scale": task[0], "network": task[1], "way": way, "device": run.options.device, "lock": locks}
        self.asked["time_limit"] = TIME_LIMIT[run.options.scale]
        self.worker = Worker(SCRIPT, run.options.output / "workers.log", **run.settings, **(settings or {}))
        self.said: dict[str, Any] = {}

    def ask(self, until: float, **request: Any) -> dict[str, Any]:
        """An answer, or an error if there is none in time; then the process is gone."""
        seconds = until - time.monotonic()
        if seconds <= 0:
            self.worker.kill()
            return {"error": "no time left"}
        try:
            said = self.worker.ask({**self.asked, **request}, seconds)
        except (subprocess.CalledProcessError, ValueError) as error:
            late = time.monotonic() >= until
            said = {"error": f"no answer within {seconds:.0f} s" if late else f"the process ended: {error}"[:300]}
        if "error" in said:
            self.worker.kill()  # it may have a failed step's memory
        return said

    def make(self, until: float, budget: int | None = None) -> dict[str, Any]:
        """Build the network, and take the first steps."""
        began = time.monotonic()
        said = self.ask(until, do="make", budget=budget)
        given = {} if budget is None else {"budget": budget}
        with self.run.lock:
            self.said.update(said, way=self.way, **given, rounds=[], making=time.monotonic() - began)
        self.run.save()
        return self.said

    def time(self, until: float) -> None:
        """A round."""
        said = self.ask(until, do="step", times=TIMES)
        if "error" in said:
            self.said["failed"] = said["error"]
        else:
            self.said["rounds"].append(said["seconds"])

    @property
    def works(self) -> bool:
        return "peak" in self.said and "failed" not in self.said


class Trainings:
    """All ways of training a network, which load at once. `run.found` has what they say from now on."""

    def __init__(self, run: Run, network: str):
        self.run, self.network, scale = run, network, run.options.scale

        def way(name: str, settings: dict[str, str] | None = None) -> Way:
            return Way(run, (scale, network), name, run.locks, settings)

        self.plain = way("eager")
        self.peers = {name: way(name) for name in PEERS[scale] if (network, name) not in LEFT_OUT}
        self.ours = {name: way("checkmate") for name in (LEADER, *SHARES[scale], LOWEST)}
        self.more = {
            name: more for name, more in MORE[scale].items() if (network, more[1].removeprefix("checkmate ")) not in LEFT_OUT
        }
        self.ours.update({name: way(ours, settings) for name, (_, ours, settings) in self.more.items()})
        self.ours.update({name: way("checkmate inductor" if name == "inductor" else "checkmate") for name in self.peers})
        run.found["networks"][network] = {
            "plain": self.plain.said,
            "peers": {name: peer.said for name, peer in self.peers.items()},
            "ours": {name: ours.said for name, ours in self.ours.items()},
        }

    def make(self, until: float) -> None:
        """Plain training and peers; then one of ours alone, for it profiles ops for all; then all others."""
        submit = self.run.pool.submit
        peers = {name: submit(peer.make, until) for name, peer in self.peers.items()}
        plain = self.plain.make(until)
        peak = plain.get("peak")
        jobs: list[Future[Any]] = list(peers.values())
        if peak is not None:
            self.ours[LEADER].make(until, peak)
            jobs += [
                submit(self._share, name, int(share * peak), until) for name, share in SHARES[self.run.options.scale].items()
            ]
            for name, (share, way, _) in self.more.items():
                whole = plain["reserved"] if way.endswith("reserved") else peak
                jobs.append(submit(self.ours[name].make, until, int(share * whole)))
            jobs += [submit(self._beside, name, peer, until) for name, peer in peers.items()]
        for job in jobs:
            job.result()
        for name, way in self.ours.items():
            if not way.works or name in NOT_TIMED:
                way.worker.kill()

    def _share(self, name: str, budget: int, until: float) -> None:
        named = self.ours[name].make(until, budget).get("named")
        if named is not None and name == list(SHARES[self.run.options.scale])[-1]:
            self.ours[LOWEST].make(until, int(named))

    def _beside(self, name: str, peer: Future[dict[str, Any]], until: float) -> None:
        if "peak" in peer.result():
            self.ours[name].make(until, math.ceil(ROOM * peer.result()["peak"]))

    def time(self, until: float) -> None:
        """Rounds in which all ways take turns, as many as there is time for.

        Ours follows its peer, and each round begins with another way: a device that gets warm gets slower.
        """
        longest = 0.0
        beside = [way for name, peer in self.peers.items() for way in (peer, self.ours[name])]
        alone = [way for name, way in self.ours.items() if name not in NOT_TIMED and name not in self.peers]
        ways = [way for way in (self.plain, *beside, *alone) if way.works]
        rounds = ROUNDS[self.run.options.scale]
        for number in range(rounds):
            began = time.monotonic()
            if began + longest > until:
                break
            first = number * len(ways) // rounds
            for way in (*ways[first:], *ways[:first]):
                if way.works:
                    way.time(until)
            longest = max(longest, time.monotonic() - began)

    def close(self) -> None:
        for way in (self.plain, *self.peers.values(), *self.ours.values()):
            way.worker.kill()


def pair(run: Run, networks: tuple[str, ...], beside: Sequence[Callable[[Run, float], None]], until: float) -> None:
    """Make the ways of some networks, and time them.

    Args:
        beside: what else is done until then.
    """
    trainings: list[Trainings] = []
    timing = TIMING * (run.until - run.began)
    try:
        trainings += [Trainings(run, network) for network in networks]
        made = until - timing * len(networks)
        jobs = [run.pool.submit(one.make, made) for one in trainings]
        jobs += [run.pool.submit(work, run, made) for work in beside]
        for job in jobs:
            job.exception()  # wait for all: nothing else may run beside what is timed
        print(f"{time.monotonic() - run.began:6.1f} s: {', '.join(networks)} made", flush=True)
        for number, one in enumerate(trainings):
            one.time(until - timing * (len(trainings) - 1 - number))
            run.save()
        for job in jobs:
            job.result()
    finally:
        for one in trainings:
            one.close()


def tests(run: Run, until: float) -> None:
    """Those that know devices."""
    file = str(HERE.parent / "tests/torch/test_devices.py")
    run.found["tests"] = run.script(["-m", "pytest", "-q", "-k", TESTS[run.options.scale], file], until, "tests.log")
    run.save()


def largest(run: Run, until: float) -> None:
    """The largest batch within a budget."""
    network, budget = LARGEST[run.options.scale]
    until = min(until, time.monotonic() + LARGEST_SECONDS)
    ways = {
        name: Way(run, (run.options.scale, network), way, run.locks) for name, way in (("plain", "eager"), ("ours", "checkmate"))
    }
    asked = {"do": "largest", "budget": budget, "max_overhead": LARGEST_OVERHEAD}
    asked["multiple_of"] = LARGEST_MULTIPLE_OF[run.options.scale]
    asked["time_limit"] = LARGEST_TIME_LIMIT[run.options.scale]
    try:
        jobs = {name: run.pool.submit(way.ask, until, **asked) for name, way in ways.items()}
        run.found["largest"] = {network: {"budget": budget, **{name: job.result() for name, job in jobs.items()}}}
    finally:
        for way in ways.values():
            way.worker.kill()


def full(run: Run, until: float) -> None:
    """A batch that needs the whole device: one process steps at a time, and plain training and the peer end before ours are timed."""
    scale, network, budget = FULL[run.options.scale]
    lock, made = [str(run.scratch / "lock")], until - TIMING * (run.until - run.began)
    peer = "checkpoint 1"
    wanted = (("plain", "eager"), (peer, peer), (f"ours beside {peer}", "checkmate"), ("ours", "checkmate"))
    ways = {name: Way(run, (scale, network), way, lock) for name, way in wanted}
    plain, other, beside, fixed = ways.values()
    run.found["full"] = {"network": network, "ways": {name: way.said for name, way in ways.items()}}
    try:
        # It searches meanwhile; with one lock, its steps wait for those of the others, which leave only their parameters.
        job = run.pool.submit(fixed.make, made, budget)
        for way in (plain, other):
            way.make(made)
            for _ in range(2):
                if way.works:
                    way.time(until)
            way.worker.kill()
        if "peak" in other.said:
            beside.make(made, math.ceil(ROOM * other.said["peak"]))
        job.result()
        for way in 2 * (beside, fixed):
            if way.works:
                way.time(until)
    finally:
        for way in ways.values():
            way.worker.kill()


def environment() -> dict[str, str]:
    """What figures depend on: versions and the processors."""
    import platform

    import torch

    import checkmate

    versions = {"checkmate": checkmate.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {**versions, "cuda": str(torch.version.cuda), "processors": str(os.cpu_count())}


def _device(kind: str) -> str:
    import torch

    if kind != "cuda":
        return f"CPU, {torch.get_num_threads()} threads"
    return f"{torch.cuda.get_device_name()}, {torch.cuda.get_device_properties(0).total_memory / GIBI:.1f} GiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("gpu"), help="folder for JSON files, logs, summary.md (default: gpu)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--scale", choices=tuple(PAIRS), default="gpu")
    parser.add_argument("--minutes", type=float, default=7.0, help="in all (default: 7)")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        run = Run(options, Path(scratch))
        pairs = PAIRS[options.scale]
        for number, networks in enumerate(pairs):
            last = number == len(pairs) - 1
            beside = [*([] if number else [tests]), *([largest] if last else [])]
            until = run.after(PAIRS_UNTIL[-1 if last else number])
            run.part(", ".join(networks), until, partial(pair, run, networks, beside))
        run.part("full size", run.after(FULL_UNTIL), partial(full, run))
        run.pool.shutdown()
    print((options.output / "summary.md").read_text(encoding="utf-8"))
    return 1 if run.found["tests"] or run.found["over"] or run.found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
