"""As in a container that runs as some user: no home, a user that the system does not know, packages that cannot be written to.

Solves a graph, and trains a small PyTorch and a small Keras model under a budget, each in a process of its own. Needs root, to become
another user; the installation must be readable for all.

    python benchmarks/container.py [--user 12345] [--output container.json]

Exit code 1 if one of them fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from solver import environment

PROGRAMS = {
    "solve": """
import checkmate
from checkmate import networks
schedule = checkmate.solve(networks.unet(), "60%", time_limit=20)
assert schedule.peak <= schedule.budget
""",
    "pytorch": """
import torch, checkmate
torch.manual_seed(0)
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())])
plain, x = make(), torch.randn(2048, 64)
plain(x).square().mean().backward()
model = checkmate.torch.compile(make(), budget="80%")
model(x).square().mean().backward()
for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
    assert torch.equal(ours.grad, theirs.grad)
(plan,) = checkmate.torch.plans(model)
assert plan.measured_peak <= plan.budget
""",
    "keras": """
import keras, numpy, checkmate
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((32, 32, 3)), *[keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(6)]])
checkmate.tf2.prepare(model, budget="85%")
model.compile("sgd", "mse")
history = model.fit(numpy.ones((16, 32, 32, 3), "float32"), numpy.ones((16, 32, 32, 16), "float32"), batch_size=8, verbose=0)
(plan,) = checkmate.tf2.plans(model)
assert plan.measured_peak <= plan.budget and history.history["loss"][0] > 0
""",
}


def run(name: str, user: int) -> dict[str, object]:
    """One program, by that user, from a folder that it cannot write to."""
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        os.chmod(temporary, 0o777)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAMS[name]],
            env={**kept, "TMPDIR": temporary, "TF_CPP_MIN_LOG_LEVEL": "3"},
            cwd="/",
            user=user,
            group=user,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
    error = "" if done.returncode == 0 else done.stderr.strip()[-2000:]
    return {"program": name, "exit_code": done.returncode, "seconds": time.perf_counter() - began, "error": error}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--user", type=int, default=12345, help="number of a user that does not exist (default: 12345)")
    parser.add_argument("--output", type=Path, default=Path("container.json"), help="JSON file (default: container.json)")
    options = parser.parse_args()
    rows = []
    for name in PROGRAMS:
        rows.append(run(name, options.user))
        print(f"{name:10} exit code {rows[-1]['exit_code']}  {rows[-1]['seconds']:6.1f} s", flush=True)
        print(rows[-1]["error"], end="\n" if rows[-1]["error"] else "")
    data = {"environment": environment(), "user": options.user, "rows": rows}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["exit_code"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
