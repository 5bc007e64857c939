"""Adapters saved by peft itself, with options that an export never uses, give peft's logits after the import."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from continual_petl.errors import InputError
from continual_petl.exchange.subject import Subject
from continual_petl.learner.task_bank import shifted_right
from tests.exchange.subjects import Folder, answers_of, inputs_of, masked, subject_of
from tests.exchange.test_round_trip import imported
from tests.kinds import GENERATIVE

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning"),
    pytest.mark.filterwarnings("ignore:Position ids are not supported for parameter efficient tuning:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fan_in_fan_out is set to:UserWarning"),
]


@torch.no_grad()
def made(base: Path, auto: str, config: Any, to: Path, **more: Any) -> Any:
    """Wrap a model with peft, add noise to its trainable parameters, save its adapter, and return it."""
    model: Any = getattr(transformers, auto).from_pretrained(base, **more)
    torch.manual_seed(5)
    wrapped = peft.get_peft_model(model, config).eval()
    for name, parameter in wrapped.named_parameters():
        if parameter.requires_grad:
            parameter.add_(0.1 * torch.randn(parameter.shape))
            assert "base_layer" not in name
    wrapped.save_pretrained(to)
    return wrapped


@torch.no_grad()
def compare(subject: Subject, wrapped: Any, folder: Path, **asked: Any) -> Subject:
    """Import an adapter, and compare its outputs with those of peft's model; return the imported task."""
    back = imported(subject, folder, **asked)
    inputs: dict[str, Tensor] = inputs_of(subject)
    given = dict(inputs)
    if back.plan.kind == "seq2seq":
        given["decoder_input_ids"] = shifted_right(subject.backbone, inputs["input_ids"])
    expected = wrapped(**given).logits
    found = answers_of(back, inputs)
    if expected.ndim == 3:  # peft returns outputs for a prompt's vectors too
        expected = expected[:, -found.shape[1] :]
    # Sums are computed in another order.
    torch.testing.assert_close(found, masked(expected, inputs), atol=1e-5, rtol=1e-5)
    return back


PATTERNS = {"rank_pattern": {"query": 3}, "alpha_pattern": {"layer.1.attention.self.key": 5.0}}
BERT: list[tuple[str, Any]] = [
    ("defaults", {}),
    ("rslora", {"use_rslora": True, "r": 4, "lora_alpha": 6}),
    ("dora", {"use_dora": True, "r": 3, "lora_alpha": 6, "lora_dropout": 0.1}),
    ("patterns", {"target_modules": ["query", "key", "dense"], "exclude_modules": ["pooler.dense"]} | PATTERNS),
    ("one_layer", {"layers_to_transform": [1], "layers_pattern": "layer", "target_modules": ["query"]}),
    ("expression", {"target_modules": r".*layer\.1\..*(query|value)"}),
    ("norms", {"modules_to_save": ["attention.output.LayerNorm"]}),
    ("norm_of_embeddings", {"modules_to_save": ["embeddings.LayerNorm"], "target_modules": r".*layer\.1\..*query"}),
    ("gaussian", {"init_lora_weights": "gaussian", "r": 2}),
]  # fmt: skip


@pytest.mark.parametrize("options", [options for _, options in BERT], ids=[name for name, _ in BERT])
def test_lora_of_a_classifier(backbone_folder: Folder, tmp_path: Path, options: dict[str, Any]) -> None:
    folder = backbone_folder("bert")
    config = peft.LoraConfig(**({"task_type": "SEQ_CLS", "target_modules": ["query", "value"]} | options))
    wrapped = made(folder, "AutoModelForSequenceClassification", config, tmp_path / "out", num_labels=3)
    back = compare(subject_of(folder, "classification", "lora"), wrapped, tmp_path / "out")
    assert (back.plan.pooling, back.plan.labels) == ("pooler", ("LABEL_0", "LABEL_1", "LABEL_2"))


