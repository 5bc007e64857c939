"""Bottlenecks and LoRA agree with other implementations of the same formulas, element by element in float64.

The reference implements BERT's sub-layers by hand from the papers' equations, without code of the library. LoRA is compared
with the installed `peft`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import BertConfig, BertModel, PreTrainedModel

from continual_petl.banks.ablated_view import AblatedView
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.bottleneck import Bottleneck
from tests.tiny import INPUTS, make_bank, make_model

Array = NDArray[np.float64]


def _numbers(bank: Bank, model: PreTrainedModel) -> tuple[dict[str, Array], dict[str, Array]]:
    """Convert everything to float64 and give the bank random values; return the values of bank and backbone."""
    model.double()
    with torch.no_grad():
        for parameter in bank.double().parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    plain = {name: p.detach().numpy() for name, p in model.named_parameters()}
    own = {name.replace("/", "."): p.detach().numpy() for name, p in bank.own.items()}
    forms = {name: p.detach().numpy() for name, p in bank.modifications.named_parameters()}
    return forms, plain | own


def _norm(x: Array, values: dict[str, Array], name: str, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return np.asarray(normal * values[f"{name}.weight"] + values[f"{name}.bias"])


def _linear(x: Array, values: dict[str, Array], name: str) -> Array:
    return np.asarray(x @ values[f"{name}.weight"].T + values[f"{name}.bias"])


ACTIVATIONS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    # As in modeling.py of adapter-bert: the tanh approximation.
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


SITES = {"attention": "self", "ffn": "ffn"}
"""The name of each site in a bank's parameters."""


