"""docs/methods.md matches the code: legal combinations, presets and options."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.legal import LEGAL
from continual_petl.banks.config.presets import PRESETS, RECIPES
from continual_petl.banks.config.spec import Modification

TEXT = (Path(__file__).parents[2] / "docs" / "methods.md").read_text("utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def test_table_rows_are_the_legal_combinations() -> None:
    rows = re.findall(r"`(\{form: [^`]*\})`", TEXT)
    assert sorted(row.replace(r"\|", "|") for row in rows) == sorted(str(row) for row in LEGAL)


def test_all_options_are_documented() -> None:
    dimensions = {"form", "modifies", "insertion", "composition", "bottleneck"}
    named = set(re.findall(r"`(\w+)`", TEXT.split("Options, refused")[1].split("\n\n")[0]))
    assert named == set(Modification.model_fields) - dimensions


def test_mam_written_out_equals_the_preset() -> None:
    assert BankChoice.model_validate(yaml.safe_load(BLOCKS[0])["bank"]).resolve() == PRESETS["mam"]


def test_every_preset_is_shown_and_resolves() -> None:
    shown = yaml.safe_load(BLOCKS[1])
    assert set(shown) == set(PRESETS)
    for name, choice in shown.items():
        assert BankChoice.model_validate(choice).preset == name
        BankChoice.model_validate(choice).resolve()


def test_inline_presets_resolve() -> None:
    for text in re.findall(r"`(\{preset: [^`]*\})`", TEXT):
        BankChoice.model_validate(yaml.safe_load(text)).resolve()


def test_recipes_match_the_code() -> None:
    rows = re.findall(
        r"^\| ([a-z0-9_, ]+) \| ([0-9.e-]+) \| (\d+) \|$", TEXT.split("## Learning rates and epochs")[1], re.MULTILINE
    )
    told = {name: (float(rate), int(epochs)) for names, rate, epochs in rows for name in names.split(", ")}
    assert told == {name: (recipe.learning_rate, recipe.epochs) for name, recipe in RECIPES.items()}
