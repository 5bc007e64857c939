"""The error for an unknown family shows how to register it, and the examples in docs/backbones.md work."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel, Starcoder2Config, Starcoder2ForCausalLM

from continual_petl.backbones import FAMILIES, Anatomy, anatomy, known_families
from continual_petl.backbones.backbone import load_backbone
from continual_petl.backbones.sites import Sites
from continual_petl.banks.attach import generate, run
from continual_petl.errors import InputError
from tests.backbones.proofs import check_attention, check_norms, check_results
from tests.tiny import INPUTS, VOCABULARY, make_bank, make_model

TEXT = (Path(__file__).parents[2] / "docs" / "backbones.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SIZE: dict[str, Any] = {
    "vocab_size": len(VOCABULARY), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo registrations after the test."""
    monkeypatch.setattr(anatomy, "_ANATOMIES", dict(anatomy._ANATOMIES))


def test_error_shows_how_to_register_the_family(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "starcoder2"}))
    with pytest.raises(InputError) as caught:
        load_backbone(str(tmp_path))
    message = str(caught.value)
    assert "\n" not in message
    for words in (
        "'starcoder2' has no anatomy",
        "known model types are bart, bert",
        'family="starcoder2"',
        "docs/backbones.md",
    ):
        assert words in message
    # The error shows a complete description, which evaluates to an Anatomy.
    shown = message[message.index("otherwise register_anatomy(") + len("otherwise register_anatomy(") :]
    made = eval(shown[: shown.index("), with the module path")], vars(anatomy))
    assert isinstance(made, Anatomy)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("block", "family", "kind", "config"),
    [
        (0, "mistral", MistralForCausalLM, MistralConfig),
        (1, "starcoder2", Starcoder2ForCausalLM, Starcoder2Config),
    ],
)
def test_documented_examples_work(
    block: int, family: str, kind: Any, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    model: PreTrainedModel = kind(config(**SIZE, sliding_window=None)).eval()
    model.save_pretrained(family)
    exec(compile(BLOCKS[block], "docs/backbones.md", "exec"), {})
    assert family in known_families()
    backbone = load_backbone(f"./{family}")
    assert (backbone.anatomy.family, backbone.num_layers, backbone.generates) == (family, 2, True)
    check_attention(backbone.model, backbone.sites, INPUTS)
    check_results(backbone.model, backbone.sites, INPUTS)
    check_norms(backbone.model, backbone.sites)
    for preset in ("houlsby", "lora", "prefix_flat", "prompt"):
        bank = make_bank(backbone.model, preset)
        with torch.no_grad():
            assert run(backbone.model, bank, INPUTS).last_hidden_state.shape == (2, 5, 16)
            assert (
                generate(backbone.model, bank, {"input_ids": INPUTS["input_ids"][:1]}, {"max_new_tokens": 2}).ndim == 2
            )


_BERT = anatomy.find_anatomy("bert")
_STACK = _BERT.stacks[0]
_SELF = _STACK.attentions[0]


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (replace(_BERT, stacks=(replace(_STACK, embedding_norm="embeddings.Norm"),)), "embeddings.Norm"),
        (replace(_BERT, stacks=(replace(_STACK, final_norm="norm"),)), "norm"),
        (replace(_BERT, stacks=(replace(_STACK, ffn=replace(_STACK.ffn, norm="ln")),)), "encoder.layer.0.ln"),
        (replace(_BERT, stacks=(replace(_STACK, attentions=(replace(_SELF, norm="ln"),)),)), "encoder.layer.0.ln"),
        (replace(_BERT, prompt=anatomy.PromptSite(norm="embeddings.Norm")), "embeddings.Norm"),
        (replace(_BERT, prompt=anatomy.PromptSite(stack="stack")), "stack"),
        (replace(_BERT, prompt=anatomy.PromptSite(stack="encoder", positions="positions")), "positions"),
    ],
)
def test_missing_norm_or_prompt_site_is_an_error(wrong: Anatomy, path: str) -> None:
    """Nothing else would notice a missing norm: ``layernorms: own`` would silently leave it frozen."""
    with pytest.raises(InputError, match=f"modules that the model does not have; the first is {path!r}"):
        Sites(wrong, make_model("bert"))


@pytest.mark.parametrize("both", [{}, {"norm": "a", "stack": "b"}])
def test_a_prompt_site_is_before_a_norm_or_a_stack(both: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give exactly one of the two"):
        anatomy.PromptSite(**both)


def test_documented_table_matches_the_code() -> None:
    def row(family: Anatomy) -> list[str]:
        prompt = family.prompt
        assert prompt is not None
        return [
            f"`{family.family}`",
            ", ".join(f"`{name}`" for name in family.model_types),
            "before" if family.stacks[0].norm_first else "after",
            "embeddings" if prompt.norm else prompt.stack or "whole model",
            "yes" if family.attention_registry else "no",
            family.pooling,
            family.output_head,
        ]

    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| `")
    ]
    assert rows == [row(family) for family in FAMILIES]
