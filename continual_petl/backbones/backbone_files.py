"""The files of a backbone: those that `transformers` reads to load the model and to prepare the model's inputs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from continual_petl.backbones.packaged import minilm_path
from continual_petl.digests import file_digest
from continual_petl.errors import InputError

CONFIG = "config.json"
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""File names in the order in which `transformers` looks for them; it uses the first that exists."""
_TEXTS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
_IMAGES = ("preprocessor_config.json",)

_IRRELEVANT = frozenset({"transformers_version", "_name_or_path", "_commit_hash", "architectures", "finetuning_task"})
"""Keys of config.json that do not affect predictions: the origin of the file, and the class it was written for."""


def source_of(name: str) -> str:
    """Return the source of a backbone for `transformers`: the folder of the packaged model, or the name itself."""
    return str(minilm_path()) if name == "minilm" else name


def config_facts(source: str, revision: str | None) -> dict[str, Any]:
    """Return the content of config.json as in the file, without the keys that do not affect predictions."""
    from transformers import PreTrainedConfig  # takes seconds to import

    written: dict[str, Any] = PreTrainedConfig.get_config_dict(source, revision=revision)[0]
    return {key: _relevant(value) for key, value in written.items() if key not in _IRRELEVANT}


def files_of(name: str, revision: str | None, *, images: bool, remote_code: bool = False) -> dict[str, Path]:
    """Return the paths of the files of a backbone, by name.

    Args:
        name: as in `load_backbone`.
        revision: commit, branch or tag of a Hub id.
        images: whether the backbone reads images, and so has no tokenizer files.
        remote_code: whether to include the Python files named in JSON files, with their imports.

    Raises:
        InputError: if a file that the model was loaded from is missing.
    """
    source = source_of(name)
    files = files_there(source, revision, (CONFIG, *(_IMAGES if images else _TEXTS)))
    if CONFIG not in files:
        raise _gone(name, CONFIG)
    if remote_code:
        files |= _code(source, revision, files)
    named = json.loads(files[CONFIG].read_bytes()).get("transformers_weights")
    for weights in _WEIGHTS if named is None else (named,):
        if there := files_there(source, revision, (weights,)):
            parts = _parts(there[weights]) if weights.endswith(".index.json") else []
            shards = files_there(source, revision, parts)
            if missing := [part for part in parts if part not in shards]:
                raise _gone(name, missing[0])
            return dict(sorted({**files, **there, **shards}.items()))
    raise _gone(name, named or _WEIGHTS[0])


def digests_of(name: str, revision: str | None, files: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each file that exists, without interpreting its content."""
    return {file: file_digest(path) for file, path in files_there(source_of(name), revision, files).items()}


def files_there(source: str, revision: str | None, names: Iterable[str]) -> dict[str, Path]:
    """Return the paths of the files that exist, in the folder or in the Hub cache of the revision."""
    if os.path.isdir(source):
        paths = {name: os.path.join(source, name) for name in names}
        return {name: Path(path) for name, path in paths.items() if os.path.isfile(path)}
    from huggingface_hub import constants

    if not os.path.isdir(os.path.join(constants.HF_HUB_CACHE, "--".join(["models", *source.split("/")]))):
        return {}  # without importing transformers, which takes a second
    from transformers.utils.hub import cached_file

    # Nothing is downloaded: everything that was loaded is in the cache.
    asked: dict[str, Any] = {
        "revision": revision,
        "local_files_only": True,
        "_raise_exceptions_for_gated_repo": False,
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    try:
        cached = {name: cached_file(source, name, **asked) for name in names}
    except (OSError, ValueError):  # neither a folder nor a Hub id
        return {}
    return {name: Path(path) for name, path in cached.items() if path is not None}


def _code(source: str, revision: str | None, present: dict[str, Path]) -> dict[str, Path]:
    """Return the Python files that ``auto_map`` names; keys of files in other repositories start with its name."""
    from transformers.dynamic_module_utils import get_relative_import_files

    files: dict[str, Path] = {}
    for path in [present[name] for name in (CONFIG, "tokenizer_config.json") if name in present]:
        named = json.loads(path.read_bytes()).get("auto_map", {})
        references = [
            reference for value in named.values() for reference in (value if isinstance(value, list) else [value])
        ]
        for reference in filter(None, references):
            repository, _, reference = reference.rpartition("--")
            module = f"{reference.partition('.')[0]}.py"
            there = files_there(repository, None, (module,)) if repository else files_there(source, revision, (module,))
            for file in there.values():
                for part in (file, *map(Path, get_relative_import_files(file))):
                    relative = part.relative_to(file.parent).as_posix()
                    files[f"{repository}--{relative}" if repository else relative] = part
    return files


def _parts(index: Path) -> list[str]:
    return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))


def _gone(name: str, file: str) -> InputError:
    return InputError(
        f"backbone {name!r}: its {file} is no longer where it was loaded from, so its digest is unknown. Put the file back, "
        "or load the backbone again."
    )


def _relevant(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _relevant(inner) for key, inner in value.items() if key not in _IRRELEVANT}
    return [_relevant(inner) for inner in value] if isinstance(value, list) else value
