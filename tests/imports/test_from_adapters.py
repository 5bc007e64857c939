"""Adapters of the library `adapters` become banks, bit for bit, or are refused by the name of what is not expressible."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from continual_petl.errors import InputError
from continual_petl.export.adapterhub_files import write_adapters
from tests.export.subjects import Folder, answers_of, inputs_of, subject_of
from tests.export.test_adapters import CASES, HOULSBY, PYTHON, SCALED
from tests.imports.test_round_trip import imported, same


@pytest.mark.parametrize(("family", "choice"), CASES, ids=str)
def test_bank_comes_back_bit_for_bit(backbone_folder: Folder, tmp_path: Path, family: str, choice: Any) -> None:
    subject = subject_of(backbone_folder(family), "classification", choice)
    write_adapters(subject, tmp_path)
    same(subject, imported(subject, tmp_path))


@pytest.fixture(scope="module")
def adapter(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("hub")
    write_adapters(subject_of(backbone_folder("bert"), "classification", HOULSBY), to)
    return to


def copied(adapter: Path, to: Path, values: dict[str, Any], tensors: dict[str, Tensor | None] | None = None) -> Path:
    """Return a copy of an adapter with other values in its files; None removes a tensor."""
    to.mkdir()
    config = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    config["config"] |= {key: value for key, value in values.items() if key not in config}
    config |= {key: value for key, value in values.items() if key in config and key != "config"}
    (to / "adapter_config.json").write_text(json.dumps(config))
    kept = load_file(adapter / "adapter.safetensors") | (tensors or {})
    save_file({n: t for n, t in kept.items() if t is not None}, to / "adapter.safetensors")
    (to / "head.safetensors").write_bytes((adapter / "head.safetensors").read_bytes())
    return to


ROOT = "encoder.layer.0.output.adapters.classification"
REFUSED: list[tuple[dict[str, Any], dict[str, Tensor | None], str]] = [
    ({"ln_after": True}, {}, "key ln_after: got True, but it changes what the adapter computes"),
    ({"use_gating": True}, {}, "key use_gating"),
    ({"phm_layer": True}, {}, "key phm_layer"),
    ({"inv_adapter": "nice"}, {}, "key inv_adapter: got 'nice'"),
    ({"new_option": 1}, {}, "key new_option: got 1"),
    ({"scaling": "learned"}, {}, "key scaling: got 'learned'"),
    ({"reduction_factor": {"1": 2}}, {}, "key reduction_factor"),
    ({"original_ln_after": False}, {}, "key original_ln_after: got False"),
    ({"residual_before_ln": False}, {}, "key residual_before_ln: got False"),
    ({"non_linearity": "mish"}, {}, "a bank has no activation like 'mish'"),
    ({"original_ln_before": True}, {}, "read normalised sums .original_ln_before. only on the FFN"),
    ({"is_parallel": True}, {}, "a parallel bottleneck .is_parallel. has another input"),
    ({"architecture": "prefix_tuning"}, {}, "key config.architecture: got 'prefix_tuning'"),
    ({"model_type": "roberta"}, {}, "key model_type: got 'roberta', but the run's backbone is of type 'bert'"),
    ({"leave_out": [0, 1]}, {}, "it leaves out all layers"),
    ({"leave_out": [0]}, {}, "is not one that adapter_config.json asks for"),
    ({}, {f"{ROOT}.adapter_up.bias": None}, "asks for is missing"),
    ({}, {f"{ROOT}.adapter_up.bias": torch.zeros(3)}, r"has the shape \(3,\), but this backbone needs \(16,\)"),
    ({}, {f"{ROOT}.gate.bias": torch.zeros(1)}, "is not one that adapter_config.json asks for"),
]


@pytest.mark.parametrize(("values", "tensors", "message"), REFUSED, ids=[m[:30] for _, _, m in REFUSED])
def test_what_a_bank_lacks_is_refused_by_name(
    backbone_folder: Folder, adapter: Path, tmp_path: Path, values: dict[str, Any], tensors: Any, message: str
) -> None:
    subject = subject_of(backbone_folder("bert"), "classification", HOULSBY)
    with pytest.raises(InputError, match=message):
        imported(subject, copied(adapter, tmp_path / "out", values, tensors))


class Executes:
    """Would create a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("executed",)


