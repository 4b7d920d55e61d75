"""Work in a process of its own: the part that the TensorFlow benchmarks share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def result_of(script: str, work: list[Any], **settings: str) -> dict[str, Any]:
    """What `script --worker WORK` prints in its last line, as JSON; `settings` are added to the environment."""
    command = [sys.executable, script, "--worker", json.dumps(work)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **settings}
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return dict(json.loads(process.stdout.splitlines()[-1]))
