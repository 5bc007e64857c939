"""Tasks with options are learned, certified, served and exported, and predict the most likely option."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, learn
from continual_petl.cli.main import main
from continual_petl.engine.changed_settings import changed_settings
from continual_petl.engine.session import Session
from continual_petl.predictor.task_finder import task_finder
from continual_petl.serve import ServeSettings, make_app
from continual_petl.store.store import Store
from continual_petl.streams.encoding.chat_encoder import ChatEncoder
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.schema.task_spec import TaskSpec
from tests.chats import assistant, chat_backbone, user
from tests.learned import LearnedRuns
from tests.serve.declared import CheckedClient
from tests.small import small
from tests.streams_in_code import stream, task, task_of_kind

OPTIONS = ("w10", "w11 w12", "w13 w14 w15")


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Return rows whose correct option is determined by the first word of the source."""
    draw = random.Random(seed)
    words = [draw.choices(range(20, 80), k=3) for _ in range(count)]
    return [{"source": " ".join(f"w{n}" for n in row), "target": OPTIONS[row[0] % 3]} for row in words]


def choice(name: str = "choice", **more: Any) -> dict[str, Any]:
    """Return a task with options."""
    data = {"train": rows(24, 1), "validation": rows(9, 2), "test": rows(9, 3)}
    own = {"options": list(OPTIONS), "max_target_length": 8}
    return {"name": name, "kind": "causal-lm", "data": data, **own, **more}


def talk(name: str = "talk") -> dict[str, Any]:
    """Return a task of conversations with options."""
    data = {
        split: [{"messages": [user(row["source"]), assistant(row["target"])]} for row in own]
        for split, own in choice()["data"].items()
    }
    return choice(name) | {"data": data, "columns": {"messages": "messages"}, "normalise": "characters"}


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_backbone(tmp_path_factory.mktemp("backbones") / "llama")


@pytest.fixture(scope="module")
def learned(backbone: Path, learned_runs: LearnedRuns) -> Path:
    tasks = [
        choice(normalise="tokens"),
        talk(),
        task("topics", num_rows=16),
        task_of_kind("causal-lm", "texts", num_rows=16, max_target_length=8),
        choice("rows", probe="validation", bank=small("lora")),
    ]
    given = {"name": str(backbone), "max_length": 40}
    return learned_runs(stream(backbone, tasks, backbone=given, training={"epochs": 3}))


def test_certificate_names_options_and_normalisation(learned: Path) -> None:
    run = Run(learned)
    for check in run.verify(data=True):
        assert check.problems == ()
        assert check.how == "digests and probe, bit for bit, test rows"
    first, second = run.store.certificate("choice"), run.store.certificate("talk")
    assert (first.options, first.normalise, first.metric, first.generation) == (OPTIONS, "tokens", "accuracy", None)
    assert (second.normalise, set(second.scores["test"].scores)) == ("characters", {"accuracy", "macro_f1", "matthews"})
    plain = json.loads((learned / "banks" / "texts" / "bank.json").read_text("utf-8"))
    assert "normalise" not in plain
    assert run.results.forgetting == 0.0


def test_scores_are_those_of_the_predictions(learned: Path) -> None:
    run = Run(learned)
    for name in ("choice", "talk", "rows"):
        found = run.predict([row["source"] for row in rows(9, 3)], task=name)
        right = sum(answer.value == row["target"] for answer, row in zip(found, rows(9, 3), strict=True))
        certificate = run.store.certificate(name)
        assert certificate.score == pytest.approx(right / 9)
        for answer in found:
            assert answer.probabilities is not None
            assert answer.value == max(answer.probabilities, key=answer.probabilities.__getitem__)
            assert tuple(answer.probabilities) == OPTIONS
            assert sum(answer.probabilities.values()) == pytest.approx(1)
    for name in ("choice", "talk"):
        wrong, score = run.wrong_predictions(name), run.store.certificate(name).score or 0
        assert (wrong.why_none, wrong.num_wrong) == (None, round(9 * (1 - score)))
        assert {row.given[0] for row in wrong.rows} <= {row["source"] for row in rows(9, 3)}


def test_rows_of_several_tasks_together(learned: Path) -> None:
    run = Run(learned)
    texts, names = ["w30 w31", "w32 w33", "w34 w35", [user("w36 w37")]], ["choice", "topics", "texts", "talk"]
    for row, name, answer in zip(texts, names, run.predict(texts, names), strict=True):
        assert run.predict([row], task=name) == [answer]
    both = run.predict_all("w30 w31", ["choice", "rows"])
    assert both == {name: run.predict("w30 w31", task=name) for name in ("choice", "rows")}
    with pytest.raises(InputError, match="task 'choice' chooses among its options, and generates no text"):
        run.generate("w30", "choice")


