"""Model cards of runs and of exports, and cards that their author has edited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard

from continual_petl import InputError, Run
from continual_petl.exchange.model_card import BEGIN, END, base_model, new_card, updated_card
from tests.hub.conftest import Folder, learn_tasks
from tests.hub.local_hub import LocalHub


def test_card_says_what_the_run_is(hub: LocalHub, folder: Path) -> None:
    run = Run(folder)
    run.push("user/run")
    text = hub.files("user/run")["README.md"].decode()
    card: Any = ModelCard(text)
    assert card.data.tags == ["peft", "continual-learning"]
    assert card.data.library_name == "continual-petl"
    assert card.data.base_model is None  # the backbone is a folder on this machine, which the card does not name
    assert run.spec.backbone.name not in text
    head = run.store.head()
    assert head is not None
    assert head.seal in text
    for task in ("one", "two"):
        certificate = run.store.certificate(task)
        assert f"| {task} | classification | " in text
        assert f"{sum(certificate.parameters.values()):,}" in text
    for words in (
        "(ACC): ",
        "Forgetting: ",
        "## Result matrix",
        'Run.from_hub("user/run")',
        "# license:",
        "# datasets:",
    ):
        assert words in text


def test_backbone_on_the_hub_is_named() -> None:
    assert base_model("minilm") == "sentence-transformers/all-MiniLM-L6-v2"
    assert base_model("google-bert/bert-base-uncased") == "google-bert/bert-base-uncased"
    assert base_model("/somewhere/else") is None
    card: Any = ModelCard(new_card("a/b", "peft", ("peft",), "t", "text"))
    assert card.data.base_model == "a/b"


def test_edited_card_keeps_what_its_author_wrote(hub: LocalHub, folder: Path) -> None:
    run = Run(folder)
    run.push("user/run")
    text = hub.files("user/run")["README.md"].decode()
    mine = text.replace("# license:", "license: mit").replace("*To be filled in", "*Mine é") + "more\n"
    start, end = mine.index(BEGIN), mine.index(END)
    hub.change("user/run", {"README.md": (mine[:start] + BEGIN + "\nold\n" + mine[end:]).encode()})
    run.push("user/run")
    assert hub.files("user/run")["README.md"].decode() == mine
    assert not run.push("user/run").changed
    without = mine.replace(END, "").encode() + b"\xff"
    hub.change("user/run", {"README.md": without})
    assert not run.push("user/run").changed
    assert hub.files("user/run")["README.md"] == without


def test_too_large_card_is_refused(hub: LocalHub, folder: Path) -> None:
    run = Run(folder)
    run.push("user/run")
    hub.change("user/run", {"README.md": b"x" * (2**20 + 1)})
    with pytest.raises(InputError, match=r"its README.md has 1,048,577 bytes; a card has at most 1,048,576"):
        run.push("user/run")


def test_card_is_replaced_between_its_marks_only() -> None:
    new = new_card(None, "peft", (), "t", "new")
    assert updated_card(None, new) == new
    assert updated_card(f"a{BEGIN}old{END}b", new) == f"a{BEGIN}\nnew\n{END}b"
    for old in ("", "mine", BEGIN, f"{END}{BEGIN}"):
        assert updated_card(old, new) is None


@pytest.mark.slow
@pytest.mark.parametrize("format", ["peft", "merged"])
def test_task_is_pushed_as_an_export(
    hub: LocalHub, backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr("continual_petl.backbones.backbone_files.minilm_path", backbone_folder)
    run = learn_tasks(backbone_folder(), ("one", "two"), tmp_path / "run", "minilm")
    done = run.push("user/one", task="one", format=format)
    files = hub.files("user/one")
    assert done.changed
    assert not run.push("user/one", task="one", format=format).changed
    assert ("adapter_model.safetensors" if format == "peft" else "model.safetensors") in files
    assert '"user/one"' in files["README.md"].decode()
    other = "merged" if format == "peft" else "peft"
    run.push("user/one", task="one", format=other)
    assert ("adapter_config.json" in hub.files("user/one")) == (other == "peft")
    with pytest.raises(InputError, match="holds another model"):
        run.push("user/one")
    run.push("user/run")
    with pytest.raises(
        InputError, match=r"user/run: this repository holds a run; push task 'one' to another repository"
    ):
        run.push("user/run", task="one", format=format)


def test_adapter_for_a_folder_is_not_pushed(hub: LocalHub, folder: Path) -> None:
    with pytest.raises(InputError, match=r"task 'one': its backbone is the folder .*Push format 'merged'"):
        Run(folder).push("user/one", task="one")
    assert not hub.asked


@torch.no_grad()
def test_lines_of_a_checkpoint_card_compute_its_outputs(folder: Path, tmp_path: Path) -> None:
    run = Run(folder)
    to = run.export("one", "merged", tmp_path / "out")
    text = (to / "README.md").read_text("utf-8")
    code = text.partition("```python\n")[2].partition("```")[0].replace("path/to/this/folder", str(to))
    namespace: dict[str, Any] = {}
    exec(compile(code.replace("some text", "w1 w20"), "README.md", "exec"), namespace)
    tokenizer = transformers.AutoTokenizer.from_pretrained(to)
    inputs = tokenizer(["w1 w20", "and another"], padding=True, return_tensors="pt")
    torch.testing.assert_close(namespace["logits"], run.model("one")(**inputs), atol=1e-5, rtol=1e-5)
    assert "Labels, in the order of the outputs: " in text
