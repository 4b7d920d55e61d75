"""The page on troubleshooting explains every message that the code can raise, and none that it cannot."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from checkmate.errors import InfeasibleBudget
from messages import HOLE, Message, error_classes, messages

PAGE = (Path(__file__).parent.parent / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
#: What the page shows of messages: the first cell of each row, one or several.
ENTRIES = [
    entry for cell in re.findall(r"^\| (`.+?`) \|", PAGE, re.MULTILINE) for entry in re.findall(r"`(.+?)`(?:<br>|$)", cell)
]
#: Messages of which a part comes from elsewhere, so that the source does not show them whole, and where that is.
ELSEWHERE = {
    "... (try ... --help)": "what argparse says",
    "... raised ...": "cli/user_code.py",
    "interrupted": "cli/__init__.py",
    "the first step peaked at ...": "tf2/step.py, with words of planning/plan.py",
    "step ... peaked at ...": "tf2/step.py, with words of planning/plan.py",
    "HiGHS failed: ...": "solvers/mixed_integer/highs_worker.py",
    "cannot write the program: ...": "solvers/mixed_integer/highs_worker.py",
    "Trying to backward through the graph a second time": "torch/graphs/part.py, a RuntimeError as in PyTorch",
    "one of the variables needed for gradient computation has been modified by an inplace operation": "torch/graphs/part.py, the same",
}


def matches(entry: str, message: str) -> bool:
    """The message begins as the entry says: `...` is one thing that is filled in."""
    wanted = entry.replace("...", HOLE)
    if re.search(r"[a-z]", wanted.rstrip(HOLE + " :;,()").split(HOLE)[-1]) is None:
        return message.replace("...", HOLE) == wanted
    return message.replace("...", HOLE).startswith(wanted)


def test_the_page_has_entries() -> None:
    assert len(ENTRIES) > 150
    assert len(ENTRIES) == PAGE.count("`<br>") + len(re.findall(r"^\| `", PAGE, re.MULTILINE))


@pytest.mark.parametrize("message", messages(), ids=lambda one: f"{one.file}:{one.line}")
def test_every_message_is_explained(message: Message) -> None:
    known = [entry for entry in ENTRIES if entry not in ELSEWHERE and matches(entry, message.template)]
    assert known or message.file == "cli/parser.py", f"docs/troubleshooting.md has no entry for: {message.template!r}"


@pytest.mark.parametrize("entry", sorted(set(ENTRIES) - set(ELSEWHERE)))
def test_no_entry_is_out_of_date(entry: str) -> None:
    known = {message.template for message in messages()} | {infeasible()}
    assert any(matches(entry, template) for template in known)


@cache
def infeasible() -> str:
    """What InfeasibleBudget says by itself, as a template."""
    said = re.sub(r"[\d.]+ (B|[KMG]iB) \(\d+ bytes\)", f"{HOLE} ({HOLE} bytes)", str(InfeasibleBudget(5, 7, 9)))
    return re.sub(r"\) (is|was) [a-z ]+;", f") {HOLE};", said)


def test_what_infeasible_budget_says_by_itself_is_explained() -> None:
    assert any(matches(entry, infeasible()) for entry in ENTRIES)


def test_all_classes_of_errors_are_followed() -> None:
    assert {
        "CheckmateError",
        "InfeasibleBudget",
        "Contradiction",
        "BadUsage",
        "FailedInUserCode",
        "TuningError",
    } <= error_classes()
    kinds = {message.kind for message in messages()}
    assert {"GraphError", "BudgetError", "InvalidSchedule", "UnknownMethod", "InfeasibleBudget", "warn", "tell", "_warn"} <= kinds


def test_messages_from_elsewhere_are_still_there() -> None:
    source = Path(__file__).parent.parent / "src" / "checkmate"
    for entry, where in ELSEWHERE.items():
        file = re.match(r"[\w/]+\.py", where)
        if file is not None:
            longest = max(re.split(r"\.\.\.", entry), key=len).strip(": ")
            if "peaked at" in entry:
                longest, file = "peaked at", re.search(r"planning/plan\.py", where)
            assert file is not None
            assert longest.split()[0] in (source / file[0]).read_text(encoding="utf-8")
