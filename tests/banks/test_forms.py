"""Each form is described in one file and computed in another; no other code compares form names."""

from __future__ import annotations

import ast

import pytest

from continual_petl.banks.config.forms import FORMS
from continual_petl.banks.config.forms.base import FormConfig
from continual_petl.banks.config.presets import PRESETS
from tests.house import ROOT, source_files

HOME = ("continual_petl.banks.config.forms.", "continual_petl.banks.forms.")


def asks_for_a_form(source: str) -> list[int]:
    """Return the lines that compare an attribute or variable called ``form`` with a form's name, or match it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides, others = [node.left, *node.comparators], list[ast.AST]([node])
        elif isinstance(node, ast.Match):
            sides, others = [node.subject], [case.pattern for case in node.cases]
        else:
            continue
        constants = {leaf.value for other in others for leaf in ast.walk(other) if isinstance(leaf, ast.Constant)}
        if any(_is_form(leaf) for side in sides for leaf in ast.walk(side)) and constants & FORMS.keys():
            found.append(node.lineno)
    return found


def _is_form(node: ast.AST) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) == "form"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("x = m.form == 'prompt'", [1]),
        ("any(m.form != 'lowrank' for m in ms)", [1]),
        ("if m.form in ('additive', 'sparse'):\n    pass", [1]),
        ("if 'prompt' in {m.form for m in ms}:\n    pass", [1]),
        ("match m.form:\n    case 'prompt':\n        pass", [1]),
        ("form == 'sparse'", [1]),
        ("form == '.parquet'", []),
        ("(form, x) == (row.form, row.x)", []),
        ("m.config.outside", []),
    ],
)
def test_comparison_with_a_form_name_is_detected(source: str, lines: list[int]) -> None:
    assert asks_for_a_form(source) == lines


@pytest.mark.slow
def test_only_form_files_compare_form_names() -> None:
    found = {name: asks_for_a_form(path.read_text("utf-8")) for name, path in source_files()}
    assert {name: lines for name, lines in found.items() if lines and not name.startswith(HOME)} == {}


def test_every_form_has_a_config_file_and_a_compute_file() -> None:
    banks = ROOT / "continual_petl" / "banks"
    for name, form in FORMS.items():
        assert isinstance(form, FormConfig)
        assert type(form).__module__ == f"continual_petl.banks.config.forms.{name}"
        assert all(row.form == name for row in form.rows)
        assert form.preset in PRESETS
        assert (banks / "forms" / f"{name}.py").is_file() != form.copies
