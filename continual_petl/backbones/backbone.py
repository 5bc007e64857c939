"""The backbone: one frozen pre-trained transformer, loaded strictly, pinned by its digest, always in eval mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from continual_petl._hub_cache import refuse_damaged
from continual_petl.backbones.anatomy import Anatomy, Pooling, find_anatomy
from continual_petl.backbones.available import check_available
from continual_petl.backbones.backbone_files import config_facts, files_of, source_of
from continual_petl.backbones.max_length import max_length_of
from continual_petl.backbones.mutable_state import check_positions, fixed_positions
from continual_petl.backbones.pooling import pool as pool
from continual_petl.backbones.quantised import Quantize, cannot_quantise, check_quantised, read_quantised
from continual_petl.backbones.sites import Sites
from continual_petl.backbones.tokenizer import load_tokenizer as load_tokenizer
from continual_petl.backbones.weights import (
    Attention,
    cannot_load,
    change_precision,
    checkpoint_digests,
    load_weights,
)
from continual_petl.digests import combined_digest, file_digest, module_tensors, tensor_digest, tensor_digests
from continual_petl.errors import InputError, check_choice

Precision = Literal["bf16", "fp32"]
_CHOICES: dict[str, Any] = {"precision": Precision, "attention": Attention, "pooling": Pooling, "quantize": Quantize}


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A frozen model, with the facts that other modules need about it."""

    model: PreTrainedModel
    sites: Sites
    """The paths of all its parts."""
    generates: bool
    """Whether the model has a language-modelling head, which generative tasks use."""
    name: str
    """Its name in the stream file."""
    revision: str | None
    digest: str
    """Digest of every parameter and buffer as loaded from disk, before any change of precision."""
    tensor_digests: dict[str, str]
    """The digests that ``digest`` combines, by tensor name."""
    config_facts: dict[str, Any]
    """The content of config.json as in the file, without the keys that do not affect predictions."""
    resident_digests: dict[str, str]
    """Digests of every parameter and buffer as held in memory."""
    precision: Precision
    attention: str
    """The attention implementation in use."""
    pooling: Pooling
    """How token states are reduced to one vector by default."""
    max_length: int
    """Maximum number of tokens; 0 if the model reads images."""
    fixed_positions: int | None = None
    """Number of positions up to which the rotary tables stay as loaded, at least ``max_length``; None: no limit."""
    remote_code: bool = False
    """Whether code that comes with the model may be executed."""
    quantize: Quantize | None = None
    """How its weights are quantised, whether while loading or already in the checkpoint."""

    @property
    def num_layers(self) -> int:
        """Total number of transformer layers across all stacks."""
        return self.sites.num_layers

    @property
    def anatomy(self) -> Anatomy:
        """The model's family."""
        return self.sites.anatomy

    @property
    def hidden_size(self) -> int:
        """Width D of the token states."""
        return int(getattr(self.model.config, self.anatomy.hidden_size_key))

    @property
    def num_parameters(self) -> int:
        """Number of parameters, embeddings included."""
        return sum(p.numel() for p in self.model.parameters())

    def changed(self) -> list[str]:
        """Return the names of parameters and buffers that have changed, or were added, since the model was loaded."""
        digests = tensor_digests(module_tensors(self.model))
        names = sorted(digests.keys() | self.resident_digests.keys())
        return [name for name in names if digests.get(name) != self.resident_digests.get(name)]

    def file_digests(self) -> dict[str, str]:
        """Return, by name, the SHA-256 of each file that the model and the preparation of its inputs are loaded from.

        The files are read when this is called, not when the backbone is loaded.

        Raises:
            InputError: if one of them is missing.
        """
        files = files_of(self.name, self.revision, images=self.anatomy.images, remote_code=self.remote_code)
        return {name: file_digest(path) for name, path in files.items()}

    def check_pooling(self, pooling: Pooling) -> None:
        """Raise `InputError` if the model does not support this pooling."""
        if pooling in self.poolings():
            return
        why = {
            "pooler": "has no trained pooler",
            "first": "reads from left to right, so its first token has not seen the rest of the text",
            "last": "reads images, whose last patch has no special role",
        }
        raise InputError(
            f"pooling: got {pooling!r}, but backbone {self.name!r} {why[pooling]}; allowed: {_listed(self.poolings())}."
        )

    def poolings(self) -> tuple[Pooling, ...]:
        """Return the poolings that this model supports."""
        allowed: dict[Pooling, bool] = {
            "first": self.anatomy.output_head != "causal",
            "mean": True,
            "last": not self.anatomy.images,
            "pooler": self.has_pooler,
        }
        return tuple(pooling for pooling, supported in allowed.items() if supported)

    @property
    def has_pooler(self) -> bool:
        """Whether the checkpoint contains the trained module for the ``pooler`` pooling."""
        return self.anatomy.pooler is not None and getattr(self.model, self.anatomy.pooler, None) is not None