class Oracle:
    """BERT's encoder with adapters, in numpy; the layers ``gone`` have none."""

    def __init__(
        self, forms: dict[str, Array], values: dict[str, Array], bank: Bank, eps: float, gone: tuple[int, ...] = ()
    ) -> None:
        self.forms, self.values, self.eps = forms, values, eps
        self.rows, self.gone = bank.spec.modifications, gone

    def delta(self, x: Array, site: str, layer: int) -> Array | None:
        for number, row in enumerate(self.rows):
            if layer in self.gone or row.modifies != site or row.form != "bottleneck":
                continue
            prefix = f"{number}.layer_{layer}.{SITES[site]}"
            hidden = ACTIVATIONS[row.activation](_linear(x, self.forms, f"{prefix}.down"))
            return row.scale * _linear(hidden, self.forms, f"{prefix}.up")
        return None

    def layer(self, x: Array, layer: int) -> Array:
        at = f"encoder.layer.{layer}"
        a = _linear(self.attention(x, f"{at}.attention.self"), self.values, f"{at}.attention.output.dense")
        if (change := self.delta(a, "attention", layer)) is not None:
            a = a + change
        h = _norm(a + x, self.values, f"{at}.attention.output.LayerNorm", self.eps)
        inner = ACTIVATIONS["gelu"](_linear(h, self.values, f"{at}.intermediate.dense"))
        f = _linear(inner, self.values, f"{at}.output.dense")
        ffn = [row for row in self.rows if row.modifies == "ffn"]
        norm = f"{at}.output.LayerNorm"
        if not ffn or layer in self.gone:
            return _norm(f + h, self.values, norm, self.eps)
        if ffn[0].insertion == "parallel":
            change = self.delta(h, "ffn", layer)
        elif ffn[0].normalised_input:
            change = self.delta(_norm(f + h, self.values, norm, self.eps), "ffn", layer)
        else:
            change = self.delta(f, "ffn", layer)
        assert change is not None
        return _norm(f + change + h, self.values, norm, self.eps)

    def attention(self, x: Array, at: str, heads: int = 2) -> Array:
        def split(name: str) -> Array:
            projected = _linear(x, self.values, f"{at}.{name}")
            return projected.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

        q, k, v = split("query"), split("key"), split("value")
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
        mask = INPUTS["attention_mask"].numpy()[:, None, None, :]
        weights = np.exp(np.where(mask == 1, scores, -np.inf) - scores.max())
        weights /= weights.sum(-1, keepdims=True)
        return np.asarray((weights @ v).transpose(0, 2, 1, 3).reshape(x.shape))

    def __call__(self) -> Array:
        ids = INPUTS["input_ids"].numpy()
        v = self.values
        x = v["embeddings.word_embeddings.weight"][ids] + v["embeddings.token_type_embeddings.weight"][0]
        x = x + v["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = _norm(x, v, "embeddings.LayerNorm", self.eps)
        for layer in range(2):
            x = self.layer(x, layer)
        return x


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "tanh"])
@pytest.mark.parametrize("preset", ["houlsby", "pfeiffer", "parallel", "scaled_parallel"])
def test_bottlenecks_match_the_papers_formulas(preset: str, activation: str) -> None:
    model = make_model("bert")
    bank = make_bank(model, {"preset": preset, "bottleneck": 3, "activation": activation})
    forms, values = _numbers(bank, model)
    if preset == "houlsby":
        # Five LayerNorms, each with a weight and a bias.
        assert len(bank.own) == 10
    with torch.no_grad():
        ours = run(model, bank, INPUTS).last_hidden_state
    theirs = Oracle(forms, values, bank, model.config.layer_norm_eps)()
    real = INPUTS["attention_mask"].bool().numpy()
    np.testing.assert_allclose(ours.numpy()[real], theirs[real], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("gone", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("preset", ["houlsby", "pfeiffer", "scaled_parallel"])
def test_layers_without_their_bottlenecks_keep_the_bank_s_layernorms(preset: str, gone: tuple[int, ...]) -> None:
    model = make_model("bert")
    bank = make_bank(model, {"preset": preset, "bottleneck": 3})
    forms, values = _numbers(bank, model)
    with torch.no_grad():
        ours = run(model, AblatedView(bank, gone), INPUTS).last_hidden_state
    theirs = Oracle(forms, values, bank, model.config.layer_norm_eps, gone)()
    real = INPUTS["attention_mask"].bool().numpy()
    np.testing.assert_allclose(ours.numpy()[real], theirs[real], rtol=1e-10, atol=1e-10)


def test_reference_without_adapters_matches_bert() -> None:
    model = make_model("bert")
    bank = make_bank(model, "probe")
    forms, values = _numbers(bank, model)
    with torch.no_grad():
        plain = model(**INPUTS).last_hidden_state
    real = INPUTS["attention_mask"].bool().numpy()
    theirs = Oracle(forms, values, bank, model.config.layer_norm_eps)()
    np.testing.assert_allclose(plain.numpy()[real], theirs[real], rtol=1e-10, atol=1e-10)


# peft 0.21 uses a property that transformers 5 has renamed.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(("rank", "scale"), [(2, 1), (3, 2)])
def test_lora_matches_peft(rank: int, scale: int) -> None:
    model = make_model("bert").double()
    bank = make_bank(model, {"preset": "lora", "rank": rank, "scale": float(scale)})
    forms, _ = _numbers(bank, model)
    with torch.no_grad():
        ours: Tensor = run(model, bank, INPUTS).last_hidden_state
    config = LoraConfig(r=rank, lora_alpha=rank * scale, target_modules=["query", "value"], init_lora_weights=False)
    theirs = get_peft_model(model, config).double().train(False)
    with torch.no_grad():
        for number, site in enumerate(("query", "value")):
            for layer in range(2):
                at = f"base_model.model.encoder.layer.{layer}.attention.self.{site}"
                for letter, name in (("A", "down"), ("B", "up")):
                    weight = theirs.get_parameter(f"{at}.lora_{letter}.default.weight")
                    weight.copy_(torch.from_numpy(forms[f"{number}.layer_{layer}.self.{name}.weight"]))
        expected = theirs(**INPUTS).last_hidden_state
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_houlsby_initialisation_is_a_normal_truncated_at_two_sigma() -> None:
    config = BertConfig(hidden_size=256, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=9)
    bank = make_bank(BertModel(config), "houlsby")
    weights = torch.cat(
        [p.detach().flatten() for n, p in bank.modifications.named_parameters() if n.endswith("weight")]
    )
    assert float(weights.abs().max()) <= 2e-2
    # Truncation at two sigma leaves a standard deviation of 0.8796 sigma.
    assert float(weights.std()) == pytest.approx(0.8796e-2, rel=0.02)
    assert all(not p.any() for n, p in bank.modifications.named_parameters() if n.endswith("bias"))


@pytest.mark.parametrize("insertion", ["sequential", "parallel"])
@torch.no_grad()
def test_output_norm_matches_adapters(insertion: str) -> None:
    """As in methods/modeling.py of `adapters` 1.3.0: ``ln_after`` acts on ``up(f(down(x)))``, then the residual is added."""
    generator = torch.Generator().manual_seed(3)
    row = {"form": "bottleneck", "modifies": "ffn", "insertion": insertion, "bottleneck": 3, "output_norm": True}
    form = Bottleneck(Modification.model_validate(row), 6, 6).double()
    for parameter in form.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x, h = (torch.randn(2, 4, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    values = {name: p.detach().numpy() for name, p in form.named_parameters()}
    up = _linear(np.maximum(_linear(x.numpy(), values, "down"), 0), values, "up")
    expected = h.numpy() + _norm(up, values, "norm_after", 1e-5)
    np.testing.assert_allclose(form.change(h, x).numpy(), expected, rtol=0, atol=1e-12)


def test_fresh_adapter_with_output_norm_is_the_identity() -> None:
    model = make_model("bert")
    bank = make_bank(model, {"preset": "scaled_parallel", "bottleneck": 3, "output_norm": True})
    plain = model(**INPUTS).last_hidden_state
    assert torch.equal(run(model, bank, INPUTS).last_hidden_state, plain)
