"""Every task kind as data: its keys, unsupported keys, and a YAML round trip."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from continual_petl.errors import InputError, StreamFileError
from continual_petl.kind_registry import find_kind, kind_names
from continual_petl.streams.schema.stream_spec import GenerationSpec, StreamSpec, TaskSpec, TrainingOverride
from continual_petl.streams.stream_file.yaml_file import dump_stream, json_schema, load_stream
from tests.kinds import GENERATIVE, LABELLED, METRICS

JSONSCHEMA: Any = importlib.import_module("jsonschema")
KINDS: tuple[str, ...] = kind_names()


def _task(kind: str, **more: Any) -> TaskSpec:
    return TaskSpec.model_validate({"name": kind, "kind": kind, "data": "x.jsonl", **more})


def _stream(*tasks: TaskSpec, **more: Any) -> StreamSpec:
    return StreamSpec(name="s", backbone={"name": "x"}, tasks=tasks, **more)


FULL: dict[str, dict[str, Any]] = {
    "classification": {"labels": ["a", "b"], "training": {"class_weights": {"a": 1.0, "b": 2.5}}},
    "regression": {"columns": {"text": "x", "label": "y"}},
    "multilabel": {"labels": ["1", "2"], "training": {"class_weights": "balanced"}, "metric": "exact_match"},
    "token-classification": {"columns": {"tokens": "words"}, "training": {"label_smoothing": 0.1}},
    "seq2seq": {
        "columns": {"source": "article"},
        "generation": {"num_beams": 4, "early_stopping": True},
        "max_target_length": 9,
    },
    "causal-lm": {"columns": {"target": "answer"}, "training": {"label_smoothing": 0.2}, "metric": "bleu"},
    "image-classification": {"columns": {"image": "pixels", "label": "text"}},
    "question-answering": {
        "columns": {"context": "passage", "answers": "answer", "answer_start": "at"},
        "kind_settings": {"stride": 3, "no_answer": True},
    },
    "multiple-choice": {"columns": {"source": "premise", "options": "choices"}, "training": {"head_dropout": 0.2}},
}


def test_every_kind_has_scores() -> None:
    assert tuple(METRICS) == KINDS
    assert set(KINDS) > LABELLED
    assert not GENERATIVE & LABELLED
    assert [_task(kind).resolved_metric for kind in KINDS] == [METRICS[kind][0] for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("full", [True, False])
def test_kinds_roundtrip_through_yaml(kind: str, full: bool, tmp_path: Path) -> None:
    stream = _stream(_task(kind, **(FULL.get(kind, {}) if full else {})), data_dir=str(tmp_path))
    (tmp_path / "stream.yaml").write_text(dump_stream(stream))
    assert load_stream(tmp_path / "stream.yaml") == stream
    assert StreamSpec.model_validate(stream.model_dump()) == stream
    written = stream.model_dump(mode="json", exclude_none=True)
    assert not list(JSONSCHEMA.Draft202012Validator(json_schema()).iter_errors(written))


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("regression", {"labels": ["a", "b"]}, "no effect on a regression"),
        (
            "seq2seq",
            {"labels": ["a", "b"]},
            r"has no effect on a seq2seq task \(it is for classification, image-classification, multilabel, token-",
        ),
        ("causal-lm", {"metric": "accuracy"}, "allowed for kind causal-lm: rougeL, rouge1, rouge2, bleu"),
        ("multilabel", {"metric": "accuracy"}, "allowed for kind multilabel: micro_f1"),
        ("classification", {"generation": {}}, r"no effect on a classification task \(it is for causal-lm, seq2seq\)"),
        ("multilabel", {"max_target_length": 3}, "no effect on a multilabel"),
        ("seq2seq", {"pooling": "first"}, "no effect on a seq2seq"),
        ("token-classification", {"pooling": "mean"}, "no effect on a token-classification"),
        ("regression", {"training": {"label_smoothing": 0.1}}, "no effect on a regression"),
        ("seq2seq", {"training": {"class_weights": "balanced"}}, "no effect on a seq2seq"),
        ("causal-lm", {"training": {"head_dropout": 0.3}}, "no effect on a causal-lm"),
        (
            "classification",
            {"columns": {"source": "x"}},
            "not read by a classification task, which reads text, text_pair",
        ),
        ("image-classification", {"columns": {"text": "text"}}, "which reads image, label: remove it"),
        ("seq2seq", {"columns": {"source": "a", "target": "a"}}, "source and target must be two different columns"),
        ("token-classification", {"columns": {"tokens": "tags"}}, "tokens and tags must be two different columns"),
        ("classification", {"training": {"label_smoothing": 1.0}}, "below 1"),
        ("classification", {"training": {"class_weights": {"a": 0.0}}}, "a number above 0"),
        ("classification", {"training": {"class_weights": "even"}}, "balanced"),
        ("classification", {"training": {"class_weights": [1, 2]}}, "must be balanced, or a mapping"),
        ("classification", {"training": {"class_weights": {1: 1.0, "1": 2.0}}}, "given twice"),
        ("seq2seq", {"generation": {"min_new_tokens": 65}}, "min_new_tokens is 65 and max_new_tokens 64"),
        ("seq2seq", {"generation": {"early_stopping": True}}, "early_stopping has no effect with num_beams 1"),
        ("seq2seq", {"generation": {"length_penalty": 2.0}}, "length_penalty has no effect with num_beams 1"),
        ("seq2seq", {"generation": {"num_beams": 0}}, "a whole number of at least 1"),
    ],
)
def test_unused_option_of_a_kind_is_refused(kind: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _task(kind, **more)


def test_mistakes_are_reported_at_their_keys(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\nbackbone: x\ntasks:\n"
        "  - name: a\n    kind: seq2seq\n    data: x\n    columns:\n      source: q\n      text: q\n"
        "    training:\n      epochs: 1\n      class_weights: balanced\n"
        "  - name: b\n    kind: classification\n    data: x\n    training: {class_weights: balancd}\n"
    )
    with pytest.raises(StreamFileError) as raised:
        load_stream(tmp_path / "s.yaml")
    text, weights, other = raised.value.problems
    assert (
        "s.yaml:9: key tasks.0.columns.text (task a): is not read by a seq2seq task, which reads source, options, "
        "target" in text
    )
    assert "s.yaml:12: key tasks.0.training.class_weights (task a): has no effect on a seq2seq" in weights
    assert "key tasks.1.training.class_weights (task b): got 'balancd' (did you mean 'balanced'?)" in other


def test_stream_defaults_apply_where_possible() -> None:
    tasks = [_task(kind) for kind in KINDS]
    said = {"label_smoothing": 0.1, "class_weights": "balanced", "head_dropout": 0.3, "epochs": 7}
    stream = _stream(*tasks, training=said)
    found = {task.kind: stream.resolved_training(task) for task in tasks}
    assert {kind for kind in KINDS if found[kind].label_smoothing == 0.1} == {
        kind for kind in KINDS if "label_smoothing" in find_kind(kind).trains_with
    }
    assert {kind for kind in KINDS if found[kind].class_weights == "balanced"} == LABELLED
    assert {kind for kind in KINDS if found[kind].head_dropout == 0.3} == set(KINDS) - GENERATIVE
    assert {training.epochs for training in found.values()} == {7}


def test_numeric_labels_are_weighted_by_name() -> None:
    training = TrainingOverride.model_validate({"class_weights": {0: 1.0, 1: 3}})
    assert training.class_weights == {"0": 1.0, "1": 3.0}
    assert hash(training) == hash(TrainingOverride.model_validate({"class_weights": {"0": 1.0, "1": 3.0}}))


def test_generation_is_greedy_by_default() -> None:
    assert _task("seq2seq").generation == GenerationSpec(num_beams=1, max_new_tokens=64, early_stopping=False)
