"""Costs that were measured on one processor are not taken for those of another."""

from __future__ import annotations

from pathlib import Path

from checkmate.planning.environment import cost_environment, processor_name

INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\nprocessor\t: 1\nCPU part\t: 0xd4f\n"


def test_the_model_of_the_processor(tmp_path: Path) -> None:
    names = []
    for text in (INTEL, INTEL.replace("6330", "8380"), ARM, ARM.replace("0xd40", "0xd0c"), "nothing"):
        file = tmp_path / f"{len(names)}"
        file.write_text(text)
        names.append(processor_name(file))
    assert names[0] == "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz"
    assert names[2].endswith("CPU implementer 0x41, CPU part 0xd40")
    assert len(set(names)) == 5
    assert processor_name(tmp_path / "none") == names[-1]


def test_everything_that_matters_is_in_it() -> None:
    one = cost_environment("numpy", "2", "cpu", 4, fused=True)
    assert one["processor"] == processor_name()
    assert one["processors"] >= 1
    others = [
        cost_environment("torch", "2", "cpu", 4, fused=True),
        cost_environment("numpy", "3", "cpu", 4, fused=True),
        cost_environment("numpy", "2", "H200", 4, fused=True),
        cost_environment("numpy", "2", "cpu", 5, fused=True),
        cost_environment("numpy", "2", "cpu", 4, fused=False),
    ]
    assert all(one != other for other in others)
