"""Banks in upper layers continue the pass in which a row's task was found, so lower layers are computed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from continual_petl import Run, learn
from continual_petl.predictor.predictor import Predictor
from continual_petl.predictor.task_finder import chosen_states, kept_states, task_finder
from continual_petl.router.row_states import StatesBelow
from tests.router.rows import labelled_task, routed_stream, rows_of
from tests.streams_in_code import stream, task_of_kind
from tests.tiny import make_model, make_tokenizer
from tests.usual import few

Folder = Callable[..., Path]
UPPER: dict[str, Any] = {"preset": "houlsby", "bottleneck": 4, "layers": "1"}


def _texts(*names: str) -> list[Any]:
    return [
        (row["text"], row["text_pair"]) if name == "pairs" else row["text"]
        for name in names
        for row in rows_of(name, 9, 7)
    ]


def _check_alike(run: Run, rows: list[Any]) -> None:
    found = run.predict(rows, reject="never", batch_size=8)
    tasks = [str(answer.task) for answer in found]
    named = run.predict(rows, tasks, batch_size=8)
    for routed, answer in zip(found, named, strict=True):
        assert routed.value == answer.value
        assert routed.probabilities == pytest.approx(answer.probabilities, abs=1e-5)


@pytest.mark.parametrize("family", few(["bert", "distilbert", "roberta", "gpt2"]))
def test_lower_layers_are_computed_once(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    names = ("low", "high", "pairs")
    tasks = [labelled_task(name) for name in names]
    run = learn(routed_stream(backbone_folder(family), tasks, bank=UPPER), tmp_path / "run", progress=False)
    rows = _texts(*names)
    _check_alike(run, rows)
    backbone = run.session.models.backbone("fp32")
    calls: list[object] = []
    # Skipped layers are still called, but not the modules inside them.
    part = next(iter(backbone.model.get_submodule(backbone.sites.layers[0].path).children()))
    part.register_forward_hook(lambda *given: calls.append(given))
    run.predict(rows, reject="never", batch_size=64)
    num_shared = len(calls)
    monkeypatch.setattr("continual_petl.predictor.task_finder.MAX_BYTES", 0)
    run.predict(rows, reject="never", batch_size=64)
    assert num_shared < len(calls) - num_shared


def test_debertas_convolution_belongs_to_the_states_below_the_second_layer(tmp_path: Path) -> None:
    whole = make_model("deberta-v2")
    whole.config.conv_kernel_size, whole.config.conv_act = 3, "gelu"
    torch.manual_seed(0)
    type(whole)(whole.config).save_pretrained(tmp_path / "deberta")
    make_tokenizer("deberta-v2").save_pretrained(tmp_path / "deberta")
    tasks = [labelled_task("low"), labelled_task("high")]
    run = learn(routed_stream(tmp_path / "deberta", tasks, bank=UPPER), tmp_path / "run", progress=False)
    assert task_finder(run.session.models).lowest_layer(run.session.models) == 1
    _check_alike(run, _texts("low", "high"))


def test_bank_in_lower_layers_starts_at_the_embeddings(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [labelled_task("low"), labelled_task("high", bank={"preset": "lora", "rank": 2})]
    run = learn(routed_stream(backbone_folder(), tasks, bank=UPPER), tmp_path / "run", progress=False)
    finder = task_finder(run.session.models)
    assert finder.lowest_layer(run.session.models) == 0
    assert kept_states(run.session.models, finder, 1) is None
    _check_alike(run, _texts("low", "high"))


@pytest.mark.parametrize("preset", ["prompt", "prefix", "bitfit", "probe"])
def test_other_forms_in_upper_layers_predict_alike(backbone_folder: Folder, tmp_path: Path, preset: str) -> None:
    tasks = [
        labelled_task("low"),
        labelled_task("high", bank={"preset": preset} | ({} if preset in ("prompt", "probe") else {"layers": "1"})),
    ]
    run = learn(routed_stream(backbone_folder(), tasks, bank=UPPER), tmp_path / "run", progress=False)
    _check_alike(run, _texts("low", "high"))


@pytest.mark.parametrize("kind", ["token-classification", "causal-lm", "image-classification"])
def test_other_kinds_predict_alike(backbone_folder: Folder, tmp_path: Path, kind: str) -> None:
    family = {"causal-lm": "gpt2", "image-classification": "vit"}.get(kind, "bert")
    backbone = backbone_folder(family)
    task = task_of_kind(kind, "own", num_rows=24)
    more: dict[str, Any] = {"backbone": {"name": str(backbone)}} if kind == "causal-lm" else {}
    run = learn(
        stream(backbone, [task], bank=UPPER, training={"epochs": 1}, routing="full", **more),
        tmp_path / "run",
        progress=False,
    )
    key = {"token-classification": "tokens", "image-classification": "image"}.get(kind, "text")
    rows = [row.get(key, row.get("source")) for row in task["data"]["test"]]
    found = run.predict(rows, reject="never")
    assert [each.value for each in found] == [each.value for each in run.predict(rows, "own")]


def test_states_of_many_rows_are_not_kept(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = learn(routed_stream(backbone_folder(), [labelled_task("low")], bank=UPPER), tmp_path / "run", progress=False)
    models = run.session.models
    backbone = models.backbone("fp32")
    monkeypatch.setattr(
        "continual_petl.predictor.task_finder.MAX_BYTES", backbone.max_length * backbone.hidden_size * 4 * 3
    )
    assert kept_states(models, task_finder(models), 3) is not None
    assert kept_states(models, task_finder(models), 4) is None


def test_states_of_rows_that_are_now_encoded_differently_are_not_used(backbone_folder: Folder, tmp_path: Path) -> None:
    run = learn(routed_stream(backbone_folder(), [labelled_task("low")], bank=UPPER), tmp_path / "run", progress=False)
    models, texts = run.session.models, _texts("low")
    finder = task_finder(models)
    kept = kept_states(models, finder, len(texts))
    finder.states(models, texts, below=kept)
    below = chosen_states(finder, kept, dict.fromkeys(range(len(texts)), "low"))
    assert below is not None
    wrong = StatesBelow(layer=below.layer, states={row: states[:-1] * 0 for row, states in below.states.items()})
    found = Predictor(models).resume(texts, dict.fromkeys(range(len(texts)), "low"), wrong)
    assert [found[row] for row in range(len(texts))] == run.predict(texts, "low")


def test_rows_are_read_with_the_attention_of_the_certificates(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks, texts = [labelled_task("low"), labelled_task("high")], _texts("low")
    for number, attention in ((1, "sdpa"), (2, "eager")):
        backbone = {"name": str(backbone_folder()), "attention": attention}
        given = stream(backbone_folder(), tasks[:number], routing="full", backbone=backbone, training={"epochs": 1})
        learn(given, tmp_path / "run", progress=False)
        models = Run(tmp_path / "run").session.models
        found = task_finder(models).states(models, texts)
        assert len(found) == number
        if number == 1:
            ((encoding, before),) = found.items()
    assert models.backbone("fp32").attention == "eager"
    assert all(np.array_equal(found[encoding][index].features_F, state.features_F) for index, state in before.items())
