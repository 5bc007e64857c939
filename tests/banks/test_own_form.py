"""A form of another package: learned, verified, mixed, merged, refused by other formats and without its package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from continual_petl import InputError, Run, TaskStream, learn
from continual_petl.backbones.backbone import load_backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config import forms
from continual_petl.banks.config.forms.base import Combination, FormConfig
from continual_petl.banks.config.presets import recipe_of
from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.banks.forms import form_of
from continual_petl.banks.merge import merged
from continual_petl.exchange.formats import refused_by_bank
from continual_petl.streams.schema.stream_spec import StreamSpec
from tests.house import ROOT
from tests.processes import forked
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
PAGE = (ROOT / "docs" / "how-to" / "new-form.md").read_text("utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
"""The form of the how-to page."""
CHANGE = {"form": "ssf", "modifies": "ffn_out", "insertion": "sequential", "composition": "multiply"}


@pytest.fixture
def ssf() -> Iterator[FormConfig]:
    names: dict[str, Any] = {}
    exec(CODE, names)
    form: FormConfig = names["ScaleShiftConfig"]()
    forms.register_form(form)
    yield form
    forms.REGISTRY.registered.clear()


def test_it_computes_its_formula_alone_and_in_a_mixed_batch(
    ssf: FormConfig, backbone_folder: Folder, tmp_path: Path
) -> None:
    """The reference multiplies and shifts the rows of the weight of a copy of the model."""
    plain = task("plain", num_rows=16)
    tasks = [task("scaled", num_rows=16, bank={"modifications": [CHANGE]}), plain]
    run = learn(stream(backbone_folder(), tasks), tmp_path / "run")
    assert all(check.ok for check in run.verify(data=True))
    texts = ["w1 w2 w30", "w0 w4"]
    alone = run.predict(texts, task="scaled")
    mixed = run.predict([*texts, "w3"], task=["scaled", "scaled", "plain"])
    assert mixed[:2] == alone
    backbone = load_backbone(str(backbone_folder()))
    spec = BankSpec.model_validate({"modifications": [CHANGE]})
    bank = Bank(spec, backbone.model, backbone.sites, nn.Identity())
    bank.initialise(backbone.model, seed=0)
    inputs = {"input_ids": torch.tensor([[2, 10, 11, 3]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    from continual_petl.banks import run as run_bank

    with torch.no_grad():
        before = backbone.model(**inputs).last_hidden_state
        assert torch.equal(run_bank(backbone.model, bank, inputs).last_hidden_state, before)
        reference = load_backbone(str(backbone_folder())).model
        for number, placement in enumerate(bank.placements()):
            delta: Any = placement.delta
            delta.gamma.copy_(1 + 0.1 * torch.randn_like(delta.gamma))
            delta.beta.normal_()
            own: Any = reference.get_submodule(f"encoder.layer.{number}.output.dense")
            own.weight.copy_(delta.gamma[:, None] * own.weight)
            own.bias.copy_(delta.gamma * own.bias + delta.beta)
        wanted = reference(**inputs).last_hidden_state
        torch.testing.assert_close(run_bank(backbone.model, bank, inputs).last_hidden_state, wanted)  # sums reordered
        torch.testing.assert_close(merged(backbone.model, bank)(**inputs).last_hidden_state, wanted, rtol=0, atol=0)


def test_what_it_does_not_say_is_refused(ssf: FormConfig) -> None:
    spec = BankSpec.model_validate({"modifications": [CHANGE]})
    assert recipe_of(spec).learning_rate == 3e-3  # that of its preset
    assert [*refused_by_bank(spec)] == ["peft", "adapters"]
    with pytest.raises(InputError, match=r"no method has ssf on heads.*nearest are .*\{form: ssf, modifies: query"):
        Modification.model_validate(CHANGE | {"modifies": "heads"})
    with pytest.raises(InputError, match="form ssf takes no bottleneck"):
        Modification.model_validate(CHANGE | {"bottleneck": 2})
    with pytest.raises(InputError, match="form 'lowrank': there is a form of this name already"):
        forms.register_form(forms.FORMS["lowrank"])


class Empty(FormConfig):
    name = "empty"
    rows = (Combination("empty", ("query",), None, ("add",)),)
    preset = "houlsy"

    def form(self) -> Any:
        return "nothing"


def test_a_form_that_is_not_complete_is_refused(ssf: FormConfig) -> None:
    class WithoutRows(FormConfig):
        name = "without"

    with pytest.raises(
        InputError, match=r"an object of a class derived from .*FormConfig, with name = 'without', rows"
    ):
        forms.register_form(WithoutRows())
    forms.register_form(Empty())
    modification = Modification(form="empty", modifies="query")
    with pytest.raises(InputError, match="form 'empty': its recipe is that of preset 'houlsy', which does not exist"):
        recipe_of(BankSpec(modifications=(modification,)))
    with pytest.raises(InputError, match=r"form 'empty': Empty.form has to return a .*Form.*; it returns 'nothing'"):
        form_of(modification)


def installed(folder: Path, value: str) -> dict[str, str]:
    """Write a package with an entry point, and return the variables with which a process finds it."""
    (folder / "scales-1.0.dist-info").mkdir(parents=True)
    (folder / "scales-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: scales\nVersion: 1.0\n")
    (folder / "scales-1.0.dist-info" / "entry_points.txt").write_text(f"[continual_petl.forms]\nssf = {value}\n")
    (folder / "scale_shift.py").write_text(CODE)
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}


def process(program: str, variables: dict[str, str], folder: Path) -> str:
    """Return what a program prints in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False, cwd=folder
    )
    return done.stdout + done.stderr


