"""A headless Chromium shows one page, and is told what to do over a pipe, by its DevTools protocol."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT_S = 60.0
_READ, _WRITE = 3, 4  # Chromium's own numbers of the pipe's ends


class Browser:
    """`with`: one page that is empty at first.

    Attributes:
      events: that Chromium has told, as what its console said.
    """

    def __init__(self, *flags: str) -> None:
        assert CHROMIUM is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The shell gives the ends their numbers. Sandboxes need what a container's root hasn't.
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--disable-dev-shm-usage",
        ]
        command += [
            f"--user-data-dir={self._folder.name}",
            "--no-first-run",
            "--hide-scrollbars",
            *flags,
            "about:blank",
        ]
        dup = f'exec "$@" {_READ}<&{theirs_in} {_WRITE}>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", dup, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self._session = None
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Returns the answer. Raises AssertionError if Chromium says that it can't, or nothing."""
        number = next(self._numbers)
        said: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            said["sessionId"] = self._session
        os.write(self._out, json.dumps(said).encode() + b"\0")
        until = time.monotonic() + LIMIT_S
        while (heard := self._hear(until)).get("id") != number:
            self.events.append(heard)
        assert "error" not in heard, (method, heard)
        result: dict[str, Any] = heard["result"]
        return result

    def _hear(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert readable, "Chromium doesn't answer"
            read = os.read(self._in, 1 << 20)
            assert read, "Chromium has ended"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def open(self, url: str) -> None:
        """Returns when the page is there, with its scripts."""
        self.call("Page.navigate", url=url)
        end = time.monotonic() + LIMIT_S
        while not self.value("document.readyState == 'complete' && document.body !== null"):
            assert time.monotonic() < end, f"{url} isn't loaded"
            time.sleep(0.02)

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )

    def prefer(self, scheme: str) -> None:
        """`scheme`: of colours, "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression: str) -> Any:
        """Evaluates JavaScript in the page, and returns its value, which JSON can have."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str, timeout_s: float = LIMIT_S) -> Any:
        """Waits until the expression is true, and returns its value."""
        end = time.monotonic() + timeout_s
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"{expression} isn't true:\n{self.value('document.body.innerText')}"
            time.sleep(0.1)
        return found

    def screenshot(self, file: Path) -> None:
        """Writes a picture of the whole page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))
