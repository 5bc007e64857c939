"""Adapters of the library `adapters` are imported bit for bit, or refused with the name of the unsupported option."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from continual_petl.errors import InputError
from continual_petl.exchange.adapterhub.adapter import write_adapters
from tests.exchange.subjects import Folder, subject_of
from tests.exchange.test_adapters import CASES, HOULSBY
from tests.exchange.test_round_trip import imported, same
from tests.usual import THREE, walk


@pytest.mark.parametrize(("family", "choice"), walk(CASES, (*THREE, "t5")), ids=str)
def test_bank_comes_back_bit_for_bit(backbone_folder: Folder, tmp_path: Path, family: str, choice: Any) -> None:
    subject = subject_of(backbone_folder(family), "classification", choice)
    write_adapters(subject, tmp_path)
    same(subject, imported(subject, tmp_path))


@pytest.fixture(scope="module")
def adapter(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("hub")
    write_adapters(subject_of(backbone_folder("bert"), "classification", HOULSBY, "mean"), to)
    return to


def copied(adapter: Path, to: Path, values: dict[str, Any], tensors: dict[str, Tensor | None] | None = None) -> Path:
    """Return a copy of an adapter with some settings and tensors replaced; None removes a tensor."""
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
    ({"reduction_factor": 1e-320}, {}, "key reduction_factor"),
    ({"original_ln_after": False}, {}, "key original_ln_after: got False"),
    ({"residual_before_ln": False}, {}, "key residual_before_ln: got False"),
    ({"non_linearity": "mish"}, {}, "a bank has no equivalent of the activation 'mish'"),
    ({"original_ln_before": True}, {}, "read normalised sums .original_ln_before. only on the FFN"),
    ({"is_parallel": True}, {}, "parallel bottlenecks .is_parallel. read different states"),
    ({"architecture": "reft"}, {}, "key config.architecture: got 'reft'"),
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
    """Creates a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("executed",)


def test_pickles_are_read_without_executing_anything(
    backbone_folder: Folder, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subject = subject_of(backbone_folder("bert"), "classification", HOULSBY, "mean")
    out = copied(adapter, tmp_path / "out", {})
    path = out / "pytorch_adapter.bin"
    save: Any = getattr(torch, "save")  # noqa: B009  # tests/house.py forbids torch.save
    save(load_file(out / "adapter.safetensors"), path)
    (out / "adapter.safetensors").unlink()
    same(subject, imported(subject, out))
    save({"x": Executes()}, path)
    with pytest.raises(InputError, match=r"holds more than tensors \(\w+\.mkdir\), so it could execute code"):
        imported(subject, out)
    assert not (tmp_path / "executed").exists()
    path.write_bytes(b"")
    with pytest.raises(InputError, match="it may be damaged"):
        imported(subject, out)
    save([torch.zeros(1)], path)
    with pytest.raises(InputError, match="does not contain a mapping from names"):
        imported(subject, out)
    path.unlink()
    with pytest.raises(InputError, match=r"has neither adapter\.safetensors nor pytorch_adapter\.bin"):
        imported(subject, out)
