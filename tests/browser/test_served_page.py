"""A served report during a run: new tasks appear on the open page without scrolling it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from continual_petl import learn
from tests.browser.chromium import tab
from tests.browser.conftest import QUICK, tasks_of_the_run
from tests.streams_in_code import stream, task

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

Folder = Callable[..., Path]
STILL = "() => { const last = globalThis.last; globalThis.last = scrollY; return last === scrollY; }"
"""True once the page has the same position in two frames."""


def test_new_task_appears_on_the_open_page_without_scrolling(
    browser: Browser, learned: Path, backbone_folder: Folder, tmp_path: Path
) -> None:
    run = shutil.copytree(learned, tmp_path / "banks")
    argv = [sys.executable, "-m", "continual_petl", "report", str(run), "--serve"]
    served = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", served.stdout.readline())
        assert address is not None
        with tab(browser, address[0]) as opened:
            page = opened.page
            opened.draw()
            page.get_by_role("button", name="Dark page").click()
            page.locator("#task").select_option(label="two")
            page.wait_for_function("() => document.querySelector('#details h3')?.textContent === 'two'")
            page.locator("#certificates thead button").first.click()
            page.locator("#certificates thead button").first.click()
            page.locator("figure", has=page.locator('[data-figure="seconds"]')).get_by_role(
                "button", name="Numbers"
            ).click()
            where = "document.querySelector('[data-figure=seconds]').getBoundingClientRect().top"
            # As if the text above the figure had been longer in the page before.
            page.evaluate("document.querySelector('#time h2').style.paddingBottom = '30px'")
            # Without scrolling, since the page scrolls smoothly: it would go on while its position is measured.
            page.evaluate("document.querySelector('#certificates thead button').focus({ preventScroll: true })")
            page.evaluate("document.querySelector('[data-figure=seconds]').scrollIntoView({ behavior: 'instant' })")
            page.evaluate("globalThis.same = true")
            page.wait_for_function(STILL)
            before = page.evaluate(where)

            (run / "report" / "half").write_text("")  # other files in a run folder do not matter
            learn(stream(backbone_folder(), [*tasks_of_the_run(), task("four", num_rows=16)], training=QUICK), run)
            page.locator("#certificates tbody tr").nth(3).wait_for(state="attached")

            assert page.evaluate("globalThis.same"), "the page was not reloaded"
            assert "4 tasks learned" in page.locator(".verdict").inner_text()
            assert page.locator("#certificates thead th").first.get_attribute("aria-sort") == "descending"
            assert page.locator("#certificates tbody th").first.inner_text() == "four"
            assert page.evaluate("document.activeElement.closest('section').id") == "certificates"
            assert page.locator("html").get_attribute("data-theme") == "dark"
            assert page.locator("#task").evaluate("select => select.selectedOptions[0].textContent") == "two"
            assert page.locator("#details h3").inner_text() == "two"
            numbers = page.locator("figure", has=page.locator('[data-figure="seconds"]')).locator(".numbers tbody tr")
            assert numbers.count() == 4
            assert abs(page.evaluate(where) - before) < 1, "the browser rounds to a pixel"

            where = where.replace("seconds", "learning")  # this figure has the name of its section
            page.evaluate("document.querySelector('[data-figure=learning]').scrollIntoView({ behavior: 'instant' })")
            page.wait_for_function(STILL)
            before = page.evaluate(where)
            page.evaluate("document.body.dataset.stamp = 'an older page'")
            page.wait_for_function("() => document.body.dataset.stamp !== 'an older page'")
            assert abs(page.evaluate(where) - before) < 1
            opened.draw()
            served.send_signal(signal.SIGINT)
            out, err = served.communicate(timeout=60)
            assert (served.returncode, err) == (0, "")
            assert "stopped; the page is in" in out
            page.get_by_text("server stopped").wait_for()
            assert page.locator(".verdict").is_visible()
            opened.wrong = [
                each for each in opened.wrong if "stamp" not in each and "ERR_CONNECTION_REFUSED" not in each
            ]
    finally:
        served.kill()
        served.wait()
