"""A backbone records the digest of every tensor, its configuration, and the files that it was loaded from."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl.backbones import backbone_files as files_module
from continual_petl.backbones.backbone import load_backbone
from continual_petl.digests import combined_digest
from continual_petl.errors import InputError
from tests.tiny import make_model

Folder = Callable[..., Path]
TEXT = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def folder(backbone_folder: Folder, tmp_path: Path) -> Path:
    return Path(shutil.copytree(backbone_folder(), tmp_path / "backbone"))


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_digest_combines_those_of_the_tensors(backbone_folder: Folder, family: str) -> None:
    full, half = (load_backbone(str(backbone_folder(family)), precision=p) for p in ("fp32", "bf16"))
    assert combined_digest(full.tensor_digests) == full.digest
    assert full.tensor_digests == half.tensor_digests
    assert not any("inv_freq" in name for name in full.tensor_digests)


def test_configuration_is_the_files_without_irrelevant_keys(folder: Path) -> None:
    written = json.loads((folder / "config.json").read_text())
    nested = {"text_config": {"transformers_version": "4.1", "depth": 3}, "own": [{"_name_or_path": "x", "y": 1}]}
    (folder / "config.json").write_text(json.dumps(written | {"_name_or_path": "elsewhere"} | nested))
    facts = load_backbone(str(folder)).config_facts
    assert facts["text_config"] == {"depth": 3}
    assert facts["own"] == [{"y": 1}]
    assert {key: written[key] for key in facts if key in written} == {
        key: value for key, value in facts.items() if key in written
    }
    assert written.keys() - facts.keys() == {"transformers_version", "architectures"}


def test_recorded_files_are_those_that_were_loaded(folder: Path) -> None:
    backbone = load_backbone(str(folder))
    for unread in ("README.md", "generation_config.json", "preprocessor_config.json", "pytorch_model.bin", "x.py"):
        (folder / unread).write_text("{}")
    assert backbone.file_digests() == {name: sha256(folder / name) for name in sorted(TEXT)}
    (folder / "tokenizer.json").write_text("{}")
    assert backbone.file_digests()["tokenizer.json"] == sha256(folder / "tokenizer.json")


def test_image_processing_is_part_of_the_digest(backbone_folder: Folder) -> None:
    files = load_backbone(str(backbone_folder("vit"))).file_digests()
    assert set(files) == {"config.json", "model.safetensors", "preprocessor_config.json"}


def test_all_weight_shards_are_part_of_the_digest(tmp_path: Path) -> None:
    make_model("bert").save_pretrained(tmp_path, max_shard_size="10KB")
    files = load_backbone(str(tmp_path)).file_digests()
    parts = {path.name for path in tmp_path.glob("model-*.safetensors")}
    assert len(parts) > 2
    assert set(files) == {"config.json", "model.safetensors.index.json", *parts}


def test_missing_file_is_named(folder: Path) -> None:
    backbone = load_backbone(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"its model\.safetensors is no longer where it was loaded from"):
        backbone.file_digests()


def test_hub_cache_files_are_found_offline(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cached(source: str, name: str, **asked: object) -> str | None:
        assert (source, asked["revision"], asked["local_files_only"]) == ("some/model", "main", True)
        return str(folder / name) if (folder / name).exists() else None

    monkeypatch.setattr("transformers.utils.hub.cached_file", cached)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert files_module.files_there("some/model", "main", ("config.json",)) == {}, "the model is not cached yet"
    (tmp_path / "models--some--model").mkdir()
    assert set(files_module.files_of("some/model", "main", images=False)) == TEXT
