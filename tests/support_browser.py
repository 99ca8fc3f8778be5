"""A headless Chromium for tests: skipped where none is installed, unless the environment insists on one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REQUIRE = "SPECBENCH_REQUIRE_BROWSER"
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LOCAL = ("file:", "data:", "blob:")


def find_browser() -> str:
    """Path of a Chromium. Skips the test without one, or fails it where `REQUIRE` is set."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        message = f"no Chromium is installed (looked for {', '.join(_NAMES)}); apt-get install chromium"
        if os.environ.get(REQUIRE):
            pytest.fail(message)
        pytest.skip(message)
    return found


class Session:
    """One browser for many pages, and what any of them complained of or asked the network for."""

    def __init__(self, browser: Any, root: Path) -> None:
        self.browser = browser
        self.root = root
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._shared: Any = None

    @contextmanager
    def page(self, path: str, **options: Any) -> Iterator[Any]:
        """A page of the site; with ``options`` of a browser context, in a context of its own."""
        if options:
            context = self._context(**options)
        else:
            context = self._shared = self._shared or self._context()
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"{path}: {error}"))
        page.on("request", lambda request: self.requests.append(request.url))
        try:
            page.goto(self.url(path), wait_until="domcontentloaded")
            yield page
        finally:
            if context is self._shared:
                page.close()
            else:
                context.close()

    def _context(self, **options: Any) -> Any:
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(30_000)
        return context

    def url(self, path: str) -> str:
        """The address of a page on the disk."""
        return self.root.resolve().as_uri() + "/" + path

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    @property
    def strangers(self) -> list[str]:
        """Requests that left the disk."""
        return [url for url in self.requests if not url.startswith(_LOCAL)]


@contextmanager
def browser_session(root: Path) -> Iterator[Session]:
    """A browser on the site in ``root``."""
    path = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # as root, in a container, Chromium has no sandbox of its own
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield Session(browser, root)
        finally:
            browser.close()


def ready(page: Any) -> None:
    """Wait until the board is drawn."""
    page.wait_for_selector("#board[data-drawn]")


def after(page: Any, act: Any) -> None:
    """Do something and wait until the board has been drawn again."""
    before = page.get_attribute("#board", "data-drawn")
    act()
    page.wait_for_function("before => document.getElementById('board').dataset.drawn !== before", arg=before)


def unfold(page: Any) -> None:
    """Long tables show their first rows only, until asked."""
    ready(page)
    for button in ("button.more-groups", "button.more"):
        while page.locator(button).count():
            after(page, lambda button=button: page.locator(button).first.click())


def rows_of(page: Any) -> list[dict[str, Any]]:
    """The rows of the board: run, place, text, the headings of its table, and cells with value and text."""
    script = """rows => rows.map(row => ({
        run: row.dataset.run, place: row.cells[0].textContent, text: row.cells[1].textContent,
        heads: [...row.closest("table").tHead.rows[0].cells].map(cell => cell.querySelector("button")?.textContent),
        cells: [...row.cells].map(cell => ({value: cell.dataset.value ?? null, text: cell.textContent})),
    }))"""
    found: list[dict[str, Any]] = page.eval_on_selector_all("#board tbody tr", script)
    return found
