"""A task reports a user-defined metric, which is certified with its code and never imported without permission."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, learn
from continual_petl.callbacks.no_forgetting import raise_if_changed
from continual_petl.cli.main import main
from continual_petl.digests import file_digest
from continual_petl.errors import ForgettingError
from continual_petl.heads import metric_code
from continual_petl.streams.schema.task_spec import TaskSpec
from tests.streams_in_code import stream, task

CODE = """
import pathlib
pathlib.Path({trace!r}).write_text("executed")
def yes(predictions, references):
    return sum(one == "yes" == other for one, other in zip(predictions, references, strict=True)) / len(references)
"""
METRIC = "own_scores_of_yes.yes"
OWN: dict[str, Any] = {"metric": METRIC, "remote_code": True}


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the imported module, so that the next import executes it again."""
    monkeypatch.setattr(metric_code, "_loaded", {})
    monkeypatch.delitem(sys.modules, "own_scores_of_yes", raising=False)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "own_scores_of_yes.py"
    path.write_text(CODE.format(trace=str(tmp_path / "trace")))
    forget(monkeypatch)
    return path


def test_own_metric_from_stream_to_verification(
    backbone_folder: Callable[..., Path],
    tmp_path: Path,
    module: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tasks: list[dict[str, Any]] = [task("one", num_rows=16, **OWN), task("two", num_rows=16)]
    folder, trace = tmp_path / "run", tmp_path / "trace"
    run = learn(stream(backbone_folder(), tasks, training={"epochs": 1}), folder)
    certificate = run.store.certificate("one")
    assert (certificate.metric, certificate.metric_code) == (METRIC, file_digest(module))
    assert certificate.score == certificate.scores["test"].scores[METRIC]
    cells = [line.cells[0] for line in run.store.results() if line.type == "row"]
    assert [(cell.status, cell.value) for cell in cells] == [("measured", certificate.score)] * 2
    given = [row["text"] for row in tasks[0]["data"]["test"]]
    labels = [row["label"] for row in tasks[0]["data"]["test"]]
    found = [answer.value for answer in run.predict(given, "one")]
    right = sum(one == "yes" == other for one, other in zip(found, labels, strict=True))
    assert certificate.score == pytest.approx(right / len(labels))

    # An opened folder may come from anyone, so its metric is not imported.
    forget(monkeypatch)
    trace.unlink()
    stranger = Run(folder)
    assert [answer.value for answer in stranger.predict(given, "one")] == found
    assert all(check.ok for check in stranger.verify())
    (check, other) = stranger.verify(data=True)
    assert (check.verdict, other.verdict) == ("score not checked", "unchanged")
    assert f"task 'one': its metric '{METRIC}' is not imported without your permission" in check.problems[0]
    with pytest.raises(InputError, match=r"task 'one': its metric .* pass --remote-code"):
        stranger.ablate("one", "single")
    (tmp_path / "three.jsonl").write_text("{}")
    (tmp_path / "three.yaml").write_text("{name: three, kind: classification, data: three.jsonl}")
    assert main(["learn", str(folder), str(tmp_path / "three.yaml"), "--quiet"]) == 2
    assert "task 'one', key remote_code: true: it asks to import" in capsys.readouterr().err
    assert not trace.exists()
    assert all(check.ok for check in Run(folder, remote_code=True).verify(data=True))
    assert trace.exists()

    # If the code was changed or is missing, nothing counts as forgotten, and a downloaded run still predicts.
    module.write_text(module.read_text() + "\n")
    for arguments in ([], ["--digests"], ["--data", "--remote-code"]):
        assert main(["verify", str(folder), *arguments]) == 1
        shown = " ".join(capsys.readouterr().out.split())
        assert shown.count("is not the code that the score was certified with") == 1
        assert "score not checked" in shown
    module.unlink()
    assert [check.verdict for check in Run(folder).verify(probe=False)] == ["score not checked", "unchanged"]
    downloaded = Run(folder)
    downloaded._verified = False
    assert [answer.value for answer in downloaded.predict(given, "one")] == found
    (check,) = downloaded.verify("one")
    assert "there is no module 'own_scores_of_yes'" in check.problems[0]
    raise_if_changed(check.findings)
    with pytest.raises(ForgettingError):
        raise_if_changed([replace(check.findings[0], unchecked=None)])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.usefixtures("forked_workers")
def test_two_ranks_give_an_own_metric_every_row_once(
    backbone_folder: Callable[..., Path],
    tmp_path: Path,
    module: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    module.write_text(
        "def rows(predictions, references):\n    assert len(predictions) == len(references)\n    return len(references)\n"
    )
    given = task("one", num_rows=23, metric="own_scores_of_yes.rows", remote_code=True)
    two = {"devices": 2, "accelerator": "cpu", "strategy": strategy}
    run = learn(
        stream(backbone_folder(), [given], training={"epochs": 2, "batch_size": 5}), tmp_path / "run", trainer=two
    )
    history = run.store.history("one")
    assert history is not None
    count = len(given["data"]["validation"])
    assert [point.scores["own_scores_of_yes.rows"] for point in history.curve.scores] == [count, count]
    assert run.store.certificate("one").scores["validation"].scores["own_scores_of_yes.rows"] == count


def test_without_permission_or_function_nothing_is_learned(
    backbone_folder: Callable[..., Path], tmp_path: Path, module: Path
) -> None:
    for own, message in (
        ({"metric": METRIC}, r"is not imported without your permission.*write remote_code: true in this task"),
        ({**OWN, "metric": "own_scores_of_yes.no"}, "task 'one': metric .* has no 'no'"),
    ):
        with pytest.raises(InputError, match=message):
            learn(stream(backbone_folder(), [task("one", num_rows=16, **own)]), tmp_path / "run")
    assert not (tmp_path / "run" / "banks").exists()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"remote_code": True}, "has no effect without a metric of your own"),
        ({"metric": "accuracy", "remote_code": True}, "has no effect without a metric of your own"),
        ({"metric": "a..b"}, "got 'a..b'; allowed for kind classification: accuracy.*package.module.name"),
    ],
)
def test_settings_that_do_not_fit_are_refused(own: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TaskSpec.model_validate(task("one", num_rows=4) | own)
