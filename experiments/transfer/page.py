"""The page of the study, generated from its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from continual_petl.engine.start_from import HEAD_START, MIN_STEPS, SHARE, WHOLE_UP_TO
from experiments.benchmarks.markdown import grid
from experiments.transfer.cases import Case, cases_of
from experiments.transfer.ledger import Line
from experiments.transfer.streams import (
    EPOCHS,
    FEW_EPOCHS,
    FEW_LABELS,
    FEW_VALIDATION,
    LEFT_OUT,
    MOST,
    SIZES,
    STREAMS,
    Size,
)

_STREAMS = "; ".join(" → ".join(tasks) for tasks in STREAMS.values())
_EPOCHS = ", ".join(f"{EPOCHS[size]} epochs with {size} rows" for size in SIZES if size != "4000")
_EPOCHS += f" ({FEW_EPOCHS} with 20 rows for {', '.join(FEW_LABELS)})"
INTRODUCTION = f"""# Do earlier banks help a new task?

Four streams of three tasks: {_STREAMS} (banking, cards and travel are
domains of CLINC150). The second and third tasks are learned from 20 rows of each label (regression: 40 rows), from 200,
or from all (at most {MOST["train"]:,}), three also from up to 4,000 rows, with the adapters of
Pfeiffer et al. on MiniLM: {_EPOCHS}.
Each bank is kept as it is after the last step; test scores are on at most {MOST["test"]} rows. Earlier tasks are learned
from all rows. Each draw has its own rows, initial values and order.

*By hand* is the single earlier bank with the best test score, a bound that is not known in advance. *Auto* is the
start that `start_from: auto` would choose: its short fits use training rows, and at most {FEW_VALIDATION} validation
rows with 20 rows of each label, otherwise at most {MOST["validation"]}. Its bank is identical, bit for bit, to the
one learned from the start that it chooses (`tests/engine/test_start_auto.py`), so it is not learned a second time.
*Average* and *fusion* use both earlier banks. A task that sees at most {WHOLE_UP_TO:,} rows in training is tried with
all its steps, so choosing takes several times as long as learning; other tasks are tried with {SHARE:.1%} of their
steps, at least {MIN_STEPS} ({MIN_STEPS} of 188 with 1,500 rows, {MIN_STEPS} of 438 or 500 with more), and then a bank
has to beat the fresh one by {HEAD_START:g} standard errors. The {MIN_STEPS} steps and the {HEAD_START:g} standard errors were
chosen on the first two draws with all rows; the third draw checks them.
With 5 steps and half a standard error, auto chose sst2 for yelp (2.6
points below fresh) and yelp for amazon (1.2 below), and the scores of stsb were noise: in the second draw, the average
led, but it ended 63 points below the bank that started from mrpc. After {MIN_STEPS} steps, starting stsb from mrpc leads
by 7.0 and 7.9 standard errors, and other single banks lead by at most 4.8. In the third draw, mrpc leads by 5.9 and is
not chosen, which costs 2.0 points. The seconds for choosing exclude the routing statistics by which tasks are ranked,
since the commit of a task stores them anyway; earlier lines of the ledger, which do not have them separately, include
them."""
NAMES: dict[Size, str] = {
    "20": "20 rows of each label",
    "200": "200 rows of each label",
    "all": "all rows",
    "4000": "up to 4,000 rows",
}


_SHORTER = f"""Results for the two domains with all their rows, measured when candidates were trained for all steps only
if a task saw at most 1,500 rows in training (now {WHOLE_UP_TO:,}). These tasks see more, so candidates were trained for
{SHARE:.1%} of the steps, and had to beat the fresh bank by half a standard error (`results/short_fits.ndjson`). Choosing
takes a fraction of the time above, but a few steps show an earlier bank's head start and not its final score: auto chooses
an earlier bank in four of six cases, and its mean score is below that of a fresh bank. So the limit stays at
{WHOLE_UP_TO:,} rows."""

_AGAIN = """. Where auto chose again after its rule had changed, the machine had more other work than during learning, so the
share of choosing is overestimated"""
_ONE_BANK = """Sequential LoRA: a single bank is trained on the tasks of a stream, one after another, with all their
rows. Each task starts from the bank as the earlier tasks left it, and changes it. Mean test scores:"""
_NOTES: dict[Size, str] = {
    "200": f"""{", ".join(LEFT_OUT["200"][:-1])} and {LEFT_OUT["200"][-1]} have at most 200 rows of each label among all
their rows, so they are not learned again with 200.""",
    "4000": """Three tasks have 3,500 or 4,000 training rows, so choosing is a smaller share of learning; one draw, without
