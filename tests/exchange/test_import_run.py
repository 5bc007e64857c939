"""An imported task is like any other task of the run: certified, evaluated if there are rows, and never changed again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from continual_petl import InputError, Run, TaskStream, forget, import_adapter, learn, reevaluate
from continual_petl.backbones.backbone import load_tokenizer
from continual_petl.digests import file_digest, tensor_digests
from continual_petl.engine.changed_settings import settings_that_differ
from continual_petl.report.read_facts import read_facts
from continual_petl.report.write import write_report
from tests.exchange.subjects import Folder
from tests.exchange.test_from_peft import made
from tests.streams_in_code import stream, task
from tests.tiny import WORDS

ROWS = [" ".join(WORDS[number : number + 5]) for number in range(0, 40, 5)]
LORA = {"preset": "lora", "rank": 2}


def tasks_stream(folder: Path, *names: str) -> TaskStream:
    tasks = [task(name, pooling="pooler") for name in names]
    return stream(folder, tasks, backbone={"name": str(folder)}, bank=LORA, training={"epochs": 1})


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return a backbone, a run with one task, and an adapter for peft that was exported from another run."""
    place = tmp_path_factory.mktemp("imports")
    backbone = backbone_folder("bert")
    learn(tasks_stream(backbone, "first"), place / "run")
    learn(tasks_stream(backbone, "foreign"), place / "other").export("foreign", "peft", place / "adapter")
    return backbone, place / "run", place / "adapter"


