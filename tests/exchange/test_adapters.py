"""An exported adapter gives the bank's outputs when `adapters` 1.3 loads it, in a separate environment."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl.banks.forms.rescale import Rescale
from continual_petl.errors import ExportError, InputError
from continual_petl.exchange.adapterhub import bottlenecks as bottleneck_file
from continual_petl.exchange.adapterhub import head as head_file
from continual_petl.exchange.adapterhub.adapter import read_hub_files, write_adapters
from continual_petl.exchange.compare import expected_of, flat, rows_of
from tests.exchange.readme import code_in, with_rows
from tests.exchange.subjects import Folder, subject_of
from tests.usual import walk

PYTHON = "CONTINUAL_PETL_ADAPTERS_PYTHON"
"""Variable with the path of an interpreter that has adapters 1.3.0 and transformers 4.57; see tests/golden/make_golden.py."""
SIX = ("bert", "roberta", "distilbert", "bart", "t5", "gpt2")


def bottleneck(*sites: str, **more: Any) -> dict[str, Any]:
    row = {
        "form": "bottleneck",
        "insertion": "sequential",
        "bottleneck": 5,
        "activation": "gelu_tanh",
        "init": "houlsby",
    }
    return {"modifications": [row | {"modifies": site} | more for site in sites]}


HOULSBY = bottleneck("attention", "ffn")
SCALED = bottleneck("ffn", insertion="parallel", composition="scaled", scale=4.0, activation="relu", init="lora")
UPPER = HOULSBY | {"layers": "1"}
SILU = bottleneck("ffn", activation="silu")
CASES: list[tuple[str, Any]] = (
    [(f, HOULSBY) for f in SIX] + [(f, UPPER) for f in ("bert", "bart")] + [(f, SILU) for f in SIX]
)
CASES += [(f, "pfeiffer") for f in ("bert", "roberta", "distilbert", "bart")]
CASES += [(f, SCALED) for f in ("bert", "roberta", "distilbert", "bart")]
CASES += [(f, "lora") for f in (*SIX, "mt5")]
CASES += [(f, "lora_ffn") for f in ("bert", "distilbert", "bart", "t5", "gpt2")]
_LORA = {"form": "lowrank", "insertion": "parallel", "composition": "scaled", "rank": 3, "scale": 0.5}
_FACTORS = {"form": "rescale", "insertion": "sequential", "composition": "multiply"}
_PREFIX = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated", "length": 3}
_GATED = {"modifications": [_PREFIX | {"implementation": "gated"}], "layers": "1-2"}
ALL_THREE = {"modifications": [_LORA | {"modifies": site} for site in ("query", "key", "value")]}
KEYS_AND_VALUES = {"modifications": [_FACTORS | {"modifies": site} for site in ("key", "value")]}
TWO_KINDS = {"modifications": [*HOULSBY["modifications"][:1], *SCALED["modifications"]]}
UNIPELT = {"modifications": [*SILU["modifications"], _LORA | {"modifies": "ffn_out"}, _PREFIX], "layers": "1"}
CASES += [(f, ALL_THREE) for f in ("bert", "gpt2")] + [(f, "ia3") for f in ("t5", "mt5")]
CASES += [(f, KEYS_AND_VALUES) for f in ("roberta", "bart", "gpt2")]
CASES += [(f, "prefix_flat") for f in ("bert", "roberta", "distilbert", "bart", "mbart", "gpt2")]
CASES += [("bert", "prefix"), ("bert", TWO_KINDS), ("bart", TWO_KINDS)]
CASES += [(f, "mam_flat") for f in ("bert", "distilbert", "bart")] + [(f, UNIPELT) for f in ("bert", "bart", "gpt2")]
_REVERSED = {"modifications": ALL_THREE["modifications"][::-1]}
OTHERWISE: list[tuple[str, Any]] = [("bart", _GATED), ("gpt2", _REVERSED)]
"""Banks that `adapters` stores in another order or form, so that an import does not restore them bit for bit."""
HEADS: list[tuple[str, str, str | None]] = [
    *(
        ("bert", kind, pooling)
        for kind in ("classification", "multilabel", "regression")
        for pooling in ("first", "pooler")
    ),
    *((family, "classification", "first") for family in ("roberta", "xlm-roberta", "electra", "distilbert")),
    *((family, "token-classification", None) for family in ("bert", "distilbert", "gpt2")),
    ("bart", "classification", "last"),
]
"""Families, kinds and poolings for whose heads `adapters` has a class."""


@pytest.mark.parametrize(("family", "choice"), walk(CASES) + OTHERWISE, ids=str)
def test_files_compute_what_the_bank_computes(
    backbone_folder: Folder, tmp_path: Path, family: str, choice: Any
) -> None:
    assert write_adapters(subject_of(backbone_folder(family), "classification", choice), tmp_path) <= 1e-5
    names = {path.name for path in tmp_path.iterdir()} - {"README.md", "adapter.safetensors", "adapter_config.json"}
    assert names in ({"head.safetensors"}, {"head_config.json", "model_head.safetensors"})


@pytest.mark.parametrize(("family", "kind", "pooling"), HEADS)
def test_head_is_stored_in_the_format_of_adapters_if_a_class_fits(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, pooling: str | None
) -> None:
    assert write_adapters(subject_of(backbone_folder(family), kind, "lora", pooling), tmp_path) <= 1e-5
    assert (tmp_path / "head_config.json").is_file()
    assert not (tmp_path / "head.safetensors").exists()


@pytest.mark.slow
@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} is not set to an interpreter with adapters 1.3.0")
def test_adapters_itself_agrees(backbone_folder: Folder, tmp_path: Path) -> None:
    """Run the code in the README.md of every case on hard rows, all in one process of the environment with adapters."""
    cases: list[tuple[str, Any, str, str | None]] = [(*case, "classification", None) for case in CASES + OTHERWISE]
    cases += [
        ("t5", HOULSBY, "seq2seq", None),
        ("gpt2", SILU, "causal-lm", None),
        ("bart", "mam_flat", "seq2seq", None),
    ]
    cases += [
        ("gpt2", UNIPELT, "causal-lm", None),
        ("gpt2", "lora", "causal-lm", None),
        ("bert", "lora", "classification", "mean"),
    ]
    cases += [(family, "pfeiffer" if family != "gpt2" else UNIPELT, kind, pooling) for family, kind, pooling in HEADS]
    asked, expected = list[dict[str, Any]](), list[tuple[Any, dict[str, Any]]]()
    for number, (family, choice, kind, pooling) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        subject = subject_of(backbone_folder(family), kind, choice, pooling)
        write_adapters(subject, folder)
        for rows in rows_of(subject):
            asked.append({"code": with_rows(code_in(folder), "ROWS"), "rows": rows, "pair": subject.plan.pair})
            expected.append(((family, choice, kind, pooling), expected_of(subject, rows)))
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([os.environ[PYTHON], script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    for (case, wanted), got in zip(expected, found, strict=True):
        for name in ("tags", "answers"):
            assert got.get(name) == wanted.get(name), case
        if "logits" in wanted:
            logits = torch.tensor(got["logits"])
            logits = flat(logits, torch.tensor(got["mask"])) if logits.ndim == 3 else logits
            difference = float((logits - wanted["logits"]).abs().max())
            assert difference <= 1e-5 * max(1.0, float(wanted["logits"].abs().max())), (case, difference)


SCRIPT = """
import json, sys
from pathlib import Path

