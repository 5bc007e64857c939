"""An ablation has the same values as JSON, figure, table and page, and contradictory values are refused."""

from __future__ import annotations

import io
import json
import re
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from continual_petl.engine.ablation.page import write_ablations
from continual_petl.engine.ablation.result import Ablation, relative_change
from continual_petl.engine.ablation.terminal import MAX_LISTED, headline, left_off, remarks, table
from continual_petl.errors import InputError


def made(layers: int = 3, full: float | None = 0.8, **more: Any) -> Ablation:
    """Return an ablation in which every removed layer costs the same share of the score."""
    cells = []
    for first, last in combinations_with_replacement(range(layers), 2):
        score = None if full is None else full * (1 - (last - first + 1) / (2 * layers))
        scores = {} if score is None else {"accuracy": score, "macro_f1": 0.5}
        relative = relative_change(score, full)
        cells.append({"first": first, "last": last, "score": score, "relative": relative, "scores": scores})
    value = {
        "task": "one",
        "metric": "accuracy",
        "split": "validation",
        "num_examples": 16,
        "layers": layers,
        "stacks": [layers],
        "modified": list(range(layers)),
        "stays": [],
        "full": full,
        "scores": {} if full is None else {"accuracy": full, "macro_f1": 0.5},
        "cells": cells,
    }
    return Ablation.from_json(value | more)


def shown(ablation: Ablation, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    console.print(table(ablation))
    return console.export_text()


@given(st.floats(1e-6, 1), st.floats(-1, 1))
def test_relative_change_is_score_over_full_minus_one(full: float, score: float) -> None:
    assert relative_change(score, full) == score / full - 1
    assert relative_change(full, full) == 0
    assert relative_change(score, -full) is relative_change(score, 0.0) is relative_change(None, full) is None
    assert relative_change(score, None) is None


def test_overflowing_change_is_undefined() -> None:
    assert relative_change(1.0, 5e-324) is None


@pytest.mark.parametrize("full", [0.8, 0.0, -0.25, None])
def test_json_roundtrips(full: float | None) -> None:
    ablation = made(full=full)
    assert Ablation.from_json(json.loads(json.dumps(ablation.to_json(), allow_nan=False))) == ablation
    assert ablation.is_relative == (full == 0.8)
    assert all((cell.relative is not None) == (full == 0.8) for cell in ablation.cells)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"stacks": [2]}, r"stacks: \[2\] do not add up to 3 layers"),
        ({"full": 0.7}, r"full: 0.7 does not match scores\['accuracy'\] \(0.8\)"),
        ({"cells": [{"first": 2, "last": 1, "score": None, "relative": None, "scores": {}}]}, "2 to 1 are not a span"),
        ({"cells": [{"first": 0, "last": 3, "score": None, "relative": None, "scores": {}}]}, "0 to 3 are not a span"),
        ({"cells": [{"first": 0, "last": 1, "score": 0.4, "relative": -0.5, "scores": {}}]}, "not among the scores"),
        (
            {"cells": [{"first": 0, "last": 1, "score": 0.4, "relative": 0.5, "scores": {"accuracy": 0.4}}]},
            "0.5 is not the change of layers 0 to 1",
        ),
        ({"cells": [made().cells[1].model_dump(), made().cells[0].model_dump()]}, "cells: not sorted"),
        ({"layers": 10**9}, "layers: "),
        ({"extra": 1}, "extra: "),
        ({"format_version": 2}, "format_version: "),
    ],
)
def test_invalid_ablation_is_refused(edit: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=r"^not a valid ablation: ") as caught:
        Ablation.from_json(made().to_json() | edit)
    assert re.search(says, str(caught.value))


def test_cell_is_indexed_by_layers() -> None:
    ablation = made(2, cells=[made(2).cells[1].model_dump()])
    assert ablation[0, 1].relative == relative_change(0.4, 0.8)
    with pytest.raises(KeyError, match="layers 1 to 1 were not removed in this ablation"):
        ablation[1, 1]


def test_figure_has_every_change_and_nothing_below_the_diagonal() -> None:
    ablation = made()
    figure = ablation.figure()
    (heat,) = figure.data
    for first, row in enumerate(heat.z):
        for last, value in enumerate(row):
            assert value == (100 * ablation[first, last].relative if first <= last else None)  # type: ignore[operator]
    assert heat.text[0][2] == "without layers 0 to 2<br>accuracy 0.4000 instead of 0.8000 (-50.00 %)"
    assert heat.text[2][0] == ""
    assert len(figure.layout.shapes) == 3
    assert figure.layout.yaxis.autorange == "reversed"