@pytest.fixture
def run_folder(learned: tuple[Path, Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(learned[1], tmp_path / "run"))


def rows_in(folder: Path) -> Path:
    folder.mkdir()
    for split, rows in task("foreign")["data"].items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.slow
def test_task_imported_without_rows_is_certified_but_not_measured(
    learned: tuple[Path, Path, Path], run_folder: Path, tmp_path: Path
) -> None:
    backbone, _, adapter = learned
    run = import_adapter(run_folder, adapter, "foreign")
    other = Run(learned[1].parent / "other")
    assert settings_that_differ(Run(run_folder).session) == {}
    assert tensor_digests(run.store.tensors("foreign")) == tensor_digests(other.store.tensors("foreign"))
    assert run.predict(ROWS, task="foreign") == other.predict(ROWS, task="foreign")
    certificate = run.store.certificate("foreign")
    assert certificate.origin is not None
    assert (certificate.origin.format, certificate.origin.method) == ("peft", "LORA")
    assert certificate.origin.files["adapter_model.safetensors"] == file_digest(adapter / "adapter_model.safetensors")
    assert certificate.labels == ("no", "yes")
    assert (certificate.scores, certificate.data, certificate.score) == ({}, {}, None)
    results = run.results
    assert results.status[1] == ("measured", "not measured")
    assert np.isnan(results.scores[1, 1])
    assert [check.problems for check in run.verify(data=True)] == [(), ()]
    assert run.to_frame().loc["foreign"].isna()["score"]
    # The run still supports everything else: learning, re-evaluation, reports, forgetting.
    spec = tasks_stream(backbone, "first", "third")
    after = learn(spec, run_folder)
    assert after.results.status[2] == ("measured", "not measured", "measured")
    assert [check.ok for check in after.verify()] == [True] * 3
    assert after.predict(ROWS, task="foreign") == other.predict(ROWS, task="foreign")
    assert "imported without rows" in reevaluate(run_folder).left["foreign"]
    page = write_report(tmp_path / "report", read_facts(run_folder))
    assert page.is_file()
    assert forget(run_folder, "foreign").store.tasks == ["first", "third"]


@pytest.mark.slow
def test_task_imported_with_rows_has_the_scores_of_its_original_run(
    learned: tuple[Path, Path, Path], run_folder: Path, tmp_path: Path
) -> None:
    backbone, _, adapter = learned
    data = rows_in(tmp_path / "rows")
    run = import_adapter(run_folder, adapter, "foreign", data=str(data))
    other = Run(learned[1].parent / "other").store.certificate("foreign")
    certificate = run.store.certificate("foreign")
    assert settings_that_differ(Run(run_folder).session) == {}
    assert certificate.scores == other.scores
    assert certificate.data == other.data
    assert run.results.status[1] == ("measured", "measured")
    assert all(check.ok for check in Run(run_folder).verify(data=True))
    assert [entry.name for entry in Run(run_folder).spec.tasks] == ["first", "foreign"]
    assert (run.store.bank_folder("foreign") / "router.safetensors").is_file()
    # In the stored stream, nothing is left to learn; after another task, the imported one is evaluated again.
    assert learn(TaskStream(Run(run_folder).spec), run_folder).store.tasks == ["first", "foreign"]
    spec = Run(run_folder).spec
    more = tasks_stream(backbone, "third").spec.tasks
    after = learn(TaskStream(spec.model_copy(update={"tasks": (*spec.tasks, *more)})), run_folder)
    assert after.results.status[2] == ("measured",) * 3


def test_imported_bank_can_be_exported_and_started_from(learned: tuple[Path, Path, Path], run_folder: Path) -> None:
    backbone, _, adapter = learned
    run = import_adapter(run_folder, adapter, "foreign")
    out = run.export("foreign", "peft", run_folder.parent / "again")
    assert file_digest(out / "adapter_config.json") == file_digest(adapter / "adapter_config.json")
    ours, theirs = (load_file(path / "adapter_model.safetensors") for path in (out, adapter))
    assert tensor_digests(ours) == tensor_digests(theirs)
    row = task("third", pooling="pooler", bank={"start_from": "foreign"})
    settings: dict[str, Any] = {"backbone": {"name": str(backbone)}, "bank": LORA, "training": {"epochs": 1}}
    after = learn(stream(backbone, [task("first", pooling="pooler"), row], **settings), run_folder)
    parent = after.store.certificate("third").parent
    assert parent is not None
    assert parent.digest == run.store.certificate("foreign").digest


def files_of(folder: Path) -> dict[str, str]:
    return {str(path): file_digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"task": "First"}, "already has a task 'First'"),
        ({"kind": "seq2seq"}, "kind: got 'seq2seq'; allowed for this adapter"),
        ({"kind": "regression"}, "regression has one output, but the adapter's head has 2"),
        ({"labels": ["a", "b", "c"]}, r"labels: got 3 \(a, b, c\), but the adapter's head has 2 outputs"),
        ({"pooling": "mean"}, "pooling: got 'mean', but the adapter's class pools with 'pooler'"),
        ({"base": "bert-base-uncased"}, "base: got 'bert-base-uncased', but the adapter's base model is"),
        ({"data": "nowhere.csv"}, "nowhere.csv"),
        ({"task": "a/b"}, r"^task: got 'a/b': 'a/b' cannot be the name of a folder on every system.*'\.'\.$"),
        ({"task": "CON"}, r"^task: got 'CON': 'CON' is a reserved device name on Windows"),
        ({"labels": ["\ud800", "b"]}, r"^labels: got '.ud800': Input should be a valid string"),
        ({"labels": ["", "b"]}, r"^labels: got '': String should have at least 1 character\.$"),
        ({"labels": [["a"], "b"]}, r"^labels: got \[\['a'\], 'b'\]; give a list with one name for each output\.$"),
        ({"labels": "ab"}, r"^labels: got 'ab'; give a list with one name for each output\.$"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    learned: tuple[Path, Path, Path], run_folder: Path, asked: dict[str, Any], message: str
) -> None:
    before = files_of(run_folder)
    with pytest.raises(InputError, match=message):
        import_adapter(run_folder, learned[2], **({"task": "foreign"} | asked))
    assert {name: digest for name, digest in files_of(run_folder).items() if ".lock" not in name} == {
        name: digest for name, digest in before.items() if ".lock" not in name
    }


