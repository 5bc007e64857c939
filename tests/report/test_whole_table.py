"""Tables in terminals never break a word: numbers, dates, names of tasks and kinds stay whole at any width."""

from __future__ import annotations

import io
from itertools import product

import pytest
from rich.console import Console, RenderableType

from continual_petl.report.task_lines import task_table
from continual_petl.report.whole_table import WholeTable

NAMES = ("support_topics_of_the_help_desk", "a", "ÜBERSCHRIFT-2026-11-26", "日本語のタスク")
KINDS = ("token-classification", "image-classification", "seq2seq")
BANKS = ("houlsby 64", "bottleneck 4, lowrank 8, decomposed 16", "own LayerNorms")
TASKS = [
    {"task": name, "kind": kind, "short": bank, "score": score, "metric": metric, "split": "test", "parameters": count}
    for (name, kind, bank), (score, metric, count) in zip(
        product(NAMES, KINDS, BANKS),
        [(0.9312000274658203, "entity_f1", 1_234_567), (None, "accuracy", 12), (-0.5, "spearman", 110_000_000)] * 12,
        strict=True,
    )
]


def printed(shown: RenderableType, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(shown)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [35, 40, 60, 80, 100, 140])
def test_list_keeps_every_word_whole(width: int) -> None:
    lines = printed(task_table(TASKS), width)
    found = [word.strip(";") for line in lines for word in line.split()]
    for task in TASKS:
        score = "defined" if task["score"] is None else f"{task['score']:.4f}"
        cells = [
            task["task"],
            task["kind"],
            *str(task["short"]).split(),
            score,
            task["metric"],
            f"{task['parameters']:,}",
        ]
        assert set(map(str, cells)) <= set(found)
    assert max(len(line.rstrip()) for line in lines) <= width


def test_columns_are_lines_if_they_fit_and_shrink_to_their_words_before_rows_become_paragraphs() -> None:
    table = WholeTable("task", "settings\nin words", "rows", title="A title")
    table.add_row("topics", "learning rate 0.1, batch size 8", "12")
    table.add_row("x", "", "")
    wide, middle, narrow = (printed(table, width) for width in (60, 33, 20))
    assert sum("learning rate 0.1, batch size 8" in line for line in wide) == 1
    assert sum("│ topics │" in line for line in middle) == 1
    assert any("learning rate" in line for line in middle)
    assert [line.rstrip() for line in narrow] == [
        "A title",
        "topics",
        "  settings in words:",
        "  learning rate 0.1,",
        "  batch size 8;",
        "  rows: 12",
        "x",
    ]
    assert printed(table, 60) == wide, "rendering must not change the table"


def test_only_a_word_longer_than_the_terminal_continues_on_the_next_line() -> None:
    table = WholeTable("name", "value", box=None)
    table.add_row("x" * 50, "[b]1")
    lines = [line.strip() for line in printed(table, 30)]
    assert lines == ["x" * 30, "x" * 20, "value: 1"]
