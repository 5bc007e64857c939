"""Drafting a stream file: recognising columns and tasks, and a YAML round trip of texts."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from continual_petl.cli.main import main
from continual_petl.errors import InputError
from continual_petl.streams.scaffold.choose_backbone import choose_backbone
from continual_petl.streams.scaffold.draft import draft
from continual_petl.streams.scaffold.guess import guess
from continual_petl.streams.scaffold.inspect_data import NUM_ROWS, inspect_data, name_of
from continual_petl.streams.scaffold.profile import profile
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.streams.stream_file.dump import inline
from continual_petl.streams.stream_file.yaml_file import load_stream
from continual_petl.streams.stream_file.yaml_nodes import parse

LONG = [f"sentence number {number} with a few words of its own" for number in range(40)]
LABELS = ["no", "yes"] * 20
WORDS = [["a", "few", "words", str(number)] for number in range(40)]
TAGS = [["O", "O", "B-X", "O"] for _ in range(40)]
SPANS = [{"text": ["few"], "answer_start": [9]}, {"text": [], "answer_start": []}] * 20


@pytest.mark.parametrize(
    ("table", "kind", "columns"),
    [
        ({"text": LONG, "label": LABELS}, "classification", {"text": "text", "label": "label"}),
        ({"id": range(40), "review": LONG, "stars": [1, 2, 3, 4] * 10},
         "classification", {"text": "review", "label": "stars"}),
        ({"sentence1": LONG, "sentence2": LONG[::-1], "label": LABELS},
         "classification", {"text": "sentence1", "text_pair": "sentence2", "label": "label"}),
        ({"text": LONG, "score": [number / 7 for number in range(40)]},
         "regression", {"text": "text", "label": "score"}),
        ({"text": LONG, "label": [str(number / 5) for number in range(40)]},
         "regression", {"text": "text", "label": "label"}),
        ({"text": LONG, "labels": [["a", "b"], ["c"]] * 20}, "multilabel", {"text": "text", "label": "labels"}),
        ({"tokens": WORDS, "ner_tags": TAGS}, "token-classification", {"tokens": "tokens", "tags": "ner_tags"}),
        ({"document": [text * 5 for text in LONG], "summary": LONG},
         "seq2seq", {"source": "document", "target": "summary"}),
        ({"n": [str(n) for n in range(40)], "text": LONG, "kind": ["x"] * 40, "label": LABELS},
         "classification", {"text": "text", "label": "label"}),
        ({"text": LONG[:10], "label": ["a", "b", "c", "d", "e"] * 2}, "classification", {"text": "text", "label": "label"}),
        ({"text": LONG, "spam": [True, False] * 20}, "classification", {"text": "text", "label": "spam"}),
        ({"text": LONG, "label": ['["a", "b"]', '["c"]'] * 20}, "multilabel", {"text": "text", "label": "label"}),
        ({"text": LONG, "score": [str(n) for n in range(40)]}, "regression", {"text": "text", "label": "score"}),
        ({"image": [f"{number}.png" for number in range(40)], "label": LABELS},
         "image-classification", {"image": "image", "label": "label"}),
        ({"id": LONG, "title": ["x"] * 40, "context": LONG, "question": LONG[::-1], "answers": SPANS},
         "question-answering", {"question": "question", "context": "context", "answers": "answers"}),
        ({"context": LONG, "question": LONG[::-1], "answers": [json.dumps(span) for span in SPANS]},
         "question-answering", {"question": "question", "context": "context", "answers": "answers"}),
        ({"question": LONG, "context": LONG[::-1], "answer": ["few words", ""] * 20, "answer_start": [5, ""] * 20},
         "question-answering",
         {"question": "question", "context": "context", "answers": "answer", "answer_start": "answer_start"}),
        ({"premise": LONG, "choices": [["a b", "c d"], ["e", "f g"]] * 20, "label": [0, 1] * 20},
         "multiple-choice", {"source": "premise", "options": "choices", "label": "label"}),
        ({"ctx": LONG, "endings": WORDS, "label": ["0", "3"] * 20},
         "multiple-choice", {"source": "ctx", "options": "endings", "label": "label"}),
        ({"premise": LONG, "choice1": LONG, "choice2": LONG, "question": ["cause", "effect"] * 20, "label": [0, 1] * 20},
         "multiple-choice", {"source": "source", "options": "choice1, choice2", "label": "label"}),
        ({"goal": LONG, "sol1": LONG, "sol2": LONG[::-1], "label": [0, 1] * 20},
         "multiple-choice", {"source": "goal", "options": "sol1, sol2", "label": "label"}),
        ({"question": LONG, "context": LONG[::-1], "label": LABELS},
         "classification", {"text": "question", "text_pair": "context", "label": "label"}),
    ],
)  # fmt: skip
def test_kind_is_guessed_from_columns(table: dict[str, Sequence[Any]], kind: str, columns: dict[str, str]) -> None:
    found = guess("here", profile({name: list(values) for name, values in table.items()}))
    assert (found.kind, found.columns) == (kind, columns)


def test_options_in_columns_of_their_own_are_drafted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone_folder: Callable[..., Path]
) -> None:
    """A table as SWAG has it: the source in two parts, and one column for each of the four endings."""
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = [
        {"sent1": f"w1 w2 w{n} w4 w5", "sent2": "w7 w8"}
        | {f"ending{k}": f"w10 w{n} w1{k} w{20 + k} w5" for k in range(4)}
        | {"label": n % 4}
        for n in range(80)
    ]
    with Path("swag.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert main(["init", "swag.csv", "--output", "stream.yaml", "--backbone", str(backbone_folder())]) == 0
    text = Path("stream.yaml").read_text()
    assert "columns: {source: source, options: [ending0, ending1, ending2, ending3], label: label}" in text
    (task,) = load_stream("stream.yaml").tasks
    train = read_splits(task.name, task.data, task.columns, ("train",), kind=task.kind)["train"]
    assert train.inputs[0] == "w1 w2 w0 w4 w5 w7 w8"
    assert train.columns["options"] == [[row[f"ending{k}"] for k in range(4)] for row in rows]
    assert not train.unread


def test_unused_columns_are_reported() -> None:
    found = guess("here", profile({"id": list(range(40)), "text": LONG, "label": LABELS, "when": list(range(40))}))
    assert found.unread == ("id", "when")


def test_unusable_columns_are_an_error() -> None:
    with pytest.raises(InputError, match=r"no kind of task fits its columns: a \(whole number\), b \(nothing\)"):
        guess("here", profile({"a": list(range(40)), "b": [None] * 40}))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("data/agnews/train.jsonl.gz", "agnews"),
        ("data/stsb/", "stsb"),
        ("my rows.csv", "my-rows"),
        ("x/*.parquet", "x"),
    ],
)
def test_task_is_named_after_its_data(data: str, name: str) -> None:
    assert name_of(data) == name


def check_roundtrip(text: str) -> None:
    written = inline(text)
    assert len(written.splitlines()) == 1
    found = parse(f"key: {written}\n")
    if not found.problems:  # texts with characters that are not allowed in YAML are refused
        assert found.tree == {"key": text}


@given(st.text(min_size=1, max_size=40))
@example("two\nlines")
@settings(max_examples=20)
def test_any_text_roundtrips(text: str) -> None:
    check_roundtrip(text)


@pytest.mark.slow
@given(st.text(min_size=1, max_size=40))
def test_any_text_roundtrips_many_examples(text: str) -> None:
    check_roundtrip(text)


def test_missing_data_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no such file or folder"):
        inspect_data(str(tmp_path / "nothing.csv"))


def test_sorted_file_is_sampled_throughout(tmp_path: Path) -> None:
    rows = [{"text": f"sentence {number} of them", "label": number // 8_000} for number in range(25_000)]
    (tmp_path / "sorted.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen = inspect_data(str(tmp_path / "sorted.jsonl"))
    assert seen.rows == "10,000 of 25,000 rows"
    assert guess("here", profile(seen.table)).labels == ("0", "1", "2", "3")


class Rows:
    """Rows of a data set on the Hub, as ``datasets`` returns them."""

    def __init__(self, labels: list[int]) -> None:
        names = datasets.ClassLabel(names=["no", "yes"])
        features = datasets.Features({"sentence": datasets.Value("string"), "label": names})
        table = {"sentence": [f"sentence {n} of them" for n in range(len(labels))], "label": labels}
        self.rows = datasets.Dataset.from_dict(table, features=features)


def test_hub_data_set_is_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def load(path: str, config: str | None = None) -> Any:
        asked.append((path, config))
        # Training reads the first of two validation splits too.
        return {
            "train": Rows([0, 1] * 20).rows,
            "dev": Rows([0, 1]).rows,
            "val": Rows([-1]).rows,
            "test": Rows([-1] * 4).rows,
        }

    monkeypatch.setattr(datasets, "load_dataset", load)
    seen = inspect_data("nyu-mll/glue:sst2")
    assert asked == [("nyu-mll/glue", "sst2")]
    assert (seen.task, seen.splits, seen.hidden) == ("sst2", ("train", "validation"), ("test",))
    found = guess("glue", profile(seen.table))
    assert (found.kind, found.labels) == ("classification", ("no", "yes"))
    text = draft("s.yaml", "s", [(seen, found)], ".", backbone=choose_backbone({"glue": found.kind}, None))
    assert "data: {path: nyu-mll/glue, name: sst2, split: {train: train, validation: validation}}" in text
    assert "the labels of test are hidden" in text


def test_hub_name_offline_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> Any:
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(InputError, match=r"ConnectionError: offline.*give a folder with the files"):
        inspect_data("ag_news")


def test_chosen_backbone_supports_every_kind(tmp_path: Path) -> None:
    assert choose_backbone({"a": "classification", "b": "regression"}, None).name == "minilm"
    assert choose_backbone({"a": "classification", "b": "seq2seq"}, None).name == "facebook/bart-base"
    assert choose_backbone({"a": "image-classification"}, None).name.startswith("google/vit")
    with pytest.raises(InputError, match="b holds images and a texts"):
        choose_backbone({"a": "classification", "b": "image-classification"}, None)
    with pytest.raises(
        InputError, match="minilm cannot generate text, which b needs; leave --backbone out, or give another, such as "
    ):
        choose_backbone({"a": "classification", "b": "seq2seq"}, "minilm")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    assert choose_backbone({"a": "seq2seq"}, str(tmp_path)).writes == "causal-lm"
    assert choose_backbone({"a": "seq2seq"}, "google-t5/t5-small").writes == "seq2seq"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"text": LONG, "label": ["x"] * 40}, r"label \(the same in every row\)"),
        ({"text": LONG, "label": [f"label {n}" for n in range(40)]}, r"label that is repeated in other rows"),
        ({"text;label": LONG}, r"Are these several columns\? .csv files use commas"),
        ({}, "no column at all"),
    ],
)
def test_unusable_data_error_says_what_is_missing(table: dict[str, list[Any]], says: str) -> None:
    with pytest.raises(InputError, match=says):
        guess("here", profile(table))


def test_addresses_are_not_fetched() -> None:
    with pytest.raises(InputError, match="download the file, and give its path"):
        inspect_data("https://example.org/rows.csv")


def test_max_length_fits_all_but_the_longest_rows(tmp_path: Path) -> None:
    rows = [
        {"text": "w" * (300 if number % 20 == 0 else 30) + str(number), "label": number % 2} for number in range(400)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen = inspect_data(str(tmp_path / "rows.jsonl"))
    found = guess("rows", profile(seen.table))
    text = draft("s.yaml", "s", [(seen, found)], ".", backbone=choose_backbone({"rows": found.kind}, None))
    assert "99 % of rows have at most 303 characters" in text
    assert "max_length: 128" in text
    few = replace(choose_backbone({"rows": found.kind}, None), max_tokens=48)
    assert "max_length: 48" in draft("s.yaml", "s", [(seen, found)], ".", backbone=few)


@pytest.mark.parametrize(
    ("num_rows", "epochs"), [((40,), "20"), ((1_000,), "11"), ((90_000,), "3"), ((90_000, 40), "3"), ((500, 600), "18")]
)
def test_small_data_gets_more_epochs(tmp_path: Path, num_rows: tuple[int, ...], epochs: str) -> None:
    tasks = []
    for place, count in enumerate(num_rows):
        table = {"text": [f"a text of row {row}" for row in range(count)], "label": [row % 2 for row in range(count)]}
        file = tmp_path / f"rows{place}.parquet"
        datasets.Dataset.from_dict(table).to_parquet(file)
        seen = inspect_data(str(file))
        tasks.append((seen, guess("rows", profile(seen.table))))
    text = draft("s.yaml", "s", tasks, ".", backbone=choose_backbone({"rows": "classification"}, None))
    assert (
        f"training: {{epochs: {epochs}, batch_size: 32}}\n" in text
    )  # no learning rate, since each preset has its own default
    assert ("    training: {epochs: 20}" in text) == (num_rows == (90_000, 40))


def test_alternating_labels_are_found_in_many_rows(tmp_path: Path) -> None:
    count = 3 * NUM_ROWS
    table = {
        "text": [f"a text of row {row}" for row in range(count)],
        "label": ["abc"[row % 3] for row in range(count)],
    }
    datasets.Dataset.from_dict(table).to_parquet(tmp_path / "rows.parquet")
    seen = inspect_data(str(tmp_path / "rows.parquet"))
    assert (len(seen.table["text"]), len(set(seen.table["text"]))) == (NUM_ROWS, NUM_ROWS)
    assert guess("rows", profile(seen.table)).labels == ("a", "b", "c")


def test_tags_are_described_and_unfit_ones_get_the_accuracy(tmp_path: Path) -> None:
    text = _drafted(tmp_path, {"tokens": [["a", "b"]] * 9, "tags": [["b_x", "o"], ["i_x", "o"], ["b_x", "i_x"]] * 3})
    assert "# tags: IOB2 or IOB1, as in B_TYPE; outside of entities: 'o'" in text
    assert "metric" not in text
    text = _drafted(
        tmp_path, {"tokens": [["a", "b"]] * 9, "tags": [["NOUN", "VERB"], ["ADJ", "NOUN"], ["VERB", "ADJ"]] * 3}
    )
    assert "metric: accuracy    # the tags mark no entities" in text
    text = _drafted(tmp_path, {"tokens": [["a", "b"]] * 9, "tags": [[0, 1], [1, 2], [0, 0]] * 3})
    assert "numbers without names" in text
    assert "metric: accuracy" in text


def test_lists_of_zeros_and_ones_are_described(tmp_path: Path) -> None:
    for label in ([[1, 0, 0], [0, 1, 1]] * 20, [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]] * 20):
        text = _drafted(tmp_path, {"text": LONG, "label": label})
        assert "kind: multilabel" in text
        assert "every row of column label is a list of 3 zeros and ones (multi-hot)" in text
        assert "add `labels: [...]` with the 3 names of the entries of each list, in their order" in text
    (tmp_path / "data" / "labels.json").write_text('["x", "y", "z"]')
    assert "labels.json\n" in _drafted(tmp_path, {"text": LONG, "label": label})


def _drafted(folder: Path, table: dict[str, Any]) -> str:
    """Return the draft for a folder with one file of these columns."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen = inspect_data(str(data))
    found = guess(str(data), profile(seen.table))
    return draft("s.yaml", "s", [(seen, found)], str(folder), backbone=choose_backbone({"data": found.kind}, None))
