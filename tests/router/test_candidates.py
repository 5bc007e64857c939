"""Of a row without a task, the most probable tasks each give their prediction, if that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from continual_petl import InputError, Run, learn
from continual_petl.cli.main import main
from continual_petl.heads.predictions import Prediction
from continual_petl.serve import ServeSettings
from continual_petl.serve.problems import Problem
from continual_petl.serve.request_rows import Asked
from continual_petl.serve.served_run import ServedRun
from tests.router.rows import as_named, labelled_task, routed_stream, rows_of
from tests.serve.conftest import TRAINING, Open, opened
from tests.small import small
from tests.streams_in_code import stream, task_of_kind
from tests.tiny import WORDS

__all__ = ["opened"]
Folder = Callable[..., Path]
STRANGE = " ".join(WORDS[85:86] * 16)
NAMES = ("low", "high", "pairs")


@pytest.fixture(scope="module", params=["all", "1"], ids=["banks-in-all-layers", "banks-in-the-last-layer"])
def run(request: pytest.FixtureRequest, backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Run:
    bank = {"preset": "houlsby", "bottleneck": 4, "layers": request.param}
    tasks = [labelled_task(name) for name in NAMES]
    return learn(routed_stream(backbone_folder(), tasks, bank=bank), tmp_path_factory.mktemp("routed") / "run")


def rows() -> list[Any]:
    texts = [row["text"] for name in ("low", "high") for row in rows_of(name, 5, 7)]
    return [*texts, *((row["text"], row["text_pair"]) for row in rows_of("pairs", 5, 7)), STRANGE]


def test_candidates_are_what_the_tasks_predict_if_they_are_named(run: Run) -> None:
    found, without = run.predict(rows(), candidates=3), run.predict(rows())
    assert [each.value for each in found] == [each.value for each in without]
    for row, each in zip(rows(), found, strict=True):
        shares = {each.task: each.task_probability, **each.runners_up} if each.task else dict(each.runners_up)
        assert [candidate.task for candidate in each.candidates] == sorted(
            shares, key=lambda task: -(shares[task] or 0)
        )
        assert (len(each.candidates) > 1) == isinstance(row, str)  # only one task takes pairs
        for candidate in each.candidates:
            named = run.predict(row, candidate.task)
            assert candidate.value == named.value
            assert candidate.probabilities == pytest.approx(dict(named.probabilities or {}), abs=1e-5)
            assert candidate.task_probability == shares[candidate.task or ""]
            assert candidate.candidates == ()
        if each.task is not None:
            assert as_named(each.candidates[0]).value == each.value
    assert found[-1].task is None  # a row that is unknown has candidates, too
    assert len(found[-1].candidates) == 2


def test_the_number_of_candidates_is_the_largest_number(run: Run) -> None:
    for number in (1, 2, 4):
        (found,) = run.predict([rows()[0]], candidates=number)
        assert len(found.candidates) == min(number, 2)  # two of the three tasks take a text
    assert isinstance(single := run.predict(rows()[0], candidates=2), Prediction)
    assert len(single.candidates) == 2
    assert run.predict(rows()[0]).candidates == ()


@pytest.mark.parametrize("number", [0, 5, True, 2.0, "2"])
def test_other_numbers_are_refused(run: Run, number: Any) -> None:
    with pytest.raises(InputError, match=r"candidates: got .*; allowed: 1 to 4, the number of tasks that predict"):
        run.predict("w1", candidates=number)


def test_a_named_task_has_no_candidates(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="candidates: got 3, but a task was named: leave one of the two out"):
        run.predict("w1", "low", candidates=3)
    assert main(["predict", str(run.store.folder), "--task", "low", "--candidates", "3", "w1"]) == 2
    assert "--candidates: only for rows whose task is not named; leave it out" in capsys.readouterr().err


def test_the_command_prints_a_line_for_each_candidate(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text = rows()[0]
    found = run.predict(text, candidates=2)
    assert main(["predict", str(run.store.folder), "--candidates", "2", text, STRANGE]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("low ")
    shown = [f"  {each.task} {each.task_probability:.4f}\t{each.value}\t" for each in found.candidates]
    assert [line[: len(start)] for line, start in zip(lines, shown, strict=False)] == shown
    assert lines[2].startswith("(unknown)")
    assert [line.split()[0] for line in lines[3:]] == [
        each.task for each in run.predict(STRANGE, candidates=2).candidates
    ]


def test_candidates_are_in_records_and_in_every_file(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [rows()[0], STRANGE]
    wanted = [
        [(each.task, each.task_probability, each.value, dict(each.probabilities or {})) for each in found.candidates]
        for found in run.predict(texts, candidates=2)
    ]

    def parts(records: list[dict[str, Any]]) -> list[Any]:
        assert all(
            each.keys() == {"task", "task_probability", "answer", "probabilities", "truncated"} for each in records
        )
        return [(each["task"], each["task_probability"], each["answer"], each["probabilities"]) for each in records]

    assert main(["predict", str(run.store.folder), "--json", "--candidates", "2", *texts]) == 0
    assert [parts(record["candidates"]) for record in json.loads(capsys.readouterr().out)] == wanted
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    for suffix in (".jsonl", ".parquet"):
        target = tmp_path / f"found{suffix}"
        argv = ["predict", str(run.store.folder), "--candidates", "2", "--input", str(source), "--output", str(target)]
        assert main(argv) == 0
        if suffix == ".jsonl":
            cells = [json.loads(line)["candidates"] for line in target.read_text(encoding="utf-8").splitlines()]
        else:
            cells = [json.loads(cell) for cell in pq.read_table(target)["candidates"].to_pylist()]
        assert list(map(parts, cells)) == wanted
    source.write_text('{"text": "w1", "candidates": "Ada"}\n', encoding="utf-8")
    capsys.readouterr()
    assert main(argv) == 2
    assert "the input has a column 'candidates'" in capsys.readouterr().err


def test_the_endpoint_returns_candidates(run: Run, opened: Open) -> None:
    client, found = opened(run.store.folder), run.predict(rows(), candidates=3)
    inputs = [list(row) if isinstance(row, tuple) else row for row in rows()]
    body = {"inputs": [*inputs, "w1"], "candidates": 3.0, "task": [*[None] * len(inputs), "low"]}
    response = client.post("/v1/predict", json=body)
    assert response.status_code == 200, response.text
    *records, named = response.json()["predictions"]
    assert "candidates" not in named
    for record, wanted in zip(records, found, strict=True):
        assert (record["task"], record["answer"]) == (wanted.task, wanted.value)
        assert [(each["task"], each["answer"]) for each in record["candidates"]] == [
            (each.task, each.value) for each in wanted.candidates
        ]
        for each, candidate in zip(record["candidates"], wanted.candidates, strict=True):
            assert each["probabilities"] == pytest.approx(dict(candidate.probabilities or {}), abs=1e-5)
            assert each["task_probability"] == pytest.approx(candidate.task_probability, abs=1e-5)
    for value, says in ((0, "0"), (5, "5"), (True, "true"), ("3", "'3'")):
        refused = client.post("/v1/predict", json={"inputs": "w1", "candidates": value})
        assert refused.status_code == 422
        assert (
            f"candidates: it is {says}; give a whole number from 1 to 4, or null" in refused.json()["error"]["message"]
        )


def test_a_request_that_names_every_task_has_no_candidates(run: Run, opened: Open) -> None:
    client = opened(run.store.folder)
    refused = client.post("/v1/predict", json={"inputs": ["w1"], "task": "low", "candidates": 2})
    assert refused.status_code == 409
    assert "only rows without a task have candidates: leave it out" in refused.json()["error"]["message"]
    assert client.post("/v1/predict", json={"inputs": ["w1"], "task": "low", "candidates": None}).status_code == 200


def test_each_candidate_counts_as_a_row(run: Run, opened: Open) -> None:
    client = opened(run.store.folder, max_rows=4)
    assert client.post("/v1/predict", json={"inputs": ["w1", "w2"], "candidates": 2}).status_code == 200
    refused = client.post("/v1/predict", json={"inputs": ["w1", "w2"], "candidates": 3})
    assert refused.status_code == 413
    assert "2 rows, which count as 6, each once per candidate; at most 4" in refused.json()["error"]["message"]


def test_candidates_may_generate_texts(backbone_folder: Folder, tmp_path: Path, opened: Open) -> None:
    tasks = [labelled_task("low"), task_of_kind("seq2seq", "texts")]
    folder = tmp_path / "run"
    learn(routed_stream(backbone_folder("bart"), tasks, training=TRAINING, bank=small("lora")), folder)
    run, texts = Run(folder), [f"w{10 + number} w{20 + number} w1" for number in range(4)]
    found = run.predict(texts, candidates=2)
    for text, each in zip(texts, found, strict=True):
        assert {candidate.task: candidate.value for candidate in each.candidates} == {
            task: run.predict(text, task).value for task in ("low", "texts")
        }
    body = {"inputs": texts, "candidates": 2}
    records = opened(folder).post("/v1/predict", json=body).json()["predictions"]
    assert [[(each["task"], each["answer"]) for each in record["candidates"]] for record in records] == [
        [(each.task, each.value) for each in answer.candidates] for answer in found
    ]
    # A task that generates may be learned after the rows have got their queue.
    (answers,) = ServedRun(folder, ServeSettings(), generates=False).answer(
        [Asked(texts, [None] * 4, None, range(4), 2)]
    )
    assert not isinstance(answers, Problem)
    for answer, each in zip(answers, found, strict=True):
        assert isinstance(answer, dict)
        assert (answer["task"], answer["answer"]) == (each.task, each.value)
        assert [(one["task"], one["answer"]) for one in answer["candidates"]] == [
            (candidate.task, candidate.value) for candidate in each.candidates
        ]


def test_tasks_that_refuse_a_row_are_no_candidates(backbone_folder: Folder, tmp_path: Path, opened: Open) -> None:
    tasks = [labelled_task("low"), task_of_kind("token-classification", "tags")]
    backbone = {"name": str(backbone_folder()), "pooling": "mean", "max_length": 16}
    run = learn(stream(backbone_folder(), tasks, routing="full", backbone=backbone), tmp_path / "run")
    long, texts = " ".join(["w5"] * 30), ["w1 w15 w7", "w2 w30"]  # the words after the first 14 would get no tag
    with pytest.raises(InputError, match="has 30 words, but only the first 14 fit"):
        run.predict(long, "tags")
    rows = [texts[0], long, texts[1]]
    found = run.predict(rows, candidates=2)
    assert [{each.task for each in one.candidates} for one in found] == [{"low", "tags"}, {"low"}, {"low", "tags"}]
    for row, one in zip(rows, found, strict=True):
        assert [each.value for each in one.candidates] == [run.predict(row, each.task).value for each in one.candidates]
    response = opened(tmp_path / "run").post("/v1/predict", json={"inputs": rows, "candidates": 2})
    assert response.status_code == 200, response.text
    assert [[each["task"] for each in record["candidates"]] for record in response.json()["predictions"]] == [
        [each.task for each in one.candidates] for one in found
    ]