TEXTS, TAGS, LM, SEQ2SEQ = (
    f"AutoModelFor{name}" for name in ("SequenceClassification", "TokenClassification", "CausalLM", "Seq2SeqLM")
)
INNER = ["layer.0.output.dense", "layer.1.output.dense"]
OTHERS: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("bert", TEXTS, "IA3", "SEQ_CLS", {"target_modules": ["key", "value", *INNER], "feedforward_modules": INNER}),
    ("bert", TEXTS, "LNTuning", "SEQ_CLS", {"target_modules": ["attention.output.LayerNorm"]}),
    ("gpt2", TEXTS, "Lora", "SEQ_CLS", {"r": 2}),
    ("llama", TEXTS, "Lora", "SEQ_CLS", {"r": 2}),
    ("llama", TEXTS, "PrefixTuning", "SEQ_CLS", {"num_virtual_tokens": 3}),
    ("llama", TAGS, "PromptTuning", "TOKEN_CLS", {"num_virtual_tokens": 3}),
    ("gpt2", LM, "Lora", "CAUSAL_LM", {"r": 2, "target_modules": ["c_attn", "c_fc"]}),
    ("gpt2", LM, "Lora", "CAUSAL_LM", {"r": 2, "use_dora": True, "fan_in_fan_out": True}),
    ("t5", SEQ2SEQ, "Lora", "SEQ_2_SEQ_LM", {"r": 2, "target_modules": ["SelfAttention.q", "wo"]}),
    ("bart", SEQ2SEQ, "IA3", "SEQ_2_SEQ_LM", {"target_modules": ["k_proj", "fc2"], "feedforward_modules": ["fc2"]}),
    ("llama", LM, "PrefixTuning", "CAUSAL_LM", {"num_virtual_tokens": 3}),
    ("llama", LM, "PrefixTuning", "CAUSAL_LM", {"num_virtual_tokens": 3, "prefix_projection": True}),
    ("t5", SEQ2SEQ, "PromptTuning", "SEQ_2_SEQ_LM", {"num_virtual_tokens": 3}),
    ("t5", SEQ2SEQ, "PromptEncoder", "SEQ_2_SEQ_LM", {"num_virtual_tokens": 3, "encoder_hidden_size": 8}),
    ("roberta", TAGS, "Lora", "TOKEN_CLS", {"r": 2}),
    ("distilbert", TAGS, "Lora", "TOKEN_CLS", {"r": 2, "target_modules": ["q_lin", "lin1"]}),
]
KINDS = {TEXTS: "classification", TAGS: "token-classification", LM: "causal-lm", SEQ2SEQ: "seq2seq"}


@pytest.mark.parametrize(("family", "auto", "method", "task_type", "options"), OTHERS)
def test_other_methods_and_families(
    backbone_folder: Folder,
    tmp_path: Path,
    family: str,
    auto: str,
    method: str,
    task_type: str,
    options: dict[str, Any],
) -> None:
    folder, kind = backbone_folder(family), KINDS[auto]
    subject = subject_of(folder, kind, "lora")
    more: dict[str, Any] = {} if kind in GENERATIVE else {"num_labels": 3}
    more |= {"pad_token_id": subject.pad} if family == "gpt2" else {}
    config = getattr(peft, f"{method}Config")(task_type=task_type, **options)
    compare(subject, made(folder, auto, config, tmp_path / "out", **more), tmp_path / "out")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "VERA"}, "key peft_type: got 'VERA', but only these can be imported: LORA, IA3"),
    ({"bias": "lora_only"}, "key bias: got 'lora_only', but it changes what the adapter computes"),
    ({"lora_bias": True}, "key lora_bias: got True, but it changes"),
    ({"layer_replication": [[0, 2]]}, "key layer_replication"),
    ({"trainable_token_indices": [1]}, "key trainable_token_indices"),
    ({"use_qalora": True}, "key use_qalora"),
    (
        {"some_new_option": 3},
        "key some_new_option: got 3, but it changes what the adapter computes, or is unknown",
    ),
    (
        {"init_lora_weights": "pissa"},
        "key init_lora_weights: got 'pissa', but such an adapter needs a base model with modified weights",
    ),
    ({"init_lora_weights": "loftq"}, "key init_lora_weights"),
    ({"r": "8"}, "key r: got '8', but it should be a valid integer; the file is damaged"),
    ({"r": 3}, "has rank 3 according to r and rank_pattern, but its tensors have rank 2"),
    ({"lora_alpha": float("nan")}, "key lora_alpha: got nan, but it should be a finite number"),
    ({"rank_pattern": {"(a+)+": 2}}, "key rank_pattern: got '(a+)+', but only names of modules"),
    ({"target_modules": "(a+)+b"}, "key target_modules: got '(a+)+b', but only short regular expressions"),
    ({"target_modules": "all-linear"}, "key target_modules: got 'all-linear'"),
    ({"target_modules": ["query"]}, "peft would not load the tensors of"),
    ({"modules_to_save": [], "target_modules": ["value"]}, "peft would not load the tensors of"),
    (
        {"task_type": "CAUSAL_LM"},
        "this backbone cannot learn causal-lm, which the adapter is for; allowed for this adapter (task_type CAUSAL_LM) "
        "on this backbone: none. Import it into a run on its own base model",
    ),
    ({"peft_type": "IA3"}, "does not belong to peft_type IA3|no tensor belongs to peft_type IA3"),
]


