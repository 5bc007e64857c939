"""The code blocks of README, CONTRIBUTING and docs/ do what the page says, run in order in a new folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT
from tests.docs.not_run import COMMANDS, PROGRAMS, PYTHON, TEXTS
from tests.docs.pages import run_page
from tests.docs.shell import words_of
from tests.docs.stand_ins import DATA, make_minilm, stand_in
from tests.hub.local_hub import LocalHub, local_hub

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_minilm(tmp_path_factory.mktemp("minilm"))


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """Yield a local stand-in for the Hub, for docs/how-to/hub.md."""
    with local_hub(tmp_path_factory.mktemp("hf"), monkeypatch) as server:
        yield server


SLOW = {
    *("README.md", "docs/tutorial.md", "docs/certificates.md", "docs/how-to/everyday.md"),
    *("docs/how-to/ablate.md", "docs/how-to/earlier-tasks.md", "docs/how-to/export.md", "docs/how-to/from-peft.md"),
    *("docs/how-to/fuse.md", "docs/how-to/sweep.md", "docs/how-to/hub.md"),
    *("docs/how-to/incremental.md", "docs/how-to/own-callback.md", "docs/explanation/bit-identity.md"),
}
"""Pages that take long because they learn tasks; README's Python blocks also run by default, in tests/test_readme.py."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in PAGES]
)
def test_code_blocks_of_page_run(
    page: str, minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    stand_in(monkeypatch, minilm)
    if page == "docs/how-to/hub.md":
        request.getfixturevalue("hub")
    if page in DATA:
        DATA[page](tmp_path)
    run_page(page, (ROOT / page).read_text(encoding="utf-8"), tmp_path)


def test_skip_list_has_no_unused_entries() -> None:
    shown = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    commands = {" ".join(words_of(line)) for line in shown.splitlines() if line.startswith("continual-petl ")}
    assert set(COMMANDS) - commands == set()
    assert [program for program in PROGRAMS if f"\n{program} " not in shown] == []
    assert [words for words in PYTHON if words not in shown] == []
    assert set(TEXTS) | set(DATA) <= set(PAGES)
