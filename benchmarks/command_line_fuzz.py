"""Random bad command lines, and interrupts at random moments: tracebacks, hangs and damaged files, of which there must be none.

Bad command lines have odd options, numbers, budgets and file names, damaged graphs and schedules, names full of control
characters, closed or full standard streams, and (those that run as programs of their own) an odd environment. Most run in a
process forked from one that has imported everything. Each must end by itself with exit code 0, 1 or 2, with at most one line of
error (just one with exit code 2), no control character on any stream, and every file either as it was or whole.

Interrupts are SIGINT or SIGTERM, once or twice, sent to `checkmate solve`, `compare`, `sweep`, `report`, `max-batch` and `demo`. What
was running must end soon, with no process and no temporary folder left behind. What Python itself says when it is interrupted
before it has reached the first line of checkmate, or after the last, is counted apart.

    python benchmarks/command_line_fuzz.py [--commands 1000] [--interrupts 100] [--programs 0.05] [--workers 2] [--seed 0]
        [--output command_line_fuzz.json]

Every failure is reported with the seed that makes it again: `--commands 1 --interrupts 0 --seed SEED`, or the other way round (an
interrupt may come a little earlier or later then). Exit code 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from command_line_material import bad_command, materials, search_command
from solver import environment

#: Seconds after which a command counts as one that hangs; after which an interrupted one does.
HANGS, HANGS_INTERRUPTED = 120.0, 60.0
#: Seconds within which interrupts come, for each command; all go on for longer.
MOMENT, MOMENTS = 12.0, {"demo": 12.0}
#: What PyTorch keeps in the folder for temporary files from one process to the next.
KEPT = ("torchinductor_",)
ODD_ENVIRONMENT = {
    "MPLBACKEND": ["no-such-backend", ""],
    "MPLCONFIGDIR": ["/proc/none"],
    "COLUMNS": ["0", "-1", "1", "many", "1000000"],
    "LINES": ["0", "x"],
    "TERM": ["", "dumb", "none"],
    "PYTHONIOENCODING": ["ascii", "latin-1"],
    "PYTHONUTF8": ["0"],
    "LC_ALL": ["C", "xx_YY"],
    "HOME": ["/nowhere", ""],
    "TMPDIR": ["/nowhere"],
    "CHECKMATE_CACHE_DIR": ["/dev/null/cache", "/proc/none"],
    "XDG_CACHE_HOME": ["/proc/none"],
    "NO_COLOR": ["1"],
    "PATH": ["", "/nowhere"],
    "OMP_NUM_THREADS": ["many"],
}
#: What standard input, output and error are; most often all are files.
STREAMS = ["files"] * 12 + ["no input", "no output", "no error", "nothing", "full", "reader left"]


@dataclass
class Outcome:
    """What became of one command.

    Attributes:
        wrong: kinds of failure, and what was seen of each.
    """

    seed: int
    words: list[str]
    code: int | None = None
    seconds: float = 0.0
    wrong: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


# --- bad command lines ---


def run_command(seed: int, share: float, material: Path) -> Outcome:
    """One bad command line in a folder of its own."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="checkmate-fuzz-") as name:
        folder, scratch = Path(name) / "work", Path(name) / "scratch"
        shutil.copytree(material, folder, symlinks=True)
        scratch.mkdir()
        words = bad_command(rng, folder)
        before = contents(folder)
        outcome = Outcome(seed, words)
        streams = rng.choice(STREAMS)
        is_program = rng.random() < share
        variables = {"TMPDIR": str(scratch)}
        if is_program:
            for key in rng.sample(sorted(ODD_ENVIRONMENT), rng.choice([0, 1, 1, 2, 3])):
                variables[key] = rng.choice(ODD_ENVIRONMENT[key])
        output, error = Path(name) / "output", Path(name) / "error"
        began = time.perf_counter()
        if is_program:
            child = os.posix_spawn(
                "/bin/sh",
                ["/bin/sh", "-c", f"cd '{folder}' && exec {redirected(streams, output, error)}", sys.executable, *words],
                {**os.environ, **variables},
            )
        else:
            child = fork(words, folder, scratch, streams, output, error)
        outcome.code = wait(child, HANGS)
        outcome.seconds = time.perf_counter() - began
        outcome.counts.update(["commands", "as programs" if is_program else "forked", f"exit code {outcome.code}"])
        judge_streams(outcome, output, error, streams)
        judge_files(outcome, folder, before)
        judge_scratch(outcome, scratch)
    return outcome


