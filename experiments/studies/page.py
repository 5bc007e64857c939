"""The page of a study: Markdown and figures, generated from the raw results."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments.studies.ledger import Book, Made
from experiments.studies.scale import Scale
from experiments.studies.statistics import counted
from experiments.studies.study import Study
from experiments.studies.trial import Trial


def write_page(study: Study, scale: Scale, book: Book, out: Path) -> Path:
    """Write a study's page and its figures below ``out``; return the page."""
    area, name = study.name.split("/")
    folder = out / area / "results"
    drawn = {} if study.figures is None else study.figures(scale, book)
    shown = [
        f"![{title}](figures/{draw_figure(figure, folder / 'figures', f'{page_name(name, scale)[:-3]}-{title}')})"
        for title, figure in drawn.items()
    ]
    parts = [f"# {study.title}", provenance(study, scale, book), study.body(scale, book), *shown]
    page = folder / page_name(name, scale)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return page


def page_name(study: str, scale: Scale) -> str:
    """Return the name of a page; pages of other scales are stored next to the small scale's pages."""
    return f"{study}-{scale.name}.md" if scale.larger else f"{study}.md"


def draw_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write a figure as SVG, reproducible byte for byte; return the file's name."""
    folder.mkdir(parents=True, exist_ok=True)
    file = f"{name.replace(' ', '-')}.svg"
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(folder / file, format="svg", metadata={"Date": None, "Creator": None})
    text = (folder / file).read_text(encoding="utf-8")
    (folder / file).write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")
    return file


def trials_of(study: Study, scale: Scale, book: Book) -> tuple[list[Trial], bool]:
    """Return the trials of a study that can be planned from the book so far, and whether the study is finished."""
    found: list[Trial] = []
    for trials in study.plan(scale, book):
        found += trials
        if any(book.outcome(trial) is None for trial in trials):
            return found, False
    return found, True


def provenance(study: Study, scale: Scale, book: Book) -> str:
    """Return the lines that state where a page's numbers come from."""
    trials, whole = trials_of(study, scale, book)
    lines = [book.lines[key] for key in {trial.key: None for trial in trials} if key in book.lines]
    made = Counter(line.made for line in lines)
    hours = sum(float(line.outcome.get("wall", 0)) for line in lines) / 3600
    missing = "" if whole else f" **Not finished: {len(trials) - len(lines)} or more trials have not been run yet.**"
    data = (
        "made-up rows and a tiny random backbone, so all numbers are meaningless"
        if scale.quick
        else ", ".join(dict.fromkeys(f"{trial.backbone} at {trial.max_length} tokens" for trial in trials))
    )
    arithmetic = sorted({str(line.outcome["arithmetic"]) for line in lines if "arithmetic" in line.outcome})
    how = f", {' and '.join(arithmetic)}" if arithmetic else ""
    said = [f"{counted(len(lines), 'trial')}, {hours:.1f} h of training in total; {data}{how}.{missing}"]
    rows = {(name, digest) for line in lines for name, digest in line.data.items()}
    mixed = sorted(name for name, count in Counter(name for name, _ in rows).items() if count > 1)
    said += [f"* **The trials used different rows or files of {', '.join(mixed)}.**"] if mixed else []
    said += [
        f"* {counted(made[name], 'trial')}: {_circumstances(book.made[name])}" for name in made if name in book.made
    ]
    return "\n".join([said[0], "", *said[1:]]) if len(said) > 1 else said[0]


def _circumstances(made: Made) -> str:
    changed = " with changes" if made.changed else ""
    units = ", ".join(unit for unit in made.machine.units if "amx" in unit or unit == "avx2")
    return (
        f"commit `{made.commit[:10]}`{changed}, {made.began} UTC, {made.machine.cores} cores ({units}), "
        f"{counted(made.jobs, 'job')}, torch {made.versions['torch']}: `{made.command}`"
    )
