"""Remarks about unused columns, and about sources and targets without a separator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from continual_petl.streams.preparation.prepare import column_remarks
from continual_petl.streams.schema.stream_spec import StreamSpec


def _remarks(kind: str, rows: list[dict[str, Any]], **more: Any) -> list[str]:
    task = {"name": "t", "kind": kind, "data": {"train": rows}} | more
    spec = StreamSpec.model_validate({"name": "s", "backbone": "minilm", "tasks": [task]})
    return column_remarks(spec, spec.tasks[0])


def _rows(source: str, target: str, **more: str) -> list[dict[str, Any]]:
    return [{"source": f"{n} {source}", "target": f"{target} {n}"} | more for n in range(20)]


@pytest.mark.parametrize(
    ("source", "target", "is_told"),
    [
        ("a prompt", "answer", True),
        ("a question?", "answer", True),
        ("a prompt", "\nanswer", False),
        ("a prompt ", "answer", False),
        ("a prompt\nAnswer:", "answer", False),
        ("a prompt </s>", "answer", False),
    ],
)
def test_source_is_separated_from_target_by_space_or_punctuation(source: str, target: str, is_told: bool) -> None:
    remarks = _remarks("causal-lm", _rows(source, target))
    assert bool(remarks) == is_told
    for remark in remarks:
        assert f"the first row becomes '0 {source}{target} 0'" in remark
        assert 'templates: {joined: "{source}\\nAnswer:"}} and columns: {source: joined}.' in remark
    assert not _remarks("seq2seq", _rows(source, target))  # a seq2seq model reads source and target separately


def test_long_row_shows_where_source_and_target_meet() -> None:
    (remark,) = _remarks("causal-lm", _rows("x" * 500, "y" * 500))
    assert f"'...{'x' * 80}{'y' * 80}...'" in remark


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("classification", "if it is the second text of a pair, write columns: {text_pair: note}."),
        ("seq2seq", 'templates: {joined: "{source}\\n{note}"}} and columns: {source: joined}.'),
    ],
)
def test_unused_text_column_is_reported(kind: str, advice: str) -> None:
    rows = [{"note": "a few words", "when": "2024-01-01", "number": n, **row} for n, row in enumerate(_rows("a", "b"))]
    if kind == "classification":
        rows = [row | {"text": row.pop("source"), "label": "ab"[row["number"] % 2], "target": "b"} for row in rows]
    (remark,) = _remarks(kind, rows)
    assert remark.startswith("task 't': the column 'note' holds texts and is not read; ")
    assert advice in remark


def test_columns_of_a_template_count_as_used(tmp_path: Any) -> None:
    (tmp_path / "rows.csv").write_text(
        "one,two,target\n" + "".join(f"text {n},more words,an answer\n" for n in range(20))
    )
    data = {"path": "csv", "data_files": str(tmp_path / "rows.csv"), "templates": {"source": "{one} {two}"}}
    (remark,) = _remarks("causal-lm", [], data=data)
    assert remark.endswith("To mark where the answer begins, write \\nAnswer: at the end of data.templates.source.")


def test_advised_path_of_a_file_is_read_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``./``, the name of a file would be taken for a data set on the Hub."""
    monkeypatch.chdir(tmp_path)
    Path("chats.jsonl").write_text("".join(json.dumps({"source": f"w{n}", "target": "w1"}) + "\n" for n in range(20)))
    (remark,) = _remarks("causal-lm", [], data="chats.jsonl")
    assert "write data: {path: ./chats.jsonl, templates: {joined:" in remark
    templates = {"joined": "{source}\nAnswer:"}
    columns = {"source": "joined"}
    assert _remarks("causal-lm", [], data={"path": "./chats.jsonl", "templates": templates}, columns=columns) == []
