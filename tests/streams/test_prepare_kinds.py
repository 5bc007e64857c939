"""Every task kind is prepared from rows to tensors with the same guarantees."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_names
from continual_petl.learner.metrics import make_metrics
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.encoding.rows import TokenisedRows
from continual_petl.streams.preparation.prepare import TaskData, check_again, check_data, prepare_task
from continual_petl.streams.schema.stream_spec import ColumnsSpec, DataSpec, StreamSpec
from continual_petl.streams.schema.training_spec import TrainingSpec
from continual_petl.streams.sources.read_splits import read_splits
from tests.kinds import GENERATIVE, LABELLED
from tests.streams.rows_of_kinds import images, rows_of

KINDS: tuple[str, ...] = kind_names()
GENERATION = {"generation": {"max_new_tokens": 8}, "max_target_length": 8}


def _spec(kind: str, data: Any, **options: Any) -> StreamSpec:
    task = {"name": "toy", "kind": kind, "data": data, **(GENERATION if kind in GENERATIVE else {}), **options}
    return StreamSpec.model_validate({"name": "s", "seed": 3, "backbone": "x", "tasks": [task]})


def _prepare(tokenizer: PreTrainedTokenizerFast, kind: str, data: Any, **options: Any) -> TaskData:
    spec = _spec(kind, data, **options)
    return prepare_task(spec, spec.tasks[0], tokenizer, 24, images=images())


def _content(rows: TokenisedRows) -> Counter[Any]:
    """Return the content of the rows, regardless of their order."""
    found: list[Any] = []
    for number in range(len(rows)):
        ids, _, label, target = rows.row(number)
        pixels = None if rows.pixels is None else rows.pixels[number].tobytes()
        answer = np.asarray(label).tolist() if target is None else target.tolist()
        found.append((tuple(ids.tolist()), pixels, json.dumps(answer)))
    return Counter(found)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_prepared(tokenizer: PreTrainedTokenizerFast, kind: str) -> None:
    rows = rows_of(kind, 30)
    data = _prepare(tokenizer, kind, {"train": rows, "test": rows_of(kind, 6, seed=1)})
    assert (data.labels is not None) == (kind in LABELLED)
    assert (data.train.pixels is not None) == (kind == "image-classification")
    assert (data.train.texts is not None) == (kind in GENERATIVE)
    assert (data.train.first_piece is not None) == (kind == "token-classification")
    assert len(data.train) + len(data.validation) == 30
    assert data.test is not None
    assert len(data.test) == 6
    assert set(data.digests) == {"train", "validation", "test"}
    spec = _spec(kind, {"train": rows})
    assert check_data(spec, spec.tasks[0]) == data.labels


@pytest.mark.parametrize(
    ("kind", "labels", "train"),
    [
        ("multilabel", ("x", "y", "z"), [[1, 1, 1], [0, 0, 0]]),
        ("token-classification", ("B-P", "I-P", "O"), [-100, 2, 0, 1, -100]),
    ],
)
def test_label_lists_are_prepared(tokenizer: PreTrainedTokenizerFast, kind: str, labels: Any, train: Any) -> None:
    rows = rows_of(kind, 2)
    data = _prepare(tokenizer, kind, {"train": rows, "validation": rows})
    assert data.labels == labels
    assert data.train.labels is not None
    assert data.train.labels[: len(train)].tolist() == train
    turned = _prepare(tokenizer, kind, {"train": rows, "validation": rows}, labels=[*labels[::-1], "B-never"])
    assert turned.labels == (*labels[::-1], "B-never")
    assert any("no training row has the label 'B-never'" in notice for notice in turned.notices)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 99), shuffle=st.randoms(use_true_random=False))
def test_file_order_does_not_matter(tokenizer: PreTrainedTokenizerFast, kind: str, seed: int, shuffle: Any) -> None:
    rows, test = rows_of(kind, 24, seed), rows_of(kind, 9, seed + 1)
    options: dict[str, Any] = {"validation": 0.25, "limits": {"train": 11, "validation": 3, "test": 4}}
    one = _prepare(tokenizer, kind, {"train": rows, "test": test}, **options)
    other = _prepare(tokenizer, kind, {"train": shuffle.sample(rows, 24), "test": shuffle.sample(test, 9)}, **options)
    assert one.labels == other.labels
    for split in ("train", "validation", "test"):
        assert _content(getattr(one, split)) == _content(getattr(other, split))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_taken_give_the_same_batch(tokenizer: PreTrainedTokenizerFast, kind: str) -> None:
    data = _prepare(tokenizer, kind, {"train": rows_of(kind, 12), "validation": rows_of(kind, 4)})
    whole, numbers = data.train, [4, 0, 2, 4]
    part = whole.take(numbers)
    for train in (False, True):
        expected = collate(whole, np.array(numbers), 0, kind, train=train)
        found = collate(part, np.arange(len(numbers)), 0, kind, train=train)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected if name != "index")
    assert part.texts == (None if whole.texts is None else whole.texts.take(numbers))
    if kind in GENERATIVE:
        assert (whole.texts and whole.texts.sources) is None
        assert data.validation.texts is not None
        assert set(data.validation.texts.sources or ()) == {row["source"] for row in rows_of(kind, 4)}
    assert len(whole.take([])) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_is_prepared_again_the_same_way(tokenizer: PreTrainedTokenizerFast, kind: str) -> None:
    data = {"train": rows_of(kind, 20), "test": rows_of(kind, 5, seed=1)}
    spec = _spec(kind, data)
    first = _prepare(tokenizer, kind, data)
    for split in ("train", "validation", "test"):
        checked = check_again(spec, spec.tasks[0], split=split, labels=first.labels)
        assert checked.digest == first.digests[split]
        assert _content(checked.encode(tokenizer, 24, images())) == _content(getattr(first, split))


@pytest.mark.parametrize("kind", KINDS)
def test_digests_depend_on_answers_not_formats(tokenizer: PreTrainedTokenizerFast, kind: str, tmp_path: Path) -> None:
    rows = rows_of(kind, 12)
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "train.parquet")
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inline = _prepare(tokenizer, kind, {"train": rows, "test": rows})
    files = _prepare(tokenizer, kind, str(tmp_path))
    assert inline.digests == files.digests
    answer = {"label", "target", "tags"} & set(rows[0])
    changed = [*rows[:-1], rows[-2] | {key: rows[-1][key] for key in rows[-1] if key not in answer}]
    if kind == "token-classification":
        changed[-1] = rows[-1] | {"tags": ["I-P" if tag == "O" else "O" for tag in rows[-1]["tags"]]}
    if changed[-1] != rows[-1]:
        assert _prepare(tokenizer, kind, {"train": rows, "test": changed}).digests["test"] != inline.digests["test"]


def test_lists_in_csv_are_json(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    for kind, keys in (
        ("multilabel", ("text", "label")),
        ("token-classification", ("tokens", "tags")),
        ("multiple-choice", ("source", "options", "label")),
        ("question-answering", ("question", "context", "answers")),
    ):
        rows = rows_of(kind, 8)
        lines = ["\t".join(keys)]
        for row in rows:
            lines.append("\t".join(row[key] if isinstance(row[key], str) else json.dumps(row[key]) for key in keys))
        (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
        files = _prepare(tokenizer, kind, str(tmp_path))
        assert files.digests == _prepare(tokenizer, kind, {"train": rows}).digests


@pytest.mark.parametrize("kind", KINDS)
def test_a_hub_data_set_names_its_labels_also_in_lists(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind not in LABELLED:
        return
    names, column = ["no", "yes"], ColumnsSpec().read_by(kind)
    source, answer = str(next(iter(column.values()))), str([*column.values()][-1])
    feature: Any = datasets.ClassLabel(names=names)
    values: list[Any] = [0, 1]
    if kind in ("multilabel", "token-classification"):
        feature, values = datasets.Sequence(feature), [[1, 0], [1]]
    made = datasets.Dataset.from_dict({source: ["a", "b"], answer: values})
    hub = datasets.DatasetDict({"train": made.cast_column(answer, feature)})
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: hub)
    train = read_splits("t", DataSpec(path="hub/set"), ColumnsSpec(), kind=kind)["train"]
    assert train.class_names == ("no", "yes")
    assert train.answers == (["no", "yes"] if isinstance(values[0], int) else [["yes", "no"], ["yes"]])


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("seq2seq", {"target": ""}, r"column 'target': 1 row cannot be used: row 9: empty"),
        ("causal-lm", {"source": None}, r"column 'source': 1 row cannot be used: row 9: missing"),
        ("token-classification", {"tags": ["O"] * 9}, r"column 'tags': 1 row cannot be used: row 9: 9 tags for"),
        ("token-classification", {"tokens": []}, r"column 'tokens': 1 row cannot be used: row 9: empty"),
        ("multilabel", {"label": "x"}, r"column 'label': 1 row cannot be used: row 9: 'x' is not a list"),
        ("image-classification", {"image": [[300]]}, r"column 'image': 1 row cannot be used: row 9: .*to 300"),
        ("image-classification", {"label": None}, r"column 'label': 1 row cannot be used: row 9: missing"),
    ],
)
def test_invalid_rows_are_refused(
    tokenizer: PreTrainedTokenizerFast, kind: str, change: dict[str, Any], message: str
) -> None:
    rows = rows_of(kind, 12)
    rows[8] = rows[8] | change
    with pytest.raises(InputError, match=message):
        _prepare(tokenizer, kind, {"train": rows})


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("multilabel", {"text": "w1", "label": ["x", "other"]}),
        ("token-classification", {"tokens": ["w1"], "tags": ["other"]}),
        ("image-classification", {"image": [[1]], "label": "other"}),
    ],
)
def test_labels_missing_from_train_are_refused(tokenizer: PreTrainedTokenizerFast, kind: str, row: Any) -> None:
    with pytest.raises(InputError, match=r"split test .*row 1: .* 'other' is unknown"):
        _prepare(tokenizer, kind, {"train": rows_of(kind, 9), "test": [row]})


@pytest.mark.parametrize("kind", ["multilabel", "token-classification", "image-classification"])
def test_single_label_is_refused(tokenizer: PreTrainedTokenizerFast, kind: str) -> None:
    same = {"multilabel": ["x"], "image-classification": "x"}
    rows = [row | ({"tags": ["O"] * len(row["tags"])} if "tags" in row else {"label": same[kind]}) for row in
            rows_of(kind, 5)]  # fmt: skip
    with pytest.raises(InputError, match=f"all rows have the label .* a {kind} task needs at least two classes"):
        _prepare(tokenizer, kind, {"train": rows})


def test_weights_are_checked_against_the_labels(tokenizer: PreTrainedTokenizerFast) -> None:
    weights = {"training": {"class_weights": {"x": 2.0, "q": 1.0}}}
    with pytest.raises(
        InputError, match=r"class_weights: 'q' is not a label of this task; its labels are 'x', 'y', 'z'"
    ):
        _prepare(tokenizer, "multilabel", {"train": rows_of("multilabel", 9)}, **weights)
    typos = {"training": {"class_weights": {"O": 1.0, "B-PP": 2.0, "i-p": 1.0}}}
    says = r"'B-PP' .did you mean 'B-P'.., 'i-p' .nearly 'I-P': write both alike. are not labels of this task"
    with pytest.raises(InputError, match=says):
        _prepare(tokenizer, "token-classification", {"train": rows_of("token-classification", 9)}, **typos)


@pytest.mark.parametrize(
    ("kind", "what"),
    [("token-classification", "words"), ("seq2seq", "source"), ("image-classification", "image")],
)
def test_overlap_compares_inputs(tokenizer: PreTrainedTokenizerFast, kind: str, what: str) -> None:
    rows = rows_of(kind, 8)
    answer = {"seq2seq": {"target": "w9"}, "image-classification": {"label": "b"}}.get(kind, {})
    data = _prepare(tokenizer, kind, {"train": rows, "validation": rows_of(kind, 4, 1)[2:], "test": [rows[0] | answer]})
    assert any(f"1 of 1 test rows have the {what} of a training row" in notice for notice in data.notices)


def test_truncation_of_both_sides_is_reported(tokenizer: PreTrainedTokenizerFast) -> None:
    long = " ".join(f"w{number}" for number in range(30))
    rows = [{"source": long, "target": "w1"}, {"source": "w1", "target": long}, {"source": "w2", "target": "w2"}]
    data = _prepare(tokenizer, "seq2seq", {"train": rows, "validation": rows})
    assert data.num_truncated == {"train": 1, "validation": 1}
    assert "1 of 3 train, 1 of 3 validation rows are longer than 24 tokens" in data.notices[-2]
    assert "1 of 3 validation targets are longer than 8 tokens (max_target_length)" in data.notices[-1]


@pytest.mark.parametrize(("kind", "before"), [("seq2seq", 1), ("causal-lm", 0)])
def test_targets_longer_than_generated_texts_are_reported(
    tokenizer: PreTrainedTokenizerFast, kind: str, before: int
) -> None:
    ending = copy.deepcopy(tokenizer)
    ending.eos_token = "[SEP]"
    targets = ["w1 w2 w3", "w1 w2 w3 w4", "w1 w2 w3 w4 w5 w6", "w7"]
    rows = [{"source": f"w{number}", "target": target} for number, target in enumerate(targets)]
    data = {"train": rows, "validation": rows[:2], "test": rows}

    def notices(most: int) -> list[str]:
        # Before the words, an encoder-decoder generates the special token with which its targets begin.
        prepared = _prepare(ending, kind, data, max_target_length=12, generation={"max_new_tokens": most + before})
        return [notice for notice in prepared.notices if "max_new_tokens" in notice]

    (notice,) = notices(3)
    assert f"1 of 2 validation, 2 of 4 test targets have more tokens than the {3 + before} that are generated" in notice
    assert notice.endswith(f"the longest has {6 + before}.")
    assert "1 of 4 test targets" in notices(5)[0]
    assert notices(6) == []


@pytest.mark.parametrize(("kind", "before"), [("seq2seq", 1), ("causal-lm", 0)])
@pytest.mark.parametrize(
    ("generation", "said"),
    [
        (
            {"min_new_tokens": 3},
            "1 of 2 validation, 2 of 4 test targets have fewer tokens than the {} that are at least",
        ),
        ({"min_new_tokens": 3, "stop": ["w9"]}, None),
        ({"min_new_tokens": 1}, None),
        ({"no_repeat_ngram_size": 2}, "1 of 4 test targets have the same 2 tokens in a row more than once"),
        (
            {"no_repeat_ngram_size": 1},
            "1 of 2 validation, 2 of 4 test targets have the same 1 token in a row more than",
        ),
        ({"no_repeat_ngram_size": 3}, None),
    ],
)
def test_targets_that_are_never_generated_are_reported(
    tokenizer: PreTrainedTokenizerFast, kind: str, before: int, generation: dict[str, Any], said: str | None
) -> None:
    ending = copy.deepcopy(tokenizer)
    ending.eos_token = "[SEP]"
    targets = ["w1 w2 w1", "w1 w2", "w5", "w1 w2 w3 w1 w2"]
    rows = [{"source": f"w{number}", "target": target} for number, target in enumerate(targets)]
    least = generation.get("min_new_tokens", 0)
    # Before the words, an encoder-decoder generates the special token with which its targets begin.
    changed = generation | ({"min_new_tokens": least + before} if least else {}) | {"max_new_tokens": 12}
    data = {"train": rows, "validation": rows[:2], "test": rows}
    prepared = _prepare(ending, kind, data, max_target_length=12, generation=changed)
    found = [text for text in prepared.notices if "never predicted exactly" in text]
    assert len(found) == (said is not None)
    assert all(text.startswith(f"task 'toy': {(said or '').format(least + before)}") for text in found)


def test_inputs_that_the_tokenizer_does_not_know_are_reported(tokenizer: PreTrainedTokenizerFast) -> None:
    known = [{"text": f"w{number} w1 w2", "label": "ab"[number % 2]} for number in range(10)]
    unknown = [{"text": text, "label": "a"} for text in ("\u043a\u043e\u0442 w1", "\u732b \u72ac")]
    data = _prepare(tokenizer, "classification", {"train": known, "validation": known[:2], "test": unknown})
    (notice,) = (notice for notice in data.notices if "[UNK]" in notice)
    assert notice.startswith("task 'toy': of the tokens of its inputs, 75% of test are [UNK]")
    # One of 30 words of train is unknown, which is what names and emoji are.
    few = [*known[:9], {"text": "\u732b w1 w2", "label": "b"}]
    data = _prepare(tokenizer, "classification", {"train": few, "validation": known[:2]})
    assert not any("[UNK]" in notice for notice in data.notices)


def test_answers_that_no_window_has_or_that_are_too_long_are_reported(tokenizer: PreTrainedTokenizerFast) -> None:
    words = [f"w{number}" for number in range(30)]

    def row(begin: int, length: int) -> dict[str, Any]:
        answer, before = " ".join(words[begin : begin + length]), " ".join([*words[:begin], ""])
        return {
            "question": "w1",
            "context": " ".join(words),
            "answers": {"text": [answer], "answer_start": [len(before)]},
        }

    # A window has 24 tokens, 4 of them special tokens and the question; the second one begins at word 18.
    rows = [row(17, 4), row(18, 2), row(0, 4), row(17, 3)]
    settings = {"stride": 2, "max_answer_length": 3}
    data = _prepare(tokenizer, "question-answering", {"train": rows, "validation": rows[1:3]}, kind_settings=settings)
    lost, *too_long = (notice for notice in data.notices if "answer" in notice)
    assert lost.startswith("task 'toy': 1 of 4 train rows are read in several windows (backbone.max_length), none of")
    assert [text.partition(" than")[0] for text in too_long] == [
        "task 'toy': 1 of 4 train answers have more",
        "task 'toy': 1 of 2 validation answers have more",
    ]
    assert all(text.endswith("completely; the longest has 4.") for text in too_long)
    settings = {"stride": 4, "max_answer_length": 4}
    data = _prepare(tokenizer, "question-answering", {"train": rows, "validation": rows[1:3]}, kind_settings=settings)
    assert not any("answer" in notice for notice in data.notices)


@pytest.mark.parametrize("kind", sorted(GENERATIVE))
def test_targets_that_the_tokenizer_writes_otherwise_are_reported(
    tokenizer: PreTrainedTokenizerFast, kind: str
) -> None:
    targets = ["w1 w2", "w1 {w2}", "w1  w2 ", "w3 [SEP]"]
    rows = [{"source": f"w{number}", "target": target} for number, target in enumerate(targets)]
    data = _prepare(tokenizer, kind, {"train": rows, "validation": rows, "test": rows[:1]})
    (remark,) = (remark for remark in data.remarks if "predicted exactly" in remark)
    assert "3 of 4 validation targets cannot be predicted exactly" in remark
    assert "split validation (rows given in the task), row 2, 'w1 {w2}', becomes 'w1 w2'" in remark
    assert not any("predicted exactly" in notice for notice in data.notices), "certificates hold no text of rows"
    kept = {"train": rows, "validation": rows[:1], "test": rows[:1]}
    assert not any("predicted exactly" in remark for remark in _prepare(tokenizer, kind, kept).remarks)
    data = _prepare(tokenizer, kind, kept, generation={"max_new_tokens": 8, "stop": ["x", " w2"]})
    assert "1 of 1 validation, 1 of 1 test targets cannot be predicted exactly" in data.remarks[-1]
    assert data.remarks[-1].endswith("row 1, 'w1 w2', becomes 'w1'.")


@pytest.mark.parametrize(
    ("metric", "targets", "notice", "best"),
    [
        ("rougeL", ["кот сидит", "w1 w2"], "1 of 2 test targets hold none of the letters a to z", 0.5),
        ("bleu", ["猫坐在垫子上。", "w1 w2"], "1 of 2 test targets are in a script without spaces", 0.0),
        ("token_f1", ["คนนั่ง", "고양이가 앉았다"], "1 of 2 test targets are in a script without spaces", 1.0),
        ("bleu", ["w1 w2 w3", "w1."], "2 of 2 test targets have fewer than four words", 0.0),
        ("bleu", ["w1 w2 w3", "w1 w2, w3"], None, 1.0),
        ("bleu", ["кот сидит на ковре", "고양이가 매트 위에 앉았다"], None, 1.0),
        ("chrf", ["猫坐在垫子上。"], None, 1.0),
    ],
)
def test_metrics_that_cannot_read_the_targets_are_reported(
    tokenizer: PreTrainedTokenizerFast, metric: str, targets: list[str], notice: str | None, best: float
) -> None:
    rows = [{"source": f"w{number}", "target": target} for number, target in enumerate(targets)]
    data = _prepare(tokenizer, "seq2seq", {"train": rows, "validation": rows, "test": rows}, metric=metric)
    found = [text for text in data.notices if " test targets " in text and "max_" not in text]
    assert [text.partition(": ")[2][: len(notice or "")] for text in found] == ([] if notice is None else [notice])
    scores = make_metrics("seq2seq", None, metric)
    scores.update(targets, targets)
    assert float(scores.compute()[metric]) == pytest.approx(best, abs=1e-6)


def test_target_must_fit_after_its_source(tokenizer: PreTrainedTokenizerFast) -> None:
    data = {"train": rows_of("causal-lm", 12)}
    with pytest.raises(InputError, match=r"generation.max_new_tokens: 23 new tokens after a source of .* use at most"):
        _prepare(tokenizer, "causal-lm", data, generation={"max_new_tokens": 23})


def test_each_kind_needs_its_preprocessor(tokenizer: PreTrainedTokenizerFast) -> None:
    for kind, missing in (("image-classification", "preprocessing"), ("seq2seq", "tokenizer")):
        spec = _spec(kind, {"train": rows_of(kind, 12)})
        with pytest.raises(ValueError, match=f"need.* the {missing} of the backbone"):
            prepare_task(spec, spec.tasks[0], None, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_loaders_use_the_kind(tokenizer: PreTrainedTokenizerFast, kind: str) -> None:
    data = _prepare(tokenizer, kind, {"train": rows_of(kind, 20), "test": rows_of(kind, 5, seed=1)})
    module = TaskDataModule(data, TrainingSpec(batch_size=4, eval_batch_size=3), pad_token_id=0, seed=1, max_length=16)
    train, test = next(iter(module.train_dataloader())), next(iter(module.test_dataloader()))
    assert ("pixel_values" in train) == (kind == "image-classification")
    seen = [number for batch in module.train_dataloader() for number in batch["index"].tolist()]
    assert sorted(seen) == list(range(len(data.train)))
    if kind == "causal-lm":
        assert train["labels"].shape == train["input_ids"].shape
        assert (train["attention_mask"][:, 0] == 1).all()
        assert (test["attention_mask"][:, -1] == 1).all()
