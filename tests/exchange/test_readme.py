"""The code in an export's README.md, run as it stands, gives what `Run.predict` gives, for hard rows too."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import BaseModel

from continual_petl import InputError, Run, learn
from continual_petl.errors import ExportError
from continual_petl.exchange import merged
from continual_petl.exchange.classes import configured
from continual_petl.exchange.compare import encoded, rows_of
from continual_petl.exchange.subject import find_subject
from continual_petl.kind import HowEncoded
from continual_petl.kind_registry import REGISTRY, register_kind
from continual_petl.kinds.classification import Classification
from tests.engine.test_row_options import choice
from tests.exchange.readme import run_readme
from tests.exchange.subjects import Folder, subject_of
from tests.small import small
from tests.streams_in_code import stream, task, task_of_kind
from tests.usual import few

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning"),
    pytest.mark.filterwarnings("ignore:Position ids are not supported for parameter efficient tuning:UserWarning"),
]
PAIRS: dict[str, Any] = {"pairs": True, "num_rows": 16}
FORMER = {
    "forced_bos_token_id": 40,
    "forced_eos_token_id": 41,
    "num_beams": 3,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.7,
    "min_length": 3,
    "max_length": 9,
    "length_penalty": 2.0,
    "early_stopping": True,
    "do_sample": True,
    "top_k": 3,
    "bad_words_ids": [[30]],
    "suppress_tokens": [33],
}
"""Settings of a summariser in the generation_config.json of a backbone."""
BEAMS = {"num_beams": 3, "max_new_tokens": 5, "length_penalty": 0.5, "no_repeat_ngram_size": 2}
ENDED = {"max_new_tokens": 8, "repetition_penalty": 1.8, "stop": ["w5", "w7"]}
OPTIONS = ["w1", "w2 w3"]


def options_task(kind: str) -> dict[str, Any]:
    made = task_of_kind(kind, num_rows=12)
    for rows in made["data"].values():
        for number, row in enumerate(rows):
            row["target"] = OPTIONS[number % 2]
    made.pop("generation")
    return made | {"options": OPTIONS, "normalise": "tokens"}


CASES: dict[str, tuple[str, dict[str, Any], str | None, tuple[str, ...]]] = {
    "gpt2": ("gpt2", task("one", num_rows=16), "last", ("merged", "peft", "adapters")),
    "gpt2 pairs": ("gpt2", task("one", **PAIRS), "last", ("merged", "peft")),
    "gpt2 mean": ("gpt2", task("one", num_rows=16), "mean", ("peft",)),
    "gpt2 tags": ("gpt2", task_of_kind("token-classification", num_rows=12), None, ("merged", "peft")),
    "gpt2 texts": ("gpt2", task_of_kind("causal-lm", num_rows=12, generation=ENDED), None, ("merged", "peft")),
    "gpt2 options": ("gpt2", options_task("causal-lm"), None, ("merged", "peft")),
    "llama rows' options": ("llama", choice(), None, ("merged", "peft")),
    "llama last": ("llama", task("one", num_rows=16), "last", ("peft",)),
    "llama beams": ("llama", task_of_kind("causal-lm", num_rows=12, generation=BEAMS), None, ("merged", "peft")),
    "bert pairs": ("bert", task("one", **PAIRS), "first", ("merged", "peft", "adapters")),
    "bert pooler": ("bert", task_of_kind("regression", num_rows=16), "pooler", ("merged", "peft", "adapters")),
    "bert mean": ("bert", task_of_kind("multilabel", num_rows=12), "mean", ("peft", "adapters")),
    "bert tags": ("bert", task_of_kind("token-classification", num_rows=12), None, ("merged", "peft", "adapters")),
    "roberta": ("roberta", task("one", num_rows=16), "first", ("merged", "peft", "adapters")),
    "electra": ("electra", task("one", **PAIRS), "first", ("merged", "peft")),
    "deberta": ("deberta-v2", task("one", num_rows=16), "first", ("merged", "peft")),
    "modernbert": ("modernbert", task("one", num_rows=16), "mean", ("peft",)),
    "bart": ("bart", task("one", num_rows=16), "last", ("merged", "peft", "adapters")),
    "bart pairs": ("bart", task("one", **PAIRS), "last", ("merged", "peft", "adapters")),
    "bart texts": ("bart", task_of_kind("seq2seq", num_rows=12, generation=ENDED), None, ("merged", "peft")),
    "t5": ("t5", task("one", num_rows=16), "last", ("merged", "peft", "adapters")),
    "t5 beams": ("t5", task_of_kind("seq2seq", num_rows=12, generation=BEAMS), None, ("merged", "peft")),
    "t5 options": ("t5", options_task("seq2seq"), None, ("merged", "peft")),
    "mbart texts": ("mbart", task_of_kind("seq2seq", num_rows=12), None, ("merged", "peft")),
    "vit": ("vit", task_of_kind("image-classification", num_rows=12), "first", ("merged", "peft")),
    "vit mean": ("vit", task_of_kind("image-classification", num_rows=12), "mean", ("peft",)),
}
"""Family, task, pooling, and the formats that can express a LoRA bank for it."""
USUAL = ("gpt2", "gpt2 texts", "llama rows' options", "bert pairs", "bert tags", "bart", "t5 beams", "vit")


def learned(backbone: Path, one: dict[str, Any], folder: Path, pooling: str | None, bank: Any = "lora") -> Run:
    """Learn a task and return its run; the bank is large, so that its outputs differ from those of the backbone."""
    settings = {"name": str(backbone)} | ({} if pooling is None else {"pooling": pooling})
    training = {"epochs": 1, "learning_rate": 0.3}
    choice = small(bank) if isinstance(bank, str) else bank
    return learn(stream(backbone, [one], backbone=settings, bank=choice, training=training), folder)


def hard(run: Run, name: str) -> list[Any]:
    """Return the hard rows of a task that a run takes: it refuses rows with an empty text."""
    batches = rows_of(find_subject(run.session.models, name))
    # It also refuses words that do not fit.
    rows = batches[0] if run.store.plan(name).kind == "token-classification" else chain.from_iterable(batches)
    parts = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [row if len(row) > 1 else row[0] for row in parts if all(not isinstance(p, str | list) or p for p in row)]


def check(run: Run, name: str, folder: Path, rows: Sequence[Any]) -> None:
    """Compare what the code in README.md gives for rows with what the run predicts."""
    space, expected = run_readme(folder, rows), run.predict(list(rows), name)
    plan = run.store.plan(name)
    if plan.kind == "token-classification":
        assert space["tags"] == [each.value for each in expected]
    elif plan.generation is not None:
        assert space["answers"] == [each.value for each in expected]
    elif plan.options_from is not None:
        for scores, each in zip(space["scores"], expected, strict=True):
            assert each.probabilities is not None
            wanted = torch.tensor(list(each.probabilities.values()))
            torch.testing.assert_close(torch.tensor(scores).softmax(-1), wanted, atol=1e-5, rtol=1e-5)
    elif plan.kind == "regression":
        wanted = torch.tensor([[float(str(each.value))] for each in expected])
        torch.testing.assert_close(space["logits"], wanted, atol=1e-5, rtol=1e-5)
    else:
        logits = space["logits"]
        found = logits.sigmoid() if plan.kind == "multilabel" else logits.softmax(-1)
        wanted = torch.tensor([list((each.probabilities or {}).values()) for each in expected])
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", [c if c in USUAL else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_code_in_readme_gives_the_predictions_of_the_run(backbone_folder: Folder, tmp_path: Path, case: str) -> None:
    family, one, pooling, formats = CASES[case]
    backbone = tmp_path / "backbone"
    shutil.copytree(backbone_folder(family), backbone)
    if one["kind"] in ("seq2seq", "causal-lm"):
        (backbone / "generation_config.json").write_text(json.dumps(FORMER))
    run = learned(backbone, one, tmp_path / "run", pooling)
    rows = hard(run, one["name"])
    for format in formats:
        run.export(one["name"], format, tmp_path / format)  # runs the code for adapters, without that library
        if format != "adapters":
            check(run, one["name"], tmp_path / format, rows)


@pytest.mark.parametrize(
    ("family", "kind", "bank"),
    few([("llama", "causal-lm", "prompt"), ("llama", "causal-lm", "prefix_flat"), ("t5", "seq2seq", "prompt"),
         ("llama", "classification", "prompt"), ("gpt2", "causal-lm", "dora"), ("t5", "seq2seq", "ia3")], most=2),
)  # fmt: skip
def test_code_of_a_peft_adapter_generates_what_the_run_generates(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, bank: str
) -> None:
    run = learned(backbone_folder(family), task_of_kind(kind, "one", num_rows=12), tmp_path / "run", None, bank)
    run.export("one", "peft", tmp_path / "peft")
    check(run, "one", tmp_path / "peft", hard(run, "one"))


def test_text_that_ends_with_the_padding_token_is_read_to_its_end(backbone_folder: Folder, tmp_path: Path) -> None:
    """Independent of our own pooling: the class, with the padding token of GPT-2's tokenizer, would read another token."""
    run = learned(backbone_folder("gpt2"), task("one", num_rows=16), tmp_path / "run", "last")
    run.export("one", "merged", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.get("pad_token_id") is None
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    row = tokenizer("w1 w2 [SEP]", return_tensors="pt")
    with torch.no_grad():
        states = model.transformer(**row).last_hidden_state
        wanted = (states[:, -1] @ model.score.weight.T).softmax(-1)[0].tolist()
        with pytest.raises(ValueError, match="no padding token is defined"):
            model(**tokenizer(["w1", "w1 w2"], padding=True, return_tensors="pt"))
    found = run.predict("w1 w2 [SEP]", "one").probabilities
    assert list((found or {}).values()) == pytest.approx(wanted, abs=1e-5)


def test_difference_on_hard_rows_only_is_refused(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a padding token, the export agrees on random tokens, and differs on texts that end with that token."""

    def padded(*args: Any) -> Any:
        config = configured(*args)
        config.pad_token_id = 3
        return config

    run = learned(backbone_folder("gpt2"), task("one", num_rows=16), tmp_path / "run", "last")
    monkeypatch.setattr(merged, "configured", padded)
    with pytest.raises(ExportError, match=r"README.md of this export gives outputs that differ by .* a row such as"):
        run.export("one", "merged", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("family", few(["llama", "bert"]))
def test_tokenizer_without_sides_in_its_configuration_is_exported(
    backbone_folder: Folder, tmp_path: Path, family: str, side: str | None
) -> None:
    backbone = tmp_path / "backbone"
    shutil.copytree(backbone_folder(family), backbone)
    file = backbone / "tokenizer_config.json"
    config = {key: value for key, value in json.loads(file.read_text()).items() if "side" not in key}
    config.pop("model_input_names", None)
    file.write_text(json.dumps(config | ({} if side is None else {"padding_side": side, "truncation_side": side})))
    one = task_of_kind("causal-lm" if family == "llama" else "token-classification", "one", num_rows=12)
    run = learned(backbone, one, tmp_path / "run", None)
    run.export("one", "merged", tmp_path / "out")
    check(run, "one", tmp_path / "out", hard(run, "one"))
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written["padding_side"] == ("left" if family == "llama" else "right")
    assert written["truncation_side"] == (side or "right")


def test_class_that_reads_the_end_token_is_refused_if_texts_have_none(backbone_folder: Folder, tmp_path: Path) -> None:
    backbone = tmp_path / "backbone"
    shutil.copytree(backbone_folder("t5"), backbone)
    content = json.loads((backbone / "tokenizer.json").read_text())
    (backbone / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    run = learned(backbone, task("one", num_rows=16), tmp_path / "run", "last")
    with pytest.raises(InputError, match="does not end every text with it"):
        run.export("one", "merged", tmp_path / "out")
    run.export("one", "peft", tmp_path / "peft")
    check(run, "one", tmp_path / "peft", hard(run, "one"))


@pytest.mark.parametrize("name", ['a "b" c', "back\\new", "two\nlines", '"; ODD = 1; "'])
def test_the_name_of_the_folder_is_not_code(backbone_folder: Folder, tmp_path: Path, name: str) -> None:
    backbone = backbone_folder("bert")
    made = stream(
        backbone,
        [task("one", num_rows=16)],
        backbone={"name": str(backbone), "pooling": "first"},
        bank={"preset": "lora", "rank": 2},
        training={"epochs": 1},
    )
    run: Any = learn(made, tmp_path / "run")
    (tmp_path / name).mkdir()
    for format in ("merged", "peft"):
        space = run_readme(run.export("one", format, tmp_path / name / format), ["w1 w2"])
        assert "ODD" not in space
        assert space["logits"].shape == (1, 2)


class Shortened(Classification):
    name = "shortened"

    class own_settings(BaseModel):
        words: int = 3

    def encode(self, inputs: Sequence[Any], how: HowEncoded, **rows: Any) -> Any:
        assert how.settings is not None
        return super().encode([" ".join(text.split()[: how.settings["words"]]) for text in inputs], how, **rows)


def test_hard_rows_are_encoded_with_the_settings_of_their_kind(
    backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REGISTRY, "registered", {})
    register_kind(Shortened())
    subject = subject_of(backbone_folder("bert"), "classification", "lora")
    plan = subject.plan.model_copy(update={"kind": "shortened", "kind_settings": {"words": 2}})
    rows = encoded(dataclasses.replace(subject, plan=plan), ["w1 w2 w3 w4 w5"])
    assert rows.lengths.tolist() == [4]  # two words between [CLS] and [SEP]