def test_the_figure_draws_scores_where_no_change_is_defined() -> None:
    (heat,) = made(full=0.0).figure().data
    assert heat.z[0][0] == 0.0
    assert heat.colorbar.title.text == "accuracy"
    (heat,) = made(full=None).figure().data
    assert heat.z[0][0] is None
    assert "not defined instead of not defined" in heat.text[0][0]


def test_figure_marks_encoder_decoder_and_unmodified_layers() -> None:
    figure = made(4, stacks=[2, 2], modified=[3]).figure()
    assert list(figure.layout.xaxis.ticktext) == ["0 enc", "1 enc", "2 dec", "3 dec"]
    assert figure.data[0].text[0][1].endswith("the bank has no modifications in these layers")
    assert not figure.data[0].text[0][3].endswith("the bank has no modifications in these layers")


def test_the_table_is_the_heat_map_and_fits_eighty_columns() -> None:
    lines = shown(made()).splitlines()
    assert [line.split() for line in lines] == [
        ["from\\to", "0", "1", "2"],
        ["0", "-16.7", "-33.3", "-50.0"],
        ["1", "-16.7", "-33.3"],
        ["2", "-16.7"],
    ]
    wide = shown(made(12)).splitlines()
    assert len(wide) == 13
    assert max(len(line.rstrip()) for line in wide) <= 80
    lost = [
        {**cell.model_dump(), "score": 0.0, "relative": -1.0, "scores": {"accuracy": 0.0}} for cell in made(12).cells
    ]
    assert max(len(line.rstrip()) for line in shown(made(12, cells=lost)).splitlines()) <= 80
    assert "-100" in shown(made(12, cells=lost))
    assert "0.000" in shown(made(full=0.0))
    assert "n/a" in shown(made(full=None))


def test_many_layers_are_listed_with_the_lowest_scores() -> None:
    ablation = made(24)
    text = shown(ablation)
    assert len(text.splitlines()) == 1 + MAX_LISTED
    assert left_off(ablation) == [
        f"These are the {MAX_LISTED} spans with the lowest scores, of 300; --output and --html include all of them."
    ]
    assert left_off(made(12)) == left_off(made(3)) == []
    assert "0 to 23" in text
    assert "0 to 1 " not in text
    chosen = made(3, cells=[made().cells[0].model_dump(), made().cells[2].model_dump()])
    assert [line.split() for line in shown(chosen).splitlines()[1:]] == [
        ["0", "0.6667", "-16.7"],
        ["0", "to", "2", "0.4000", "-50.0"],
    ]


def test_notes_are_shown() -> None:
    told = " ".join(remarks(made(4, stacks=[2, 2], modified=[2, 3], stays=["a prompt"], notices=["Something."])))
    for fragment in (
        "16 rows were predicted again for each span of the 4 layers",
        "Layers 0 to 1 are the encoder's, 2 to 3 the decoder's",
        "modifications only in layers 2, 3",
        "Whichever layers are removed, the bank keeps a prompt.",
        "Something.",
    ):
        assert fragment in told
    assert "full bank's score is 0.0000, so relative changes are not defined" in " ".join(remarks(made(full=0.0)))
    assert headline(made()).startswith("Change in validation accuracy, in % of the full bank's 0.8000")
    assert headline(made(full=None)).endswith("the full bank's is not defined")


def test_page_is_a_single_offline_file(tmp_path: Path) -> None:
    evil = "</script><b>"
    page = tmp_path / "page.html"
    write_ablations(page, [made(), made(task=evil, notices=[evil])], Path("runs/mine"))
    text = page.read_text("utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert not re.search(r"<(script|link|img)[^>]*\s(src|href)=\"(?!data:)", text)
    assert "default-src 'none'" in text
    assert evil not in text
    assert text.count('class="data"') == 2
    assert "Plotly" in text
    assert text.count("<script") == text.count("</script>"), "a script of plotly contains </script>"
    found = re.findall(r'data-name="ablation-\d">(.*?)</script>', text)
    assert [json.loads(each)["data"][0]["type"] for each in found] == ["heatmap", "heatmap"]
