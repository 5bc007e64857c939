"""An exported adapter gives the bank's outputs when peft loads it onto the original backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from continual_petl.exchange.compare import rows_of
from continual_petl.exchange.peft.adapter import write_peft
from continual_petl.exchange.subject import Subject
from continual_petl.learner.task_bank import shifted_right
from tests.exchange.readme import run_readme
from tests.exchange.subjects import TEXTS, Folder, answers_of, inputs_of, masked, subject_of
from tests.kinds import GENERATIVE
from tests.tiny import FAMILIES, TEXT_FAMILIES
from tests.usual import few, walk

# peft 0.21 reads a property that transformers 5 has deprecated, and warns about every layer that is not linear.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning"),
    pytest.mark.filterwarnings("ignore:Position ids are not supported for parameter efficient tuning:UserWarning"),
]


@torch.no_grad()
def compare(subject: Subject, to: Path) -> dict[str, Any]:
    """Export, run the code in README.md on inputs that the export did not use, and compare the outputs.

    Returns:
        The content of adapter_config.json.
    """
    to.mkdir(exist_ok=True)
    assert write_peft(subject, to) <= 1e-5
    rows = TEXTS if subject.tokenizer is not None else rows_of(subject)[0]
    if subject.plan.kind == "token-classification":
        rows = [text.split() for text in TEXTS]
    namespace = run_readme(to, rows)
    inputs = inputs_of(subject) if subject.tokenizer is not None else namespace["inputs"]
    expected = answers_of(subject, inputs)
    if subject.plan.kind in GENERATIVE:
        given = dict(inputs)
        if subject.plan.kind == "seq2seq":
            given["decoder_input_ids"] = shifted_right(subject.backbone, inputs["input_ids"])
        found = namespace["model"](**given).logits[:, -expected.shape[1] :]
    else:
        found = namespace["logits"]
    # Sums are computed in another order.
    torch.testing.assert_close(masked(found, inputs), expected, atol=1e-5, rtol=1e-5)
    saved_again_is_the_same(namespace["model"], to)
    config: dict[str, Any] = json.loads((to / "adapter_config.json").read_text("utf-8"))
    return config


def saved_again_is_the_same(model: Any, folder: Path) -> None:
    """Assert that peft itself would save the same two files: names, tensors and settings."""
    model.save_pretrained(folder / "again")
    ours, theirs = (load_file(path / "adapter_model.safetensors") for path in (folder, folder / "again"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    mine, written = (
        json.loads((path / "adapter_config.json").read_text("utf-8")) for path in (folder, folder / "again")
    )
    for key, value in mine.items():
        other = written[key]
        assert (sorted(set(other)) if isinstance(other, list) else other) in (
            sorted(value) if isinstance(value, list) else value,
            sorted({*value, "classifier", "score"}) if key == "modules_to_save" else None,
        )


KIND = {"vit": "image-classification"}
EVERY = {
    "modifications": [
        {"form": "lowrank", "modifies": site, "insertion": "parallel", "composition": how, "rank": rank, "scale": scale}
        for site, how, rank, scale in [
            ("query", "scaled", 2, 1.5), ("key", "scaled", 3, 0.5), ("value", "learned", 2, 1.5),
            ("attention_out", "add", 2, 1.0), ("ffn_in", "scaled", 2, 1.5), ("ffn_out", "scaled", 2, 0.3),
            ("query", "scaled", 1, 2.0),
        ]
    ],
    "layernorms": "own",
}  # fmt: skip
MIXED = {
    "modifications": [
        {"form": "decomposed", "modifies": "query", "insertion": "parallel", "composition": "scaled", "rank": 2},
        {"form": "lowrank", "modifies": "ffn_in", "insertion": "parallel", "composition": "scaled", "rank": 3},
    ]
}
UPPER = {"preset": "lora", "rank": 2, "scale": 2.0, "layers": "1"}
SOME = ("bert", "roberta", "distilbert", "gpt2", "llama", "t5", "modernbert")


CHOICES: list[Any] = ["lora", EVERY, "dora", "ia3", "layernorm"]
CASES = [(f, c) for f in FAMILIES for c in CHOICES]


def marked(cases: list[tuple[str, Any]]) -> list[Any]:
    """Return the cases, marked as slow except for BERT's and a third of those of the other families in `SOME`."""
    kept = [(f, c) for n, f in enumerate(SOME) for m, c in enumerate(CHOICES) if f == "bert" or (n + m) % 3 == 0]
    return [case if case in kept else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(("family", "choice"), marked(CASES))
def test_adapter_gives_the_answers_of_the_bank(
    backbone_folder: Folder, tmp_path: Path, family: str, choice: Any
) -> None:
    compare(subject_of(backbone_folder(family), KIND.get(family, "classification"), choice), tmp_path)


GENERATORS = [(f, "seq2seq") for f in ("t5", "bart", "mbart", "mt5")]
GENERATORS += [(f, "causal-lm") for f in ("gpt2", "llama", "qwen2", "qwen3")]


@pytest.mark.parametrize(("family", "kind"), walk(GENERATORS, ("t5", "bart", "gpt2", "llama")))
@pytest.mark.parametrize("choice", few(["lora", EVERY, "ia3", "layernorm"]), ids=str)
def test_adapter_of_a_language_model_gives_its_logits(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, choice: Any
) -> None:
    config = compare(subject_of(backbone_folder(family), kind, choice), tmp_path)
    assert config["task_type"] == {"seq2seq": "SEQ_2_SEQ_LM", "causal-lm": "CAUSAL_LM"}[kind]


@pytest.mark.parametrize("family", walk(TEXT_FAMILIES, ("bert", "llama", "t5")))
def test_adapter_of_a_tagger_gives_its_answers(backbone_folder: Folder, tmp_path: Path, family: str) -> None:
    compare(subject_of(backbone_folder(family), "token-classification", "lora"), tmp_path)


VIRTUAL = [(f, "classification") for f in ("t5", "mt5", "llama", "qwen2", "qwen3", "modernbert")]
VIRTUAL += [("t5", "seq2seq"), ("mt5", "seq2seq"), ("llama", "causal-lm"), ("llama", "token-classification")]


@pytest.mark.parametrize(("family", "kind"), walk(VIRTUAL, ("t5", "llama", "modernbert")))
@pytest.mark.parametrize("preset", few(["prompt", "p_tuning"]))
def test_prompt_on_a_model_with_relative_positions(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, preset: str
) -> None:
    assert compare(subject_of(backbone_folder(family), kind, preset), tmp_path)["num_virtual_tokens"] == 3


@pytest.mark.parametrize(("family", "kind"), walk([v for v in VIRTUAL if v[0] in {"llama", "qwen2", "qwen3"}]))
@pytest.mark.parametrize("preset", few(["prefix_flat", "prefix"]))
def test_prefix_of_a_decoder_with_rotary_positions(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, preset: str
) -> None:
    assert compare(subject_of(backbone_folder(family), kind, preset), tmp_path)["peft_type"] == "PREFIX_TUNING"


@pytest.mark.parametrize(
    ("family", "kind", "pooling", "task_type", "saved"),
    [
        ("bert", "classification", "pooler", "SEQ_CLS", ["classifier"]),
        ("bert", "regression", "pooler", "SEQ_CLS", ["classifier"]),
        ("bert", "classification", "first", "FEATURE_EXTRACTION", None),
        ("bert", "multilabel", "mean", "FEATURE_EXTRACTION", None),
        ("roberta", "classification", "first", "FEATURE_EXTRACTION", None),
        ("gpt2", "classification", "last", "FEATURE_EXTRACTION", None),
        ("llama", "token-classification", None, "TOKEN_CLS", ["score"]),
        ("vit", "image-classification", "first", None, ["classifier"]),
        ("vit", "image-classification", "mean", "FEATURE_EXTRACTION", None),
    ],
)
def test_head_is_in_the_adapter_or_in_a_file_of_its_own(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, pooling: str | None, task_type: str, saved: Any
) -> None:
    config = compare(subject_of(backbone_folder(family), kind, "lora", pooling), tmp_path)
    assert config["task_type"] == task_type
    assert config.get("modules_to_save") == saved
    assert (tmp_path / "head.safetensors").is_file() == (saved is None)


def test_factor_is_alpha_over_rank_and_learned_factors_are_folded(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = backbone_folder("bert")
    for name, choice, rank, alpha in [("s", UPPER, 2, 4), ("l", learned(0.5), 2, 2)]:
        config = compare(subject_of(folder, "classification", choice, "pooler"), tmp_path / name)
        assert (config["r"], config["lora_alpha"]) == (rank, alpha)
        assert config["rank_pattern"] == config["alpha_pattern"] == {}
    assert json.loads((tmp_path / "l" / "adapter_config.json").read_text("utf-8"))["target_modules"] == ["query"]


def learned(scale: float) -> dict[str, Any]:
    row = {"form": "lowrank", "modifies": "query", "insertion": "parallel", "composition": "learned", "rank": 2}
    return {"modifications": [row | {"scale": scale}]}


def test_upper_layers_are_named_one_by_one(backbone_folder: Folder, tmp_path: Path) -> None:
    config = compare(subject_of(backbone_folder("bert"), "classification", UPPER, "pooler"), tmp_path)
    assert config["target_modules"] == [f"bert.encoder.layer.1.attention.self.{site}" for site in ("query", "value")]


@pytest.mark.parametrize("family", walk(("bert", "gpt2", "deberta")))
def test_lora_and_dora_in_one_bank(backbone_folder: Folder, tmp_path: Path, family: str) -> None:
    assert compare(subject_of(backbone_folder(family), "classification", MIXED), tmp_path)["use_dora"]
