"""A failed check reports what differs, where, and the expected value, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from continual_petl import Run, learn
from continual_petl.cli.main import main
from continual_petl.store.certificate.finding import first_difference
from tests.store.tampering import QUICK, change_tensors, nudge
from tests.streams_in_code import stream, task_of_kind

Folder = Callable[..., Path]


@given(
    st.lists(st.integers(1, 4), max_size=3), st.integers(0, 10**6), st.sampled_from(["float32", "bfloat16", "int64"])
)
def test_the_first_difference_is_the_first_in_row_major_order(shape: list[int], place: int, dtype: str) -> None:
    certified = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).to(getattr(torch, dtype))
    assert first_difference(certified, certified.clone()) is None
    found = certified.clone()
    flat = place % found.numel()
    found.view(-1)[flat:] = -1
    difference = first_difference(found, certified)
    assert difference is not None
    assert torch.arange(found.numel()).reshape(shape)[difference.position] == flat
    assert (difference.found, difference.certified) == (-1.0, float(certified.view(-1)[flat]))


def test_negative_zero_and_nan_count_as_differences() -> None:
    one = torch.tensor([0.0, float("nan")])
    assert first_difference(one, one.clone()) is None
    difference = first_difference(torch.tensor([-0.0, float("nan")]), one)
    assert difference is not None
    assert difference.position == (0,)


def test_changed_bank_is_reported_with_its_effect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_tensors(folder / "banks" / "two" / "bank.safetensors", lambda t: t["head.output.bias"][1:].add_(1.0))
    assert main(["verify", str(folder), "--json"]) == 1
    found = {check["task"]: check for check in json.loads(capsys.readouterr().out)}
    assert [found[name]["ok"] for name in ("one", "two", "three")] == [True, False, True]
    (finding,) = found["two"]["findings"]
    assert finding["tensor"] == "head.output.bias"
    assert finding["file"].endswith("banks/two/bank.safetensors")
    assert finding["cause"] == "a damaged disk, a bad copy, or an edit"
    assert "With it, probe row 0, output 1 is " in finding["message"]
    assert found["one"]["problems"] == []
    assert main(["verify", str(folder), "--task", "one"]) == 0


def test_change_without_effect_on_answers_is_reported(folder: Path) -> None:
    change_tensors(
        folder / "banks" / "two" / "bank.safetensors", lambda t: t["head.output.bias"].add_(0.0).neg_().neg_()
    )
    assert all(check.ok for check in Run(folder).verify())
    change_tensors(folder / "banks" / "two" / "bank.safetensors", nudge("modifications.0.layer_0.self.down.bias"))
    (check,) = [check for check in Run(folder).verify() if not check.ok]
    assert "tensor modifications.0.layer_0.self.down.bias has the digest" in check.problems[0]


def test_backbone_changed_in_memory_is_reported_with_the_value(folder: Path) -> None:
    run = Run(folder)
    run.verify()
    with torch.no_grad():
        run.session.models.backbone("fp32").model.get_parameter("encoder.layer.0.output.dense.weight")[2, 5] = 7.5
    (finding, *_) = run.verify("one")[0].findings
    assert finding.tensor == "encoder.layer.0.output.dense.weight"
    assert finding.position == (2, 5)
    assert finding.found == 7.5
    assert finding.certified != 7.5
    assert "an edit in place" in (finding.cause or "")


@pytest.mark.parametrize(
    "kind",
    [
        "classification",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("seq2seq", "token-classification", "image-classification")),
    ],
)
def test_probe_can_use_validation_rows(backbone_folder: Folder, tmp_path: Path, kind: str) -> None:
    family = {"seq2seq": "bart", "image-classification": "vit"}.get(kind, "bert")
    backbone = {"name": str(backbone_folder(family))}
    tasks = [task_of_kind(kind, "one", num_rows=16, probe="validation"), task_of_kind(kind, "two", num_rows=16)]
    run = learn(stream(backbone_folder(family), tasks, backbone=backbone, training=QUICK), tmp_path / "run")
    assert [check.how for check in run.verify()] == ["digests and probe, bit for bit"] * 2
    checks = Run(tmp_path / "run").verify(data=True)
    assert all(check.ok for check in checks)
    if kind == "classification":
        validation = run.session.prepare(run.session.spec.tasks[0]).validation
        ids = {
            tuple(validation.ids[a:b].tolist())
            for a, b in zip(validation.offsets, validation.offsets[1:], strict=False)
        }
        probes = [load_file(run.store.probe_file(name)) for name in ("one", "two")]
        rows = [
            {tuple(row[mask == 1].tolist()) for row, mask in zip(p["input_ids"], p["attention_mask"], strict=True)}
            for p in probes
        ]
        assert rows[0] <= ids
        assert not rows[1] & ids, "a certificate must not contain rows of the data unless asked to"
        assert "labels" not in probes[0]
