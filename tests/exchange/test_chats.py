"""Exports of chat tasks include the chat template and the end-of-answer token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from continual_petl import learn
from continual_petl.backbones.backbone import load_tokenizer
from continual_petl.exchange.model_card import HERE
from tests.chats import PLAIN, chat_backbone
from tests.engine.test_chats import chat_stream, talk
from tests.small import small


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_backbone(tmp_path_factory.mktemp("backbones") / "llama")


def test_an_exported_checkpoint_has_the_template_and_the_end_of_an_answer(backbone: Path, tmp_path: Path) -> None:
    chat = {"template": PLAIN, "system": "w9"}
    run = learn(chat_stream(backbone, talk(chat=chat), bank=small("lora")), tmp_path / "run")
    run.export("talk", "merged", tmp_path / "exported")
    tokenizer = load_tokenizer(str(tmp_path / "exported"))
    assert tokenizer.chat_template == PLAIN
    assert json.loads((tmp_path / "exported" / "generation_config.json").read_text("utf-8"))["eos_token_id"] == 3
    lines = (tmp_path / "exported" / "README.md").read_text("utf-8").split("```python")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(lines.replace(HERE, str(tmp_path / "exported")).replace("some text", "w3 w50"), names)
    answer = tokenizer.decode(names["ids"][0, names["inputs"]["input_ids"].shape[1] :], skip_special_tokens=True)
    assert str(answer).strip() == run.predict("w3 w50", "talk").value


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_readme_of_an_exported_adapter_renders_the_conversation(backbone: Path, tmp_path: Path) -> None:
    chat = {"template": PLAIN, "system": "w9"}
    run = learn(chat_stream(backbone, talk(chat=chat), bank=small("lora")), tmp_path / "run")
    run.export("talk", "peft", tmp_path / "exported")
    lines = (tmp_path / "exported" / "README.md").read_text("utf-8").split("```python")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(lines.replace(HERE, str(tmp_path / "exported")).replace("some text", "w3 w50"), names)
    rendered = "".join(names["tokenizer"].decode(names["inputs"]["input_ids"][0]).split())
    messages = [{"role": "system", "content": "w9"}, {"role": "user", "content": "w3 w50"}]
    tokenizer = load_tokenizer(str(backbone))
    tokenizer.chat_template = PLAIN
    wanted = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert rendered == "".join(str(wanted).split())
