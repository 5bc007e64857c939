"""``python -m tests.browser.picture RUN docs/report.png``: take the screenshot of a report for the README.

``--dark``, ``--width``, ``--height`` and ``--whole`` take other screenshots, to inspect the page after a change.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from continual_petl.report.facts import read_facts
from continual_petl.report.write import write_comparison, write_report
from tests.browser.chromium import launched, tab

MOST_BYTES = 200_000
"""Size limit of a picture in the documentation, since every clone of the repository contains it."""


def take(browser: Browser, page: Path, out: Path, *, dark: bool, width: int, height: int, whole: bool) -> None:
    """Save a screenshot of a page."""
    scheme = "dark" if dark else "light"
    with tab(browser, page, color_scheme=scheme, viewport={"width": width, "height": height}) as opened:
        opened.draw()
        opened.page.wait_for_timeout(500)
        taken = opened.page.screenshot(full_page=whole)
    Image.open(io.BytesIO(taken)).convert("RGB").save(out, optimize=True)


def main(argv: list[str] | None = None) -> None:
    """Draw the report in a temporary folder and take its screenshot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--whole", action="store_true", help="capture the whole page, not only the window")
    given = parser.parse_args(argv)
    facts = [read_facts(run) for run in given.runs]
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        page = write_report(Path(folder), facts[0]) if len(facts) == 1 else write_comparison(Path(folder), facts)
        take(browser, page, given.out, dark=given.dark, width=given.width, height=given.height, whole=given.whole)
    size = given.out.stat().st_size
    print(
        f"{given.out}: {size:,} bytes{'' if size <= MOST_BYTES else f'; pictures in docs may have at most {MOST_BYTES:,}'}"
    )


if __name__ == "__main__":
    main()