def redirected(streams: str, output: Path, error: Path) -> str:
    """The program, for a shell: `$0` is Python, and `$@` the words."""
    where = {
        "no input": f"<&- >'{output}' 2>'{error}'",
        "no output": f">&- 2>'{error}'",
        "no error": f">'{output}' 2>&-",
        "nothing": "<&- >&- 2>&-",
        "full": f">/dev/full 2>'{error}'",
    }
    command = (
        f'"$0" -m checkmate "$@" {where.get(streams, f"</dev/null >{chr(39)}{output}{chr(39)} 2>{chr(39)}{error}{chr(39)}")}'
    )
    return command


def fork(words: list[str], folder: Path, scratch: Path, streams: str, output: Path, error: Path) -> int:
    """The command as a program would run it, but with everything imported already; returns the process's id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.chdir(folder)
        tempfile.tempdir = str(scratch)
        redirect(streams, output, error)
        sys.argv = ["checkmate", *words]
        from checkmate.cli import main

        try:
            code = main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
        with suppress(OSError):
            os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def redirect(streams: str, output: Path, error: Path) -> None:
    """Standard streams of this process from now on."""
    reader, writer = os.pipe()
    os.close(reader)
    names = {"full": "/dev/full"}
    targets = [os.open("/dev/null", os.O_RDONLY)]
    targets.append(writer if streams == "reader left" else os.open(names.get(streams, output), os.O_WRONLY | os.O_CREAT, 0o600))
    targets.append(os.open(error, os.O_WRONLY | os.O_CREAT, 0o600))
    closed = {"no input": [0], "no output": [1], "no error": [2], "nothing": [0, 1, 2]}.get(streams, [])
    for number, target in enumerate(targets):
        os.dup2(target, number)
        os.close(target)
    sys.stdin = None if 0 in closed else open(0, closefd=False)  # type: ignore[assignment]  # noqa: SIM115 - as Python starts
    sys.stdout = None if 1 in closed else open(1, "w", closefd=False)  # type: ignore[assignment]  # noqa: SIM115
    sys.stderr = None if 2 in closed else open(2, "w", closefd=False)  # type: ignore[assignment]  # noqa: SIM115
    for number in closed:
        os.close(number)


def wait(child: int, seconds: float) -> int | None:
    """The exit code of a process; None if it had to be killed."""
    handle = os.pidfd_open(child)
    try:
        ready, _, _ = select.select([handle], [], [], seconds)
        if not ready:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(handle)
    return os.waitstatus_to_exitcode(status) if ready else None


# --- interrupts ---


def run_interrupt(seed: int, material: Path) -> Outcome:
    """One command that is interrupted."""
    rng = random.Random(f"interrupt {seed}")
    with tempfile.TemporaryDirectory(prefix="checkmate-fuzz-") as name:
        folder, scratch = Path(name) / "work", Path(name) / "scratch"
        shutil.copytree(material, folder, symlinks=True)
        scratch.mkdir()
        words = search_command(rng, folder)
        before = contents(folder)
        outcome = Outcome(seed, words)
        mark = uuid.uuid4().hex
        number = rng.choice([signal.SIGINT, signal.SIGTERM])
        moments = [rng.uniform(0.0, MOMENTS.get(words[0], MOMENT)) * rng.choice([0.1, 1.0, 1.0])]
        moments += [rng.uniform(0.0, 0.3)] * (rng.random() < 0.2)
        variables = {**os.environ, "TMPDIR": str(scratch), "CHECKMATE_FUZZ": mark}
        output, error = Path(name) / "output", Path(name) / "error"
        with output.open("wb") as out, error.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "checkmate", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env=variables,
                start_new_session=True,
            )
        for moment in moments:
            with suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            with suppress(ProcessLookupError):
                process.send_signal(number)
        began = time.perf_counter()
        outcome.code = wait(process.pid, HANGS_INTERRUPTED) if process.returncode is None else process.returncode
        outcome.seconds = time.perf_counter() - began
        words.append(f"  # {number.name} after {', '.join(f'{moment:.2f}' for moment in moments)} s")
        judge_interrupt(outcome, number, output, error)
        judge_files(outcome, folder, before)
        left = [process for process in psutil.process_iter() if is_marked(process, mark)]
        if left:
            outcome.wrong["processes left"] = ", ".join(str(process) for process in left)
            for one in left:
                one.kill()
        judge_scratch(outcome, scratch)
    return outcome


def is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("CHECKMATE_FUZZ") == mark
    except psutil.Error:
        return False


def judge_interrupt(outcome: Outcome, number: signal.Signals, output: Path, error: Path) -> None:
    text = error.read_text(errors="replace")
    ended = "killed by a signal" if outcome.code is None or outcome.code < 0 else f"exit code {outcome.code}"
    outcome.counts.update(["interrupts", f"interrupts: {number.name}", f"interrupts: {outcome.words[0]}: {ended}"])
    if outcome.code is None:
        outcome.wrong["hang"] = f"{HANGS_INTERRUPTED:g} s after the last interrupt"
    elif "Traceback" in text or "Exception ignored" in text:
        if f"{os.sep}checkmate{os.sep}" in text:
            outcome.wrong["traceback"] = text
        else:
            outcome.counts["interrupts: in Python's own start or end"] += 1
    elif outcome.code == -number:
        outcome.counts["interrupts: in Python's own start or end"] += 1
    elif outcome.code not in (0, 1, 2):
        outcome.wrong["exit code"] = f"{outcome.code}: {text}"
    elif outcome.code and text.count("checkmate: error: ") != 1:
        outcome.wrong["not one line"] = text


# --- what is wrong ---


def judge_streams(outcome: Outcome, output: Path, error: Path, streams: str) -> None:
    """One line of error at most, no traceback, nothing that does something to a terminal."""
    if outcome.code is None:
        outcome.wrong["hang"] = f"{HANGS:g} s"
    elif outcome.code not in (0, 1, 2):
        outcome.wrong["exit code"] = str(outcome.code)
    said = {one.name: one.read_bytes().decode(errors="replace") if one.exists() else "" for one in (output, error)}
    for text in said.values():
        if "Traceback" in text or "Exception ignored" in text or "Error in sys.excepthook" in text:
            outcome.wrong["traceback"] = text
        if not text.replace("\n", "").isprintable() and "\ufffd" not in text:
            outcome.wrong["control characters"] = ascii(text[:2000])
    errors = said["error"].count("checkmate: error: ")
    is_heard = streams not in ("no error", "nothing")
    if is_heard and (errors > 1 or (outcome.code == 2 and (errors != 1 or said["error"].count("\n") != 1))):
        outcome.wrong["not one line"] = said["error"]


def contents(folder: Path) -> dict[str, bytes]:
    """Of every file under a folder."""
    paths = [one for one in folder.rglob("*") if one.is_file() and not one.is_symlink()]
    return {str(one.relative_to(folder)): one.read_bytes() for one in paths}


def judge_files(outcome: Outcome, folder: Path, before: dict[str, bytes]) -> None:
    """Every file is as it was, or whole."""
    after = contents(folder)
    for name, data in before.items():
        if name not in after:
            outcome.wrong["file gone"] = ascii(name)
        elif after[name] != data and not is_whole(name, after[name]):
            outcome.wrong["damaged file"] = ascii(name)
    for name in after.keys() - before.keys():
        if Path(name).name.startswith(".checkmate-"):
            outcome.wrong["temporary files left"] = ascii(name)
        elif not is_whole(name, after[name]):
            outcome.wrong["damaged file"] = ascii(name)


def judge_scratch(outcome: Outcome, scratch: Path) -> None:
    """Nothing temporary is left, unless the process had to be killed."""
    left = [one.name for one in scratch.iterdir() if not one.name.startswith(KEPT)]
    if left and outcome.code is not None:
        outcome.wrong["temporary files left"] = ", ".join(left)


def is_whole(name: str, data: bytes) -> bool:
    """The end of a file of this kind is there."""
    ends = {".png": b"IEND\xaeB`\x82", ".svg": b"</svg>", ".pdf": b"%%EOF", ".html": b"</html>", ".json": b"}"}
    kind = ".html" if data.startswith(b"<!doctype html>") else Path(name).suffix.lower()  # a page may have any name
    end = ends.get(kind)
    return len(data) > 0 if end is None else data.rstrip().endswith(end)


# --- all together ---


def start_worker() -> None:
    """Ctrl-C is for the parent; what takes long to import is there before the first command is forked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg  # noqa: F401 - for what is forked

    import checkmate.cli.run
    from checkmate.report import plot_schedule

    nodes = [{"name": f"op{i}", "cost": 1, "memory": 10} for i in range(8)]
    edges = [[i, i + 1] for i in range(7)] + [[i, 7 - i] for i in range(3)]
    graph = checkmate.Graph.from_dict({"nodes": nodes, "edges": edges})
    with tempfile.TemporaryDirectory() as folder:
        plot_schedule(checkmate.solve(graph, "80%"), Path(folder) / "p.png")
    signal.signal(signal.SIGINT, signal.default_int_handler)


