"""What is published, and how: nothing in it is moved by somebody else."""

from __future__ import annotations

import re
import tomllib

import pytest

from docs_blocks import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.mark.parametrize("name", sorted(path.name for path in WORKFLOWS.glob("*.yml")))
def test_actions_are_pinned_by_hash(name: str) -> None:
    """With the version beside it, and the same one everywhere."""
    text = (WORKFLOWS / name).read_text(encoding="utf-8")
    used = re.findall(r"uses: (.+)", text)
    if name == "ci.yml":
        used = [one for one in used if "@v" not in one]
    assert used or name == "ci.yml"
    for one in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one), one
    assert "permissions:" in text


def test_publishing_needs_no_password() -> None:
    text = (WORKFLOWS / "release.yml").read_text(encoding="utf-8")
    assert "id-token: write" in text and "attestations: true" in text
    assert not re.search(r"secrets\.|password", text.replace("no password", ""))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    assert f"https://pypi.org/project/{project}/" in text


def test_tests_that_workflows_name_are_there() -> None:
    text = (WORKFLOWS / "dependencies.yml").read_text(encoding="utf-8")
    for name in re.findall(r"(?<=[ =])tests/[\w/.]+(?=[ \n])", text):
        assert (ROOT / name).exists(), name
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"extra: ([\w-]+)", text)) <= set(extras)


def test_the_archive_has_what_its_tests_read() -> None:
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()]
    included = {name for kind, *names in lines if kind in ("graft", "include") for name in names}
    assert {"src", "tests", "docs", "benchmarks", "tutorials", "constraints.txt", "Makefile", "setup.py", ".github"} <= included
    assert all((ROOT / name).exists() for name in included)
