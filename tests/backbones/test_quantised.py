"""Quantised backbones have a digest of their codes, load with the same bits, and are refused if exact weights are needed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from continual_petl import InputError, Run, StoreError, learn, load_backbone
from continual_petl.backbones import quantised
from continual_petl.backbones.quantised import Quantize, quantisation, quantised_names
from continual_petl.banks.attach import run
from continual_petl.banks.merge import merged
from continual_petl.digests import same_bits
from continual_petl.engine.sharded import shard
from continual_petl.store.verify.backbone_check import check_backbone
from tests.desk import bank_digests
from tests.small import small
from tests.streams_in_code import stream, task, task_of_kind
from tests.tiny import FAMILIES, make_bank, make_inputs
from tests.usual import walk

Folder = Callable[..., Path]
here = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
LINEAR = [family for family in FAMILIES if family != "gpt2"]


@pytest.fixture(autouse=True)
def _fits_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "_SCALERS", 2)
    monkeypatch.setattr(quantised, "_GROUP", 8)


@here
@pytest.mark.parametrize("quantize", ["int8", "nf4", "int4"])
@pytest.mark.parametrize("family", walk(LINEAR))
def test_codes_and_digest_are_the_same_at_every_load_and_in_every_precision(
    backbone_folder: Folder, family: str, quantize: Quantize
) -> None:
    plain = load_backbone(str(backbone_folder(family)))
    first, again = (load_backbone(str(backbone_folder(family)), quantize=quantize) for _ in range(2))
    half = load_backbone(str(backbone_folder(family)), quantize=quantize, precision="bf16")
    assert first.digest == again.digest == half.digest != plain.digest
    assert first.resident_digests == again.resident_digests
    names = quantised_names(first.model)
    assert names == quantised_names(half.model)
    differ = {name for name, digest in first.tensor_digests.items() if digest != plain.tensor_digests[name]}
    assert differ == names
    inputs = make_inputs(family)
    bank = make_bank(first.model, "lora")
    with torch.no_grad():
        states = [run(each.model, bank, inputs).last_hidden_state for each in (first, again, plain)]
    assert torch.equal(states[0], states[1])
    # With 8 bits, a step is 1/127 of a row's largest weight; 4 bits give only 16 values.
    assert (states[0] - states[2]).norm() < (0.05 if quantize == "int8" else 0.4) * states[2].norm()
    weight: Any = first.model.get_parameter(sorted(names)[0])
    codes = weight.quantized_data if quantize == "nf4" else weight.qdata
    codes.view(-1)[0] += 1
    assert first.changed() == sorted(names)[:1]
    (finding,) = check_backbone(first)
    assert (finding.tensor, finding.position) == (sorted(names)[0], None)


@here
@pytest.mark.parametrize(
    ("family", "kind", "precision", "quantize"),
    [
        ("bert", "classification", "fp32", "int8"),
        ("llama", "causal-lm", "bf16", "nf4"),
        pytest.param("llama", "causal-lm", "bf16", "int4", marks=pytest.mark.slow),
        pytest.param("t5", "seq2seq", "fp32", "nf4", marks=pytest.mark.slow),
        pytest.param("llama", "causal-lm", "bf16", "int8", marks=pytest.mark.slow),
    ],
)
def test_a_run_on_a_quantised_backbone_is_certified_and_answers_the_same_when_opened_again(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, precision: str, quantize: str
) -> None:
    folder = backbone_folder(family)
    tasks = [task_of_kind(kind, name) for name in ("one", "two")]
    backbone = {"name": str(folder), "quantize": quantize}
    spec = stream(folder, tasks, backbone=backbone, bank=small("lora"), training={"epochs": 1, "precision": precision})
    found = learn(spec, tmp_path / "run")
    assert all(check.ok for check in found.verify(data=True))
    data: Any = tasks[0]["data"]
    given = [row.get("text", row.get("source")) for row in data["test"][:3]]
    opened = Run(tmp_path / "run")
    assert opened.predict(given, "one") == found.predict(given, "one")
    assert len(opened.predict(given, ["one", "two", "one"])) == 3
    assert bank_digests(learn(spec, tmp_path / "again")) == bank_digests(found)
    with pytest.raises(InputError, match=rf"is quantised \({quantize}\): a merged export would round"):
        opened.export("one", "merged", tmp_path / "export")
    with pytest.raises(StoreError, match="this run was learned on backbone"):
        learn(stream(folder, tasks, bank=small("lora"), training={"precision": precision}), tmp_path / "run")


@here
def test_a_checkpoint_that_is_already_quantised_is_read(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = backbone_folder("llama")
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantisation("llama", "int8"))
    model.save_pretrained(tmp_path)
    read, made = load_backbone(str(tmp_path)), load_backbone(str(folder), quantize="int8")
    assert read.quantize == "int8"
    assert read.digest == made.digest
    ids = make_inputs("llama")
    with torch.no_grad():
        assert same_bits(read.model(**ids).logits, made.model(**ids).logits)
    assert load_backbone(str(tmp_path), quantize="int8").digest == made.digest
    with pytest.raises(
        InputError, match=r"backbone\.quantize is nf4, but the weights of the checkpoint are already int8"
    ):
        load_backbone(str(tmp_path), quantize="nf4")


@here
@pytest.mark.parametrize(
    ("preset", "why"),
    [
        ("full", "codes have no gradient"),
        ("diff_pruning", "codes have no gradient"),
        ("dora", "norms of their rounded values are not exact"),
    ],
)
def test_banks_that_need_the_weights_are_refused(
    backbone_folder: Folder, tmp_path: Path, preset: str, why: str
) -> None:
    folder = backbone_folder()
    tasks = [task("one", num_rows=8, bank=small(preset))]
    with pytest.raises(InputError, match=f"the backbone's linear layers are quantised .*{why}. Choose a bank"):
        learn(stream(folder, tasks, backbone={"name": str(folder), "quantize": "int8"}), tmp_path)


@here
@pytest.mark.parametrize("quantize", ["int8", "nf4", "int4"])
@pytest.mark.parametrize("preset", ["bitfit", "layernorm", "prefix", "prompt", "ia3"])
def test_banks_beside_the_weights_are_learned(backbone_folder: Folder, preset: str, quantize: Quantize) -> None:
    backbone = load_backbone(str(backbone_folder()), quantize=quantize)
    bank = make_bank(backbone.model, preset)
    gradients = []
    for checkpointing in (False, True):
        bank.zero_grad()
        states = run(backbone.model, bank, make_inputs("bert"), checkpointing=checkpointing).last_hidden_state
        states.square().sum().backward()
        gradients.append([p.grad.clone() for p in bank.parameters() if p.grad is not None])
    assert gradients[0]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert backbone.changed() == []


@here
def test_merging_is_refused_with_the_reason(backbone_folder: Folder) -> None:
    model = load_backbone(str(backbone_folder()), quantize="int8").model
    with pytest.raises(
        InputError, match=r"it cannot be merged: the backbone's linear layers are quantised .* rounded to"
    ):
        merged(model, make_bank(model, "lora"))


@here
def test_a_model_without_linear_layers_is_refused(backbone_folder: Folder) -> None:
    with pytest.raises(InputError, match=r"only linear layers \(nn\.Linear\) can be quantised, and the model has none"):
        load_backbone(str(backbone_folder("gpt2")), quantize="int8")


@here
@pytest.mark.parametrize(
    ("quantize", "size", "message"),
    [
        ("nf4", 256, r"as nf4: the number of weights .* must be a multiple of 16,384\. Write quantize"),
        ("int4", 24, r"as int4: the number of inputs .* must be a multiple of 24\. Write quantize"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(
    backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch, quantize: Quantize, size: int, message: str
) -> None:
    monkeypatch.setattr(quantised, "_SCALERS", size)
    monkeypatch.setattr(quantised, "_GROUP", size)
    with pytest.raises(InputError, match=f"cannot be quantised {message}"):
        load_backbone(str(backbone_folder()), quantize=quantize)


@here
def test_int4_has_sixteen_values_with_a_scale_per_group(
    backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "_GROUP", 16)
    folder = str(backbone_folder())
    model, plain = load_backbone(folder, quantize="int4").model, load_backbone(folder).model
    for name in quantised_names(model):
        weight: Any = model.get_parameter(name)
        groups = plain.get_parameter(name).view(*weight.scale.shape, 16)
        assert weight.scale.shape[1] * 16 == weight.shape[1]
        assert -8 <= int(weight.qdata.min()) <= int(weight.qdata.max()) <= 7
        # The 15 steps span twice a group's largest absolute value, and the rounding error is at most half a step.
        step = groups.abs().amax(-1, keepdim=True) / 7.5
        found = weight.dequantize().view_as(groups)
        assert bool(((found - groups).abs() <= step * 0.500001).all())


@here
def test_dividing_a_quantised_backbone_among_processes_is_refused(backbone_folder: Folder) -> None:
    backbone = load_backbone(str(backbone_folder()), quantize="int8")
    bank = make_bank(backbone.model, "lora")
    with pytest.raises(
        InputError,
        match=r"strategy: got fsdp2, but backbone .* is quantised \(int8\), and FSDP2 cannot divide quantised",
    ):
        shard(backbone, bank, "cpu", 2)


def test_without_torchao_the_error_names_the_command(backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(
        InputError, match=r"needs the package torchao, which is not installed: run pip install 'continual"
    ):
        load_backbone(str(backbone_folder()), quantize="int8")


def test_a_stream_without_the_key_is_written_as_before(backbone_folder: Folder) -> None:
    spec = stream(backbone_folder(), [task("one", num_rows=8)]).spec
    assert "quantize" not in json.loads(spec.model_dump_json())["backbone"]


@here
@pytest.mark.slow
def test_importing_torchao_prints_nothing() -> None:
    # Without garbage collection, the imports take half the time.
    code = "import gc; gc.disable(); import continual_petl, torch, transformers.modeling_utils"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