def changed(adapter: Path, to: Path, **values: Any) -> Path:
    """Return a copy of an adapter with some settings replaced."""
    shutil.copytree(adapter, to)
    config = json.loads((to / "adapter_config.json").read_text("utf-8"))
    (to / "adapter_config.json").write_text(json.dumps(config | values))
    return to


def huge(folder: Path) -> None:
    """Replace a file by one of four terabytes, none of which are on the disk."""
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.truncate(2**42)


def labelled(labels: str) -> Callable[[Path], None]:
    """Return a function that writes labels into an adapter as an export does."""

    def write(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        save_file(load_file(path), path, {"format": "pt", "labels": labels})

    return write


def first_tensor(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """Return a function that replaces the first tensor of an adapter."""

    def write(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        name = min(tensors)
        save_file(tensors | {name: make(tensors[name])}, path)

    return write


def fifo(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    os.mkfifo(folder / "adapter_model.safetensors")


def config(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "adapter_config.json").write_text(text, "utf-8")


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "size": (huge, r"adapter_model\.safetensors has 4,398,046,511,104 bytes, but .* at most 4,294,967,296"),
    "pipe": (fifo, r"has no adapter_model\.safetensors"),
    "surrogate": (labelled('["\\ud800", "b"]'), "the labels in the head's metadata are not a list of names"),
    "nested labels": (labelled("[" * 100_000), "the labels in the head's metadata are not a list of names"),
    "float8": (first_tensor(lambda t: t.to(torch.float8_e4m3fn)), "is of the type F8_E4M3, which no bank has"),
    "complex": (first_tensor(lambda t: t.to(torch.complex64)), "is of the type C64, which no bank has"),
    "scalar": (first_tensor(lambda t: torch.ones(())), "expected matrices"),
    "empty": (first_tensor(lambda t: t[:0]), "expected matrices|is missing|of one rank"),
    "not finite": (first_tensor(lambda t: t / 0), "are not finite"),
    "too large": (first_tensor(lambda t: t.fill_(3e38)), "the outputs of the adapter .LORA. are not finite numbers"),
    "a key twice": (config('{"peft_type": "LORA", "r": 2, "r": 3}'), "adapter_config.json: the key 'r' is there twice"),
    "nested": (config('{"a":' * 90_000 + "1" + "}" * 90_000), "nested too deeply"),
    "digits": (config('{"r": ' + "9" * 5000 + "}"), "Exceeds the limit .4300 digits."),
    "surrogate key": (config('{"\\ud800": 1}'), "surrogates not allowed"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused_in_one_paragraph(
    learned: tuple[Path, Path, Path], run_folder: Path, tmp_path: Path, damage: str
) -> None:
    adapter = changed(learned[2], tmp_path / "adapter")
    DAMAGE[damage][0](adapter)
    with pytest.raises(InputError, match=DAMAGE[damage][1]) as refused:
        import_adapter(run_folder, adapter, "foreign")
    assert "\n" not in str(refused.value)
    assert Run(run_folder).store.tasks == ["first"]


def test_empty_list_of_layers_means_all_layers_as_in_peft(
    learned: tuple[Path, Path, Path], run_folder: Path, tmp_path: Path
) -> None:
    adapter = changed(learned[2], tmp_path / "adapter", layers_to_transform=[])
    one, other = (import_adapter(run_folder, folder, name) for folder, name in ((adapter, "a"), (learned[2], "b")))
    found, same = one.predict(ROWS, task="a"), other.predict(ROWS, task="b")
    assert [(each.value, each.probabilities) for each in found] == [(each.value, each.probabilities) for each in same]
    with pytest.raises(InputError, match=r"which target_modules \(with exclude_modules and layers_to_transform\)"):
        import_adapter(run_folder, changed(learned[2], tmp_path / "other", layers_to_transform=[9]), "c")


def test_other_base_model_is_refused_unless_it_is_given_as_base(
    learned: tuple[Path, Path, Path], run_folder: Path, tmp_path: Path
) -> None:
    adapter = changed(learned[2], tmp_path / "adapter", base_model_name_or_path="someone/bert")
    with pytest.raises(InputError, match="belongs to base model 'someone/bert', but the run's backbone is"):
        import_adapter(run_folder, adapter, "foreign")
    assert import_adapter(run_folder, adapter, "foreign", base="someone/bert").store.tasks == ["first", "foreign"]


def test_labels_are_needed_to_score_rows(learned: tuple[Path, Path, Path], run_folder: Path, tmp_path: Path) -> None:
    adapter, data = changed(learned[2], tmp_path / "adapter"), rows_in(tmp_path / "rows")
    path = adapter / "adapter_model.safetensors"
    save_file(load_file(path), path)  # as peft writes it, without the labels
    with pytest.raises(InputError, match="labels: the adapter does not say which label each of its 2 outputs"):
        import_adapter(run_folder, adapter, "foreign", data=str(data))
    run = import_adapter(run_folder, adapter, "foreign", data=str(data), labels=["yes", "no"])
    assert run.store.certificate("foreign").labels == ("yes", "no")
    plain = import_adapter(run_folder, adapter, "plain")
    assert plain.store.certificate("plain").labels == ("LABEL_0", "LABEL_1")


def test_bank_that_computes_something_else_is_refused(
    learned: tuple[Path, Path, Path], run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from continual_petl.exchange.peft import lowrank

    monkeypatch.setattr(lowrank, "factor", lambda config, name, rank: 3.5)
    with pytest.raises(InputError, match="would not compute what LORA computes in the library that wrote it"):
        import_adapter(run_folder, learned[2], "foreign")
    assert Run(run_folder).store.tasks == ["first"]


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*fan_in_fan_out is set to:UserWarning")
def test_class_that_takes_the_end_token_for_padding_is_told_or_refused(
    backbone_folder: Folder, tmp_path: Path, ends: bool
) -> None:
    """GPT-2's class reads the last token other than the padding token, which here is the end token, as for most decoders."""
    backbone = Path(shutil.copytree(backbone_folder("gpt2"), tmp_path / "gpt2"))
    config = json.loads((backbone / "config.json").read_text())
    (backbone / "config.json").write_text(json.dumps(config | {"pad_token_id": 3}))
    if ends:  # its tokenizer ends every text with that token
        rules = json.loads((backbone / "tokenizer.json").read_text())
        end = {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
        for part in ("single", "pair"):
            rules["post_processor"][part].append(end)
        rules["post_processor"]["special_tokens"]["[SEP]"] = {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}
        (backbone / "tokenizer.json").write_text(json.dumps(rules))
    settings = {"name": str(backbone), "pooling": "last"}
    learn(stream(backbone, [task("one", num_rows=16)], backbone=settings, bank=LORA), tmp_path / "run")
    adapter = peft.LoraConfig(task_type="SEQ_CLS", r=2)
    theirs = made(backbone, "AutoModelForSequenceClassification", adapter, tmp_path / "adapter", num_labels=2)
    if ends:
        with pytest.raises(InputError, match="finds the last token of a text by its id"):
            import_adapter(tmp_path / "run", tmp_path / "adapter", "foreign")
        return
    run = import_adapter(tmp_path / "run", tmp_path / "adapter", "foreign")
    told = [notice for notice in run.store.certificate("foreign").notices if "end with the padding token" in notice]
    assert len(told) == 1
    assert "('[SEP]') are read to their end" in told[0]
    tokenizer = load_tokenizer(str(backbone))
    with torch.no_grad():
        found = theirs(**tokenizer("w1 w2 [SEP]", return_tensors="pt")).logits.softmax(-1)[0].tolist()
    ours = [list((run.predict(text, "foreign").probabilities or {}).values()) for text in ("w1 w2", "w1 w2 [SEP]")]
    assert ours[0] == pytest.approx(found, abs=1e-5)
    assert ours[1] != pytest.approx(found, abs=1e-5)
