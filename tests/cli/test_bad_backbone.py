"""Invalid backbones and Trainer arguments are refused before training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.bench import DATA, Bench, Case

TASKS = "tasks:\n"
SPOILT = {"no-pooler", "incomplete", "damaged", "mute", "small"}
"""Copies of the tiny backbone, each with a defect."""
NEW = ("run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/new", "--quiet")


def trainer(text: str) -> list[tuple[str, str]]:
    """Return the edit that adds a ``trainer`` section."""
    return [(TASKS, f"trainer: {text}\n{TASKS}")]


OF_THE_TRAINER = [
    Case(
        "unknown",
        ["trainer.devicess: Lightning's Trainer has no such argument (did you mean 'devices'?)"],
        trainer("{devicess: 1}"),
    ),
    Case(
        "reserved, all at once",
        ["trainer.callbacks: not allowed here: pass them to learn(", "trainer.barebones: ", "trainer.nonsense: "],
        trainer("{callbacks: x, barebones: true, nonsense: 2}"),
    ),
    Case("gpu", ["trainer: Lightning rejects {accelerator: tpu}: ", "Change the value"], trainer("{accelerator: tpu}")),
    Case(
        "devices",
        ["trainer.devices: got 999, but every device needs its own process", "or write devices: 1"],
        trainer("{accelerator: cpu, devices: 999}"),
    ),
    Case(
        "nodes",
        ["trainer.num_nodes: got 2, but a run starts its processes on one machine: leave it out"],
        trainer("{accelerator: cpu, num_nodes: 2}"),
    ),
    Case("type", ["trainer: Lightning rejects {benchmark: 3}", "expects a bool"], trainer("{benchmark: 3}")),
    Case("logger", ["trainer.logger: got 'wandb'; allowed in a file: true, false"], trainer("{logger: wandb}")),
    Case(
        "dry run",
        ["trainer: Lightning rejects {max_time: soon}", "DD:HH:MM:SS"],
        trainer("{max_time: soon}"),
        options=["--dry-run"],
    ),
]


@pytest.mark.parametrize("case", OF_THE_TRAINER, ids=lambda case: case.name.replace(" ", "-"))
def test_invalid_trainer_arguments_are_refused(bench: Bench, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    bench.refuses(case, capsys)


OF_THE_BACKBONE = [
    Case(
        "layers",
        ["task 'other', bank: layers '1-7' names layer 7, but this backbone has 2 layers, 0 to 1: choose"],
        [(DATA, f"{DATA}\n    bank: {{preset: lora, layers: 1-7}}")],
    ),
    Case(
        "max_length",
        ["backbone.max_length: got 999, but the model accepts only 64 tokens: give at most 64"],
        options=["--backbone.max_length", "999"],
    ),
    Case(
        "pooling",
        ["task 'other', pooling: got 'pooler'", "allowed: 'first', 'mean' and 'last'"],
        [(DATA, f"{DATA}\n    pooling: pooler")],
        options=["--backbone.name", "FOLDER/no-pooler"],
        command=NEW,
    ),
    Case(
        "pooling by default",
        ["'pooler', but this checkpoint has no trained pooler", "backbone.pooling"],
        [(", pooling: mean", "")],
        options=["--backbone.name", "FOLDER/no-pooler"],
    ),
    Case(
        "albert",
        ["model type 'albert' has no anatomy; known model types are bart, bert", "register_anatomy"],
        files={"m/config.json": '{"model_type": "albert"}'},
        options=["--backbone.name", "FOLDER/m"],
    ),
    Case(
        "opt",
        ["model type 'opt' has no anatomy; known model types are bart, bert"],
        files={"m/config.json": '{"model_type": "opt"}'},
        options=["--backbone.name", "FOLDER/m", "--dry-run"],
    ),
    Case(
        "no type",
        ["backbone 'FOLDER/m' cannot be loaded: the folder holds no usable model", "Give 'minilm'"],
        files={"m/config.json": "{}"},
        options=["--backbone.name", "FOLDER/m"],
    ),
    Case(
        "no folder",
        ["backbone 'FOLDER/m' cannot be loaded: there is no such folder", "Give 'minilm'"],
        options=["--backbone.name", "FOLDER/m"],
    ),
    Case("file", ["first.yaml' cannot be loaded: this is a file"], options=["--backbone.name", "FOLDER/first.yaml"]),
    Case(
        "incomplete",
        ["missing from the checkpoint, or of a different shape (the first is 'encoder.layer.1.output.dense.weight')"],
        options=["--backbone.name", "FOLDER/incomplete"],
    ),
    Case(
        "damaged",
        ["damaged' cannot be loaded: the folder holds no usable model", "header"],
        options=["--backbone.name", "FOLDER/damaged"],
    ),
    Case(
        "no tokenizer",
        ["its tokenizer has no vocabulary", "Put the tokenizer.json"],
        options=["--backbone.name", "FOLDER/mute"],
    ),
    Case(
        "foreign tokenizer",
        ["its tokenizer has 95 tokens, but the model has 50", "Put the tokenizer.json"],
        options=["--backbone.name", "FOLDER/small"],
        command=NEW,
    ),
    Case(
        "hub",
        [
            "backbone 'no-such/model' cannot be loaded: There is no folder",
            "access to the Hub is disabled",
            "in its cache",
        ],
        options=["--backbone.name", "no-such/model"],
    ),
]


@pytest.mark.parametrize("case", OF_THE_BACKBONE, ids=lambda case: case.name.replace(" ", "-"))
def test_unsuitable_backbone_is_refused(
    bench: Bench, case: Case, backbone_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in SPOILT & {option.removeprefix("FOLDER/") for option in case.options}:
        folder = shutil.copytree(backbone_folder(), bench.folder / name)
        weights = load_file(folder / "model.safetensors")
        if name == "mute":
            for file in folder.glob("tokenizer*"):
                file.unlink()
        elif name == "damaged":
            file = folder / "model.safetensors"
            file.write_bytes(file.read_bytes()[:-100])
        elif name == "small":
            config = (folder / "config.json").read_text()
            (folder / "config.json").write_text(config.replace('"vocab_size": 95', '"vocab_size": 50'))
            words = "embeddings.word_embeddings.weight"
            save_file(weights | {words: weights[words][:50].clone()}, folder / "model.safetensors", {"format": "pt"})
        else:
            lost = "pooler." if name == "no-pooler" else "encoder.layer.1.output.dense.weight"
            kept = {key: tensor for key, tensor in weights.items() if not key.startswith(lost)}
            save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    bench.refuses(case, capsys)
