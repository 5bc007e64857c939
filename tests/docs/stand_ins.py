"""Stand-ins for the models and data that pages use: small random models, and generated data instead of the reader's own.

* ``minilm`` is a random BERT with six layers, as in MiniLM, and hidden size 64.
* No browser is opened.
* Data files that a page assumes to exist are generated here, with a few dozen rows each.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from continual_petl.backbones import anatomy
from continual_petl.cli.main import main
from tests.chats import MARKED, chats, write_lines
from tests.streams_in_code import classification_rows, write_rows
from tests.tiny import VOCABULARY, make_tokenizer

_SIZE: dict[str, Any] = {"vocab_size": len(VOCABULARY), "intermediate_size": 64, "max_position_embeddings": 512}


def make_minilm(folder: Path) -> Path:
    """Write the stand-in for the packaged MiniLM."""
    torch.manual_seed(1)
    config = transformers.BertConfig(hidden_size=64, num_hidden_layers=6, num_attention_heads=4, **_SIZE)
    transformers.BertModel(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def stand_in(monkeypatch: pytest.MonkeyPatch, minilm: Path) -> None:
    """Replace MiniLM and the browser; anatomies that a page registers are removed after the test."""
    monkeypatch.setattr("continual_petl.backbones.backbone_files.minilm_path", lambda: minilm)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    monkeypatch.setattr(anatomy, "_ANATOMIES", dict(anatomy._ANATOMIES))


def _readme(folder: Path) -> None:
    write_rows(folder / "data" / "topics", "topics")
    pairs = classification_rows("dup", 80, pairs=True)
    for path, rows in (("data/dup/a.csv", pairs[:64]), ("data/dup-test.csv", pairs[64:])):
        _write_csv(
            folder / path,
            [{"question": row["text"], "other": row["text_pair"], "same": row["label"]} for row in rows],
        )
    _trec(folder)
    _write_csv(folder / "trec.csv", [{"text": r["text"], "label": r["label"]} for r in classification_rows("trec", 80)])
    _write_csv(folder / "stsb.csv", [row | {"score": 0.05 * place} for place, row in enumerate(_sentences(pairs))])
    _write_csv(folder / "pairs.csv", _sentences(pairs[:3]))
    questions = [{"text": "w1 w40", "about": "trec"}, {"text": "w0 w20", "about": "trec"}]
    _write_csv(folder / "questions.csv", questions)
    small = "space: {training.learning_rate: [1.0e-3, 3.0e-3]}\nprune: none\nseeds: 1\ntrials: 1\n"
    (folder / "sweep.yaml").write_text(small, encoding="utf-8")
    (folder / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in questions), encoding="utf-8")


def _sentences(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"sentence1": row["text"], "sentence2": row["text_pair"]} for row in rows]


def _trec(folder: Path) -> None:
    write_rows(folder / "data" / "trec", "trec")
    (folder / "trec.yaml").write_text("{name: trec, kind: classification, data: data/trec}\n", encoding="utf-8")


def _support_desk(folder: Path) -> None:
    """Write a stream file and its data."""
    write_rows(folder / "data" / "topics", "topics")
    (folder / "stream.yaml").write_text(
        "name: support-desk\nbackbone: {name: minilm, max_length: 64}\ntraining: {epochs: 1}\n"
        "tasks:\n  - {name: topics, kind: classification, data: data/topics}\n",
        encoding="utf-8",
    )


def _learned(folder: Path) -> None:
    """Write two different runs of the stream of `_support_desk`, and rows to predict."""
    _support_desk(folder)
    assert main(["run", "stream.yaml", "--quiet"]) == 0
    assert main(["run", "stream.yaml", "--quiet", "--run-dir", "runs/again", "--bank", "lora"]) == 0
    (folder / "texts.txt").write_text("w1 w2\nw0 w3\n", encoding="utf-8")
    _write_csv(folder / "rows.csv", [{"text": f"w{number} w30", "task": "topics"} for number in range(4)])


def _agnews(folder: Path) -> None:
    """Write the run that docs/certificates.md, docs/how-to/ablate.md and docs/how-to/deploy.md use."""
    _support_desk(folder)
    file = folder / "stream.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("desk", "mine").replace("topics,", "agnews,"), "utf-8")
    file.write_text(file.read_text(encoding="utf-8").replace("support-mine", "mine"), "utf-8")
    assert main(["run", "stream.yaml", "--quiet"]) == 0


def _certificates(folder: Path) -> None:
    """Write the run of `_agnews`, another task, and a pair of keys."""
    _agnews(folder)
    write_rows(folder / "data" / "more", "more")
    (folder / "task.yaml").write_text("{name: more, kind: classification, data: data/more}\n", encoding="utf-8")
    key = Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "public.pem").write_bytes(public)


def _files(folder: Path) -> None:
    """Write the data from which streams are drafted."""
    write_rows(folder / "data" / "topics", "topics")
    _write_csv(folder / "questions.csv", classification_rows("questions", 40))


def _own_data(folder: Path) -> None:
    """Write the files of `_files`, conversations, and a model with a chat template."""
    _files(folder)
    write_lines(folder / "chats.jsonl", chats(40, 2))
    heads: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(hidden_size=64, **heads, **_SIZE, pad_token_id=0, bos_token_id=2, eos_token_id=3)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "models" / "chat")
    tokenizer = make_tokenizer("llama")
    tokenizer.chat_template = MARKED
    tokenizer.save_pretrained(folder / "models" / "chat")


def _prices(folder: Path) -> None:
    """Write the files that docs/how-to/from-peft.md names."""
    for name in ("prices", "sizes"):
        _write_csv(folder / f"{name}.csv", classification_rows(name, 40))


def _earlier_tasks(folder: Path) -> None:
    """Write the files of `_certificates`, and rows of a task that is not learned yet."""
    _certificates(folder)
    _write_csv(folder / "new-rows.csv", [{"text": f"w{number} w30"} for number in range(4)])


def _intents(folder: Path) -> None:
    """Write the data set that docs/how-to/incremental.md splits into tasks: ten classes, each recognisable by one word."""
    names = ["alarm", "balance", "transfer", "weather", *(f"intent {number}" for number in range(6))]
    for split, num_rows in (("train", 200), ("test", 60)):
        rows = [{"text": f"w{n % 10} w{10 + n % 37} w{50 + n % 29}", "label": names[n % 10]} for n in range(num_rows)]
        _write_csv(folder / "data" / "intents" / f"{split}.csv", rows)
    (folder / "data" / "intents" / "labels.json").write_text(json.dumps(names), encoding="utf-8")


def _starcoder2(folder: Path) -> None:
    """Write the model folder that docs/backbones.md loads."""
    heads: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.Starcoder2Config(hidden_size=16, **heads, **_SIZE, pad_token_id=0, sliding_window=None)
    transformers.Starcoder2ForCausalLM(config).save_pretrained(folder / "starcoder2")


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


DATA: dict[str, Callable[[Path], None]] = {
    "README.md": _readme,
    "docs/backbones.md": _starcoder2,
    "docs/certificates.md": _certificates,
    "docs/how-to/ablate.md": _agnews,
    "docs/how-to/deploy.md": _agnews,
    "docs/how-to/earlier-tasks.md": _earlier_tasks,
    "docs/how-to/everyday.md": _learned,
    "docs/how-to/export.md": _support_desk,
    "docs/how-to/import.md": _support_desk,
    "docs/how-to/from-peft.md": _prices,
    "docs/how-to/hub.md": _support_desk,
    "docs/how-to/incremental.md": _intents,
    "docs/how-to/own-callback.md": _support_desk,
    "docs/how-to/own-data.md": _own_data,
    "docs/how-to/sweep.md": _support_desk,
    "docs/many-machines.md": _support_desk,
}
"""For each page that needs files, the function that writes them to the page's folder before its first block is run."""
