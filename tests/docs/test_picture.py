"""The picture of the report in README.md shows the page as it is drawn now."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright")

from tests.browser.picture import COMMAND, MOST_BYTES, drawing_code, drawn_by

PICTURE = Path(__file__).parents[2] / "docs" / "report.png"


def test_picture_of_the_report_is_not_older_than_its_page() -> None:
    assert PICTURE.stat().st_size <= MOST_BYTES
    assert drawn_by(PICTURE) == drawing_code(), (
        "docs/report.png was taken of another version of the page (continual_petl/report/page or figures has changed): "
        f"look at the page, and renew the picture with `{COMMAND}`, which learns quickstart (a few minutes)"
    )
