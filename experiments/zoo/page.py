"""README of this study and its part of the main README, generated from the raw results.

A value of the tables is the mean over seeds, where a seed's value is the mean over its orders: runs with the same seed share
rows, so the standard error is over seeds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from continual_petl import metrics
from experiments.benchmarks.machine import ROOT
from experiments.benchmarks.markdown import grid, number, replace_section
from experiments.continual.measures import matrix
from experiments.studies.statistics import Mean, counted, mean_of, shown
from experiments.zoo.methods import METHODS, RUN
from experiments.zoo.result import HERE, RESULTS, Line, Results
from experiments.zoo.reused import reused
from experiments.zoo.words import ADAPTED, INTRODUCTION, NOT_RUN, PROTOCOLS, READING, TRIALS

BEGIN, END = "<!-- start of the zoo -->", "<!-- end of the zoo -->"
SHOWN = ("classic5", "class")
"""The stream and the protocol that the main README shows."""
BEST = 5
"""How many methods other than banks it shows."""
UNUSED = {"closed form": ("batch_size", "epochs")}
"""Settings without a meaning, by kind of method."""
MEASURES = {
    "ACC": metrics.acc,
    "BWT": metrics.bwt_gem,
    "forgetting": metrics.forgetting_max,
    "average incremental accuracy": metrics.average_incremental_accuracy,
}


@dataclass(frozen=True)
class Group:
    """The runs of a method on one stream with one protocol, with the same settings."""

    lines: tuple[Line, ...]

    @property
    def first(self) -> Line:
        """One of the runs."""
        return self.lines[0]

    @property
    def name(self) -> str:
        """The method, and which part of the model it trains if there is a choice."""
        title = METHODS[self.first.method].title
        own = METHODS[self.first.method].adapted is not None
        return title if own or self.first.adapted not in ADAPTED else f"{title}, {ADAPTED[self.first.adapted]}"

    @property
    def is_banks(self) -> bool:
        """Whether these are small banks; a full copy for each task is none."""
        return self.first.kind == "banks" and self.first.adapted != "all"

    @cached_property
    def means(self) -> dict[str, Mean | None]:
        """The measures in points; None if a measure is undefined."""
        return {name: self.over_seeds(_measured(line)[name] for line in self.lines) for name in MEASURES}

    @property
    def acc(self) -> float:
        """ACC, in points."""
        mean = self.means["ACC"]
        return -1.0 if mean is None else mean.value

    def over_seeds(self, values: Iterable[float | None]) -> Mean | None:
        """Return the mean over seeds of the means over orders."""
        of_seed: dict[int, list[float | None]] = {}
        for line, value in zip(self.lines, values, strict=True):
            of_seed.setdefault(line.seed, []).append(value)
        means = [mean_of(values) for values in of_seed.values()]
        return mean_of(None if mean is None else mean.value for mean in means)

    def average(self, name: str) -> float:
        """Return the mean of a field over all runs."""
        return sum(float(getattr(line, name)) for line in self.lines) / len(self.lines)


def known_lines() -> list[Line]:
    """Return the committed results, and those of other studies that are shown here."""
    return [line for file in sorted(RESULTS.glob("*.ndjson")) for line in Results(file).lines] + reused()


def write_pages() -> None:
    """Write README of this study and its part of the main README."""
    lines = known_lines()
    (HERE / "README.md").write_text(page(lines), encoding="utf-8")
    replace_section(ROOT / "README.md", BEGIN, END, summary(lines))


def groups_of(lines: Sequence[Line]) -> dict[tuple[str, str], list[Group]]:
    """Return the runs that do not choose settings, by stream and protocol: banks first, then by ACC."""
    found: dict[tuple[str, str], dict[str, list[Line]]] = {}
    for line in lines:
        if not line.tuning:
            same = json.dumps([line.method, line.package, line.adapted, line.settings], sort_keys=True)
            found.setdefault((line.stream, line.protocol), {}).setdefault(same, []).append(line)
    return {
        key: sorted(map(Group, map(tuple, own.values())), key=lambda group: (not group.is_banks, -group.acc))
        for key, own in sorted(found.items())
    }


def page(lines: Sequence[Line]) -> str:
    """Return README of this study."""
    parts = [INTRODUCTION]
    groups = groups_of(lines)
    if not groups:
        parts.append("**Nothing has been measured yet.**")
    for (stream, protocol), own in groups.items():
        parts += [f"## {stream}, {PROTOCOLS[protocol]}", _setting(own), _table(own, lines), *_sentences(own)]
    if groups:
        parts += ["## How to read the tables", READING, "## Settings", TRIALS, _settings(groups, lines)]
    parts += ["## What is not run, and why", NOT_RUN]
    if lines:
        parts += ["## Where the numbers come from", _circumstances(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(lines: Sequence[Line]) -> str:
    """Return the part of the main README: the banks and the best other methods; an empty text while banks are missing."""
    own = groups_of(lines).get(SHOWN, [])
    banks = [group for group in own if group.is_banks]
    # Joint training is no continual learning: it needs the rows of all tasks.
    others = [group for group in own if group.first.kind not in ("banks", "joint")][:BEST]
    if not banks or not others:
        return ""
    rows = [
        [
            group.name,
            *(shown(group.means[name]) for name in ("ACC", "forgetting")),
            _bytes(group),
            _kept_rows(group),
        ]
        for group in (*banks, *others)
    ]
    intro = (
        f"Other methods on the same rows: {len(banks[0].first.tasks)} tasks ({SHOWN[0]}), {PROTOCOLS[SHOWN[1]]}; "
        f"{counted(len(banks), 'kind')} of bank and the {len(others)} best others of {len(own) - len(banks)}, in points "
        f"and MB{_single(own)}. {_better(own)}"
    )
    missing = len(_not_measured(own))
    still = f"Not measured yet: {counted(missing, 'other method')}. " if missing else ""
    more = f"{still}[All methods, streams and settings](experiments/zoo/README.md)."
    return "\n".join([intro, "", grid(["", "ACC", "forgetting", "MB kept", "keeps old rows"], rows), "", more])


def _measured(line: Line) -> dict[str, float | None]:
    R_TT = matrix({"R": line.matrix})
    assert R_TT is not None
    return {name: _points(float(function(R_TT))) for name, function in MEASURES.items()}


def _points(value: float) -> float | None:
    # NaN: undefined, or from cells that were not measured.
    return 100 * value if value == value else None


def _alone(lines: Sequence[Line]) -> dict[tuple[str, int, str], float]:
    """Return, by stream, seed and task, the accuracy of a LoRA bank for this task alone."""
    return {
        (line.stream, line.seed, task): accuracy
        for line in lines
        if line.method == "lora_banks" and line.protocol == "task" and not line.tuning
        for place, task in enumerate(line.tasks)
        if (accuracy := line.matrix[place][place]) is not None
    }


def _transfer(group: Group, alone: dict[tuple[str, int, str], float]) -> Mean | None:
    """Return FWT in the form that measures plasticity; None if a task was not learned alone."""

    def of(line: Line) -> float | None:
        single = [alone.get((line.stream, line.seed, task)) for task in line.tasks]
        R_TT = matrix({"R": line.matrix})
        if R_TT is None or None in single:
            return None
        return _points(float(metrics.fwt_plasticity(R_TT, R_TT.new_tensor(single))))

    return group.over_seeds(map(of, group.lines))


def _table(own: Sequence[Group], lines: Sequence[Line]) -> str:
    transfers = own[0].first.protocol == "task"
    alone = _alone(lines)
    rows = []
    for group in own:
        means = [shown(mean) for mean in group.means.values()]
        # Methods that train something else than a LoRA are not compared with a LoRA.
        transfer = [shown(_transfer(group, alone) if group.first.adapted == "lora" else None)] if transfers else []
        rows.append(
            [
                group.name,
                *means[:3],
                *transfer,
                *means[3:],
                f"{group.average('seconds'):.0f}",
                f"{group.average('trained_parameters'):,.0f}",
                _bytes(group),
                _kept_rows(group),
                group.first.package,
                str(len(group.lines)),
            ]
        )
    names = list(MEASURES)
    header = ["", *names[:3], *(["FWT"] if transfers else []), *names[3:]]
    return grid([*header, "seconds", "trained parameters", "MB kept", "keeps old rows", "package", "runs"], rows)


def _sentences(own: Sequence[Group]) -> list[str]:
    return [sentence for sentence in (_better(own), _missing(own)) if sentence]


def _better(own: Sequence[Group]) -> str:
    """Say which methods have a higher ACC than the best banks."""
    banks = [group for group in own if group.is_banks]
    if not banks:
        return ""
    best = max(banks, key=lambda group: group.acc)
    higher = [group for group in own if not group.is_banks and group.acc > best.acc]
    if not higher:
        return f"No other method measured here has a higher ACC than the best banks, {best.name} ({best.acc:.1f})."
    named = [f"{group.name} ({group.acc:.1f}{_keeping(group)})" for group in higher]
    return f"**Higher ACC than the best banks, {best.name} ({best.acc:.1f}): {', '.join(named)}.**"


def _keeping(group: Group) -> str:
    if group.first.kind == "joint":
        return ", with the rows of all tasks"
    return ", with old rows" if group.first.keeps_old_rows else ""


def _missing(own: Sequence[Group]) -> str:
    missing = _not_measured(own)
    return f"Not measured on this stream: {', '.join(missing)}." if missing else ""


def _not_measured(own: Sequence[Group]) -> list[str]:
    """Return the titles of the methods that this study could still run."""
    known = {group.first.method for group in own}
    protocol = own[0].first.protocol
    return [
        METHODS[name].title
        for name in RUN
        if name not in known and not (METHODS[name].by_class and protocol == "domain")
    ]


def _setting(own: Sequence[Group]) -> str:
    lines = [line for group in own for line in group.lines]
    orders = {line.order: line.tasks for line in lines}
    named = "\n".join(f"{order}. {', '.join(orders[order])}" for order in sorted(orders))
    seeds = counted(len({line.seed for line in lines}), "seed")
    differ = len({len(group.lines) for group in own}) > 1
    fewer = "; methods with fewer runs than others learned fewer of them" if differ else ""
    return f"{counted(len(orders), 'order')} of the tasks, {seeds}{fewer}{_single(own)}:\n\n{named}"


def _single(own: Sequence[Group]) -> str:
    """Say that the order of methods may be chance if some have one run."""
    if all(len(group.lines) > 1 for group in own):
        return ""
    return "; with one run of a method, differences of a few points may be chance"


def _settings(groups: dict[tuple[str, str], list[Group]], lines: Sequence[Line]) -> str:
    """Return a table of the settings of all methods, and of the validation accuracy of those that were tried."""
    tried: dict[tuple[str, str, str, str], list[str]] = {}
    for line in lines:
        if line.tuning:
            accuracy = _measured(line)["ACC"]
            said = f"{_short(line, METHODS[line.method].grid[0])}: {'-' if accuracy is None else f'{accuracy:.1f}'}"
            tried.setdefault((line.stream, line.protocol, line.method, line.adapted), []).append(said)
    rows = [
        [
            f"{stream}, {protocol}",
            group.name,
            _short(
                group.first, [name for name in group.first.settings if name not in UNUSED.get(group.first.kind, ())]
            ),
            "; ".join(tried.get((stream, protocol, group.first.method, group.first.adapted), ["-"])),
        ]
        for (stream, protocol), own in groups.items()
        for group in own
    ]
    return grid(["stream, protocol", "method", "settings", "tried: accuracy on validation rows"], rows)


def _short(line: Line, names: Iterable[str]) -> str:
    words = [f"{name} {_value(line.settings[name])}" for name in sorted(names)]
    return ", ".join(words) or "none"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bytes(group: Group) -> str:
    return number(group.average("kept_bytes") / 1e6)


def _kept_rows(group: Group) -> str:
    if group.first.kind == "joint":
        return "all"
    return f"{group.average('kept_rows'):.0f}" if group.first.keeps_old_rows else "no"


def _circumstances(lines: Sequence[Line]) -> str:
    """Return a list of the commits, machines and versions."""
    made = Counter(
        (
            line.commit[:12] + (" with changes" if line.changed else ""),
            line.machine.processor,
            ", ".join(f"{name} {version}" for name, version in sorted(line.versions.items())),
        )
        for line in lines
    )
    return "\n".join(
        f"* {counted(count, 'run')}: commit {commit}, {processor}; {versions}."
        for (commit, processor, versions), count in made.items()
    )
