"""A headless Chromium to look at pages with, driven over its debugging pipe: no driver, no port, no further package."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")

ColorScheme = Literal["light", "dark"]


def chromium() -> str | None:
    """Return the path of an installed Chromium; None without one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, program: str, profile: Path, language: str = "en-US,en") -> None:
        """Start the browser of a user who reads ``language``; messages end with a null byte, ours on its descriptor 3, its own on 4."""
        (theirs, to_browser), (from_browser, other) = os.pipe(), os.pipe()
        options = ["--headless", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        options += [f"--accept-lang={language}", f"--lang={language.split(',')[0]}"]
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has no sandbox for root; the pages are our own
        command = [program, *options, *sandbox, "about:blank"]
        inherited = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, other)]  # neither is 3 or 4
        moved = 'exec "$@" 3<&{} 4>&{}'.format(*inherited)
        self.process = subprocess.Popen(
            ["bash", "-c", moved, "bash", *command], pass_fds=inherited, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for end in (theirs, other, *inherited):
            os.close(end)
        self._to, self._from = os.fdopen(to_browser, "wb", buffering=0), os.fdopen(from_browser, "rb")
        self._number, self._session = 0, ""
        (page, *_) = [each for each in self._call("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        self._session = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        self._call("Page.enable")

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        self._call("Browser.close")
        self.process.wait(timeout=60)
        self._to.close()
        self._from.close()

    def open(self, page: Path, width: int, scheme: ColorScheme) -> None:
        """Load a file in a window of ``width`` CSS pixels and a color scheme."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=page.absolute().as_uri())
        self._wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, as JSON."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page."""
        data = self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments} | ({"sessionId": self._session} if self._session else {})
        self._to.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next_message()).get("id") != self._number:
            pass
        assert "error" not in answer, (method, answer["error"])
        return dict(answer["result"])

    def _wait_for(self, event: str) -> None:
        while self._next_message().get("method") != event:
            pass

    def _next_message(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._from.read(1)) != b"\0":
            assert byte, "the browser ended"
            text += byte
        return dict(json.loads(text))
