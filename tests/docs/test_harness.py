"""The harness reports where a page is broken; a valid page passes silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import not_run
from tests.docs.blocks import BrokenPage, blocks_of
from tests.docs.pages import run_page
from tests.docs.shell import lines_of, words_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


STREAM = "name: a\nbackbone: minilm\ntasks:\n  - {name: b, kind: classification, data: c}\n"


def page(*blocks: str) -> str:
    """Return a page with these code blocks; the first line of each names its language."""
    return "# Title\n\n" + "\n".join(f"```{block.rstrip()}\n```\n" for block in blocks)


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        (["python\nx = 1", "python\nassert x == 2"], r"(?s)page.md:8: .*AssertionError"),
        (["python\nx = = 1"], r"(?s)page.md:4: .*SyntaxError"),
        (["python\nfrom continual_petl import lern"], "cannot import name 'lern'"),
        (['python title="train.py"\nx = 1'], "no command of the page runs train.py"),
        (["yaml\nname: a\n  b: c"], "is not valid YAML"),
        (["yaml\n" + STREAM.replace("kind", "kynd")], "(?s)kynd.*did you mean 'kind'"),
        (["yaml\nbank: {preset: lora, bottleneck: 0}"], "page.md:4: .*bottleneck"),
        (["yaml\nbanc: 3"], "is not a stream, keys of a stream"),
        (["yaml\n- {name: b, kind: classification}"], "data"),
        (["yaml\nmine: {preset: loora}"], "unknown preset 'loora'"),
        (['yaml title="x.yaml"\nbank: lora'], "a block with a title must be a whole stream"),
        (["bash\ncontinual-petl lern runs/x"], "ends with exit code 2, not 0"),
        (["bash\ncontinual-petl verify runs/x"], "ends with exit code 2, not 0"),
        (["bash\ncontinual-petl schema  # exit code 1"], "ends with exit code 0, not 1"),
        (["bash\nwget example.org"], "'wget example.org' cannot be run"),
        (["bash\nmake tost"], "names something that does not exist: tost"),
        (["bash\npip install 'continual-petl[rey]'"], "names something that does not exist: rey"),
        (["bash\ntorchrun train.py"], "names something that does not exist: train.py"),
        (["bash\nsort x | continual-petl predict runs/x"], "only `echo TEXT` and `cat FILE`"),
        (["bash\ncontinual-petl schema < x"], "uses shell syntax that"),
        (["bash\nrm ../x"], "no such file in the page's folder"),
        (["\nno language"], "language ''"),
        (["console\n$ ls"], "language 'console'"),
        (["text\nanything"], "language 'text'"),
        (["json\n{}"], "language 'json'"),
    ],
)
def test_broken_block_is_reported_with_page_and_line(blocks: list[str], says: str, folder: Path) -> None:
    with pytest.raises(BrokenPage, match=says) as caught:
        run_page("page.md", page(*blocks), folder)
    assert str(caught.value).startswith("page.md:")


def test_indented_code_block_is_refused() -> None:
    with pytest.raises(BrokenPage, match=r"page.md:3: an indented block"):
        blocks_of("page.md", "Text\n\n    x = 1\n")


def test_parsed_only_commands_must_be_valid(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "continual-petl run x --jobs many"
    monkeypatch.setitem(not_run.COMMANDS, wrong, "a reason")
    with pytest.raises(BrokenPage, match="is refused by the parser"):
        run_page("page.md", page(f"bash\n{wrong}"), folder)


def test_valid_page_runs_in_order_and_lists_skipped_blocks(folder: Path) -> None:
    used = run_page(
        "page.md",
        page(
            'csv title="rows.csv"\ntext,label\na,b',
            "yaml\n" + STREAM,
            "yaml\ntraining: {epochs: 2}",
            'python title="count.py"\nfrom pathlib import Path\nPath("out.txt").write_text(Path("rows.csv").read_text())',
            "bash\n# a comment\npython count.py\ncontinual-petl schema > schema.json   # for editors",
            "python\nfrom pathlib import Path\n\nassert Path('out.txt').read_text() == Path('rows.csv').read_text()",
            "python\nassert Path('schema.json').read_text().startswith('{')",
            "bash\nmake test; rm rows.csv\ncontinual-petl verify runs/x   # exit code 2",
            "python\nassert not Path('rows.csv').exists()",
        ),
        folder,
    )
    assert used == {"make"}
    assert (folder / "stream.yaml").read_text() == STREAM


def test_lines_and_words_are_split_like_in_a_shell() -> None:
    assert list(lines_of("a b \\\n  c # d\n\n# e\nf")) == ["a b    c # d", "f"]
    assert words_of("a 'b # c' > d;e # f") == ["a", "b # c", ">", "d", ";", "e"]
