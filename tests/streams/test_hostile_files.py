"""Hostile stream files: too large, too deep or malformed content is refused with a reason."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl.banks.config.spec import select_layers
from continual_petl.errors import InputError, StreamFileError
from continual_petl.streams.preparation.labels import class_labels, read_label_names
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.sources.cells import as_list
from continual_petl.streams.sources.checks import Cells, Where, show
from continual_petl.streams.stream_file import dump, size_limits
from continual_petl.streams.stream_file.size_limits import MAX_BYTES, MAX_ENTRIES, MAX_PROBLEMS
from continual_petl.streams.stream_file.yaml_file import dump_stream, load_stream
from continual_petl.streams.stream_file.yaml_nodes import parse

BASE = "name: a\nbackbone: minilm\ntasks:\n- {name: t, kind: classification, data: x.csv}\n"
BACK = "\\"
COMMANDS = (
    "\x1b[2J\x1b]0;x\x07",
    "a\rb",
    "\u202egpj",
    "<script>alert(1)</script>",
    "../../x",
    "/abs",
    "[bold]x[/bold]",
    "\0",
    "\n",
)

Load = Callable[..., StreamSpec]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def call(text: str, *overrides: tuple[str, str]) -> StreamSpec:
        path = tmp_path / "stream.yaml"
        path.write_text(text, encoding="utf-8")
        return load_stream(path, overrides)

    return call


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f'data_dir: "{BACK}UFFFFFFFF"',
            "5: this is not readable as YAML: a character code or YAML version whose number is",
        ),
        (f'data_dir: "{BACK}ud800"', f"5: key data_dir: the text holds {BACK}ud800, half of a surrogate pair"),
        (f'trainer: {{"{BACK}udfff": 1}}', f"5: key trainer: the text holds {BACK}udfff, half of a surrogate pair"),
        (
            f'data_dir: "~{BACK}0"',
            "5: key data_dir: '~" + BACK + "x00' holds the character " + BACK + "x00, which no path can",
        ),
        ("seed: " + "9" * 10_000, "5: key seed: got '999"),
        ("seed: 0x" + "f" * 10_000, "5: key seed: got '0xfff"),
        ("trainer: {x: 1" + "0" * 309 + "}", "which is not a number that can be read"),
        ("training: {learning_rate: 1e999999}", "5: key training.learning_rate: got inf; allowed: a number above 0"),
        ("bank: {preset: lora, layers: 1-" + "9" * 5000 + "}", "a layer range has at most 1000 characters"),
        ("trainer: " + "[" * 5000, "5: this is not readable as YAML: nested more than 40 levels deep"),
        ("trainer: " + "{a: " * 5000, "5: this is not readable as YAML: nested more than 40 levels deep"),
        ("trainer:\n" + "".join(f"{' ' * n} a:\n" for n in range(60)), "nested more than 40 levels deep"),
        ("trainer: &a {x: *a}", "its aliases (*name) expand to more than 40 levels"),
        (f"trainer: [&a {'x' * 9000}, {'*a, ' * 2000}]", f"expand to more than {MAX_BYTES} characters"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_hostile_stream_content_is_refused(load: Load, text: str, problem: str) -> None:
    with pytest.raises(StreamFileError) as error:
        load(BASE + text)
    assert problem in str(error.value)
    assert len(str(error.value)) < 5000  # the message does not repeat the file


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("seed", "9" * 10_000, "--seed: got '999"),
        ("seed", "[" * 10_000, "nested more than 40 levels deep"),
        ("trainer.x", f'"{BACK}UFFFFFFFF"', "whose number is too large"),
        (
            "trainer.x",
            "\udcff",
            "--trainer.x: got '" + BACK + "udcff': " + BACK + "udcff is not a character; write UTF-8",
        ),
        ("trainer." + "a." * 60 + "a", "1", "this is nested more than 40 levels deep"),
        ("trainer." + "a." * 30 + "a", "[" * 20 + "]" * 20, "this is nested more than 40 levels deep"),
        ("tasks." + "9" * 5000 + ".name", "a", "there is no task '999"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_hostile_option_is_refused(load: Load, key: str, text: str, problem: str) -> None:
    with pytest.raises(StreamFileError) as error:
        load(BASE, (key, text))
    assert problem in str(error.value)
    assert len(str(error.value)) < 5000


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../x",
            "/abs",
            "a/b",
            "..",
            ".",
            "CON",
            "con.txt",
            "nul",
            "a.",
            "a\n",
            "\na",
            "a\0",
            "a" * 65,
            "C:x",
            "a\\b",
            "~",
        ),
        *(
            "n\u0430me",
            "\uff41",
            "a\u200b",
            "a\u202eb",
            "a b",
            "a:b",
            "a*",
            "",
            " ",
            "-x",
            ".git",
            "COM1.a",
            "a\x1b[2J",
        ),
    ],
)
def test_names_cannot_leave_the_folder(load: Load, name: str) -> None:
    for text in (
        BASE.replace("name: a", f"name: {json.dumps(name)}"),
        BASE.replace("name: t", f"name: {json.dumps(name)}"),
    ):
        with pytest.raises(StreamFileError, match="name"):
            load(text)


@pytest.mark.parametrize("revision", ["../x", "a/../../x", "/abs", "~", "C:x", "a\\b", "a b", "a\n", "\0"])
def test_revisions_cannot_leave_the_cache(load: Load, revision: str) -> None:
    with pytest.raises(StreamFileError, match=r"revision: got .*; allowed: a commit, tag or branch"):
        load(BASE.replace("minilm", json.dumps({"name": "a/b", "revision": revision})))


def test_a_revision_is_a_branch_tag_or_commit(load: Load) -> None:
    for revision in ("main", "v1.0-rc", "refs/pr/1", "0f" * 20):
        spec = load(BASE.replace("minilm", json.dumps({"name": "a/b", "revision": revision})))
        assert spec.backbone.revision == revision


def test_names_and_texts_with_control_characters_roundtrip(load: Load) -> None:
    rows = {"train": [{"text": text, text: 1, "label": text} for text in COMMANDS]}
    task = {"name": "t", "kind": "classification", "data": rows, "labels": list(COMMANDS)}
    spec = load(json.dumps({"name": "a", "backbone": "minilm", "tasks": [task]}))
    assert spec.tasks[0].labels == COMMANDS
    again = load(dump_stream(spec))
    assert again == spec


@pytest.mark.parametrize("address", ["https://x.example/${TOKEN}", "zip://a::https://x.example/${TOKEN}"])
def test_environment_variables_are_not_sent_to_the_network(
    load: Load, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    data = json.dumps({"path": "json", "data_files": {"train": [address]}})
    with pytest.raises(StreamFileError, match=r"data_files\.train\.0.* is a URL, and an untrusted stream") as error:
        load(BASE.replace("x.csv", data))
    assert "secret" not in str(error.value)


def test_null_data_dir_means_the_files_folder(load: Load, tmp_path: Path) -> None:
    assert load(BASE + "data_dir: null\n").data_dir == os.fspath(tmp_path)


def test_unicode_line_ends_roundtrip(load: Load) -> None:
    spec = load(BASE + f'trainer: {{"a{BACK}Nb": "{BACK}L", "{BACK}P c": 1}}')
    assert load(dump_stream(spec)).trainer == {"a\x85b": "\u2028", "\u2029 c": 1} == spec.trainer


def test_only_the_first_of_many_mistakes_are_reported(load: Load) -> None:
    with pytest.raises(StreamFileError) as error:
        load(BASE + "".join(f"k{n}: 1\n" for n in range(2 * MAX_PROBLEMS)))
    assert len(error.value.problems) == MAX_PROBLEMS + 1
    assert error.value.problems[-1].endswith(f"there are more mistakes; these are the first {MAX_PROBLEMS}")


def test_many_labels_are_compared_in_linear_time(load: Load) -> None:
    names = [f"l{n}" for n in range(20_000)]
    begin = time.process_time()
    StreamSpec.model_validate(
        {
            "name": "a",
            "backbone": "minilm",
            "tasks": [{"name": "t", "kind": "classification", "data": "x", "labels": names}],
        }
    )
    assert time.process_time() - begin < 2  # comparing them one by one takes ten times as long


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("trainer", "problem"),
    [
        ({"x": deep(45)}, "nested more than 40 levels deep, so it could not be read back"),
        ({"x": 1 << 2000}, "key trainer.x: the value is a number beyond the largest float"),
        ({"x": "\ud800"}, "key trainer.x: the text holds " + BACK + "ud800, half of a surrogate pair"),
        ({"\ud800": 1}, "the text holds " + BACK + "ud800, half of a surrogate pair"),
    ],
)
def test_unreadable_stream_is_not_written(trainer: dict[str, Any], problem: str) -> None:
    tasks = [{"name": "t", "kind": "classification", "data": "x"}]
    spec = StreamSpec.model_validate({"name": "a", "backbone": "minilm", "trainer": trainer, "tasks": tasks})
    with pytest.raises(InputError) as error:
        dump_stream(spec)
    assert problem in str(error.value)


@pytest.mark.parametrize(("bound", "what"), [("MAX_ENTRIES", "entries"), ("MAX_BYTES", "bytes")])
def test_too_large_stream_is_not_written(load: Load, monkeypatch: pytest.MonkeyPatch, bound: str, what: str) -> None:
    spec = load(BASE)
    monkeypatch.setattr(dump, bound, 10)
    with pytest.raises(InputError, match=rf"the stream has \d+ {what} when written .* put its rows into data files"):
        dump_stream(spec)


def test_huge_layer_ranges_are_refused_before_expansion() -> None:
    for layers in ("0-999999999", "3,5-999999999", "top-999999999"):
        with pytest.raises(ValueError, match="999999999"):
            select_layers(layers, 6)


def test_too_long_numbers_are_treated_as_text_labels() -> None:
    long = "9" * 5000
    assert class_labels(Cells(Where(task="t", split="train", origin="x"), "label", ()), ["1", long], None) == (
        "1",
        long,
    )


def test_deeply_nested_lists_are_refused() -> None:
    assert as_list("[" * 100_000) is None
    assert show(deep(5_000)) == "a list that is nested too deeply"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "is nested too deeply; it must hold a list of names"),
        (f'["a", "{BACK}ud800"]', "holds the name '" + BACK + "ud800'; a name must be non-empty UTF-8 text"),
        ('["a", ""]', "holds the name ''; a name must be non-empty UTF-8 text"),
        ("[1, " + "9" * 10_000 + "]", "is not JSON"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_file_without_labels_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "labels.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_label_names(path)
    assert problem in str(error.value)


def test_labels_with_control_characters_are_read_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(COMMANDS))
    assert read_label_names(path) == COMMANDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("".join(f"k{n}: 1\n" for n in range(10**6)), f"more than {MAX_ENTRIES} entries: is this a data file?"),
        ("trainer: {x: " + "y" * 10**7 + "}\nnam: a", "key nam: unknown key"),
        ("nam: " + "word " * (2 * 10**6), "key nam: unknown key"),
        ("".join(f"{n}: 1\n" for n in range(20_000)), "there are more mistakes; these are the first"),
        ("x" * (MAX_BYTES + 1), f".yaml: {MAX_BYTES + 1} bytes are too many for a stream file"),
    ],
    ids=["million-keys", "long-text", "long-value", "many-mistakes", "too-large"],
)
def test_large_files_are_refused_quickly_with_a_short_message(load: Load, text: str, problem: str) -> None:
    begin = time.process_time()
    with pytest.raises(StreamFileError) as error:
        load(text)
    assert problem in str(error.value)
    assert "cannot be read" not in str(error.value)
    assert len(str(error.value)) < 200_000
    assert time.process_time() - begin < 90  # PyYAML reads about a megabyte a second


def test_limit_on_entries_applies_while_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continual_petl.streams.stream_file.yaml_nodes.MAX_ENTRIES", 10)
    parsed = parse("".join(f"k{n}: 1\n" for n in range(20)))
    assert "more than 10 entries: is this a data file?" in parsed.problems[0][2]


def test_long_messages_are_truncated_in_the_middle() -> None:
    assert size_limits.shorten("a" * 100 + "b" * 100, 100) == "a" * 75 + " ... " + "b" * 25
