"""``init`` recognises conversations in the formats of other projects, and the drafted stream can be learned without edits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli.main import main
from continual_petl.errors import InputError
from continual_petl.streams.scaffold.choose_backbone import CHATS, choose_backbone
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.chats import chat_backbone, chats, write_lines

ROWS = [row["messages"] for row in chats(40, 2)]
CHATS_IN_FULL = ("messages", "conversations")
SHARE_GPT = {"user": "human", "assistant": "gpt"}
FORMS: dict[str, list[dict[str, Any]]] = {
    "messages": [{"messages": row, "id": f"row-{n}"} for n, row in enumerate(ROWS)],
    "conversations": [
        {"conversations": [{"from": SHARE_GPT[m["role"]], "value": m["content"]} for m in r]} for r in ROWS
    ],
    "prompt": [{"prompt": row[:-1], "completion": row[-1:]} for row in ROWS],
    "texts": [{"prompt": f"w{n} w50 w51", "completion": f"w{n} w60 w{n} w61"} for n in range(40)],
    "alpaca": [
        {"instruction": f"w{n} w50 w51", "input": "" if n % 2 else f"w{n} w52", "output": f"w{n} w60"}
        for n in range(40)
    ],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a backbone for conversations."""
    monkeypatch.chdir(tmp_path)
    chat_backbone(tmp_path / "llama")
    return tmp_path


@pytest.mark.parametrize("form", FORMS)
def test_drafted_stream_can_be_learned(here: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(here / "talk.jsonl", FORMS[form])
    assert main(["init", "talk.jsonl", "--backbone", "llama", "--output", "talk.yaml"]) == 0
    shown, text = capsys.readouterr().out, (here / "talk.yaml").read_text("utf-8")
    (task,) = load_stream(here / "talk.yaml").tasks
    assert task.kind == "causal-lm"
    if form in ("texts", "alpaca"):
        assert not task.reads_chats
        assert task.columns.target in ("completion", "output")
    else:
        first = (
            r"the first row, as the chat template renders it: '\[CLS\] w80 (w\d+) w50 \[SEP\]\[CLS\] w81 \1 w60 \[SEP\]"
        )
        assert re.search(first, shown)
        assert "chat: {loss_on: response}" in text
        assert (task.max_target_length, task.generation.max_new_tokens) == (32, 32)
    if form == "conversations":
        assert "talk.jsonl: causal-lm, because column conversations holds conversations in 40 rows" in shown
        assert "columns: {messages: conversations}" in text
    options = ["--training.epochs", "1", "--bank", "lora", "--backbone.max_length", "64", "--quiet"]
    options += ["--tasks.talk.generation.max_new_tokens", "4", "--tasks.talk.max_target_length", "8"]
    assert main(["run", "talk.yaml", "--dry-run", *options]) == 0
    assert main(["run", "talk.yaml", "--run-dir", "run", *options]) == 0
    assert "1 of 1 tasks unchanged" in capsys.readouterr().out
    # The last message of a conversation in the training file is the answer.
    asked = [{key: each[:-1] if key in CHATS_IN_FULL else each for key, each in row.items()} for row in FORMS[form][:5]]
    write_lines(here / "asked.jsonl", asked)
    assert main(["predict", "run", "--task", "talk", "--input", "asked.jsonl", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 5


def test_conversations_in_a_table_are_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [json.dumps(row).replace('"', '""') for row in ROWS]
    (here / "talk.csv").write_text("messages\n" + "".join(f'"{cell}"\n' for cell in cells), encoding="utf-8")
    assert main(["init", "talk.csv", "--backbone", "llama", "--output", "talk.yaml"]) == 0
    assert "column messages holds conversations" in capsys.readouterr().out


def test_rows_that_cannot_be_used_are_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(here / "talk.jsonl", [*FORMS["messages"], {"messages": [{"role": "user", "content": "w1"}]}])
    assert main(["init", "talk.jsonl", "--backbone", "llama", "--output", "talk.yaml"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "fix before running: task 'talk', split train (" in shown
    assert "column 'messages': 1 row cannot be used: row 41: no message has the role assistant" in shown


def test_a_backbone_without_a_template_is_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "llama" / "chat_template.jinja").unlink()
    write_lines(here / "talk.jsonl", FORMS["messages"])
    assert main(["init", "talk.jsonl", "--backbone", "llama", "--output", "talk.yaml"]) == 1
    assert "the backbone's tokenizer has no chat template" in " ".join(capsys.readouterr().out.split())


def test_conversations_get_a_backbone_that_learns_them(tmp_path: Path) -> None:
    assert choose_backbone({"a": "causal-lm", "b": "classification", "c": "seq2seq"}, None).name == CHATS
    assert choose_backbone({"a": "causal-lm"}, CHATS).writes == "causal-lm"
    (tmp_path / "config.json").write_text('{"is_encoder_decoder": true}', encoding="utf-8")
    with pytest.raises(InputError, match="a holds conversations, which only causal language models learn"):
        choose_backbone({"a": "causal-lm"}, str(tmp_path))
    with pytest.raises(InputError, match=f"cannot generate text, which a needs; .* such as {CHATS}"):
        choose_backbone({"a": "causal-lm"}, "minilm")