@pytest.fixture(scope="module")
def adapter(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("adapters") / "out"
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    made(backbone_folder("bert"), "AutoModelForSequenceClassification", config, to, num_labels=3)
    return to


def copied(adapter: Path, to: Path, values: dict[str, Any], tensors: dict[str, Tensor | None] | None = None) -> Path:
    """Return a copy of an adapter with some settings and tensors replaced; None removes a tensor."""
    to.mkdir()
    config = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    (to / "adapter_config.json").write_text(json.dumps(config | values))
    kept = load_file(adapter / "adapter_model.safetensors") | (tensors or {})
    save_file({n: t for n, t in kept.items() if t is not None}, to / "adapter_model.safetensors")
    return to


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[str(values)[:30] for values, _ in REFUSED])
def test_options_that_cannot_be_expressed_are_refused_by_name(
    backbone_folder: Folder, adapter: Path, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    subject = subject_of(backbone_folder("bert"), "classification", "lora")
    with pytest.raises(InputError, match=message if "|" in message else re.escape(message)):
        imported(subject, copied(adapter, tmp_path / "out", values))


ROOT = "base_model.model.bert.encoder.layer.0.attention.self.query"
TENSORS: list[tuple[dict[str, Tensor | None], str]] = [
    ({f"{ROOT}.lora_A.weight": None}, "expected matrices lora_A.weight, lora_B.weight of one rank"),
    ({f"{ROOT}.lora_B.weight": torch.zeros(17, 2)}, "are for 17 outputs and 16 inputs, but this backbone has 16 and 16"),
    ({f"{ROOT}.lora_A.weight": torch.full((2, 16), torch.nan)}, "are not finite"),
    ({f"{ROOT}.lora_A.weight": torch.zeros(2, 16, dtype=torch.int8)}, "are not of a floating-point type"),
    ({"other.lora_A.weight": torch.zeros(2, 16)}, "does not follow peft's naming"),
    ({ROOT.replace("bert.", "gpt.") + ".lora_A.weight": torch.zeros(2, 16)}, "has no module"),
    ({"base_model.model.classifier.weight": torch.zeros(3, 17)}, "Put head.safetensors into it"),
    ({"base_model.model.classifier.weight": None, "base_model.model.classifier.bias": None}, "Put head.safetensors into it"),
    ({"base_model.model.classifier.dense.weight": torch.zeros(16, 16)}, "its head has the tensor 'classifier.dense.weight'"),
]  # fmt: skip


@pytest.mark.parametrize(("tensors", "message"), TENSORS, ids=[message[:30] for _, message in TENSORS])
def test_tensors_that_do_not_fit_are_refused(
    backbone_folder: Folder, adapter: Path, tmp_path: Path, tensors: dict[str, Tensor | None], message: str
) -> None:
    subject = subject_of(backbone_folder("bert"), "classification", "lora")
    with pytest.raises(InputError, match=message):
        imported(subject, copied(adapter, tmp_path / "out", {}, tensors))


def test_pickles_and_other_folders_are_refused(backbone_folder: Folder, adapter: Path, tmp_path: Path) -> None:
    subject = subject_of(backbone_folder("bert"), "classification", "lora")
    with pytest.raises(InputError, match=r"has no adapter_config\.json, so it is not a peft adapter"):
        imported(subject, tmp_path)
    out = copied(adapter, tmp_path / "out", {})
    (out / "adapter_model.safetensors").rename(out / "adapter_model.bin")
    with pytest.raises(InputError, match=r"It has adapter_model\.bin, which can execute code when it is read"):
        imported(subject, out)


def test_modules_outside_the_layers_and_other_heads_are_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    bert, roberta = backbone_folder("bert"), backbone_folder("roberta")
    config: Any = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["pooler.dense", "query"])
    made(bert, "AutoModelForSequenceClassification", config, tmp_path / "pooler", num_labels=3)
    with pytest.raises(InputError, match=r"changes module 'pooler.dense', but a bank can only have low-rank changes"):
        imported(subject_of(bert, "classification", "lora"), tmp_path / "pooler")
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"])
    made(roberta, "AutoModelForSequenceClassification", config, tmp_path / "head", num_labels=3)
    with pytest.raises(InputError, match="A bank's head is one linear layer on pooled states"):
        imported(subject_of(roberta, "classification", "lora"), tmp_path / "head")
    config = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    llama = backbone_folder("llama")
    made(llama, "AutoModelForSequenceClassification", config, tmp_path / "last", num_labels=3)
    with pytest.raises(InputError, match="reads the last position of a batch even where that is padding"):
        imported(subject_of(llama, "classification", "lora"), tmp_path / "last")
    config = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    made(bert, "AutoModelForSequenceClassification", config, tmp_path / "prompt", num_labels=3)
    with pytest.raises(InputError, match="takes positions and shifts those of the text"):
        imported(subject_of(bert, "classification", "lora"), tmp_path / "prompt")