def test_predict_prints_the_probability_of_each_option(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(learned), "--task", "choice", "--json", "w30 w31"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    answer = Run(learned).predict("w30 w31", task="choice")
    assert (record["answer"], record["probabilities"]) == (answer.value, answer.probabilities)


def test_endpoint_answers_with_options_and_with_texts(learned: Path) -> None:
    names = ["choice", "texts", "talk"]
    asked = {"inputs": ["w30 w31"] * 3, "task": names}
    with CheckedClient(make_app(learned, ServeSettings()), base_url="http://127.0.0.1") as client:
        found = client.post("/v1/predict", json=asked).json()
    for name, record in zip(names, found["predictions"], strict=True):
        answer = Run(learned).predict("w30 w31", task=name)
        assert record["answer"] == answer.value
        assert ("probabilities" in record) == (name != "texts")


def test_rows_count_once_per_option_at_the_endpoint(learned: Path) -> None:
    with CheckedClient(make_app(learned, ServeSettings(max_rows=5)), base_url="http://127.0.0.1") as client:
        body = {"inputs": ["w20 w30"] * 2, "task": "choice"}
        found = client.post("/v1/predict", json=body)
        assert (found.status_code, found.json()["error"]["code"]) == (413, "too_many_rows")
        assert "2 rows, which count as 6, each row once per option of its task" in found.json()["error"]["message"]
        assert client.post("/v1/predict", json=body | {"inputs": ["w20 w30"]}).status_code == 200


def test_options_are_encoded_only_where_they_are_scored(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    encode = ChatEncoder.target

    def encoded(encoder: ChatEncoder, messages: Any, *given: Any) -> Any:
        seen.append(messages[-1]["content"])
        return encode(encoder, messages, *given)

    monkeypatch.setattr(ChatEncoder, "target", encoded)
    run = Run(learned)
    data = run.session.prepare(next(spec for spec in run.spec.tasks if spec.name == "talk"))
    assert data.train.option_ids is None
    assert len(seen) == 24 + (9 + 9) * (1 + len(OPTIONS))
    seen.clear()
    models = run.session.models
    task_finder(models).states(models, [[user("w20 w30")]] * 3)
    assert seen == []


def test_an_exported_checkpoint_says_how_to_choose(learned: Path, tmp_path: Path) -> None:
    Run(learned).export("rows", "merged", tmp_path / "merged")
    card = (tmp_path / "merged" / "README.md").read_text("utf-8")
    assert "the option with the highest sum of log-probabilities of its tokens" in card
    assert "answers.append(options[found.index(max(found))])" in card


@pytest.mark.parametrize(
    "changed", [{"options": [*OPTIONS, "w16"]}, {"options": list(OPTIONS[::-1])}, {"normalise": None}]
)
def test_a_changed_list_is_noticed(backbone: Path, learned: Path, changed: dict[str, Any]) -> None:
    store = Store(learned)
    spec = stream(backbone, [choice(normalise="tokens")], training={"epochs": 3}).spec
    tree = spec.model_dump(mode="json")
    tree["tasks"][0] |= changed
    if changed.get("normalise", 1) is None:
        del tree["tasks"][0]["normalise"]
    now = StreamSpec.model_validate(tree)
    (notice,) = changed_settings(Session(now, store))
    assert f"'choice' was learned with other settings ({next(iter(changed))})" in notice


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kind": "classification"}, "has no effect on a classification task .it is for causal-lm, seq2seq"),
        ({"options": ["w1"]}, "a choice needs at least two options, got 1"),
        ({"options": ["w1", " "]}, "the option ' ' is blank"),
        ({"options": ["w1", "w1"]}, "the option 'w1' is listed more than once"),
        ({"generation": {"max_new_tokens": 4}}, "has no effect with options, since no text is generated"),
        ({"options": None, "normalise": "tokens"}, "has no effect without options"),
        ({"metric": "rougeL"}, "allowed for kind causal-lm with options: accuracy, macro_f1, matthews"),
    ],
)
def test_settings_that_do_not_fit_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TaskSpec.model_validate(choice() | more)


def test_a_target_that_is_not_an_option_is_refused(backbone: Path, tmp_path: Path) -> None:
    wrong = choice()
    wrong["data"]["train"][4]["target"] = "w11"
    with pytest.raises(
        InputError, match=r"column 'target': 1 row cannot be used: row 5: 'w11'.* Every target must be one of"
    ):
        learn(stream(backbone, [wrong]), tmp_path / "run")
