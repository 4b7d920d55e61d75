"""A process that runs one command in a folder, and ends it and removes the folder when whoever asked for it is gone.

    python child_guard.py FOLDER EXIT_CODE_FILE

The first line of standard input is the command, a list of strings as JSON; any further byte interrupts it (SIGINT). When standard
input ends, be it because the asking process was killed, the command is killed and the folder goes. The exit code is written to the
file (a name in the folder). Run as a script, by itself: it imports nothing of this package, so as to start fast.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

#: What the command prints, in the folder.
LOG = "log.txt"


def main(folder: Path, code: str) -> None:
    """See the module's description."""
    try:
        if command := _command():
            with (folder / LOG).open("wb") as log:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            report = threading.Thread(target=_report, args=(process, folder, code), daemon=True)
            report.start()
            while os.read(0, 1):
                process.send_signal(signal.SIGINT)
            process.kill()
            report.join()  # a file written while the folder is being removed would leave the folder there
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _command() -> list[str]:
    """The first line, and nothing of what comes after it; empty if there is none."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return []
        line += byte
    return [str(word) for word in json.loads(line)]


def _report(process: subprocess.Popen[bytes], folder: Path, code: str) -> None:
    part = folder / f"{code}.part"
    part.write_text(str(process.wait()), encoding="ascii")
    part.replace(folder / code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
