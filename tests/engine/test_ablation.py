"""An ablation evaluates a bank without the changes in some layers, modifies nothing, and explains refusals."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from continual_petl import InputError, Run, learn
from continual_petl.banks.ablated_view import AblatedView
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import BankSpec
from continual_petl.digests import module_tensors, tensor_digests
from continual_petl.engine.ablation import measure
from continual_petl.engine.ablation.measure import chosen_spans
from continual_petl.engine.ablation.result import Ablation
from continual_petl.engine.scoring.evaluate import evaluate, outputs_of
from continual_petl.engine.session import Session
from continual_petl.learner import ContinualLearner
from continual_petl.learner.plan import build_bank
from continual_petl.streams.encoding.rows import TokenisedRows
from tests.learned import LearnedRuns
from tests.streams_in_code import regression_task, stream, task, task_of_kind, write_rows

Folder = Callable[..., Path]
FEW: dict[str, Any] = {"num_rows": 24}
PRESETS: dict[str, dict[str, Any]] = {
    "houlsby": {"preset": "houlsby", "bottleneck": 4},
    "lora": {"preset": "lora", "rank": 4, "scale": 8.0},
    "mam": {"preset": "mam", "bottleneck": 4, "length": 3},
    "bitfit": {"preset": "bitfit"},
    "upper": {"preset": "parallel", "bottleneck": 4, "layers": 1},
}
EMPTY: dict[str, dict[str, Any]] = {
    "probe": {"preset": "probe"},
    "prompt": {"preset": "prompt", "length": 3},
    "layernorm": {"preset": "layernorm"},
}


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """Return the folder of a run with one task for each bank in PRESETS and EMPTY."""
    tasks = [task(name, bank=bank, **FEW) for name, bank in PRESETS.items()]
    tasks += [task(name, bank=bank, training={"epochs": 1}, **FEW) for name, bank in EMPTY.items()]
    return learned_runs(stream(backbone_folder(), tasks))


def files(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def validation(run: Run, name: str) -> Any:
    (spec,) = [spec for spec in run.session.spec.tasks if spec.name == name]
    return run.session.split(spec, "validation").rows


def outputs(run: Run, name: str, bank: Bank) -> tuple[Tensor, dict[str, float]]:
    """Return a bank's outputs for a task's validation rows, and its scores, computed by a new learner."""
    session, held = run.session, run.session.models.held(name)
    learner = ContinualLearner(held.backbone)
    learner.add_bank(held.plan, bank)
    rows = validation(run, name)
    return torch.stack(outputs_of(session, learner, rows)), evaluate(session, learner, rows).scores


@pytest.mark.parametrize("name", PRESETS)
def test_full_score_matches_the_certificate_and_every_span_has_a_cell(learned: Path, name: str) -> None:
    run = Run(learned)
    found, certificate = run.ablate(name), run.store.certificate(name)
    assert found.scores == certificate.scores["validation"].scores
    assert found.full == certificate.scores["validation"].scores[certificate.metric]
    assert found.notices == ()
    assert [(cell.first, cell.last) for cell in found.cells] == [(0, 0), (0, 1), (1, 1)]
    assert (found.task, found.metric, found.layers, found.stacks) == (name, "accuracy", 2, (2,))
    assert found.num_examples == len(validation(run, name))
    assert found.modified == ((1,) if name == "upper" else (0, 1))
    assert Ablation.from_json(found.to_json()) == found


@pytest.mark.parametrize("name", ["lora", "mam", "upper"])
def test_ablating_all_layers_uses_the_frozen_backbone_with_the_head(learned: Path, name: str) -> None:
    run = Run(learned)
    held = run.session.models.held(name)
    probe = build_bank(held.plan.model_copy(update={"bank": BankSpec()}), held.backbone)
    probe.load_state_dict({key: value for key, value in held.bank.state_dict().items() if key.startswith("head.")})
    said, scores = outputs(run, name, probe.eval())
    removed, _ = outputs(run, name, AblatedView(held.bank, {0, 1}))
    assert torch.equal(said, removed)
    assert run.ablate(name)[0, 1].scores == scores
    assert not torch.equal(said, outputs(run, name, held.bank)[0])


@pytest.mark.parametrize("gone", [0, 1])
def test_ablating_a_layer_equals_a_bank_on_the_other_layer(learned: Path, gone: int) -> None:
    run = Run(learned)
    held = run.session.models.held("lora")
    left = held.plan.bank.model_copy(update={"layers": str(1 - gone)})
    other = build_bank(held.plan.model_copy(update={"bank": left}), held.backbone)
    other.load_state_dict({key: held.bank.state_dict()[key] for key in other.state_dict()})
    said, scores = outputs(run, "lora", other.eval())
    assert torch.equal(said, outputs(run, "lora", AblatedView(held.bank, {gone}))[0])
    assert run.ablate("lora", [(gone, gone)])[gone, gone].scores == scores


@pytest.mark.slow
def test_ablation_does_not_change_the_run_or_other_tasks(learned: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(learned, tmp_path / "run")
    before, run = files(folder), Run(folder)
    texts = [f"w{number} w30" for number in range(6)]
    mixed = ["houlsby", "lora", "bitfit"] * 2
    answers = run.predict(texts, mixed)
    resident = run.session.models.resident("lora")
    held = {name: run.session.models.held(name) for name in PRESETS}
    digests = {name: tensor_digests(each.bank.tensors()) for name, each in held.items()}
    backbone = tensor_digests(module_tensors(resident.model))
    found = {name: run.ablate(name) for name in PRESETS}
    assert (resident.active, resident.bank("lora")) == ("lora", held["lora"].bank)
    for name, each in held.items():
        assert run.session.models.held(name).bank is each.bank
        assert tensor_digests(each.bank.tensors()) == digests[name]
        assert not each.bank.training
    assert tensor_digests(module_tensors(resident.model)) == backbone
    assert run.predict(texts, mixed) == answers
    assert all(check.ok for check in run.verify())
    assert files(folder) == before
    # The result does not depend on which banks are in memory.
    assert {name: Run(folder).ablate(name) for name in PRESETS} == found


def test_rows_are_read_once_and_equivalent_spans_evaluated_once(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(learned)
    measured, read = MagicMock(wraps=evaluate), MagicMock(wraps=run.session.split)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(measure, "evaluate", measured)
    monkeypatch.setattr(run.session, "split", read)
    found = run.ablate("upper", progress=lambda done, total: told.append((done, total)))
    # The bank changes nothing in layer 0, so only two variants differ: the whole bank, and the bank without layer 1.
    assert (measured.call_count, read.call_count, told) == (2, 1, [(1, 2), (2, 2)])
    assert found[0, 0].scores == found.scores
    assert found[0, 0].relative == 0
    assert found[0, 1].scores == found[1, 1].scores


@pytest.mark.slow
def test_encoder_layers_are_numbered_before_decoder_layers(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = backbone_folder("bart")
    spec = task_of_kind("seq2seq", num_rows=16)
    run = learn(
        stream(folder, [spec], backbone={"name": str(folder)}, bank={"preset": "lora", "rank": 2}), tmp_path / "r"
    )
    found = run.ablate("seq2seq")
    assert (found.layers, found.stacks, len(found.cells)) == (4, (2, 2), 10)
    assert found.scores == run.store.certificate("seq2seq").scores["validation"].scores
    assert found.metric == "rougeL"
    assert {"rouge1", "bleu"} < found[1, 2].scores.keys()


@pytest.mark.parametrize("kind", ["regression", "multilabel", "token-classification"])
def test_ablation_uses_the_metric_of_the_task(backbone_folder: Folder, tmp_path: Path, kind: str) -> None:
    run = learn(stream(backbone_folder(), [task_of_kind(kind, num_rows=16)], training={"epochs": 1}), tmp_path / "run")
    found, certificate = run.ablate(kind), run.store.certificate(kind)
    assert (found.metric, found.scores) == (certificate.metric, certificate.scores["validation"].scores)
    assert all(cell.score == cell.scores.get(found.metric) for cell in found.cells)


def test_undefined_score_has_no_relative_change(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = learn(
        stream(backbone_folder(), [regression_task("number", num_rows=16)], training={"epochs": 1}), tmp_path / "r"
    )

    def constant(session: Session, learner: ContinualLearner, rows: TokenisedRows) -> Any:
        # As if the bank predicted the same number for every row, so that the correlation is undefined.
        found = evaluate(session, learner, rows)
        assert isinstance(learner.active_bank, AblatedView)
        return found.model_copy(update={"scores": {}}) if learner.active_bank.removed else found

    monkeypatch.setattr(measure, "evaluate", constant)
    found = run.ablate("number")
    assert found.full is not None
    assert {(cell.score, cell.relative) for cell in found.cells} == {(None, None)}


def test_shared_task_is_ablated_in_the_bank_committed_with_it(backbone_folder: Folder, tmp_path: Path) -> None:
    bank = {"preset": "lora", "rank": 4, "scope": "shared"}
    run = learn(stream(backbone_folder(), [task("first", **FEW), task("second", **FEW)], bank=bank), tmp_path / "run")
    for name in ("first", "second"):
        found = run.ablate(name)
        assert found.scores == run.store.certificate(name).scores["validation"].scores
        assert found.notices == ()


def test_split_can_be_chosen(learned: Path) -> None:
    run = Run(learned)
    found = run.ablate("houlsby", "single", "test")
    assert found.scores == run.store.certificate("houlsby").scores["test"].scores
    assert (found.split, [cell.first for cell in found.cells]) == ("test", [0, 1])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("probe", "it only has its head. The forms that act in layers are"),
        ("prompt", "it only has its head; a prompt of 3 vectors in front of the input"),
        ("layernorm", "it only has its head; its own LayerNorms"),
    ],
)
def test_bank_without_modified_layers_is_refused(learned: Path, name: str, says: str) -> None:
    with pytest.raises(InputError, match=f"task '{name}': its bank has no modification in any layer") as caught:
        Run(learned).ablate(name)
    assert says in str(caught.value)


def test_an_unknown_task_is_refused(learned: Path) -> None:
    with pytest.raises(InputError, match="learned tasks: houlsby"):
        Run(learned).ablate("hulsby")


@pytest.mark.parametrize("spans", [[], ["0-2"], ["1-0"], ["x"], ["-1"], [(0, 2)], [(1, 0)], [(0,)], [(True, 1)], "0-2"])
def test_invalid_spans_are_refused(learned: Path, spans: Any) -> None:
    with pytest.raises(
        InputError, match=r"spans: (the list is empty|.* is not a valid span of layers.*has layers 0 to 1$)"
    ):
        Run(learned).ablate("lora", spans)


@given(st.integers(1, 40))
def test_number_of_spans(count: int) -> None:
    spans = chosen_spans(None, count)
    assert len(spans) == count * (count + 1) // 2
    assert spans == list(combinations_with_replacement(range(count), 2)) == sorted(spans)
    assert (
        chosen_spans([*spans, "0"], count) == chosen_spans([f"{first}-{last}" for first, last in spans], count) == spans
    )
    assert chosen_spans("single", count) == [span for span in spans if span[0] == span[1]]


def on_disk(backbone: Path, folder: Path, *, with_test: bool = True) -> Path:
    """Return a run whose rows are read from files."""
    write_rows(folder / "data", "one")
    if not with_test:
        (folder / "data" / "test.jsonl").unlink()
    spec = {"name": "one", "kind": "classification", "data": str(folder / "data")}
    learn(stream(backbone, [spec], training={"epochs": 1}), folder / "run")
    return folder / "run"


def test_missing_or_changed_data_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = on_disk(backbone_folder(), tmp_path, with_test=False)
    assert Run(folder).ablate("one").notices == ()
    with pytest.raises(InputError, match=r"task 'one': it has no test split; its certificate covers validation"):
        Run(folder).ablate("one", split="test")
    rows = tmp_path / "data" / "validation.jsonl"
    lines = rows.read_text().splitlines(keepends=True)
    rows.write_text("".join(lines[1:]))
    with pytest.raises(InputError, match=r"its validation rows are not those it was certified on\. An ablation"):
        Run(folder).ablate("one")
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(InputError, match=r"its validation rows are not available: .* restore the rows"):
        Run(folder).ablate("one")


def test_task_missing_from_the_stream_is_refused(learned: Path) -> None:
    run = Run(learned)
    left = tuple(spec for spec in run.session.spec.tasks if spec.name != "lora")
    run.session.spec = run.session.spec.model_copy(update={"tasks": left})
    with pytest.raises(InputError, match="no longer in the stream, so its rows are unknown"):
        run.ablate("lora")


def test_changed_full_score_is_reported(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def other(*given: Any) -> Any:
        return evaluate(*given).model_copy(update={"predictions": "another"})

    monkeypatch.setattr(measure, "evaluate", other)
    (notice,) = Run(learned).ablate("lora", "single").notices
    assert notice.startswith(
        "Some predictions of the full bank differ from those certified, although all scores are equal"
    )
    monkeypatch.setattr(
        measure, "evaluate", lambda *given: evaluate(*given).model_copy(update={"scores": {"accuracy": 0.0}})
    )
    found = Run(learned).ablate("lora", "single")
    (notice,) = found.notices
    assert "The full bank scores 0.0 here, but " in notice
    assert {cell.relative for cell in found.cells} == {None}
