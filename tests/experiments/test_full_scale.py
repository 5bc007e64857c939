"""The papers at full scale: every file has the papers' settings, and resolves on small stand-ins for data and backbone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl.cli.main import main
from continual_petl.streams.schema.stream_spec import DataSpec, StreamSpec
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.banks.counting import Name, count
from tests.small import small
from tests.streams.hub_formats import hub_rows, write_copy

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = sorted(EXPERIMENTS.glob("*/full_scale/*.yaml"))

# For each file: a small stand-in for its backbone, the published backbone, and the parameters of its bank (by the paper's
# formulas, plus the biases in the released code).
BANKS: dict[str, tuple[str, Name, int]] = {
    "xsum_bart_large": ("bart", "bart-large", 27_377_664 + 24 * (512 + 1024)),
    "en_ro_mbart_large": ("mbart", "mbart-large", 27_377_664 + 24 * (512 + 1024)),
    "mnli_sst2_roberta_base": ("roberta", "roberta-base", 2 * 16 * 768 * 12 * 2 + 12 * (16 + 768)),
    "glue_bert_large": ("bert", "bert-large", 48 * (2 * 64 * 1024 + 64 + 1024) + 49 * 2 * 1024),
    "additional_tasks_bert_base": ("bert", "bert-base", 24 * (2 * 16 * 768 + 16 + 768) + 25 * 2 * 768),
}


@pytest.fixture(autouse=True)
def _data_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONTINUAL_PETL_DATA", str(tmp_path / "data"))


def _stream(name: str, **options: str) -> StreamSpec:
    (file,) = (file for file in FILES if file.stem == name)
    return load_stream(file, list(options.items()))


def test_all_files_are_covered() -> None:
    assert [file.stem for file in FILES] == sorted(
        BANKS, key=lambda name: str(next(f for f in FILES if f.stem == name))
    )


@pytest.mark.parametrize("name", BANKS)
def test_bank_has_as_many_parameters_as_in_the_paper(name: str) -> None:
    _, model, expected = BANKS[name]
    assert count(model, _stream(name).bank) == expected


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_commented_banks_are_valid(file: Path) -> None:
    said = re.findall(r"^#   .*?--bank ('[^']*'|\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert said
    for bank in said:
        spec = load_stream(file, [("bank", bank.strip("'"))])
        assert count(BANKS[file.stem][1], spec.bank) > 0


def test_generation_settings_match_table_7() -> None:
    xsum, en_ro = _stream("xsum_bart_large"), _stream("en_ro_mbart_large")
    assert (xsum.training.batch_size * xsum.training.accumulate, xsum.training.max_steps) == (64, 100_000)
    assert (en_ro.training.max_tokens, en_ro.training.accumulate, en_ro.training.max_steps) == (4096, 4, 50_000)
    assert (xsum.training.gradient_clip, en_ro.training.gradient_clip) == (0.1, 1.0)
    for spec, beams in ((xsum, 6), (en_ro, 5)):
        training, (task,) = spec.training, spec.tasks
        assert (training.learning_rate, training.label_smoothing, training.weight_decay) == (5e-5, 0.1, 0.01)
        assert (training.warmup, training.schedule, training.backbone_dropout) == (0.0, "linear", True)
        assert task.generation.num_beams == beams


def test_classification_settings_match_table_8() -> None:
    training = _stream("mnli_sst2_roberta_base").training
    assert (training.epochs, training.batch_size, training.learning_rate) == (10, 32, 1e-4)
    assert (training.weight_decay, training.warmup, training.gradient_clip) == (0.1, 0.06, 1.0)
    assert training.label_smoothing == 0.0


@pytest.mark.parametrize("name", ["glue_bert_large", "additional_tasks_bert_base"])
def test_houlsby_warms_up_over_a_tenth_in_batches_of_32(name: str) -> None:
    spec = _stream(name)
    assert (spec.training.warmup, spec.training.schedule, spec.training.batch_size) == (0.1, "linear", 32)
    bank = spec.bank.resolve()
    assert {modification.init_scale for modification in bank.modifications} == {1e-2}


def test_there_are_seventeen_additional_tasks_and_no_squad() -> None:
    assert len(_stream("additional_tasks_bert_base").tasks) == 17
    head = next(f for f in FILES if f.stem == "additional_tasks_bert_base").read_text(encoding="utf-8")
    assert "SQuAD" in head.partition("\nname:")[0]


@pytest.mark.parametrize("name", BANKS)
def test_stream_resolves_with_local_copies_and_a_small_backbone(
    name: str, backbone_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = BANKS[name][0]
    (file,) = (file for file in FILES if file.stem == name)
    spec = _stream(name, data_dir=str(tmp_path / "data"))
    for task in spec.tasks:
        if isinstance(task.data, DataSpec):
            assert task.data.local is not None
            rows = hub_rows((task.data.path, task.data.name), "train")
            write_copy(tmp_path / "data" / task.data.local, {"train": rows})
        else:
            rows = [{"text": f"w{number} w1", "label": f"label {number % 2}"} for number in range(20)]
            write_copy(tmp_path / "data" / task.name, {"train": rows, "test": rows[:4]})
    assert spec.bank.preset is not None
    options = [
        *("--data-dir", str(tmp_path / "data")),
        *("--backbone", json.dumps({"name": str(backbone_folder(family)), "max_length": 32})),
        *("--bank", json.dumps(small(spec.bank.preset))),
    ]
    if spec.tasks[0].kind == "seq2seq":
        options += ["--tasks.*.max_target_length", "16", "--tasks.*.generation.max_new_tokens", "16"]
    assert main(["run", str(file), "--run-dir", str(tmp_path / "run"), "--dry-run", "--json", *options]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [(fact["task"], fact["kind"]) for fact in facts] == [(task.name, task.kind) for task in spec.tasks]
    assert all(fact["num_steps"] > 0 for fact in facts)
