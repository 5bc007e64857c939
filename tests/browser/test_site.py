"""The built documentation in a real browser: at 1280 pixels, no table or line of code is clipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from playwright.sync_api import Browser

from tests.docs.blocks import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.filterwarnings("ignore"),  # warnings of mkdocs and its plugins; `make docs` is strict about them
]

CLIPPED = """() => [document.documentElement, ...document.querySelectorAll(
    ".md-content pre, .md-content pre > code, .md-content .md-typeset__scrollwrap")]
  .filter((element) => element.scrollWidth > element.clientWidth + 1)
  .map((element) => `${element.scrollWidth} of ${element.clientWidth}: ${element.innerText.slice(0, 60)}`)"""


def test_no_page_clips_a_table_or_code(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site")))
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    found = {}
    for file in sorted((tmp_path / "site").rglob("*.html")):
        page.goto(file.as_uri())
        if clipped := page.evaluate(CLIPPED):
            found[file.name] = clipped
    page.close()
    assert found == {}
