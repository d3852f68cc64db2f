"""A headless Chromium to look at pages with: Debian's program, driven by playwright."""

import os
import shutil
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Playwright, Request, sync_playwright

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")

ColorScheme = Literal["light", "dark"]


def chromium() -> str | None:
    """Return the path of an installed Chromium; None without one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A headless Chromium that shows one page.

    Attributes:
        page: the page, or None before the first one.
        faults: what the pages did that no page may do: errors in the console, dialogs, and requests to hosts that were not allowed.
        requests: address of each request.
    """

    page: Page
    _drivers: ClassVar[list[Playwright]] = []
    _open: ClassVar[list["Browser"]] = []

    def __init__(self, program: str, languages: str = "en-US,en") -> None:
        """Start the browser of a reader of some languages; all browsers of a process have one driver."""
        if not self._drivers:
            self._drivers.append(sync_playwright().start())
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has no sandbox for root; the pages are our own
        options, self._languages = ["--disable-gpu", "--no-first-run", *sandbox], languages
        self._browser = self._drivers[0].chromium.launch(executable_path=program, args=options)
        self._context: BrowserContext | None = None
        self._open.append(self)
        self.faults, self.requests = list[str](), list[str]()

    def close(self) -> None:
        """End the browser."""
        self._browser.close()
        self._open.remove(self)
        if not self._open:
            self._drivers.pop().stop()

    def new_page(
        self, width: int = 1440, scheme: ColorScheme = "light", language: str | None = None, host: str | None = None, offline: bool = False
    ) -> Page:
        """Make an empty page in a new context, without anything stored; end the one before.

        Args:
            width: of the window in CSS pixels; below 600, those of a phone.
            scheme: color scheme that the reader prefers.
            language: language that the reader prefers; None for those of the browser.
            host: host and port that may be contacted; None for files only.
            offline: whether there is no network.
        """
        if self._context is not None:
            self._context.close()
        self._context = self._browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            is_mobile=width < 600,
            has_touch=width < 600,
            offline=offline,
            permissions=["clipboard-read", "clipboard-write"],
        )
        self.page, self.faults, self.requests = self._context.new_page(), [], []
        agent, languages = self.page.evaluate("navigator.userAgent"), language or self._languages
        override = {"userAgent": agent, "acceptLanguage": languages}
        self._context.new_cdp_session(self.page).send("Emulation.setUserAgentOverride", override)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.faults.append(f"error of the page: {error}"))
        self.page.on("request", lambda request: self._watch(request, host))
        self.page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        return self.page

    def _hear(self, message: ConsoleMessage) -> None:
        reads_pixels = message.text.startswith("Canvas2D: Multiple readback operations")  # as tests do, not the page
        if message.type in ("error", "warning", "assert") and not reads_pixels:
            self.faults.append(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def _watch(self, request: Request, host: str | None) -> None:
        self.requests.append(request.url)
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "file", "about") and parts.netloc != host:
            self.faults.append(f"request to {request.url}")

    def open(self, file: Path, width: int, scheme: ColorScheme) -> None:
        """Load a file in a window of ``width`` CSS pixels and a color scheme."""
        self.new_page(width, scheme).goto(file.absolute().as_uri())

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, as JSON."""
        return self.page.evaluate(expression)

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page."""
        self.page.screenshot(path=file, full_page=True)
