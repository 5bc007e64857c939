"""What cannot be exported is refused with a message that says what to do, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl import InputError, Run, learn
from continual_petl.digests import file_digest
from continual_petl.errors import ExportError
from continual_petl.exchange import merged
from continual_petl.exchange.classes import with_head
from continual_petl.exchange.compare import Compute, check_outputs
from continual_petl.exchange.merged import write_checkpoint
from continual_petl.exchange.peft.adapter import write_peft
from continual_petl.exchange.peft.names import Names
from continual_petl.store.verify.replay import replay
from tests.exchange.subjects import Folder, subject_of
from tests.small import small
from tests.streams_in_code import stream, task
from tests.usual import few

BANK = {"preset": "lora", "rank": 2}


@pytest.fixture(scope="module")
def run_folder(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of three tasks: one pools like BERT's classifier class, one by the mean, and one with Houlsby adapters."""
    name = str(backbone_folder("bert"))
    tasks = [task("own", pooling="pooler"), task("mean", pooling="mean"), task("far", bank=small("houlsby"))]
    folder = tmp_path_factory.mktemp("exports") / "run"
    learn(stream(Path(name), tasks, backbone={"name": name}, bank=BANK, training={"epochs": 1}), folder)
    return folder


def files_of(folder: Path) -> dict[str, str]:
    """Return the digest of every file in a folder."""
    return {str(path.relative_to(folder)): file_digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("family", "kind", "pooling", "why"),
    [
        (
            "bert",
            "classification",
            "mean",
            r"cannot pool with 'mean', only with 'pooler' or 'first', with which the task can be learned again",
        ),
        ("roberta", "classification", "mean", r"only with 'first', with which the task can be learned again"),
        ("distilbert", "classification", "first", "applies a ReLU"),
        ("modernbert", "classification", "mean", "normalises the states between"),
        ("modernbert", "token-classification", None, "normalises the states before"),
        ("mbart", "classification", "last", "starts with the language code"),
        ("llama", "classification", "last", "score layer has no bias"),
        ("t5", "token-classification", None, "reads the encoder's states"),
        ("bart", "token-classification", None, "no such class"),
        ("vit", "image-classification", "mean", "only with 'first'"),
    ],
)
def test_inexpressible_head_is_refused(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, pooling: str | None, why: str
) -> None:
    with pytest.raises(InputError, match=f"^format: got 'merged' for task '{kind}'.*{why}"):
        write_checkpoint(subject_of(backbone_folder(family), kind, "lora", pooling), tmp_path)


@pytest.mark.parametrize("preset", few(["houlsby", "prefix_flat", "prompt", "mam"]))
def test_unmergeable_bank_is_refused(backbone_folder: Folder, tmp_path: Path, preset: str) -> None:
    with pytest.raises(InputError, match="cannot be merged into weights"):
        write_checkpoint(subject_of(backbone_folder("bert"), "classification", preset, "pooler"), tmp_path)


def row(form: str, modifies: str, **more: Any) -> dict[str, Any]:
    parallel = {"insertion": "parallel", "composition": "scaled", "rank": 2}
    return {"form": form, "modifies": modifies} | (parallel if form != "rescale" else {}) | more


RESCALE = row("rescale", "key", insertion="sequential", composition="multiply")


