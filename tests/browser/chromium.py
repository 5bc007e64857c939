"""Open pages in the system's Chromium; no browser is downloaded.

Without Chromium, tests are skipped with the reason; with ``CONTINUAL_PETL_BROWSER=required``, as in CI, they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REQUIRED = "CONTINUAL_PETL_BROWSER"
MISSING = (
    f"no Chromium: none of {', '.join(NAMES)} is on PATH; on Debian and Ubuntu, run `apt-get install chromium`; "
    "elsewhere, set the variable CHROMIUM to its path"
)
TRACES = ".main-svg .trace, .main-svg .hm image, .main-svg .bars .point"
"""Elements that a figure has only once it is drawn."""
DRAWN = """() => {
  scrollTo({ top: document.body.scrollHeight, behavior: "instant" });
  const places = [...document.querySelectorAll(".plot")];
  const left = places.filter((place) => !place.querySelector("TRACES"));
  left[0]?.scrollIntoView({ behavior: "instant" });
  return places.length > 0 && left.length === 0;
}""".replace("TRACES", TRACES)


def program() -> str:
    """Return the path of Chromium.

    Raises:
        pytest.skip.Exception: if there is no Chromium; pytest.fail.Exception instead, if a browser is required.
    """
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{MISSING}; {REQUIRED}=required forbids skipping these tests")
    if found is None:
        pytest.skip(MISSING)
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    """Launch the browser, without its sandbox, which fails in containers and as root; it only opens our own pages."""
    path = program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page with its errors and requests; ``first`` is a script that runs before the page's own scripts."""

    def __init__(self, browser: Browser, address: str, first: str = "", **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **context})
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.set_default_timeout(60_000)
        self.page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("requestfailed", lambda request: self.wrong.append(f"failed: {request.url}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.add_init_script(first)
        self.page.goto(address)

    def draw(self) -> None:
        """Scroll until every figure is drawn, and back."""
        self.page.wait_for_function(DRAWN)
        self.page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")

    def axe(self) -> list[str]:
        """Return the accessibility problems that axe-core finds."""
        self.page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text("utf-8"))
        found = self.page.evaluate("axe.run({ resultTypes: ['violations'] })")
        return [
            f"{rule['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]


@contextmanager
def tab(browser: Browser, page: Path | str, **context: Any) -> Iterator[Tab]:
    """Open a page, from disk or a server, and check that it logs no console message, error or failed request."""
    opened = Tab(browser, page.resolve().as_uri() if isinstance(page, Path) else page, **context)
    try:
        yield opened
        assert opened.wrong == []
    finally:
        opened.context.close()