place, found = Path(sys.argv[1]), []
for each in json.loads((place / "asked.json").read_text()):
    space = {"ROWS": [tuple(row) for row in each["rows"]] if each["pair"] else each["rows"]}
    exec(compile(each["code"], "README.md", "exec"), space)
    one = {name: space[name] for name in ("tags", "answers") if name in space}
    if "logits" in space:
        one["logits"] = space["logits"].tolist()
    if "inputs" in space:
        one["mask"] = space["inputs"]["attention_mask"].tolist()
    found.append(one)
(place / "found.json").write_text(json.dumps(found))
"""
"""Runs the code of every README.md as it stands, each in its own namespace."""


TWICE = {"modifications": [_PREFIX, _PREFIX]}
BOTH = {"modifications": [*KEYS_AND_VALUES["modifications"], _LORA | {"modifies": "query"}]}
REFUSED: list[tuple[str, Any, str]] = [
    ("bert", "houlsby", "its bank has LayerNorms of its own"),
    ("bert", "dora", "its bank has decomposed"),
    ("bert", "probe", "its bank has nothing but a head"),
    ("bert", "parallel_attention", "its bottlenecks are at heads"),
    ("bert", bottleneck("ffn", depth=2), "its bottlenecks have more than one hidden layer"),
    ("bert", bottleneck("ffn", activation="elu"), "adapters has no equivalent of the activation elu"),
    ("bert", bottleneck("ffn", composition="learned"), "its bottlenecks have learned scales"),
    ("gpt2", SCALED, "parallel bottlenecks of adapters read different states"),
    ("mt5", "lora_ffn", "the FFN of this family has two first projections"),
    ("llama", "lora", "its model type 'llama' is not one of bert"),
    ("bert", "ia3", "multiplies the FFN's states before their non-linearity .gelu."),
    ("bert", BOTH, "LoRA and IA3, and a union of adapters can contain only one of the two"),
    ("bert", "multihead_parallel", "adapters has no multi-head parallel adapter"),
    ("t5", "prefix_flat", "counts a prefix as positions, which shifts the text's positions"),
    ("bert", TWICE, "several prefixes at the same heads"),
]


@pytest.mark.parametrize(("family", "choice", "message"), REFUSED, ids=str)
def test_what_adapters_lacks_is_refused(
    backbone_folder: Folder, tmp_path: Path, family: str, choice: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        write_adapters(subject_of(backbone_folder(family), "classification", choice), tmp_path)


def test_wrong_size_or_activation_is_detected(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(backbone_folder("bert"), "classification", HOULSBY)
    with monkeypatch.context() as patched:
        patched.setattr(bottleneck_file, "_reduction", lambda width, size: 2)
        with pytest.raises(ExportError, match="asks for tensors other than those written"):
            write_adapters(subject, tmp_path)
    monkeypatch.setattr(bottleneck_file, "ACTIVATIONS", dict(bottleneck_file.ACTIVATIONS) | {"gelu_tanh": "relu"})
    with pytest.raises(ExportError, match="do not compute what its bank computes"):
        write_adapters(subject, tmp_path)
    assert torch.is_grad_enabled()


def test_negative_factors_before_a_relu_and_other_numbers_of_heads_are_refused(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    subject = subject_of(backbone_folder("t5"), "classification", "ia3")
    delta = next(placement.delta for placement in subject.bank.placements() if placement.name == "ffn_inner")
    assert isinstance(delta, Rescale)
    delta.vector[3] = -0.5
    with pytest.raises(InputError, match="some factors of the FFN's inner states are negative"):
        write_adapters(subject, tmp_path)
    subject = subject_of(backbone_folder("bart"), "classification", "prefix_flat")
    subject.backbone.model.config.decoder_attention_heads = 4
    with pytest.raises(InputError, match="with the same number of heads"):
        write_adapters(subject, tmp_path)
    fused = subject.plan.bank.model_copy(update={"fuse": ("a", "b")})
    with pytest.raises(InputError, match=r"its bank reads other tasks' banks \(a, b\)"):
        write_adapters(replace(subject, plan=subject.plan.model_copy(update={"bank": fused})), tmp_path)


def test_prefix_that_leaves_no_positions_for_the_longest_text_is_refused(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    subject = replace(subject_of(backbone_folder("gpt2"), "classification", "prefix_flat"), max_length=62)
    with pytest.raises(
        InputError, match=r"reads texts of up to 61 tokens on this backbone, and this task's have up to 62"
    ):
        write_adapters(subject, tmp_path)
    write_adapters(replace(subject, max_length=61), tmp_path)


@pytest.mark.parametrize(
    ("family", "kind", "pooling"),
    [("bert", "classification", "mean"), ("gpt2", "classification", "last"), ("t5", "regression", "last")],
)
def test_other_heads_are_a_file_of_their_own(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, pooling: str
) -> None:
    write_adapters(subject_of(backbone_folder(family), kind, "lora", pooling), tmp_path)
    assert (tmp_path / "head.safetensors").is_file()
    assert not (tmp_path / "head_config.json").exists()


@pytest.mark.parametrize("limit", ["MAX_TEXT", "MAX_CONFIG_BYTES"])
def test_labels_that_are_too_long_for_a_configuration_are_in_a_file_of_their_own(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    subject = subject_of(backbone_folder(), "classification", "lora", "first")
    if limit == "MAX_TEXT":
        labels = ("x" * 1001, "y", "z")
        subject = replace(subject, plan=subject.plan.model_copy(update={"labels": labels}))
    else:
        monkeypatch.setattr(head_file, limit, 100)
    assert write_adapters(subject, tmp_path) <= 1e-5
    assert not (tmp_path / "head_config.json").exists()
    assert json.loads(read_hub_files(tmp_path).notes["labels"]) == [*(subject.plan.labels or ())]


def test_head_that_reads_end_tokens_is_not_written_for_texts_without_them(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    subject = subject_of(backbone_folder("bart"), "classification", "lora")
    config: Any = subject.backbone.model.config
    config.eos_token_id = 9
    write_adapters(subject, tmp_path)
    assert (tmp_path / "head.safetensors").is_file()
