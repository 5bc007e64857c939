"""Tasks of conversations are learned, certified, used for predictions, resumed and forgotten like all others."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from continual_petl import ContinualLearner, InputError, Run, StoreError, learn, load_backbone
from continual_petl.cli.main import main
from continual_petl.engine.changed_settings import changed_settings
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.scoring.evaluate import evaluate
from continual_petl.engine.session import Session
from continual_petl.errors import Interrupted
from continual_petl.learner.metrics import make_metrics
from continual_petl.serve import ServeSettings, make_app
from continual_petl.store.store import Store
from continual_petl.streams.stream import TaskStream
from tests.chats import MARKED, PLAIN, assistant, chat_backbone, chats, user, write_lines
from tests.desk import bank_digests
from tests.engine.kept_states import TOP
from tests.engine.test_resume import SignalAt
from tests.learned import LearnedRuns
from tests.serve.declared import CheckedClient
from tests.streams_in_code import stream, task, task_of_kind

GENERATES = {"max_target_length": 8, "generation": {"max_new_tokens": 6}}
BACKBONE = {"max_length": 48}


def talk(name: str = "talk", turns: int = 2, **more: Any) -> dict[str, Any]:
    """Return a task of conversations."""
    data = {"train": chats(24, turns), "validation": chats(6, turns, 24), "test": chats(8, turns, 30)}
    columns = {"columns": {"messages": "messages"}}
    return {"name": name, "kind": "causal-lm", "data": data, **columns, **GENERATES, **more}


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_backbone(tmp_path_factory.mktemp("backbones") / "llama")


def chat_stream(backbone: Path, *tasks: dict[str, Any], **more: Any) -> TaskStream:
    return stream(backbone, tasks, **{"backbone": {"name": str(backbone), **BACKBONE}, **more})


@pytest.fixture(scope="module")
def learned(backbone: Path, learned_runs: LearnedRuns) -> Path:
    plain = task_of_kind("causal-lm", "plain", num_rows=20) | GENERATES
    second = talk("last", 1, chat={"template": PLAIN, "system": "w70", "loss_on": "last"}, probe="validation")
    every = talk("every", 1, chat={"loss_on": "all"}, probe="validation")
    return learned_runs(chat_stream(backbone, talk(), plain, second, task("topics", num_rows=20), every))


@pytest.fixture
def own(learned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(learned, tmp_path / "run"))


def test_conversations_are_certified_with_their_template(learned: Path) -> None:
    run = Run(learned)
    for check in run.verify(data=True):
        assert check.problems == ()
        assert check.how == "digests and probe, bit for bit, test rows"
    first, second = run.store.certificate("talk").chat, run.store.certificate("last").chat
    assert first is not None
    assert second is not None
    assert (first.template, first.system, first.loss_on, first.end) == (MARKED, None, "response", 3)
    assert (second.template, second.system, second.loss_on) == (PLAIN, "w70", "last")
    assert first.digest != second.digest
    assert run.results.forgetting == 0.0
    for name in ("plain", "topics"):
        assert run.store.certificate(name).chat is None
        assert "chat" not in json.loads((learned / "banks" / name / "bank.json").read_text("utf-8"))


def test_predictions_match_the_scores(learned: Path) -> None:
    run = Run(learned)
    rows = [row["messages"][:-1] for row in chats(8, 2, 30)]
    found = [answer.value for answer in run.predict(rows, task="talk")]
    session = run.session
    data = session.split(session.spec.tasks[0])
    learner = session.models.resident("talk")
    scores = evaluate(session, learner, data.rows)
    assert scores == run.store.certificate("talk").scores["test"]
    again = make_metrics("causal-lm", None)
    again.update(found, [row["messages"][-1]["content"] for row in chats(8, 2, 30)])
    assert float(again.compute()["rougeL"]) == scores.scores["rougeL"]


def test_rows_are_texts_or_messages_alone_or_mixed_with_other_tasks(learned: Path) -> None:
    run = Run(learned)
    alone = run.predict("w3 w50", task="talk")
    messages = [user("w3 w50")]
    assert run.predict({"messages": messages}, task="talk") == alone
    for call in (lambda: run.predict(messages, task="talk"), lambda: run.predict_all(messages, ["talk"])):
        with pytest.raises(
            InputError, match="rows: got a list of 1 message, which is one conversation, but a list holds"
        ):
            call()
    assert run.predict([messages, "w3 w50"], task="talk") == [alone, alone]
    assert run.predict([[{"from": "human", "value": "w3 w50"}]], task="talk") == [alone]
    assert "".join(run.generate(messages, "talk")) == "".join(run.generate("w3 w50", "talk")) == alone.value
    longer = [user("w1"), assistant("w1 w60"), *messages]
    texts = ["w3 w50", longer, "w3 w4", "w5 w6", messages]
    mixed = run.predict(texts, ["talk", "talk", "plain", "topics", "last"])
    for row, name, answer in zip(texts, ["talk", "talk", "plain", "topics", "last"], mixed, strict=True):
        assert run.predict([row], task=name)[0].value == answer.value
    both = run.predict_all([messages], ["talk", "last"])
    assert both == {"talk": [alone], "last": run.predict([messages], task="last")}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ([[user("w1"), assistant("w2")]], "the last message has the role assistant; it must be user"),
        ([[assistant("w2"), user("w1")]], "message 1, the first after any system message, has the role assistant"),
        ([[]], "empty"),
        ([7], "row 1 is 7; each row of this task is the text of a user message, or a list"),
        ([" "], "message 1 (role user) is empty"),
        ([[{"role": "tool", "content": "w1"}]], "message 1 has role 'tool'"),
    ],
)
def test_rows_that_are_not_conversations_are_refused(learned: Path, row: Any, what: str) -> None:
    with pytest.raises(InputError) as caught:
        Run(learned).predict(row, task="talk")
    assert str(caught.value).startswith("task 'talk': row 1 is ")
    assert what in str(caught.value)
    assert "a list of messages {role, content} that ends with a user message" in str(caught.value)


def test_a_system_message_of_a_row_is_refused_where_the_task_has_one(learned: Path) -> None:
    with pytest.raises(InputError, match=r"chat\.system is set as well"):
        Run(learned).predict([[{"role": "system", "content": "w1"}, user("w2")]], task="last")


def test_rows_without_a_task_can_be_conversations(learned: Path) -> None:
    answer = Run(learned).predict([[user("w3 w50"), assistant("w3 w60"), user("w10 w50")]], reject="never")
    assert isinstance(answer, list)
    assert answer[0].task in ("talk", "last", "every")


def test_command_line_predicts_texts_and_files(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(learned)
    wanted = run.predict("w3 w50", task="talk").value
    assert main(["predict", str(learned), "w3 w50", "--task", "talk"]) == 0
    assert capsys.readouterr().out == f"{wanted}\n"
    file = write_lines(tmp_path / "rows.jsonl", [{"messages": [user("w3 w50")]}, {"messages": "w3 w50"}])
    table = tmp_path / "rows.csv"
    table.write_text('messages\n"[{""role"": ""user"", ""content"": ""w3 w50""}]"\nw3 w50\n', encoding="utf-8")
    for path in (file, table):
        assert main(["predict", str(learned), "--input", str(path), "--task", "talk", "--json"]) == 0
        assert [record["answer"] for record in json.loads(capsys.readouterr().out)] == [wanted, wanted]
    for end in ("jsonl", "csv", "parquet"):
        out = tmp_path / f"out.{end}"
        assert main(["predict", str(learned), "--input", str(file), "--task", "talk", "--output", str(out)]) == 0
    assert json.loads((tmp_path / "out.jsonl").read_text("utf-8").splitlines()[0]) == {
        "messages": [user("w3 w50")],
        "answer": wanted,
        "truncated": False,
    }
    write_lines(file, [{"messages": [user("w3 w50")]}, {"messages": [user("w1"), assistant("w2")]}])
    capsys.readouterr()
    assert main(["predict", str(learned), "--input", str(file), "--task", "talk"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "rows.jsonl:2: task 'talk' reads the column 'messages' as the text of a user message" in shown
    assert "(the last message has the role assistant; it must be user). Write it in this form" in shown


def test_the_endpoint_takes_messages(learned: Path) -> None:
    wanted = Run(learned).predict("w3 w50", task="talk").value
    messages = [user("w3 w50")]
    app = make_app(learned, ServeSettings())
    with CheckedClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        for inputs in ("w3 w50", {"messages": messages}, [{"messages": messages}, "w3 w50"], [messages]):
            answer = client.post("/v1/predict", json={"inputs": inputs, "task": "talk"})
            assert answer.status_code == 200, answer.text
            assert {record["answer"] for record in answer.json()["predictions"]} == {wanted}
        unnamed = client.post("/v1/predict", json={"inputs": {"messages": messages}, "reject": "never"})
        assert unnamed.status_code == 200, unnamed.text
        for bad, what, status in (
            ({"messages": [assistant("w1")]}, "has the role assistant, not user", 409),
            ({"messages": [{"role": "tool", "content": "w1"}]}, "message 1 has role 'tool'", 422),
            (
                {"text": "w1"},
                "it has the keys 'text'; each row must be a text, or an object with the key messages",
                409,
            ),
            (7, "it is a number; each row must be a text", 422),
        ):
            answer = client.post("/v1/predict", json={"inputs": [bad], "task": "talk"})
            assert answer.status_code == status, answer.text
            assert what in answer.text


def test_text_in_the_column_of_messages_is_a_conversation(learned: Path) -> None:
    """Without a task, it could otherwise be taken for a row of a task on texts."""
    run, messages = Run(learned), [user("w3 w50")]
    (wanted,) = run.predict([{"messages": messages}], reject="never")
    assert run.predict({"messages": "w3 w50"}, reject="never") == wanted
    with TestClient(make_app(learned, ServeSettings()), base_url="http://127.0.0.1") as client:
        body = {"inputs": {"messages": "w3 w50"}, "reject": "never"}
        (record,) = client.post("/v1/predict", json=body).json()["predictions"]
    assert (record["task"], record["answer"], record["messages"]) == (wanted.task, wanted.value, messages)


@pytest.mark.parametrize("loss_on", ["response", "all"])
def test_cached_states_train_conversations(backbone: Path, tmp_path: Path, loss_on: str) -> None:
    task_ = talk(chat={"loss_on": loss_on})
    run = learn(chat_stream(backbone, task_, bank=TOP, training={"prefix_cache": "on"}), tmp_path / "run")
    assert all(check.ok for check in run.verify(data=True))


def test_packed_conversations_learn_the_same_tokens(backbone: Path, tmp_path: Path) -> None:
    training = {"packing": True, "precision": "fp32", "epochs": 1}
    run = learn(chat_stream(backbone, talk(), training=training), tmp_path / "run")
    assert all(check.ok for check in run.verify(data=True))
    learner = ContinualLearner(load_backbone(str(backbone), max_length=48))
    data = learner.begin(chat_stream(backbone, talk(), training=training), "talk")
    learned = [batch["labels"] != -100 for batch in data.train_dataloader()]
    assert sum(int(mask.sum()) for mask in learned) == 2 * 3 * 24


def test_conversations_are_learned_with_a_custom_trainer(backbone: Path) -> None:
    learner = ContinualLearner(load_backbone(str(backbone), max_length=48))
    data = learner.begin(chat_stream(backbone, talk()), "talk")
    assert learner.plan.chat is not None
    batch = next(iter(data.train_dataloader()))
    assert (batch["labels"] != -100).sum() == 2 * 3 * len(batch["labels"])


def test_an_interrupted_task_resumes_to_the_same_bank(
    learned_runs: LearnedRuns, backbone: Path, tmp_path: Path
) -> None:
    whole = bank_digests(Run(learned_runs(chat_stream(backbone, talk()))))
    with pytest.raises(Interrupted):
        learn(chat_stream(backbone, talk()), tmp_path / "run", callbacks=[SignalAt(4, signal.SIGINT)])
    assert bank_digests(learn(chat_stream(backbone, talk()), tmp_path / "run")) == whole


def test_other_chat_settings_start_an_interrupted_task_over(
    learned_runs: LearnedRuns, backbone: Path, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        learn(chat_stream(backbone, talk()), tmp_path / "run", callbacks=[SignalAt(4, signal.SIGINT)])
    other = chat_stream(backbone, talk(chat={"loss_on": "last"}))
    whole = bank_digests(Run(learned_runs(other)))
    with pytest.raises(InputError, match="because chat changed since it was saved"):
        learn(other, tmp_path / "run")
    assert bank_digests(learn(other, tmp_path / "run", discard_progress=True)) == whole
    assert whole != bank_digests(Run(learned_runs(chat_stream(backbone, talk()))))


def test_a_task_of_conversations_can_be_forgotten(own: Path) -> None:
    before = Run(own).predict("w3 w50", task="last")
    assert main(["forget", str(own), "talk", "--yes"]) == 0
    run = Run(own)
    assert run.predict("w3 w50", task="last") == before
    assert all(check.problems == () for check in run.verify())


def test_another_template_of_the_tokenizer_changes_nothing(learned: Path, tmp_path: Path, backbone: Path) -> None:
    """Predictions use the template in the certificate."""
    before = Run(learned).predict("w3 w50", task="talk")
    file = backbone / "chat_template.jinja"
    template = file.read_text("utf-8")
    try:
        file.write_text(template.replace("w80", "w79"), encoding="utf-8")
        run = Run(learned)
        assert run.predict("w3 w50", task="talk") == before
        assert all(check.problems == () for check in run.verify(data=True))
    finally:
        file.write_text(template, encoding="utf-8")


def test_a_template_that_was_changed_in_the_certificate_is_noticed(own: Path) -> None:
    file = own / "banks" / "talk" / "bank.json"
    file.write_text(file.read_text("utf-8").replace("w80", "w79"), encoding="utf-8")
    with pytest.raises(StoreError, match=r"digest: it does not match the template|seal"):
        Run(own).predict("w3 w50", task="talk")


def test_a_template_in_a_file_is_relative_to_the_stream_and_not_needed_later(backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(PLAIN, encoding="utf-8")
    tasks = chat_stream(backbone, talk(chat={"template": "chat.jinja"}), data_dir=str(tmp_path))
    learn(tasks, tmp_path / "run")
    assert not changed_settings(Run(tmp_path / "run").session)
    (tmp_path / "chat.jinja").write_text(PLAIN.replace("w80", "w79"), encoding="utf-8")
    (notice,) = changed_settings(Run(tmp_path / "run").session)
    assert "was learned with other settings (chat)" in notice
    (tmp_path / "chat.jinja").unlink()
    run = Run(tmp_path / "run")
    chat = run.store.certificate("talk").chat
    assert chat is not None
    assert chat.template == PLAIN
    assert all(check.problems == () for check in run.verify(data=True))
    assert [run.predict("w3", task="talk")] == run.predict([[user("w3")]], task="talk")


def test_the_dry_run_shows_a_row_and_counts_what_is_cut(backbone: Path, tmp_path: Path) -> None:
    (facts,) = dry_run(Session(chat_stream(backbone, talk(turns=5)).spec, Store(tmp_path / "run")))
    notices = "\n".join(facts.notices)
    assert (
        "24 of 24 train, 6 of 6 validation, 8 of 8 test rows are longer than 40 tokens and were truncated; their oldest"
        in notices
    )
    assert "the first row, as the chat template renders it: '[CLS] w80 w0 w50 [SEP][CLS] w81 w0 w60 [SEP]" in notices
    assert facts.splits["train"].truncated == 24


def test_prompts_and_completions_are_conversations_with_chat(backbone: Path, tmp_path: Path) -> None:
    rows = [{"prompt": m["messages"][:-1], "completion": m["messages"][-1:]} for m in chats(24, 2)]
    texts = [{"prompt": f"w{n} w50", "completion": f"w{n} w60"} for n in range(24)]
    columns: dict[str, Any] = {"columns": {"source": "prompt", "target": "completion"}, "chat": {}}
    tasks = [
        talk("lists", data={"train": rows}, **columns),
        talk("texts", data={"train": texts, "validation": texts[:4]}, **columns),
        talk("same", 1, data={"train": chats(24), "validation": chats(4)}),
    ]
    run = learn(chat_stream(backbone, *tasks), tmp_path / "run")
    assert bank_digests(run).keys() == {"lists", "texts", "same"}
    one, other = run.store.certificate("texts"), run.store.certificate("same")
    assert one.data == other.data


@pytest.mark.parametrize("template", [None, "{{ strftime_now('%d') }}[SEP]"])
def test_a_template_that_cannot_be_used_stops_the_run_at_once(template: str | None, tmp_path: Path) -> None:
    backbone = chat_backbone(tmp_path / "backbone", template)
    with pytest.raises(InputError, match=r"task 'talk', chat\.template"):
        learn(chat_stream(backbone, talk()), tmp_path / "run")
    assert not (tmp_path / "run" / "banks").exists()


def test_messages_without_chat_are_refused_with_what_to_write(backbone: Path, tmp_path: Path) -> None:
    rows = [{"source": m["messages"][:-1], "target": m["messages"][-1]["content"]} for m in chats(24)]
    with pytest.raises(InputError, match=r"lists of messages; to learn conversations, add chat: \{\} to this task"):
        learn(chat_stream(backbone, talk(data={"train": rows}, columns={})), tmp_path / "run")


@pytest.mark.slow
def test_answers_are_learned_up_to_their_end(backbone: Path, tmp_path: Path) -> None:
    training = {"epochs": 30, "batch_size": 8, "learning_rate": 0.02, "precision": "fp32"}
    run = learn(chat_stream(backbone, talk(), training=training), tmp_path / "run")
    # Every answer ends with w60; its first word, from the question, is harder to learn.
    for answer in run.predict(["w3 w50", "w9 w50"], task="talk"):
        assert str(answer.value).endswith("w60")
        assert len(str(answer.value).split()) <= 2
