"""RESULTS.md: what reproduces, what does not and why, on one page; made from the ledgers, never by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path

from experiments.studies.ledger import Book
from experiments.studies.page import page_name, trials_of
from experiments.studies.scale import Scale
from experiments.studies.study import Claim, Study

HEAD = """# What reproduces

Made by `python -m experiments.studies pages` from the raw results beside the studies; nothing here is written by hand.
Scores are on sub-sampled data and other models, so they are not comparable with published numbers. What can be compared is
whether methods stand to each other as the papers say. What a claim is held to stands in its row or above its table. Standard
errors are over seeds, and leave out that other test rows would give other scores. MiniLM is sentence-transformers'
all-MiniLM-L6-v2, which was trained on pairs of sentences, of Yahoo Answers and of entailment among others, but no labels.
"""


def write_results(studies: Sequence[Study], scale: Scale, book: Book, out: Path) -> Path:
    """Write RESULTS.md below ``out``; return the file."""
    file = out / page_name("RESULTS", scale)
    parts = [
        HEAD,
        _ONE_SEED if scale.num_seeds == 1 else "",
        _overview(studies, scale, book),
        *(_section(study, scale, book) for study in studies),
    ]
    file.write_text("\n".join(part.rstrip() + "\n" for part in parts if part), encoding="utf-8")
    return file


def _overview(studies: Sequence[Study], scale: Scale, book: Book) -> str:
    rows = ["| study | trials | hours of learning | finished | claims that hold |", "|---|---:|---:|---|---:|"]
    every: set[str] = set()
    all_whole = True
    for study in studies:
        trials, whole = trials_of(study, scale, book)
        keys = {trial.key for trial in trials} & book.lines.keys()
        every |= keys
        claims = study.reproduces(scale, book) if study.reproduces else []
        held = f"{sum(row.holds is True for row in claims)} of {len(claims)}" if claims else ""
        cells = (f"[{study.title}]({_page(study, scale)})", str(len(keys)), f"{_hours(book, keys):.1f}")
        rows.append(f"| {' | '.join(cells)} | {'yes' if whole else '**no**'} | {held} |")
        all_whole &= whole
    whole_machine = _hours(book, every, divided=True)
    rows += ["", _TOTAL.format(trials=len(every), hours=_hours(book, every), whole_machine=whole_machine)]
    return "\n".join(rows + _again(book, every) + (_first_seed(studies, scale, book) if all_whole else []))


def _again(book: Book, keys: set[str]) -> list[str]:
    """Say how many trials were run twice, and whether their scores came out the same."""
    same = [book.again[key] for key in sorted(keys) if key in book.again]
    if not same:
        return []
    return [
        f"{len(same)} of them were run twice, {sum(same)} with the same scores in every digit; the later run counts."
    ]


def _first_seed(studies: Sequence[Study], scale: Scale, book: Book) -> list[str]:
    """Say how much of all that is what ``--seeds 1`` runs."""
    if scale.num_seeds == 1:
        return []
    found = [trials_of(study, replace(scale, num_seeds=1), book)[0] for study in studies]
    keys = {trial.key for trials in found for trial in trials} & book.lines.keys()
    return [_FIRST_SEED.format(trials=len(keys), whole_machine=_hours(book, keys, divided=True))]


_TOTAL = """{trials} trials and {hours:.1f} hours in all, where trials that studies share count once: the seconds of
each from its beginning to its end, whatever else the machine did. Divided by how many ran at once it is
{whole_machine:.1f} hours."""
_FIRST_SEED = """With the first seed alone (`--seeds 1 --out FOLDER`), and so with hardly a standard error, it is {trials}
trials and {whole_machine:.1f} hours, divided in the same way."""
_ONE_SEED = """**One seed.** Another would give other scores, and nothing here says by how much: a claim that holds is no more
than a hint."""


def _hours(book: Book, keys: Iterable[str], divided: bool = False) -> float:
    lines = [book.lines[key] for key in keys]
    jobs = {line.key: book.made[line.made].jobs if divided else 1 for line in lines}
    return fsum(float(line.outcome.get("wall", 0)) / jobs[line.key] for line in lines) / 3600


def _section(study: Study, scale: Scale, book: Book) -> str:
    claims = study.reproduces(scale, book) if study.reproduces else []
    if not claims:
        return ""
    rule = [study.rule[0].upper() + study.rule[1:] + ".", ""] if study.rule else []
    rows = [f"## {study.title}", "", *rule, "| claim | here | holds | to be known |", "|---|---|---|---|"]
    return "\n".join([*rows, *map(_claim, claims)])


def _claim(row: Claim) -> str:
    word = {True: "yes", False: "**no**", None: "cannot be told"}[row.holds]
    return f"| {row.claim} | {row.found} | {word} | {row.why} |"


def _page(study: Study, scale: Scale) -> str:
    area, name = study.name.split("/")
    return f"{area}/results/{page_name(name, scale)}"
