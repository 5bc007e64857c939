"""Parameter counts of banks on tiny backbones, and which banks are refused, derived from specifications without the library.

The widths are those in `tests.tiny`, and the layer of a parameter follows from its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformers import PreTrainedModel

from continual_petl.banks.config.spec import BankSpec, Modification
from tests.tiny import DECODERS, ENCODER_DECODERS

WIDTH, INNER = 16, 32
PRE_NORM = {"mbart", "t5", "mt5", "modernbert", "vit", *DECODERS}
GATED_FFN = {"mt5", "modernbert", "llama", "qwen2", "qwen3"}
SHARED_KEYS = {"llama", "qwen2", "qwen3"}
OWN_ATTENTION = {"mpnet", "deberta", "deberta-v2"}
_FINAL_NORM = re.compile(r"((encoder|decoder)\.(final_)?layer_norm|ln_f|norm|final_norm|layernorm)\.(weight|bias)")
_NORM = re.compile(r"(^|\.)[^.]*(norm|ln_)[^.]*\.(weight|bias)$", re.IGNORECASE)
# DeBERTa's attention has query and value biases that belong to no linear layer.
_BIAS = re.compile(r"\.([qv]_)?bias$")


def num_layers(family: str) -> int:
    """Return the number of layers in all stacks together."""
    return 4 if family in ENCODER_DECODERS else 2


def attentions(family: str, layer: int) -> tuple[str, ...]:
    """Return the attentions of a layer: decoder layers of an encoder-decoder have two."""
    return ("self", "cross") if family in ENCODER_DECODERS and layer >= 2 else ("self",)


def projections(family: str, modifies: str) -> list[tuple[int, int]]:
    """Return the input and output width of each projection that a low-rank form changes in one sub-layer."""
    keys = 8 if family in SHARED_KEYS else WIDTH
    return {
        "query": [(WIDTH, WIDTH)],
        "key": [(WIDTH, keys)],
        "value": [(WIDTH, keys)],
        "attention_out": [(WIDTH, WIDTH)],
        "ffn_in": [(WIDTH, INNER)] * (2 if family in GATED_FFN else 1),
        "ffn_out": [(INNER, WIDTH)],
    }[modifies]


def own(family: str, model: PreTrainedModel, spec: BankSpec, layers: Sequence[int], reads: str) -> dict[str, int]:
    """Return, by name, the sizes of the backbone parameters that a bank has its own version of."""
    kinds = {m.modifies for m in spec.modifications if m.form in ("additive", "sparse")}
    found = {}
    for name, parameter in model.named_parameters():
        layer = _layer(family, name)
        if layer == "head":
            inside = reads == "logits" and num_layers(family) - 1 in layers
        elif layer == "pooler":
            inside = reads == "pooler" and "weights" in kinds and len(layers) == num_layers(family)
        else:
            inside = layer in layers
        norm = spec.layernorms == "own" and _NORM.search(name) is not None
        if inside and (norm or "weights" in kinds or ("bias" in kinds and _BIAS.search(name) is not None)):
            found[name] = parameter.numel()
    return found


def _layer(family: str, name: str) -> int | str:
    if name.startswith(("pooler.", "lm_head.")):
        return "pooler" if name.startswith("pooler.") else "head"
    first = 2 if family in ENCODER_DECODERS and re.match(r"(model\.)?decoder\.", name) else 0
    numbered = re.search(r"(^|\.)(layers?|block|h)\.(\d+)\.", name)
    if numbered:
        return first + int(numbered[3])
    return first + 1 if _FINAL_NORM.fullmatch(re.sub(r"^(model|transformer)\.", "", name)) else first


def refused(family: str, model: PreTrainedModel, spec: BankSpec, layers: Sequence[int]) -> bool:
    """Return whether the family does not support the bank, or a size is too large for it."""
    for m in spec.modifications:
        size = m.bottleneck or 0
        if (
            (m.form == "bottleneck" and size > WIDTH)
            or (
                m.form in ("lowrank", "decomposed")
                and any(size > min(pair) for pair in projections(family, m.modifies))
            )
            or (m.form == "attention" and family in OWN_ATTENTION)
            or (m.normalised_input and family in PRE_NORM)
        ):
            return True
        if m.modifies == "bias" and not any(_BIAS.search(n) for n in own(family, model, spec, layers, "states")):
            return True
    return False


def forms(family: str, m: Modification, layers: Sequence[int], sizes: dict[str, int], *, trained: bool) -> int:
    """Return the number of parameters of one modification.

    Args:
        family: the backbone's family.
        m: the modification.
        layers: the layers that it changes.
        sizes: the sizes of the parameters that a sparse difference covers.
        trained: whether to count the parameters used in training instead of those that are stored.
    """
    size, learned = m.bottleneck or 0, int(m.composition == "learned")
    num_attentions = sum(len(attentions(family, layer)) for layer in layers)
    match m.form:
        case "bottleneck":
            middle = (m.depth - 1) * (size * size + size)
            one = 2 * size * WIDTH + size + WIDTH + middle + 2 * WIDTH * (m.input_norm + m.output_norm) + learned
            return one * (len(layers) if m.modifies == "ffn" else num_attentions)
        case "lowrank" | "decomposed":
            one = sum(size * sum(pair) + learned for pair in projections(family, m.modifies))
            if m.form == "decomposed":
                one += sum(out for _, out in projections(family, m.modifies))
            return one * (len(layers) if m.modifies.startswith("ffn") else num_attentions)
        case "rescale":
            if m.modifies == "ffn_inner":
                return INNER * len(layers)
            return projections(family, m.modifies)[0][1] * num_attentions
        case "attention":
            keys = projections(family, "key")[0][1]
            if m.reparametrise == "none" or not trained:
                return num_attentions * (2 * size * keys + learned)
            kinds = [f"{layer // 2}{name}" for layer in layers for name in attentions(family, layer)]
            mlps = sum(
                size * WIDTH + (WIDTH + 1) * m.hidden + (m.hidden + 1) * 2 * keys * kinds.count(kind)
                for kind in set(kinds)
            )
            return mlps + num_attentions * learned
        case "prompt":
            return _prompt(8 if family == "electra" else WIDTH, m, trained=trained)
        case "sparse":
            total = sum(sizes.values())
            return 2 * total + len(sizes) if trained else max(1, round(m.density * total))
    return 0


def _prompt(width: int, m: Modification, *, trained: bool) -> int:
    count, hidden, wide = (m.bottleneck or 0) * width, m.hidden, m.hidden
    if m.reparametrise == "none" or not trained:
        return count
    inner = width
    if m.reparametrise == "lstm":
        # Each LSTM layer has four gates, two directions and two biases; the second reads both directions of the first.
        count += 2 * 4 * hidden * (width + hidden + 2) + 2 * 4 * hidden * (2 * hidden + hidden + 2)
        inner, wide = 2 * hidden, m.mlp_width or hidden
    return count + (inner + 1) * wide + (m.depth - 1) * (wide + 1) * wide + (wide + 1) * width