def test_pickles_are_read_without_executing_anything(
    backbone_folder: Folder, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subject = subject_of(backbone_folder("bert"), "classification", HOULSBY)
    out = copied(adapter, tmp_path / "out", {})
    path = out / "pytorch_adapter.bin"
    save: Any = getattr(torch, "save")  # noqa: B009  # what the package itself never calls
    save(load_file(out / "adapter.safetensors"), path)
    (out / "adapter.safetensors").unlink()
    same(subject, imported(subject, out))
    save({"x": Executes()}, path)
    with pytest.raises(InputError, match=r"holds more than tensors \(UnpicklingError\), so it could execute code"):
        imported(subject, out)
    assert not (tmp_path / "executed").exists()
    path.write_bytes(b"")
    with pytest.raises(InputError, match="it is damaged"):
        imported(subject, out)
    save([torch.zeros(1)], path)
    with pytest.raises(InputError, match="does not contain a mapping from names"):
        imported(subject, out)
    path.unlink()
    with pytest.raises(InputError, match=r"has neither adapter\.safetensors nor pytorch_adapter\.bin"):
        imported(subject, out)


SCRIPT = """
import sys, torch, adapters
from safetensors.torch import load_file, save_file
from transformers import AutoModel
base, out, inputs, method = sys.argv[1:]
torch.manual_seed(3)
model = AutoModel.from_pretrained(base)
adapters.init(model)
config = {
    "double": lambda: adapters.DoubleSeqBnConfig(reduction_factor=4),
    "seq": lambda: adapters.SeqBnConfig(reduction_factor=4, leave_out=[0]),
    "par": lambda: adapters.ParBnConfig(reduction_factor=3),
    "lora": lambda: adapters.LoRAConfig(r=2, alpha=6, attn_matrices=["q", "k"], output_lora=True),
}[method]()
model.add_adapter("x", config=config)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if ".x." in name:
            parameter.add_(0.1 * torch.randn(parameter.shape))
model.save_adapter(out, "x")
model.set_active_adapters("x")
model.eval()
with torch.no_grad():
    found = model(**load_file(inputs)).last_hidden_state
save_file({"states": found.contiguous()}, out + "/states.safetensors")
"""


@pytest.mark.slow
@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no interpreter with adapters 1.3.0")
@pytest.mark.parametrize("method", ["double", "seq", "par", "lora"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "bart"])
def test_what_adapters_itself_saves_gives_its_states(
    backbone_folder: Folder, tmp_path: Path, family: str, method: str
) -> None:
    subject = subject_of(backbone_folder(family), "token-classification", SCALED)
    inputs = inputs_of(subject)
    given = {name: tensor.contiguous() for name, tensor in inputs.items()}
    if family == "bart":
        from continual_petl.learner.answer import shifted_right

        given["decoder_input_ids"] = shifted_right(subject.backbone, inputs["input_ids"]).contiguous()
    save_file(given, tmp_path / "inputs.safetensors")
    out = tmp_path / "out"
    words: list[Any] = [
        os.environ[PYTHON],
        "-c",
        SCRIPT,
        backbone_folder(family),
        out,
        tmp_path / "inputs.safetensors",
        method,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    # A head that copies some states, so that the bank's outputs are these.
    save_file({"weight": torch.eye(16)[:3].contiguous(), "bias": torch.zeros(3)}, out / "head.safetensors")
    back = imported(subject, out, kind="token-classification")
    states = load_file(out / "states.safetensors")["states"][..., :3] * inputs["attention_mask"].unsqueeze(-1)
    # Sums are computed in another order.
    torch.testing.assert_close(answers_of(back, inputs), states, atol=1e-5, rtol=1e-5)
