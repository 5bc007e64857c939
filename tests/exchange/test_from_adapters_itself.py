"""An adapter that `adapters` 1.3 itself saved, in a separate environment, becomes a bank with the same outputs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from continual_petl.learner.task_bank import shifted_right
from tests.exchange.subjects import Folder, answers_of, inputs_of, masked, subject_of
from tests.exchange.test_adapters import PYTHON, SCALED
from tests.exchange.test_round_trip import imported

SCRIPT = """
import json, sys, torch, adapters
from adapters import (
    AutoAdapterModel, ConfigUnion, DoubleSeqBnConfig, IA3Config, LoRAConfig, MAMConfig, ParBnConfig,
    PrefixTuningConfig, SeqBnConfig,
)
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification
METHODS = {
    "double": lambda: DoubleSeqBnConfig(reduction_factor=4),
    "seq": lambda: SeqBnConfig(reduction_factor=4, leave_out=[0]),
    "par": lambda: ParBnConfig(reduction_factor=3),
    "lora": lambda: LoRAConfig(r=2, alpha=6, attn_matrices=["q", "k"], output_lora=True),
    "lora_in": lambda: LoRAConfig(r=2, intermediate_lora=True),
    "ia3": lambda: IA3Config(),
    "ia3_kv": lambda: IA3Config(intermediate_lora=False, leave_out=[1]),
    "flat": lambda: PrefixTuningConfig(flat=True, prefix_length=3, leave_out=[0]),
    "prefix": lambda: PrefixTuningConfig(prefix_length=3, bottleneck_size=7, non_linearity="relu"),
    "mam": lambda: MAMConfig(PrefixTuningConfig(prefix_length=3, bottleneck_size=7), ParBnConfig()),
    "unipelt": lambda: ConfigUnion(PrefixTuningConfig(prefix_length=2), DoubleSeqBnConfig(), LoRAConfig(r=3, alpha=2)),
    "two": lambda: ConfigUnion(
        DoubleSeqBnConfig(output_adapter=False), SeqBnConfig(reduction_factor=2, original_ln_before=False)
    ),
}
for base, out, inputs, method, head in json.load(open(sys.argv[1])):
    torch.manual_seed(3)
    cls = {"none": AutoModel, "class": AutoModelForSequenceClassification}.get(head, AutoAdapterModel)
    model = cls.from_pretrained(base, attn_implementation="eager", **({"num_labels": 3} if head == "class" else {}))
    if cls is not AutoAdapterModel:
        adapters.init(model)
    model.add_adapter("x", config=METHODS[method]())
    labels = {0: "a", 1: "b", 2: "c"}
    if head == "tagging":
        model.add_tagging_head("x", num_labels=3, id2label=labels)
    elif cls is AutoAdapterModel:
        pooler = {"use_pooler": True} if head == "pooler" else {}
        model.add_classification_head("x", num_labels=3, layers=1, id2label=labels, multilabel=head == "multilabel", **pooler)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".x." in name and not (method == "ia3" and "loras" in name):
                parameter.add_(0.1 * torch.randn(parameter.shape))
            elif ".x." in name:
                parameter.add_(0.1 * torch.rand(parameter.shape))
    model.save_adapter(out, "x")
    model.set_active_adapters("x")
    model.eval()
    with torch.no_grad():
        found = model(**load_file(inputs))
    states = found.last_hidden_state if head == "none" else found.logits
    save_file({"found": states.contiguous()}, out + "/found.safetensors")
"""
POST_NORM = ("bert", "roberta", "distilbert", "bart")
CASES = [(f, m, "none") for f in POST_NORM for m in ("double", "seq", "par", "lora", "lora_in", "ia3_kv")]
CASES += [(f, m, "none") for f in (*POST_NORM, "mbart", "gpt2") for m in ("flat", "prefix")]
CASES += [(f, "mam", "none") for f in POST_NORM] + [(f, "unipelt", "none") for f in (*POST_NORM, "gpt2")]
CASES += [("gpt2", m, "none") for m in ("lora", "lora_in", "ia3_kv", "two")] + [("bert", "two", "none")]
CASES += [(f, m, "none") for f in ("t5", "mt5") for m in ("ia3", "lora", "lora_in", "two")]
CASES += [("bert", "lora", head) for head in ("pooler", "first", "multilabel", "tagging", "class")]
CASES += [("distilbert", "mam", "first"), ("bart", "unipelt", "last"), ("gpt2", "unipelt", "tagging")]
KINDS = {"none": "token-classification", "tagging": "token-classification", "multilabel": "multilabel"}


@pytest.mark.slow
@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} is not set to an interpreter with adapters 1.3.0")
def test_what_adapters_itself_saves_gives_its_outputs(backbone_folder: Folder, tmp_path: Path) -> None:
    """Save the adapters of all cases in one process of the environment with adapters."""
    made: list[tuple[Any, Any, Path]] = []
    for number, (family, _, head) in enumerate(CASES):
        subject = subject_of(backbone_folder(family), KINDS.get(head, "classification"), SCALED)
        inputs = inputs_of(subject)
        given = {name: tensor.contiguous() for name, tensor in inputs.items()}
        if family in {"bart", "mbart", "t5", "mt5"}:
            given["decoder_input_ids"] = shifted_right(subject.backbone, inputs["input_ids"]).contiguous()
        save_file(given, tmp_path / f"{number}.safetensors")
        made.append((subject, inputs, tmp_path / str(number)))
    jobs = [
        [str(backbone_folder(family)), str(out), f"{out}.safetensors", method, head]
        for (family, method, head), (_, _, out) in zip(CASES, made, strict=True)
    ]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    words: list[str | Path] = [os.environ[PYTHON], "-c", SCRIPT, tmp_path / "jobs.json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for case, (subject, inputs, out) in zip(CASES, made, strict=True):
        found = load_file(out / "found.safetensors")["found"]
        asked = {}
        if case[2] == "none":
            # This head copies three features of the states, so that they are the bank's outputs.
            save_file({"weight": torch.eye(16)[:3].contiguous(), "bias": torch.zeros(3)}, out / "head.safetensors")
            asked, found = {"kind": "token-classification"}, found[..., :3]
        elif case[2] == "class":
            asked = {"kind": "classification"}
        back = imported(subject, out, **asked)
        assert back.plan.labels == (("a", "b", "c") if case[2] not in {"none", "class"} else back.plan.labels)
        # Sums are computed in another order.
        difference = float((answers_of(back, inputs) - masked(found, inputs)).abs().max())
        assert difference <= 1e-5, (case, difference)