def load_backbone(
    name: str,
    *,
    revision: str | None = None,
    precision: Precision = "fp32",
    attention: Attention = "auto",
    pooling: Pooling | None = None,
    max_length: int | None = None,
    remote_code: bool = False,
    quantize: Quantize | None = None,
) -> Backbone:
    """Load a frozen backbone.

    Args:
        name: ``minilm`` for the packaged model, a Hub id, or a path.
        revision: commit, branch or tag of a Hub id.
        precision: dtype of the weights in memory.
        attention: implementation; ``auto`` selects the one that trains fastest on this device, see
            `continual_petl.backbones.auto_defaults`.
        pooling: how token states are reduced to one vector; None selects the family's default.
        max_length: maximum number of tokens; None means the model's limit. For a model without a position limit (T5), None
            means the ``n_positions`` of its configuration, or else 512, and any number may be requested.
        remote_code: whether Python code that comes with the model is executed; it can do whatever this process can.
        quantize: ``int8``, ``nf4`` and ``int4`` keep the weights of linear layers as codes of 8 or 4 bits; needs `torchao`.

    Raises:
        InputError: if the backbone cannot be found, no anatomy is registered for its family, its weights are incomplete, or
            it needs custom code that you have not allowed to run; if an argument has a value that is not allowed.
    """
    _check_arguments(name, max_length, precision=precision, attention=attention, pooling=pooling, quantize=quantize)
    model, sites, generates, facts, quantised = _load_frozen(name, revision, attention, remote_code, quantize)
    digests = checkpoint_digests(model)
    loaded = {name: tensor.dtype for name, tensor in module_tensors(model).items()}
    change_precision(model, torch.bfloat16 if precision == "bf16" else torch.float32)
    # all-MiniLM was trained with mean pooling; its BERT pooler is a leftover.
    default: Pooling = "mean" if name == "minilm" else sites.anatomy.pooling
    backbone = Backbone(
        model=model,
        sites=sites,
        generates=generates,
        name=name,
        revision=revision,
        digest=combined_digest(digests),
        tensor_digests=digests,
        config_facts=facts,
        resident_digests=_resident_digests(model, digests, loaded),
        precision=precision,
        attention=str(model.config._attn_implementation),
        pooling=pooling or default,
        max_length=max_length_of(name, model.config, sites.anatomy, max_length),
        fixed_positions=fixed_positions(model),
        remote_code=remote_code,
        quantize=quantised,
    )
    fixed = backbone.fixed_positions
    remedy = f"Write backbone: {{name: ..., max_length: {fixed}}}, or less."
    check_positions(f"backbone {name!r}", backbone.max_length, fixed, remedy)
    _check_pooling(backbone, pooling)
    return backbone


def _check_arguments(name: object, max_length: object, **choices: object) -> None:
    for argument, allowed in _CHOICES.items():
        if choices[argument] is not None or argument in ("precision", "attention"):
            check_choice(argument, choices[argument], get_args(allowed))
    if not isinstance(name, str):
        raise InputError(
            f"name: got {name!r:.80} of type {type(name).__name__}; give text, such as 'minilm' or str(path)"
        )
    if max_length is not None and (not isinstance(max_length, int) or isinstance(max_length, bool) or max_length < 4):
        raise InputError(f"max_length: got {max_length!r:.80}; allowed: a whole number of at least 4, or None")


def _resident_digests(
    model: PreTrainedModel, digests: Mapping[str, str], loaded: Mapping[str, torch.dtype]
) -> dict[str, str]:
    """Return the digests of the tensors in memory, from those of the checkpoint and the dtypes that they were loaded in."""
    return {
        # Tensors that were not converted still hold the checkpoint's bytes, so they have its digests.
        name: digests[name] if name in digests and tensor.dtype == loaded[name] else tensor_digest(tensor)
        for name, tensor in module_tensors(model).items()
    }


def _load_frozen(
    name: str, revision: str | None, attention: Attention, remote_code: bool, quantize: Quantize | None
) -> tuple[PreTrainedModel, Sites, bool, dict[str, Any], Quantize | None]:
    """Return the model, its sites, whether it can generate, the content of its config.json, and how it is quantised."""
    source = source_of(name)
    check_available(name, revision)
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=remote_code)
        anatomy = find_anatomy(config.model_type)
        quantised = read_quantised(name, config)
        if quantised is not None and quantize not in (None, quantised):
            raise InputError(
                f"backbone {name!r}: backbone.quantize is {quantize}, but the weights of the checkpoint are already "
                f"{quantised} (quantization_config of config.json). Remove backbone.quantize, or name the checkpoint that it "
                "was made from."
            )
        asked = quantize if quantised is None else None
        model, generates = load_weights(source, revision, anatomy, attention, remote_code=remote_code, quantize=asked)
        facts = config_facts(source, revision)
    except InputError:
        raise
    except Exception as error:  # transformers has no specific exception for a folder or id without a usable model
        refuse_damaged(name, revision, f"backbone {name!r}")
        if quantize is not None and "conversion of the weights" in str(error):
            raise cannot_quantise(name, quantize) from error
        raise InputError(cannot_load(name, error)) from error
    refuse_damaged(name, revision, f"backbone {name!r}")
    if quantize is not None or quantised is not None:
        check_quantised(name, model)
    if generates:
        # The checkpoint's generation_config.json is meant for the task that it was published for.
        model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.train(False)
    return model, Sites(anatomy, model), generates, facts, quantize or quantised


def _check_pooling(backbone: Backbone, asked: Pooling | None) -> None:
    if asked is None and backbone.pooling == "pooler" and not backbone.has_pooler:
        raise InputError(
            f"backbone {backbone.name!r}: the family's default pooling is 'pooler', but this checkpoint has no trained "
            f"pooler; allowed: {_listed(backbone.poolings())}: set backbone.pooling to one of them."
        )
    backbone.check_pooling(backbone.pooling)


def _listed(poolings: tuple[Pooling, ...]) -> str:
    return f"{', '.join(map(repr, poolings[:-1]))} and {poolings[-1]!r}"
