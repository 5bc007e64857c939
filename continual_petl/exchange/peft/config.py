"""The configuration of an adapter of `peft` 0.21: the options that a bank can express; others are refused by name.

An option of peft that this file does not know is refused unless it is off, so that nothing that changes what the adapter
computes is ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from continual_petl._strict_model import StrictModel
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import Number, Share, Size, Text, read_options, refused_option

METHODS = ("LORA", "IA3", "LN_TUNING", "PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING")
VIRTUAL = ("PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING")

_Texts = Annotated[tuple[Text, ...], Field(max_length=10_000)]


class PeftConfig(StrictModel):
    """The options of an adapter that matter here, with peft's defaults."""

    peft_type: Text
    task_type: Text | None = None
    base_model_name_or_path: Text | None = None
    revision: Text | None = None
    target_modules: Text | _Texts | None = None
    exclude_modules: Text | _Texts | None = None
    layers_to_transform: Annotated[int, Field(strict=True)] | tuple[int, ...] | None = None
    modules_to_save: _Texts | None = None
    r: Size = 8
    lora_alpha: Number = 8.0
    lora_dropout: Share = 0.0
    use_rslora: bool = False
    use_dora: bool = False
    rank_pattern: Annotated[dict[Text, Size], Field(max_length=10_000, default_factory=dict)]
    alpha_pattern: Annotated[dict[Text, Number], Field(max_length=10_000, default_factory=dict)]
    init_lora_weights: bool | Text | None = True
    feedforward_modules: Text | _Texts | None = None
    num_virtual_tokens: Size | None = None
    num_transformer_submodules: Annotated[int, Field(ge=1, le=2)] | None = None
    num_layers: Size | None = None
    num_attention_heads: Size | None = None


_WITHOUT_EFFECT = {
    *("peft_version", "inference_mode", "auto_mapping", "fan_in_fan_out", "megatron_core", "qalora_group_size"),
    *("runtime_config", "layers_pattern", "init_ia3_weights", "eva_config", "ensure_weight_tying", "token_dim"),
    *("prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_name_or_path", "tokenizer_kwargs", "init_weights"),
    *("encoder_reparameterization_type", "encoder_hidden_size", "encoder_num_layers", "encoder_dropout"),
    "prefix_projection",
}
"""Options that do not change what a saved adapter computes: they describe its training, or follow from its tensors. A prompt
or prefix that was trained through a network is saved without it."""
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base model's weights as they are."""
_LITERAL = re.compile(r"\^?[A-Za-z0-9_.]+")
_REPEATED = re.compile(r"(?<!\\)[*+{]")
_MAX_REPEATED = 3


def read_peft_config(config: Mapping[str, Any]) -> PeftConfig:
    """Return the options of an adapter.

    Raises:
        InputError: if a value is not allowed, or an option is on that a bank cannot express.
    """
    kind = config.get("peft_type")
    if kind not in METHODS:
        raise refused_option("peft_type", kind, f"only these can be imported: {', '.join(METHODS)}")
    parsed = read_options(PeftConfig, config, _WITHOUT_EFFECT, refused_option, off=("", "none", {}, []))
    if parsed.init_lora_weights not in _PLAIN_STARTS:
        why = "such an adapter needs a base model with modified weights; convert it with peft first"
        raise refused_option("init_lora_weights", parsed.init_lora_weights, why)
    for name in ("rank_pattern", "alpha_pattern"):
        for pattern in getattr(parsed, name):
            if not _LITERAL.fullmatch(pattern):
                raise refused_option(name, pattern, "only names of modules, or the ends of names, are supported")
    for name in ("target_modules", "exclude_modules"):
        value = getattr(parsed, name)
        if isinstance(value, str):
            _check_expression(name, value)
    return parsed


def _check_expression(key: str, text: str) -> None:
    """Refuse regular expressions that could take forever to match a name."""
    harmless = len(_REPEATED.findall(text)) <= _MAX_REPEATED and not re.search(r"\)[*+{?]|\\[1-9]|\(\?P[=>]", text)
    try:
        harmless = harmless and len(text) <= 1000 and re.compile(text) is not None
    except (re.error, RecursionError, OverflowError):
        harmless = False
    if not harmless or text == "all-linear":
        raise refused_option(
            key, text, "only short regular expressions without nested repetition are supported; give a list of names"
        )


def matches(wanted: str | Iterable[str] | None, name: str) -> bool:
    """Return whether peft would match a module by these names, ends of names, or regular expression."""
    if wanted is None:
        return False
    if isinstance(wanted, str):
        return re.fullmatch(wanted, name) is not None
    return any(name == end or name.endswith(f".{end}") for end in wanted)


def is_target(config: PeftConfig, name: str) -> bool:
    """Return whether peft changes a module."""
    if not matches(config.target_modules, name) or matches(config.exclude_modules, name):
        return False
    chosen = config.layers_to_transform
    # peft takes an empty list for all layers (tuners_utils.py, check_target_module_exists).
    if chosen in (None, ()) or isinstance(config.target_modules, str):
        return True
    number = re.search(r"\.(\d+)\.", name)
    return number is not None and int(number[1]) in ((chosen,) if isinstance(chosen, int) else chosen)


def factor(config: PeftConfig, name: str, rank: int) -> float:
    """Return the factor of a module's low-rank change: ``alpha / r``, or ``alpha / sqrt(r)``.

    Raises:
        InputError: if the configuration specifies another rank.
    """
    expected = int(by_pattern(config.rank_pattern, name, config.r))
    if expected != rank:
        raise InputError(
            f"adapter_config.json: module {name!r} has rank {expected} according to r and rank_pattern, but its "
            f"tensors have rank {rank}; the two files do not belong together."
        )
    alpha = by_pattern(config.alpha_pattern, name, config.lora_alpha)
    return alpha / math.sqrt(rank) if config.use_rslora else alpha / rank


def by_pattern(patterns: Mapping[str, float], name: str, default: float) -> float:
    """Return the rank or alpha of a module as in peft: the value of the first pattern that matches the end of its name."""
    values = (value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", name))
    return next(values, default)
