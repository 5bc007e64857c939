"""``python -m tests.browser.picture docs/report.png``: learn quickstart, and take a picture of its report for README.

With run folders before the name of the picture, their report or comparison is taken instead. ``--dark``, ``--width``,
``--height`` and ``--whole`` take other screenshots, to inspect the page after a change.

The picture contains the digest of the code that drew it, with which a test finds out whether it is up to date.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Browser

from continual_petl import report
from continual_petl.cli.main import main as command
from continual_petl.report.read_facts import read_facts
from continual_petl.report.write import write_comparison, write_report
from tests.browser.chromium import launched, tab

MOST_BYTES = 200_000
"""Size limit of a picture in the documentation, since every clone of the repository contains it."""


DRAWN_BY = "drawn by"
"""Name of the digest in the picture."""
COMMAND = "python -m tests.browser.picture docs/report.png"


def drawing_code() -> str:
    """Return the digest of everything that decides how the page looks: templates, styles, scripts, sections and figures."""
    folder = Path(report.__file__).parent
    sources = sorted(path for part in ("page", "figures") for path in (folder / part).rglob("*"))
    found = hashlib.sha256()
    for path in sources:
        if path.suffix in {".py", ".j2", ".css", ".js"}:
            found.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def drawn_by(picture: Path) -> str | None:
    """Return the digest of the code that drew a picture; None if it contains none."""
    with Image.open(picture) as opened:
        opened.load()
        found = opened.info.get(DRAWN_BY)
    return None if found is None else str(found)


def take(browser: Browser, page: Path, out: Path, *, dark: bool, width: int, height: int, whole: bool) -> None:
    """Save a screenshot of a page."""
    scheme = "dark" if dark else "light"
    with tab(browser, page, color_scheme=scheme, viewport={"width": width, "height": height}) as opened:
        opened.draw()
        opened.page.wait_for_timeout(500)
        taken = opened.page.screenshot(full_page=whole)
    about = PngInfo()
    about.add_text(DRAWN_BY, drawing_code())
    Image.open(io.BytesIO(taken)).convert("RGB").save(out, optimize=True, pnginfo=about)


def main(argv: list[str] | None = None) -> None:
    """Draw the report in a temporary folder and take its screenshot; without a run, learn quickstart first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--whole", action="store_true", help="capture the whole page, not only the window")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if not given.runs and command(["run", "quickstart", "--run-dir", f"{folder}/quickstart"]) != 0:
            raise SystemExit("quickstart could not be learned")
        facts = [read_facts(run) for run in given.runs or [Path(folder, "quickstart")]]
        page = write_report(Path(folder), facts[0]) if len(facts) == 1 else write_comparison(Path(folder), facts)
        with launched() as browser:
            take(browser, page, given.out, dark=given.dark, width=given.width, height=given.height, whole=given.whole)
    size = given.out.stat().st_size
    print(
        f"{given.out}: {size:,} bytes{'' if size <= MOST_BYTES else f'; pictures in docs may have at most {MOST_BYTES:,}'}"
    )


if __name__ == "__main__":
    main()