def outcomes(options: argparse.Namespace, material: Path) -> Iterator[Outcome]:
    """Of all commands and interrupts, as they come."""
    commands = range(options.seed, options.seed + options.commands)
    interrupts = range(options.seed, options.seed + options.interrupts)
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.workers, start_worker) as pool:
        yield from pool.imap_unordered(partial(run_command, share=options.programs, material=material), commands, chunksize=4)
        yield from pool.imap_unordered(partial(run_interrupt, material=material), interrupts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commands", type=int, default=1000, help="bad command lines (default: 1000)")
    parser.add_argument("--interrupts", type=int, default=100, help="default: 100")
    parser.add_argument("--programs", type=float, default=0.05, help="part that runs as programs of their own (default: 0.05)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the first command, and of the first interrupt")
    parser.add_argument("--output", type=Path, default=Path("command_line_fuzz.json"), help="JSON file")
    options = parser.parse_args()
    began = time.perf_counter()
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    slowest: dict[str, tuple[float, int]] = {"command": (0.0, 0), "end after the last interrupt": (0.0, 0)}
    with tempfile.TemporaryDirectory(prefix="checkmate-fuzz-") as name:
        material = Path(name) / "material"
        materials(material)
        for done, outcome in enumerate(outcomes(options, material), 1):
            counts.update(outcome.counts)
            if done % 100 == 0:
                print(f"{done} commands and interrupts, {len(failures)} failures", flush=True)
            kind = "end after the last interrupt" if "interrupts" in outcome.counts else "command"
            slowest[kind] = max(slowest[kind], (outcome.seconds, outcome.seed))
            for wrong, seen in outcome.wrong.items():
                words = [ascii(word)[1:-1] for word in outcome.words]
                failures.append({"seed": outcome.seed, "kind": kind, "words": words, "wrong": wrong, "seen": seen[-3000:]})
                print(f"seed {outcome.seed} ({kind}): {wrong}: {' '.join(words)[:500]}\n{seen[-2000:]!a}", flush=True)
    seconds = time.perf_counter() - began
    settings = {key: getattr(options, key) for key in ("commands", "interrupts", "programs", "workers", "seed")}
    data = {"environment": environment(), "settings": settings, "seconds": seconds, "slowest": slowest}
    data |= {"counts": dict(sorted(counts.items())), "failures": sorted(failures, key=lambda one: one["seed"])}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    kinds = Counter(one["wrong"] for one in failures)
    rows = [*sorted(counts.items()), *((f"failures: {kind}", number) for kind, number in sorted(kinds.items()))]
    rows += [("failures", len(failures)), *((f"slowest {k}", f"{s:.1f} s (seed {n})") for k, (s, n) in slowest.items())]
    for label, figure in rows:
        print(f"{label:60} {figure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
