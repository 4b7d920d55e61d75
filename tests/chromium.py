"""A headless Chromium for tests of pages, driven through its DevTools protocol over two pipes: nothing to install."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Seconds for one answer, on a machine that has much else to do.
_PATIENCE = 120.0

_KEYS = {"PageUp": 33, "PageDown": 34, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
_KEYS |= {"Escape": 27, "Enter": 13, "Tab": 9}


def program() -> str | None:
    """The browser of this machine, if it has one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One page. What it complains of is in `complaints`: exceptions, errors and warnings of scripts, requests that were refused."""

    def __init__(self, read: int, write: int):
        self._read, self._write = read, write
        self._text = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._events.append(answer)

    def _next(self) -> dict[str, Any]:
        ends = time.monotonic() + _PATIENCE
        while b"\0" not in self._text:
            assert select.select([self._read], [], [], max(0.0, ends - time.monotonic()))[0], "the browser does not answer"
            some = os.read(self._read, 1 << 20)
            assert some, "the browser has ended"
            self._text += some
        message, self._text = self._text.split(b"\0", 1)
        return json.loads(message)  # type: ignore[no-any-return]

    def open(self, path: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a page and wait until it is drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.colours("dark" if dark else "light")
        self.load(path)
        self.drawn()

    def load(self, path: Path) -> None:
        """Load a page, which may draw later or never."""
        self._events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        while all(event["method"] != "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())

    def colours(self, scheme: str) -> None:
        """What the system prefers: "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def drawn(self) -> None:
        """Wait until the next frame has been drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def press(self, key: str, shift: bool = False) -> None:
        code = _KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            modifiers = 8 if shift else 0
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, modifiers=modifiers, **text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    @property
    def complaints(self) -> list[dict[str, Any]]:
        return [one for one in self._events if one["method"].startswith(("Runtime.exception", "Runtime.console", "Log."))]


@contextmanager
def chromium(folder: Path) -> Iterator[Chromium]:
    """The browser, with a profile of its own in `folder`."""
    found = program()
    assert found is not None
    command = [found, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    command += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
    ends = os.pipe() + os.pipe()
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in ends]  # away from those that it uses
    for one in ends:
        os.close(one)
    its_read, our_write, our_read, its_write = high
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    pipes = [(os.POSIX_SPAWN_DUP2, its_read, 3), (os.POSIX_SPAWN_DUP2, its_write, 4)]  # where it looks for them
    process = os.posix_spawn(found, command, os.environ, file_actions=[*quiet, *pipes], setsid=True)
    os.close(its_read)
    os.close(its_write)
    try:
        yield Chromium(our_read, our_write)
    finally:
        os.close(our_write)
        os.close(our_read)
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # its helper processes too
        os.waitpid(process, 0)