def test_a_form_of_an_installed_package_is_found_and_missed(backbone_folder: Folder, tmp_path: Path) -> None:
    bank = {"modifications": [CHANGE]}
    spec = {"name": "s", "backbone": str(backbone_folder()), "tasks": [task("scaled", num_rows=16, bank=bank)]}
    given = spec | {"training": {"epochs": 1}}
    checked = f"""
import sys
from continual_petl.streams.schema.stream_spec import StreamSpec
print(StreamSpec.model_validate({given!r}).tasks[0].name, "torch" in sys.modules)
"""
    assert process(checked, installed(tmp_path / "installed", "scale_shift:ScaleShiftConfig"), tmp_path) == (
        "scaled False\n"
    )

    def learned() -> None:
        learn(TaskStream(StreamSpec.model_validate(given)), "run")
        print(Run("run").predict("w1 w2", task="scaled").value in ("no", "yes"))

    code, written = forked(learned, tmp_path, tmp_path / "installed")
    assert (code, written[-5:]) == (0, "True\n"), written
    code, written = forked(lambda: print(Run("run").predict("w1 w2", task="scaled")), tmp_path)
    assert code != 0
    without = " ".join(written.split())
    assert "got 'ssf'" in without
    assert "; if a package adds it, install that package" in without
    broken = installed(tmp_path / "broken", "scale_shift:Missing")
    assert "form 'ssf': scale_shift:Missing cannot be loaded: AttributeError" in process(checked, broken, tmp_path)


@pytest.mark.slow
def test_a_new_interpreter_learns_with_a_form_of_an_installed_package(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task("scaled", num_rows=16, bank={"modifications": [CHANGE]})]
    given = {"name": "s", "backbone": str(backbone_folder()), "tasks": tasks, "training": {"epochs": 1}}
    program = f"""
from continual_petl.streams.schema.stream_spec import StreamSpec
spec = StreamSpec.model_validate({given!r})
from continual_petl import Run, TaskStream, learn
learn(TaskStream(spec), "run")
print(Run("run").predict("w1 w2", task="scaled").value in ("no", "yes"))
"""
    variables = installed(tmp_path / "installed", "scale_shift:ScaleShiftConfig")
    assert process(program, variables, tmp_path).endswith("True\n")
