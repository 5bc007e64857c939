"""The page of an endpoint predicts a text, shows errors, and loads nothing from other hosts."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from continual_petl import Run
from tests.browser.chromium import tab

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]
TOKEN = "a-token-of-the-page"


@pytest.fixture(scope="module")
def address(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of an endpoint that requires a token."""
    folder = tmp_path_factory.mktemp("endpoint")
    run, token = shutil.copytree(learned, folder / "banks"), folder / "token"
    token.write_text(TOKEN)
    argv = [sys.executable, "-m", "continual_petl", "serve", str(run), "--port", "0", "--token-file", str(token)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as served:
        try:
            assert served.stdout is not None
            yield served.stdout.readline().split(" at ")[1].split()[0]
        finally:
            served.send_signal(signal.SIGTERM)


def test_text_is_predicted_on_the_page(browser: Browser, learned: Path, address: str) -> None:
    text = "w1 w20 w30"
    with tab(browser, address) as opened:
        page = opened.page
        page.get_by_role("alert").filter(has_text="Authorization: Bearer TOKEN").wait_for()
        opened.wrong.clear()  # the browser itself logs the status 401
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_label("Token").blur()
        page.locator("#task option", has_text="two (regression)").wait_for(state="attached")
        page.get_by_label("Text", exact=True).fill(text)
        page.get_by_role("button", name="Predict").click()
        page.get_by_role("row", name="task").first.wait_for()  # the run finds the task, or reports that it is unknown
        page.get_by_role("row", name="known").first.wait_for()
        page.get_by_label("Limit").fill("often")
        page.get_by_role("button", name="Predict").click()
        page.get_by_role("alert").filter(has_text="reject: it is 'often'; give a number above 0 and below 1").wait_for()
        opened.wrong.clear()  # the browser itself logs the status 422
        for limit, answered in (("0.999999", False), ("never", True)):
            page.get_by_label("Limit").fill(limit)
            page.get_by_role("button", name="Predict").click()
            page.get_by_role("row", name="answer" if answered else "nearest task").first.wait_for()

        page.get_by_label("Task", exact=True).select_option(value="one")
        page.get_by_role("button", name="Predict").click()
        answer = str(Run(learned).predict(text, "one").value)
        page.get_by_role("row", name="answer").filter(has_text=answer).wait_for()
        assert page.title() == "continual-petl: try a text", "a label that is a script is shown, not run"
        assert opened.axe() == []

        page.get_by_label("Text", exact=True).fill(" ")
        page.get_by_role("button", name="Predict").click()
        page.get_by_role("alert").filter(has_text="row 1: text: empty").wait_for()
        assert {url.split("/")[2] for url in opened.asked} == {address.split("/")[2]}
        opened.wrong.clear()  # the browser itself logs the status 422


def test_reference_needs_no_internet(browser: Browser, address: str) -> None:
    with tab(browser, address + "/docs") as opened:
        opened.page.get_by_text("/v1/predict").first.wait_for()
        assert {url.split("/")[2] for url in opened.asked if url.startswith("http")} == {address.split("/")[2]}
        assert opened.wrong == []
