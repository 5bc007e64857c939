"""How tags are read is part of a task's certificate, and decides its scores whenever they are measured again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from seqeval.metrics import f1_score

from continual_petl import InputError, Run, learn
from continual_petl.cli.main import main
from continual_petl.engine.changed_settings import _tags, settings_that_differ
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.heads.tag_scheme import TagReading
from continual_petl.report.task_settings import settings_in_words
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.store import Store
from continual_petl.streams.schema.tags_spec import TagsSpec
from continual_petl.streams.stream import TaskStream
from tests.learned import LearnedRuns
from tests.streams_in_code import stream
from tests.tiny import WORDS

Folder = Callable[..., Path]


def rows(tags: tuple[str, ...], count: int) -> list[dict[str, Any]]:
    draw = random.Random(repr(tags))
    words = [draw.choices(WORDS[10:40], k=draw.randint(2, 5)) for _ in range(count)]
    return [{"tokens": own, "tags": [tags[int(word[1:]) % len(tags)] for word in own]} for own in words]


def task(name: str, used: tuple[str, ...], /, **more: Any) -> dict[str, Any]:
    found = rows(used, 44)
    data = {"train": found[:20], "validation": found[20:32], "test": found[32:]}
    return {"name": name, "kind": "token-classification", "data": data, **more}


def two_tasks(backbone: Path, **more: Any) -> TaskStream:
    speech = task("speech", ("NOUN", "VERB", "ADJ"), metric="accuracy")
    return stream(backbone, [speech, task("cut", ("b_x", "m_x", "e_x", "s_x", "o"), **more)])


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    return learned_runs(two_tasks(backbone_folder("bert")))


def test_certificate_holds_how_tags_are_read(learned: Path) -> None:
    store = Store(learned)
    speech, cut = store.certificate("speech"), store.certificate("cut")
    assert speech.tags == TagReading(scheme="none")
    assert set(speech.scores["test"].scores) == {"accuracy"}
    assert cut.tags == TagReading(scheme="BMES", separator="_", outside=("o",))
    assert {"entity_f1", "entity_precision", "entity_recall", "accuracy"} == set(cut.scores["test"].scores)
    assert all(check.ok for check in Run(learned).verify(data=True))


def seqeval_of(run: Run, tasks: TaskStream, num_words: int | None = None) -> float:
    """Return seqeval's F1 of the test rows of a task, of their first words."""
    data: Any = tasks["cut"].data
    found = data["test"]
    predicted: Any = run.predict([row["tokens"][:num_words] for row in found], task="cut")

    def plain(tags: list[str]) -> list[str]:
        return ["O" if tag == "o" else tag.upper().replace("_", "-").replace("M-", "I-") for tag in tags]

    return float(f1_score([plain(row["tags"][:num_words]) for row in found], [plain(each.value) for each in predicted]))


def test_reported_score_is_that_of_seqeval(learned: Path, backbone_folder: Folder) -> None:
    run = Run(learned)
    wanted = seqeval_of(run, two_tasks(backbone_folder("bert")))
    assert run.store.certificate("cut").score == pytest.approx(wanted)


def test_rows_are_scored_up_to_where_they_are_cut(backbone_folder: Folder, tmp_path: Path) -> None:
    backbone = {"name": str(backbone_folder("bert")), "pooling": "mean", "max_length": 5}
    tasks = stream(backbone_folder("bert"), [task("cut", ("b_x", "m_x", "e_x", "s_x", "o"))], backbone=backbone)
    run = learn(tasks, tmp_path / "run")
    certificate = run.store.certificate("cut")
    assert any("test rows are longer than 5 tokens and were truncated" in notice for notice in certificate.notices)
    assert certificate.score == run.results.own[0] == pytest.approx(seqeval_of(run, tasks, 3))
    assert run.results.routed is not None, "rows of which only the beginning is seen are recognised too"
    with pytest.raises(InputError, match=r"row 1 has 4 words, but only the first 3 fit"):
        run.predict([["w10", "w11", "w12", "w13"]])


def test_certificate_without_the_key_is_written_as_before(learned: Path) -> None:
    certificate = Store(learned).certificate("cut")
    older = Certificate.model_validate({**certificate.model_dump(), "tags": None})
    assert "tags" not in older.model_dump(mode="json")
    assert older.tags is None
    with pytest.raises(ValueError, match="tags: they mark no entities, but the metric is entity_f1"):
        Certificate.model_validate({**certificate.model_dump(), "tags": {"scheme": "none"}})
    with pytest.raises(ValueError, match="tag 'b_x' does not fit IOB2"):
        Certificate.model_validate({**certificate.model_dump(), "tags": {"scheme": "IOB2", "separator": "-"}})


def test_show_and_the_report_say_how_tags_are_read(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, wanted in (("speech", "not read as entities"), ("cut", "BMES, as in B_TYPE; outside of entities: 'o'")):
        certificate = Store(learned).certificate(name)
        assert settings_in_words(certificate, None)["tags"] == wanted
        assert main(["show", str(learned), name]) == 0
        assert wanted in " ".join(capsys.readouterr().out.split())
        assert main(["show", str(learned), name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["tags"]["scheme"] == ("none" if name == "speech" else "BMES")


def test_dry_run_shows_how_tags_are_read(backbone_folder: Folder, tmp_path: Path) -> None:
    stream = two_tasks(backbone_folder("bert"))
    facts = dry_run(Session(stream.spec, Store(tmp_path / "run")))
    assert [each.to_json()["tags"] for each in facts] == [
        "not read as entities",
        "BMES, as in B_TYPE; outside of entities: 'o'",
    ]
    assert any("tags are read as BMES" in notice for notice in facts[1].notices)
    json.dumps([each.to_json() for each in facts])


def test_other_reading_in_the_stream_is_a_changed_setting(learned: Path, backbone_folder: Folder) -> None:
    same = two_tasks(backbone_folder("bert"), tags={"outside": "o"})
    assert settings_that_differ(Session(same.spec, Store(learned))) == {}
    other = two_tasks(backbone_folder("bert"), tags={"scheme": "none"}, metric="accuracy")
    assert settings_that_differ(Session(other.spec, Store(learned))) == {"cut": ["metric", "tags"]}


def test_where_the_letter_stands_is_as_learned_if_the_tags_do_not_say_it() -> None:
    """The training rows decided; without them, both readings fit the labels."""
    labels = ("O", "B-E", "I-E", "B-I", "I-I")
    for learned in (TagReading(scheme="IOB2", separator="-", outside=("O",), position=p) for p in ("prefix", "suffix")):
        task, certificate = Mock(tags=TagsSpec(outside="O")), Mock(labels=labels, tags=learned)
        assert _tags(task, certificate) == learned
