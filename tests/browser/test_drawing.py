"""Figures are drawn without scrolling, each once, and released with the part of the page that they are in."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from continual_petl.cli.main import main
from tests.browser.chromium import TRACES, Tab, tab

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

COUNTED = """
let plotly;
Object.defineProperty(globalThis, "Plotly", { get: () => plotly, set: (value) => {
  plotly = { ...value, react: (place, ...more) => {
    place.times = (place.times ?? 0) + 1;
    return value.react(place, ...more);
  } };
} });
"""
"""Counts how often each figure is drawn."""
TIMES = "(all) => all.map((place) => place.times ?? 0)"


def wait_until_drawn(page: Page, which: str = ".plot") -> None:
    """Wait, without scrolling, until every figure in ``which`` is drawn."""
    page.wait_for_function(
        "([which, traces]) => [...document.querySelectorAll(which)].every((place) => place.querySelector(traces))",
        arg=[which, TRACES],
    )


def below(page: Page) -> int:
    """Return how many figures are too far below the viewport to count as near."""
    tops: list[float] = page.locator(".plot").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().top)")
    return sum(top > 900 + 800 for top in tops)


def test_unscrolled_page_draws_every_figure_once(browser: Browser, report: Path) -> None:
    with tab(browser, report, first=COUNTED) as opened:
        page = opened.page
        page.locator("#details h3").wait_for(state="attached")
        wait_until_drawn(page)
        assert page.evaluate("scrollY") == 0
        assert below(page) >= 3
        assert page.locator("#details .plot").count() >= 1
        assert set(page.locator(".plot").evaluate_all(TIMES)) == {1}
        opened.draw()
        assert set(page.locator(".plot").evaluate_all(TIMES)) == {1}, (
            "a figure must not be drawn again when it is scrolled into view"
        )
        assert [url for url in opened.asked if "/tasks/" in url] == [
            url for url in opened.asked if "/tasks/000000.js" in url
        ], "details of other tasks are only read on request"


def num_nodes(opened: Tab) -> int:
    """Return how many nodes the browser holds for the page, including detached ones."""
    session = opened.context.new_cdp_session(opened.page)
    session.send("HeapProfiler.collectGarbage")
    found: int = session.send("Memory.getDOMCounters")["nodes"]
    session.detach()
    return found


def test_browsing_tasks_releases_earlier_figures(browser: Browser, report: Path) -> None:
    with tab(browser, report) as opened:
        page = opened.page

        def leaf() -> None:
            for button, name in (("Next task", "two"), ("Previous task", "one")):
                page.get_by_role("button", name=button).click()
                page.wait_for_function(f"() => document.querySelector('#details h3')?.textContent === '{name}'")
                wait_until_drawn(page)

        leaf()
        before = num_nodes(opened)
        for _ in range(8):
            leaf()
        one_figure = page.locator("#details .plot").first.evaluate("(place) => place.querySelectorAll('*').length")
        assert num_nodes(opened) - before < one_figure, "earlier figures must be released"


def test_refreshed_page_keeps_its_position_and_draws_nothing_twice(
    browser: Browser, learned: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(learned, tmp_path / "banks")
    argv = [sys.executable, "-m", "continual_petl", "report", str(run), "--serve"]
    served = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", served.stdout.readline())
        assert address is not None
        with tab(browser, address[0], first=COUNTED) as opened:
            page = opened.page
            page.locator("#details h3").wait_for(state="attached")
            wait_until_drawn(page)
            where = "document.querySelector('#learning').getBoundingClientRect().top"
            page.evaluate("document.querySelector('#learning').scrollIntoView({ behavior: 'instant' })")
            before = page.evaluate(where)
            assert main(["forget", str(run), "two", "--yes"]) == 0
            page.locator("#task option", has_text="two").wait_for(state="detached")
            wait_until_drawn(page)
            assert abs(page.evaluate(where) - before) < 2
            assert "2 tasks learned" in page.locator(".verdict").inner_text()
            assert set(page.locator("main > section:not(#tasks) .plot").evaluate_all(TIMES)) == {1}
    finally:
        served.kill()
        served.communicate()
