"""Question answering, from files to the endpoint: every way to learn, verify, predict and report takes such a task."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, learn
from continual_petl.cli.main import main
from continual_petl.engine.changed_settings import changed_settings, plan_again
from continual_petl.errors import Interrupted
from continual_petl.heads.spans import normalised
from continual_petl.kind import HowRead
from continual_petl.kind_registry import find_kind
from continual_petl.report.read_facts import read_facts
from continual_petl.report.write import write_report
from continual_petl.serve import ServeSettings, make_app
from continual_petl.store.verify.probe_file import OUTPUTS, certified_probe
from continual_petl.streams.preparation.prepare import prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.desk import bank_digests
from tests.engine.test_resume import SignalAt
from tests.learned import LearnedRuns
from tests.serve.declared import CheckedClient
from tests.streams_in_code import stream, task, task_of_kind
from tests.tiny import make_tokenizer

Folder = Callable[..., Path]


def questions(name: str = "squad", *, none: bool = False, **more: Any) -> dict[str, Any]:
    """Return a task whose answer is the only two words beginning with one of five; ``none``: some rows have no answer."""
    made = task_of_kind("question-answering", name, num_rows=64, **more)
    if none:
        for rows in made["data"].values():
            for row in rows[::3]:
                text = row["answers"]["text"][0]
                row["context"] = row["context"].replace(f"{text} ", "")
                row["answers"] = {"text": [], "answer_start": []}
    return made


SETTINGS = {"stride": 2, "max_answer_length": 4}
TASKS = [
    questions(kind_settings=SETTINGS),
    task("topics", num_rows=16),
    questions("unsure", none=True, kind_settings={**SETTINGS, "no_answer": True}, probe="validation"),
]


def pairs(number: int) -> list[Any]:
    return [(row["question"], row["context"]) for row in TASKS[number]["data"]["test"]]


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """A run with windows of three to five tokens of a context."""
    backbone = {"name": str(backbone_folder("bert")), "pooling": "mean", "max_length": 10}
    training = {"epochs": 12, "learning_rate": 0.005}
    return learned_runs(stream(backbone_folder("bert"), TASKS, backbone=backbone, bank="full", training=training))


def test_it_is_learned_and_certified(learned: Path) -> None:
    run = Run(learned)
    for check in run.verify(data=True):
        assert (check.problems, check.how) == ((), "digests and probe, bit for bit, test rows")
    certificate = run.store.certificate("squad")
    assert (certificate.labels, certificate.options_from, certificate.pair) == (None, None, True)
    expected = {**SETTINGS, "no_answer": False, "no_answer_threshold": 0.0}
    assert (certificate.kind_settings, certificate.parameters["head"]) == (expected, 2 * 16 + 2)
    assert {*certificate.scores["test"].scores} == {"f1", "exact_match"}
    assert certificate.score is not None
    assert certificate.score > 0.7
    _, outputs = certified_probe(run.store, "squad")
    assert outputs[OUTPUTS].shape[:2] == (4, 2)
    inputs, outputs = certified_probe(run.store, "unsure")
    assert {*inputs} == {"input_ids", "attention_mask", "token_type_ids"}
    assert outputs[OUTPUTS].isfinite().all(-1).equal(inputs["attention_mask"].bool())
    assert changed_settings(run.session) == ()
    first = load_stream(learned / "stream.yaml").tasks[0]
    assert first.kind_settings == SETTINGS


def test_scores_and_answers_are_those_of_the_predictions(learned: Path) -> None:
    run = Run(learned)
    for number, name in ((0, "squad"), (2, "unsure")):
        found = run.predict(pairs(number), task=name)
        rows = TASKS[number]["data"]["test"]
        right = [
            normalised(str(a.value)) in ([normalised(t) for t in r["answers"]["text"]] or [""])
            for a, r in zip(found, rows, strict=True)
        ]
        assert run.store.certificate(name).scores["test"].scores["exact_match"] == pytest.approx(sum(right) / len(rows))
        wrong = run.wrong_predictions(name)
        assert (wrong.why_none, wrong.num_wrong) == (None, right.count(False))
        assert wrong.columns == ("question", "context")
        for answer, row in zip(found, rows, strict=True):
            start, end = answer.details["start"], answer.details["end"]
            assert (start is None) == (answer.value == "")
            if answer.value:
                assert row["context"][start:end] == answer.value
            assert 0 < answer.details["probability"] <= 1
            assert (answer.details["no_answer_probability"] == 0) == (name == "squad")
    assert any(answer.value == "" for answer in found)
    assert any(answer.value for answer in found)


def test_rows_of_several_tasks_and_single_rows(learned: Path) -> None:
    run = Run(learned)
    one, two, three = pairs(0)[:3]
    given: list[Any] = [one, "w32 w33", {"question": two[0], "context": two[1]}, three]
    names = ["squad", "topics", "squad", "unsure"]
    for row, name, answer in zip(given, names, run.predict(given, names), strict=True):
        (alone,) = run.predict([row], task=name)
        assert alone.value == answer.value
        assert answer.details == pytest.approx(alone.details, abs=1e-5)
    assert run.predict(one, task="squad").value == run.predict([one], task="squad")[0].value
    both = run.predict_all([one, two], ["squad", "unsure"])
    assert [answer.value for answer in both["squad"]] == [a.value for a in run.predict([one, two], task="squad")]
    found: Any = run.predict([one], reject="never")
    assert found[0].task in ("squad", "unsure")
    assert run.similar([one])
    with pytest.raises(InputError, match="task 'squad' is a question-answering task, which"):
        run.generate(one, "squad")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("w1 w2", r"row 1 is 'w1 w2'; each row of this task is a pair of texts, as a tuple \(question, context\)"),
        (("w1", " "), r"row 1 is .* \(empty\); each row"),
        (("w1 w2 w3 w4 w5 w6 w7", "w1"), "row 1: the question and special tokens take 10 of the 10 tokens of a window"),
    ],
)
def test_rows_that_cannot_be_predicted_are_refused(learned: Path, row: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Run(learned).predict([row], task="squad")


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_files_of_questions_are_predicted(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    file, output = tmp_path / "rows.jsonl", tmp_path / f"found.{form}"
    file.write_text("".join(json.dumps({"question": q, "context": c}) + "\n" for q, c in pairs(2)))
    answers = Run(learned).predict(pairs(2), task="unsure")
    assert main(["predict", str(learned), "--task", "unsure", "--json", "--input", str(file)]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["answer"] for record in records] == [answer.value for answer in answers]
    assert main(["predict", str(learned), "--task", "unsure", "--input", str(file), "--output", str(output)]) == 0
    if form == "parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(output).to_pylist()
    elif form == "csv":
        with output.open() as lines:
            table = [*csv.DictReader(lines)]
    else:
        table = [*map(json.loads, output.read_text().splitlines())]
    names = ["question", "context", "answer", "start", "end", "probability", "no_answer_probability", "truncated"]
    assert [*table[0]] == names
    assert [row["start"] for row in table] == [
        ("" if a.details["start"] is None else str(a.details["start"])) if form == "csv" else a.details["start"]
        for a in answers
    ]
    capsys.readouterr()
    assert main(["predict", str(learned), "--task", "unsure", "\t".join(pairs(2)[0])]) == 0
    shown = f"{answers[0].value or '(none)'}\t{answers[0].details['probability']:.4f}"
    assert capsys.readouterr().out.strip() == shown
    file.write_text(json.dumps({"question": "w1", "context": "w2", "start": 3}) + "\n")
    assert main(["predict", str(learned), "--task", "unsure", "--input", str(file), "--output", str(output)]) == 2
    assert "the input has a column 'start', and --output adds one of the same name" in capsys.readouterr().err


def test_rows_without_a_task_are_read_from_question_and_context(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = tmp_path / "rows.csv", tmp_path / "found.jsonl"
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows([("question", "context"), *pairs(0)])
    assert main(["predict", str(learned), "--reject", "never", "--input", str(file), "--output", str(output)]) == 0
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert {record["task"] for record in found} <= {"squad", "unsure"}
    assert all(
        record["context"][record["start"] : record["end"]] == record["answer"] for record in found if record["answer"]
    )
    capsys.readouterr()
    question, context = pairs(0)[0]
    assert main(["predict", str(learned), "--reject", "never", "--json", f"{question}\t{context}"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["question"], record["context"], record["answer"]) == (question, context, found[0]["answer"])
    output = tmp_path / "one.jsonl"
    given = ["--reject", "never", "--output", str(output.with_suffix(".csv")), f"{question}\t{context}"]
    assert main(["predict", str(learned), *given]) == 0
    with output.with_suffix(".csv").open() as lines:
        (row,) = csv.DictReader(lines)
    assert (row["question"], row["context"], row["answer"]) == (question, context, found[0]["answer"])


def test_endpoint_takes_questions_with_contexts(learned: Path) -> None:
    inputs = [{"question": question, "context": context} for question, context in pairs(0)]
    with CheckedClient(make_app(learned, ServeSettings(max_rows=100)), base_url="http://127.0.0.1") as client:
        found = client.post("/v1/predict", json={"inputs": inputs, "task": "squad"}).json()
        answers = Run(learned).predict(pairs(0), task="squad")
        assert [record["answer"] for record in found["predictions"]] == [answer.value for answer in answers]
        assert [record["start"] for record in found["predictions"]] == [answer.details["start"] for answer in answers]
        lists = client.post("/v1/predict", json={"inputs": [[*pair] for pair in pairs(0)], "task": "squad"}).json()
        assert lists == found
        unnamed = client.post("/v1/predict", json={"inputs": inputs[:2], "reject": "never"}).json()
        assert {record["task"] for record in unnamed["predictions"]} <= {"squad", "unsure"}
        refused = client.post("/v1/predict", json={"inputs": [{"question": "w1"}], "task": "squad"})
        assert refused.status_code == 422
        assert "an object with the keys question and context" in refused.text


def test_it_is_resumed_to_the_same_bank(backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path: Path) -> None:
    tasks = stream(backbone_folder(), [questions(training={"epochs": 2, "accumulate": 2})])
    whole = bank_digests(Run(learned_runs(tasks)))
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path / "stopped", callbacks=[SignalAt(9, signal.SIGINT)])
    assert bank_digests(learn(tasks, tmp_path / "stopped")) == whole


def test_report_and_lists_show_it(learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "question-answering" in write_report(tmp_path, read_facts(learned)).read_text("utf-8")
    for command in (["list", str(learned)], ["show", str(learned), "squad"]):
        assert main(command) == 0
        assert "question-answering" in capsys.readouterr().out


def test_changed_settings_are_reported(learned: Path) -> None:
    run = Run(learned)
    changed = run.spec.tasks[0].model_copy(update={"kind_settings": {"stride": 1}})
    plan = plan_again(run.session, changed, run.store.certificate("squad"))
    assert [*plan.differs(run.store.certificate("squad"))] == ["kind_settings"]


def read(rows: list[dict[str, Any]], **more: Any) -> Any:
    spec = StreamSpec.model_validate(
        {
            "name": "s",
            "backbone": "x",
            "tasks": [{"name": "t", "kind": "question-answering", "data": {"train": rows}, **more}],
        }
    )
    one = spec.tasks[0]
    split = read_splits("t", one.data, one.columns, kind=one.kind)["train"]
    return find_kind(one.kind).read_rows(one, split, HowRead())


CONTEXT = "The Eiffel Tower is in Paris, in France."
ONE = {"question": "Where?", "context": CONTEXT}


@pytest.mark.parametrize(
    ("answers", "more"),
    [
        ({"answers": {"text": ["Paris", "in Paris"], "answer_start": [23, 20]}}, {}),
        ({"answers": [{"text": "Paris", "answer_start": 23}, {"text": "in Paris", "answer_start": 20}]}, {}),
        ({"answers": json.dumps({"text": ["Paris", "in Paris"], "answer_start": [23, 20]})}, {}),
        ({"answer": "Paris", "at": 23}, {"columns": {"answers": "answer", "answer_start": "at"}}),
        ({"answer": "Paris", "at": "23"}, {"columns": {"answers": "answer", "answer_start": "at"}}),
    ],
)
def test_answers_are_read_from_all_layouts(answers: dict[str, Any], more: dict[str, Any]) -> None:
    found = read([ONE | answers], **more)
    assert found.answers[0].texts[0] == "Paris"
    assert found.answers[0].starts[0] == 23
    assert (found.inputs, found.pairs) == (["Where?"], [CONTEXT])


@pytest.mark.parametrize(
    ("answers", "more"),
    [
        ({"answers": {"text": [], "answer_start": []}}, {}),
        ({"answers": []}, {}),
        ({"answers": '{"text": [], "answer_start": []}'}, {}),
        ({"answer": "", "at": ""}, {"columns": {"answers": "answer", "answer_start": "at"}}),
        ({"answer": None, "at": -1}, {"columns": {"answers": "answer", "answer_start": "at"}}),
    ],
)
def test_a_row_without_an_answer_has_to_be_allowed(answers: dict[str, Any], more: dict[str, Any]) -> None:
    assert read([ONE | answers], kind_settings={"no_answer": True}, **more).answers[0].texts == []
    with pytest.raises(InputError, match=r"row 1: no answer; if there are such rows, write kind_settings: \{no_answer"):
        read([ONE | answers], **more)


def test_a_plain_table_has_texts_and_positions(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("question,context,answer,answer_start\nWho?,w1 w2,w2,3\nWhat?,w1 w2,,\n")
    columns = {"answers": "answer", "answer_start": "answer_start"}
    given = {"name": "t", "kind": "question-answering", "data": str(tmp_path), "columns": columns}
    settings = {"kind_settings": {"no_answer": True}}
    spec = StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [given | settings]})
    one = spec.tasks[0]
    split = read_splits("t", one.data, one.columns, kind=one.kind)["train"]
    assert find_kind(one.kind).read_rows(one, split, HowRead()).answers == [(["w2"], [3]), ([], [])]
    assert main(["init", str(tmp_path / "train.csv"), "--output", str(tmp_path / "s.yaml")]) == 0
    drafted = load_stream(tmp_path / "s.yaml").tasks[0]
    assert (drafted.kind, drafted.columns.read_by(drafted.kind)["answer_start"]) == (one.kind, "answer_start")


def squad(text: Any, start: Any) -> dict[str, Any]:
    return ONE | {"answers": {"text": [text], "answer_start": [start]}}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            squad("Paris", 22),
            r"row 1: the answer 'Paris' is not at 22, where the context has ' Pari'; it is at 23",
        ),
        (
            squad("paris", 23),
            r"is not at 23, where the context has 'Paris'; the context does not have this text",
        ),
        (squad("Paris", -17), r"is not at -17, where the context has ''; it is at 23"),
        (squad("Paris", 1000), r"is not at 1000, where the context has ''"),
        (squad("Paris", None), "answer_start is None, which is not a whole number"),
        (squad("Paris", 23.0), "answer_start is 23.0, which is not a whole number"),
        (squad("Paris", True), "answer_start is True, which is not a whole number"),
        (squad(" ", 3), "' ' is not a text"),
        (squad(None, 3), "None is not a text"),
        (ONE | {"answers": {"text": ["Paris"], "answer_start": []}}, "are not two lists of the same length"),
        (ONE | {"answers": {"text": "Paris", "answer_start": 23}}, "are not two lists of the same length"),
        (ONE | {"answers": {"text": ["Paris"]}}, "has no text and answer_start"),
        (ONE | {"answers": "Paris"}, "'Paris' has no text and answer_start"),
        (ONE | {"answers": None}, "row 1: missing"),
        (ONE | {"context": " ", "answers": {"text": [], "answer_start": []}}, "column 'context': 1 row cannot be used"),
        (
            ONE | {"question": None, "answers": {"text": [], "answer_start": []}},
            "column 'question': 1 row cannot be used",
        ),
    ],
)
def test_answers_that_do_not_stand_in_the_context_are_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read([row])


def test_the_digest_of_the_data_has_texts_and_positions() -> None:
    tokenizer, digests = make_tokenizer("bert"), set()
    for start, text in ((0, "w1"), (6, "w1"), (3, "w2")):
        row = {"question": "w3", "context": "w1 w2 w1", "answers": {"text": [text], "answer_start": [start]}}
        given = {"name": "t", "kind": "question-answering", "data": {"train": [row], "validation": [row]}}
        spec = StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [given]})
        digests.add(prepare_task(spec, spec.tasks[0], tokenizer, 24).digests["train"])
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kind_settings": {"strid": 3}}, r"kind_settings.strid .*: unknown key 'strid'"),
        ({"kind_settings": {"stride": -1}}, r"kind_settings.stride .*: got -1"),
        ({"kind_settings": {"no_answer": "yes"}}, r"kind_settings.no_answer .*: got"),
        (
            {"columns": {"text": "premise"}},
            "not read by a question-answering task, which reads question, context, answer",
        ),
        ({"columns": {"contxt": "premise"}}, "unknown key 'contxt'"),
        ({"columns": {"question": "context"}}, "must be three different columns"),
        ({"labels": ["a", "b"]}, "has no effect on a question-answering task"),
        ({"metric": "rougeL"}, "allowed for kind question-answering: f1, exact_match"),
        ({"training": {"label_smoothing": 0.1}}, "has no effect on a question-answering task"),
        (
            {"kind": "regression", "kind_settings": {}},
            r"regression task \(it is for .*, question-answering\): remove",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [questions() | more]})