@pytest.mark.parametrize(
    ("family", "choice", "why"),
    [
        ("bert", "houlsby", r"no adapter for a bank with bottleneck and LayerNorms of its own\."),
        ("bert", "bitfit", r"no adapter for a bank with additive\."),
        ("bert", "full", "no adapter for a bank with additive"),
        ("bert", "diff_pruning", "no adapter for a bank with sparse"),
        ("bert", "probe", "nothing but a head"),
        ("bert", "mam_flat", "attention and bottleneck"),
        ("bert", {"modifications": [row("lowrank", "query"), RESCALE]}, "lowrank and rescale"),
        ("llama", {"preset": "prompt", "length": 3, "layernorms": "own"}, "prompt and LayerNorms of its own"),
        (
            "bert",
            {"modifications": [row("lowrank", "query"), row("decomposed", "query")]},
            "changes one projection twice",
        ),
        ("bert", "prompt", r"absolute positions \(bert\)"),
        ("gpt2", "prompt", r"absolute positions \(gpt2\)"),
        ("gpt2", "prefix_flat", "moves the positions of the text"),
        ("t5", "prefix_flat", "or has no such prefix"),
        ("llama", {"preset": "prefix_flat", "length": 3, "layers": "1"}, "a prefix in every layer"),
        ("llama", "multihead_parallel", "no multi-head parallel adapter"),
    ],
)
def test_bank_without_a_peft_adapter_is_refused(
    backbone_folder: Folder, tmp_path: Path, family: str, choice: Any, why: str
) -> None:
    with pytest.raises(InputError, match=f"^format: got 'peft' for task 'classification', but .*{why}"):
        write_peft(subject_of(backbone_folder(family), "classification", choice), tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [({"rope_type": "dynamic"}, "depend on the length"), ({"attention_scaling": 1.2}, "depend on the length")],
)
def test_prefix_for_other_rotations_is_refused(
    backbone_folder: Folder, tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    subject = subject_of(backbone_folder("llama"), "causal-lm", "prefix_flat")
    rotary: Any = subject.backbone.model.base_model.rotary_emb
    for name, value in change.items():
        setattr(rotary, name, value)
    with pytest.raises(InputError, match=why):
        write_peft(subject, tmp_path)


def test_prefix_for_windowed_attention_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    subject = subject_of(backbone_folder("qwen2"), "causal-lm", "prefix_flat")
    config: Any = subject.backbone.model.config
    config.use_sliding_window = True
    with pytest.raises(InputError, match="uses sliding-window attention"):
        write_peft(subject, tmp_path)


def test_ambiguous_names_of_modules_are_an_error(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Names, "shortest", lambda self, names: ["dense"])
    with pytest.raises(ExportError, match=r"match modules other than those with tensors, such as .*dense'"):
        write_peft(subject_of(backbone_folder("bert"), "classification", "lora_ffn"), tmp_path)


def test_model_type_without_known_class_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    subject = subject_of(backbone_folder("bert"), "classification", "lora", "pooler")
    config: Any = subject.backbone.model.config
    config.model_type = "mine"
    with pytest.raises(InputError, match="it is not known how transformers builds this class for model type 'mine'"):
        write_checkpoint(subject, tmp_path)


def test_tokenizer_that_transformers_reads_otherwise_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it builds a Qwen2Tokenizer instead of a TokenizersBackend; the rules under"):
        write_checkpoint(subject_of(backbone_folder("qwen2"), "causal-lm", "lora"), tmp_path)


def test_backbone_with_its_own_code_is_refused(run_folder: Path, tmp_path: Path) -> None:
    run = Run(run_folder)
    held = run.session.models.held("own")
    run.session.models.held_banks.put(
        "own", dataclasses.replace(held, backbone=dataclasses.replace(held.backbone, remote_code=True))
    )
    with pytest.raises(InputError, match="needs Python code that comes with it"):
        run.export("own", "merged", tmp_path / "out")


@pytest.mark.parametrize(
    ("where", "message"),
    [("there", "already exists, and an export never overwrites"), ("run/inside", "is inside the run folder")],
)
def test_folder_that_cannot_be_used_is_refused(run_folder: Path, where: str, message: str) -> None:
    folder = run_folder.parent / where
    if where == "there":
        folder.mkdir()
    with pytest.raises(InputError, match=message):
        Run(run_folder).export("own", "merged", folder)


def test_unknown_format_and_task_are_refused(run_folder: Path, tmp_path: Path) -> None:
    run = Run(run_folder)
    with pytest.raises(InputError, match=r"format: got 'merge' \(did you mean 'merged'\?\); allowed: 'merged', 'peft'"):
        run.export("own", "merge", tmp_path / "out")
    with pytest.raises(InputError, match="own, mean, far"):
        run.export("other", "merged", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def _other_logits(model: Any) -> Compute:
    return lambda inputs: model(**inputs).logits + 2e-5


@pytest.mark.parametrize("break_it", ["outputs", "names", "tokenizer", "alpha"])
def test_failed_check_leaves_nothing_behind(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, break_it: str
) -> None:
    messages = {
        "outputs": r"do not compute what its bank computes: .* differ by 2e-05 \(allowed: [0-9.e-]+\)",
        "names": r"does not load the exported 'classifier.bias' as it was written",
        "alpha": r"do not compute what its bank computes",
        "tokenizer": "tokenise texts differently with the exported tokenizer: the rules under 'model' differ",
    }
    format = "peft" if break_it == "alpha" else "merged"
    if break_it == "alpha":
        monkeypatch.setattr("continual_petl.exchange.peft.lowrank._whole", lambda alpha: 1.25 * alpha)
    elif break_it == "outputs":
        monkeypatch.setattr(merged, "logits_of", _other_logits)
    elif break_it == "names":

        def lost(*args: Any) -> Any:
            model: Any = with_head(*args)
            model.classifier.bias = None
            return model

        monkeypatch.setattr(merged, "with_head", lost)
    else:
        monkeypatch.setattr(
            "continual_petl.exchange.subject._rules",
            lambda tokenizer: {"model": id(tokenizer)},  # different for every tokenizer
        )
    run = Run(run_folder)
    before = files_of(run_folder)
    # A tokenizer that differs is known before anything is written.
    with pytest.raises(InputError if break_it == "tokenizer" else ExportError, match=messages[break_it]):
        run.export("own", format, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert files_of(run_folder) == before


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(task=st.sampled_from(["own", "mean", "far"]), format=st.sampled_from(["merged", "peft"]))
def test_exporting_changes_no_byte_of_the_run(run_folder: Path, task: str, format: str) -> None:
    """The run is also unchanged if the export is refused; an export leaves nothing but its folder."""
    before = files_of(run_folder)
    run = Run(run_folder)
    with tempfile.TemporaryDirectory() as place:
        try:
            assert run.export(task, format, Path(place) / "out") == Path(place).absolute() / "out"
            left = ["out"]
        except InputError:
            assert (task, format) in {("mean", "merged"), ("far", "merged"), ("far", "peft")}
            left = []
        assert [path.name for path in Path(place).iterdir()] == left
    assert files_of(run_folder) == before
    assert run.session.models.backbone_of(task).changed() == []
    assert all(check.ok for check in run.verify())


def test_tolerance_is_relative_to_large_outputs(backbone_folder: Folder) -> None:
    subject = subject_of(backbone_folder("bert"), "classification", "lora", "pooler")
    head: Any = subject.bank.head
    head.output.bias.fill_(100.0)

    def off(by: float) -> Compute:
        right = replay(subject, subject.probe)
        return lambda inputs: right + by

    # This bank hardly changes the outputs, so only rounding is allowed.
    assert check_outputs(subject, off(5e-5)) == pytest.approx(5e-7, rel=0.2)
    with pytest.raises(ExportError, match="allowed: 1e-06"):
        check_outputs(subject, off(5e-4))
    for parameter in subject.bank.modifications.parameters():
        torch.nn.init.normal_(parameter, std=1.0)
    assert check_outputs(subject, off(5e-4)) == pytest.approx(5e-6, rel=0.1)
    with pytest.raises(ExportError):
        check_outputs(subject, off(2e-3))
    with pytest.raises(ExportError, match="differ by nan"):
        check_outputs(subject, lambda inputs: torch.zeros(1))