fusion.""",
}


def page(lines: Sequence[Line], shorter: Sequence[Line] = ()) -> str:
    """Return the page as Markdown.

    Args:
        lines: the ledger.
        shorter: cases measured while only tasks that see at most 1,500 rows in training were tried with all their steps.
    """
    parts = [INTRODUCTION]
    found = cases_of(lines)
    for size in SIZES:
        own = [case for case in found if case.size == size]
        if not own:
            parts.append(
                f"**Not measured yet: {NAMES[size]}.** `python -m experiments.transfer --data FOLDER --size {size}` adds it."
            )
        else:
            parts += [f"## {NAMES[size].capitalize()}", *([_NOTES[size]] if size in _NOTES else []), _table(own)]
    if found:
        parts += ["## Targets", _targets(found), "## Where an earlier bank hurts", _hurts(found)]
        parts += _one_bank(lines)
        parts += ["## Shorter fits, tried once", _SHORTER, _table(cases_of(shorter))] if shorter else []
        parts += ["## Where the numbers come from", _circumstances([*lines, *shorter])]
    return "\n\n".join(parts) + "\n"


def _table(cases: Sequence[Case]) -> str:
    header = [
        "task (draws)",
        "fresh",
        "by hand",
        "average",
        "fusion",
        "auto",
        "auto chooses",
        "choosing, s",
        "learning, s",
    ]
    rows = []
    for task in dict.fromkeys(case.task for case in cases):
        own = [case for case in cases if case.task == task]
        rows.append(
            [
                f"{task} ({len(own)})",
                _score(mean(case.fresh for case in own)),
                _score(mean(case.by_hand for case in own)),
                *(_mean_of(own, start) for start in ("average", "fusion")),
                _score(mean(case.auto for case in own)),
                ", ".join(case.taken for case in own),
                f"{mean(case.choosing for case in own):.0f}",
                f"{mean(case.learning for case in own):.0f}",
            ]
        )
    whole = [mean(getattr(case, name) for case in cases) for name in ("fresh", "by_hand", "auto")]
    rows.append(["**mean of all**", *map(_score, whole[:2]), "", "", _score(whole[2]), "", "", ""])
    return grid(header, rows)


def _mean_of(cases: Sequence[Case], start: str) -> str:
    known = [case.starts[start] for case in cases if start in case.starts]
    return _score(mean(known)) if known else "-"


def _targets(cases: Sequence[Case]) -> str:
    rows = []
    few = [case for case in cases if case.size == "20"]
    if few:
        gain = mean(case.auto - case.fresh for case in few)
        below = mean(case.by_hand - case.auto for case in few)
        rows.append(_row("gain of auto over fresh, 20 rows of each label", "at least 5 points", gain, gain >= 0.05))
        most = max(few, key=lambda case: case.auto - case.fresh).task
        rest = mean(case.auto - case.fresh for case in few if case.task != most) if len(few) > 1 else gain
        rows.append([f"the same without {most}, which gains most", "", f"{100 * rest:+.1f} points", ""])
        rows.append(
            _row("loss of auto compared with by hand, 20 rows of each label", "at most 1 point", below, below <= 0.01)
        )
    if whole := [case for case in cases if case.size == "all"]:
        large = [case for case in cases if case.size == "4000"]
        worst = min(case.auto - case.fresh for case in [*whole, *large])
        rows.append(
            _row(
                "gain of auto over fresh, all or 4,000 rows, worst case", "at least -0.2 points", worst, worst >= -0.002
            )
        )
        for what, own in {
            f"all rows, tasks that see more than {WHOLE_UP_TO:,} rows": [case for case in whole if not case.whole],
            "all rows, smaller tasks": [case for case in whole if case.whole],
            NAMES["4000"]: large,
        }.items():
            if own:
                share = mean(case.choosing / case.learning for case in own)
                met = "met" if share <= 0.2 else "**missed**"
                name = f"choosing, as a share of learning, {what}"
                rows.append([name, "at most 20 %", f"{100 * share:.0f} %", met])
    return grid(["", "target", "found", ""], rows)


def _row(what: str, wanted: str, found: float, met: bool) -> list[str]:
    return [what, wanted, f"{100 * found:+.1f} points", "met" if met else "**missed**"]


def _hurts(cases: Sequence[Case]) -> str:
    rows = [
        [f"{case.task}, {NAMES[case.size]}, draw {case.draw}", start, _score(score), _score(case.fresh), case.taken]
        for case in cases
        for start, score in case.starts.items()
        if score < case.fresh - 0.01
    ]
    if not rows:
        return "In no case is the score from an earlier bank more than one point below that from a fresh one."
    return "Starts whose score is more than one point below that of a fresh bank, and what auto chooses:\n\n" + grid(
        ["task", "start", "score", "fresh", "auto chooses"], rows
    )


def _one_bank(lines: Sequence[Line]) -> list[str]:
    found = [line.found for line in lines if line.bank == "sequential"]
    rows = []
    for task in dict.fromkeys(task for each in found for task in each["learned"]):
        own = [(each["learned"][task], each["at the end"][task]) for each in found if task in each["learned"]]
        rows.append([f"{task} ({len(own)})", *(_score(mean(scores)) for scores in zip(*own, strict=True))])
    if not rows:
        return []
    header = ["task (draws)", "right after it was learned", "at the end of its stream"]
    return ["## One bank for all tasks", _ONE_BANK, grid(header, rows)]


def _circumstances(lines: Sequence[Line]) -> str:
    last = lines[-1]
    versions = ", ".join(f"{name} {version}" for name, version in last.versions.items())
    commits = ", ".join(dict.fromkeys(line.commit for line in lines))
    again = any(list(line.found) == ["auto"] for line in lines)
    return (
        "`python -m experiments.transfer --data FOLDER` adds a line to `results/cases.ndjson` for each case; cases already "
        f"in the file are not learned again. {len(lines)} lines, commits {commits}; {last.machine.processor}, one thread, "
        f"with other work on the machine, so seconds are only comparable within a line{_AGAIN if again else ''}; {versions}."
    )


def _score(value: float) -> str:
    return f"{100 * value:.1f}"
