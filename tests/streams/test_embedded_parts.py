"""The parts of the embedded stream on small inputs: reading, cleaning, splitting."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from continual_petl.errors import InputError
from continual_petl.streams.embedded import chapters, splits, stdlib, text
from continual_petl.streams.embedded.splits import Example

SOURCE = '''
"""Module docstring."""
raise SystemExit("this file is parsed, never run")
class Box:
    """A box that holds things."""
    def take(self, n=1):
        """Take some things out of the box."""
        if n:
            return self.things[:n]
    def empty(self):
        """Throw away all that is in the box."""
        def inner():
            return 1
        self.things.clear()
    def each(self):
        """Go through the things of the box."""
        yield from self.things
    def weigh(self):
        """Weigh the box; subclasses know how."""
        raise NotImplementedError
    def quiet(self):
        """Be quiet."""
try:
    pass
except ImportError:
    def fallback(a, /, *, b: int = 2) -> None:
        """Do the same without the fast module."""
        return None
'''


def test_docstrings_are_extracted_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "boxes.py").write_text(SOURCE)
    found = {d.signature: d for d in stdlib.read_file(tmp_path / "boxes.py", "boxes")}
    assert {signature: (d.kind, d.outcome) for signature, d in found.items()} == {
        "Box": ("class", "unknown"),
        "Box.take(n=1)": ("function", "value"),
        "Box.empty()": ("function", "nothing"),
        "Box.each()": ("function", "unknown"),
        "Box.weigh()": ("function", "unknown"),
        "fallback(a, /, *, b: int=2)": ("function", "nothing"),
    }
    assert found["Box"].text == "A box that holds things."


def test_source_files_include_packages_and_pure_python_versions(tmp_path: Path) -> None:
    for name in ("one.py", "_pytwo.py", "two.py", "pack/__init__.py", "pack/deep/leaf.py", "pack/test/test_it.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    names = {m: {p.name for p in stdlib.source_files(tmp_path, m)} for m in ("one", "two", "pack")}
    assert names == {"one": {"one.py"}, "two": {"two.py", "_pytwo.py"}, "pack": {"__init__.py", "leaf.py"}}
    with pytest.raises(InputError, match=r"'absent'.*neither a folder nor a file"):
        stdlib.source_files(tmp_path, "absent")


def test_python_without_sources_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / name))
    with pytest.raises(InputError, match="sources of Python's standard library"):
        stdlib.library_folder()
    with pytest.raises(InputError, match="help topics"):
        chapters.read_topics(tmp_path / "topics.py")


def test_module_list_has_nothing_that_a_supported_python_lacks() -> None:
    gone = "asynchat asyncore cgi cgitb crypt distutils imp lib2to3 nntplib smtpd telnetlib tkinter turtle idlelib test"
    assert not set(gone.split()) & set(stdlib.MODULES)
    assert len(stdlib.MODULES) == len(set(stdlib.MODULES))


def test_summary_takes_the_opening_on_one_line() -> None:
    long_enough = "Return the sum of all values, and  raise an error\n    when one of them is no number, or is missing."
    assert text.summary(f"{long_enough}\n\n    More.") == " ".join(long_enough.split())
    assert text.summary("Add two numbers up.\n\nSlowly.\n\n>>> add(1, 2)\n3\n\nEnd.") == "Add two numbers up. Slowly."
    assert text.summary("Short.") is None
    assert text.summary("") is None
    clipped = text.summary("word " * 200)
    assert clipped is not None
    assert len(clipped) <= text.MAX_CHARACTERS
    assert clipped.endswith("word")


def test_topics_are_read_in_both_formats(tmp_path: Path) -> None:
    file = tmp_path / "topics.py"
    file.write_text("topics = {'a': 'one\\n' 'two', 'b': r'''raw \\d\ntext'''}\n")
    assert chapters.read_topics(file) == {"a": "one\ntwo", "b": "raw \\d\ntext"}


def test_passages_are_prose() -> None:
    topic = (
        "Lists\n*****\n\n   list ::= '[' ']'\n\nA list is a row of things that may be changed in place. It is short.\n"
        "Things in it are numbered from zero, so that the last one has the number that is one below the length.\n\n"
        ">>> []\n\nChanged in version 3.2: It was something else before this version, or nothing at all.\n\nToo short."
    )
    assert list(chapters.passages(topic)) == [
        "A list is a row of things that may be changed in place. It is short. Things in it are numbered from zero, so "
        "that the last one has the number that is one below the length."
    ]


def _rows(count: int) -> list[Example]:
    rng = random.Random(0)
    made = []
    for i in range(count):
        source = " ".join("".join(rng.choices("abcdefghij", k=6)) for _ in range(8))
        made.append(Example(source=source, text=source, label="xy"[i % 2]))
    return made


def test_splits_do_not_depend_on_order_or_on_other_rows() -> None:
    rows = _rows(300)
    forward, backward = splits.assemble(rows), splits.assemble(reversed(rows))
    assert forward == backward
    half = splits.assemble(rows[::3])
    for split, examples in half.items():
        assert set(examples) <= set(forward[split])
    share = len(forward["train"]) / 300
    assert 0.5 < share < 0.75


def test_ambiguous_rows_and_near_duplicates_are_dropped() -> None:
    rows = _rows(300)
    train, test = splits.assemble(rows)["train"], splits.assemble(rows)["test"]
    twisted = Example(source=train[0].source, text=train[0].text, label="x" if train[0].label == "y" else "y")
    # A near-duplicate: a test passage with another eighth word, chosen so that its hash puts it into train.
    start = test[0].source.rsplit(" ", 1)[0]
    copy = next(s for w in "abcdefghij" if splits.split_of(s := f"{start} {w}") == "train")
    after = splits.assemble([*rows, twisted, Example(source=copy, text=copy, label="x")])
    assert {e.source for e in train} - {e.source for e in after["train"]} == {train[0].source}
    assert copy not in {e.source for e in after["train"]}
    assert after["test"] == test


def test_classes_have_the_same_cap() -> None:
    rows = [Example(source=e.source, text=e.text, label="z" if i % 4 else "x") for i, e in enumerate(_rows(4000))]
    sizes = {split: len(examples) for split, examples in splits.assemble(rows).items()}
    assert sizes == {"train": 800, "validation": 200, "test": 300}
