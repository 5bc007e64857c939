"""The published configurations of Llama and Qwen3: the values in ``config.json`` that determine sizes."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

_LLAMA: dict[str, Any] = {"vocab_size": 128256, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
_QWEN3: dict[str, Any] = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6}

_VALUES: dict[str, tuple[Any, dict[str, Any], tuple[int, int, int, int]]] = {
    # width, FFN, layers, heads
    "Llama-3.2-1B": (LlamaConfig, _LLAMA | {"tie_word_embeddings": True}, (2048, 8192, 16, 32)),
    "Llama-3.2-3B": (LlamaConfig, _LLAMA | {"tie_word_embeddings": True}, (3072, 8192, 28, 24)),
    "Llama-3.1-8B": (LlamaConfig, _LLAMA | {"tie_word_embeddings": False}, (4096, 14336, 32, 32)),
    "Qwen3-0.6B": (Qwen3Config, _QWEN3 | {"tie_word_embeddings": True}, (1024, 3072, 28, 16)),
    "Qwen3-1.7B": (Qwen3Config, _QWEN3 | {"tie_word_embeddings": True}, (2048, 6144, 28, 16)),
    "Qwen3-4B": (Qwen3Config, _QWEN3 | {"tie_word_embeddings": True}, (2560, 9728, 36, 32)),
    "Qwen3-8B": (Qwen3Config, _QWEN3 | {"tie_word_embeddings": False}, (4096, 12288, 36, 32)),
}
NAMES = tuple(_VALUES)


def published(name: str, num_layers: int | None = None) -> PretrainedConfig:
    """Return a model's configuration.

    Args:
        name: one of `NAMES`.
        num_layers: the number of layers, if it is not the published one.
    """
    kind, values, (width, ffn, layers, heads) = _VALUES[name]
    config: PretrainedConfig = kind(
        hidden_size=width,
        intermediate_size=ffn,
        num_hidden_layers=layers if num_layers is None else num_layers,
        num_attention_heads=heads,
        **values,
    )
    return config
