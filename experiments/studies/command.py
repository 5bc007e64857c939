"""Run the missing trials of studies, and generate the pages from the ledgers."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import torch

from continual_petl.errors import InputError
from experiments.benchmarks.machine import commit, describe, versions
from experiments.benchmarks.markdown import replace_section
from experiments.ledger.page import write_ledger
from experiments.studies import readme
from experiments.studies.ledger import Book, Ledger, Line, Made
from experiments.studies.made_up import make_up
from experiments.studies.page import write_page
from experiments.studies.results_page import write_results
from experiments.studies.scale import SMALL, Scale
from experiments.studies.study import NAMES, Study, find
from experiments.studies.tiny import make_tiny, make_tiny_seq2seq
from experiments.studies.trial import TASKS, Trial, backbone_digest, data_digest
from experiments.studies.workers import Outcome, Place, Workers, started

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "experiments"
README, RESULTS = ROOT / "README.md", ROOT / "docs" / "results.md"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of the command."""

    data: Path | None
    out: Path = EXPERIMENTS
    """A folder for ledgers and pages, laid out like `experiments`."""
    jobs: int = 1
    minutes: float | None = None
    scale: Scale = SMALL
    backbones: dict[str, str] = field(default_factory=dict)
    """Folders of backbones, by their names in trials."""
    command: str = ""


def say(line: str) -> None:
    """Report the progress of a study on standard error."""
    print(line, file=sys.stderr, flush=True)


def ledgers(out: Path) -> list[Path]:
    """Return all ledgers in a folder that is laid out like `experiments`."""
    return sorted(out.glob("*/results/*.jsonl"))


def run_studies(studies: list[Study], request: Request, tell: Callable[[str], None] = say) -> bool:
    """Run the missing trials of some studies and write their pages; return whether all are complete."""
    for study in studies:
        if request.scale.larger and not study.any_scale:
            raise InputError(f"--scale: {study.name} only runs at the small scale; name the other studies to run")
    with ExitStack() as stack:
        place, scale = _place(request, Path(stack.enter_context(tempfile.TemporaryDirectory()))), request.scale
        _check_backbones(studies, place)
        book = Book(ledgers(request.out))
        workers = stack.enter_context(started(request.jobs, request.minutes))
        complete = True
        for study in studies:
            complete &= _Course(study, scale, place, request, book, tell).run(workers)
            write_page(study, scale, book, request.out)
    return complete


def _place(request: Request, scratch: Path) -> Place:
    if request.scale.quick:
        random = {"tiny": str(make_tiny(scratch / "tiny")), "bart-small": str(make_tiny_seq2seq(scratch / "bart"))}
        return Place(request.data or make_up(scratch / "data"), random)
    if request.data is None:
        raise InputError("--data is missing: give the folder that has one subfolder of rows per task, or use --quick")
    return Place(request.data, request.backbones)


def _check_backbones(studies: list[Study], place: Place) -> None:
    for study in studies:
        for name, command in study.backbones.items():
            folder = place.backbones.get(name)
            if folder is None:
                raise InputError(
                    f"--backbone: study {study.name} runs on {name}, which has to be created first: {command}; then give "
                    f"--backbone {name}=FOLDER, or name the other studies to run"
                )
            if not (Path(folder) / "config.json").is_file():
                raise InputError(
                    f"--backbone: {folder} holds no backbone (no config.json); create {name} with: {command}"
                )


class _Course:
    """A study in progress."""

    def __init__(
        self, study: Study, scale: Scale, place: Place, request: Request, book: Book, tell: Callable[[str], None]
    ) -> None:
        self._study, self._scale, self._place, self._book, self._tell = study, scale, place, book, tell
        area, name = study.name.split("/")
        self._ledger = Ledger(request.out / area / "results" / f"{name}.jsonl")
        self._made = _made(request)
        self._said = False
        self._digests: dict[str, str] = {}

    def run(self, workers: Workers) -> bool:
        for number, trials in enumerate(self._study.plan(self._scale, self._book), 1):
            missing = [trial for trial in _once(trials) if not self._book.has(trial, self._of(trial))]
            self._tell(f"{self._study.name}, stage {number}: {len(trials)} trials, {len(missing)} to run")
            self._left = len(missing)
            if missing and not workers.run(missing, self._place, self._done):
                self._tell(
                    f"{self._study.name}: out of time with {self._left} trials of this stage left; run it again to resume"
                )
                return False
        return True

    def _of(self, trial: Trial) -> dict[str, str]:
        """Return the digests of a trial's rows, and of its backbone if a folder was given for it."""
        for task in trial.tasks:
            if task not in self._digests:
                if not (self._place.data / task).is_dir():
                    raise InputError(
                        f"--data: {self._place.data} has no folder {task}; it needs one for each task: {', '.join(TASKS)}"
                    )
                self._digests[task] = data_digest(self._place.data, task)
        names = list(trial.tasks)
        if (folder := self._place.backbones.get(trial.backbone)) is not None:
            names.append(f"backbone {trial.backbone}")
            if names[-1] not in self._digests:
                self._digests[names[-1]] = backbone_digest(Path(folder))
        return {name: self._digests[name] for name in names}

    def _done(self, trial: Trial, outcome: Outcome) -> None:
        if not self._said:
            self._ledger.write(self._made)
            # The page written at the end of this run also names this environment.
            self._book.made[self._made.made] = self._made
            self._said = True
        line = Line(key=trial.key, trial=trial, data=self._of(trial), made=self._made.made, outcome=outcome)
        self._ledger.write(line)
        self._book.add(line)
        self._left -= 1
        scores = {split: self._book.score(trial, split) for split in ("validation", "test")}
        known = (f"{split} {score:.2f}" for split, score in scores.items() if score is not None)
        what = outcome.get("failed") or ", ".join(known) or "done"
        how = f"{' '.join(trial.tasks)} {trial.bank} {trial.training} {trial.seed}"
        self._tell(f"  {how}: {what} ({outcome['wall']:.0f} s; {self._left} left)")


def _once(trials: list[Trial]) -> list[Trial]:
    return list({trial.key: trial for trial in trials}.values())


def _made(request: Request) -> Made:
    revision, changed = commit(besides="experiments/*/results/**")
    tree = {
        "command": request.command,
        "commit": revision,
        "changed": changed,
        "began": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "machine": describe(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "jobs": request.jobs,
        "versions": versions(),
        "defaults": 2,
    }
    return Made(made=sha256(f"{tree}{os.getpid()}".encode()).hexdigest()[:12], **tree)


def write_pages(request: Request) -> None:
    """Regenerate all pages, RESULTS.md and LEDGER.md; README and docs/results.md, too, if they are the repository's."""
    book = Book(ledgers(request.out))
    studies = [study for study in map(find, NAMES) if study.any_scale or not request.scale.larger]
    for study in studies:
        write_page(study, request.scale, book, request.out)
    write_results(studies, request.scale, book, request.out)
    write_ledger(request.scale, book, request.out)
    if request.out == EXPERIMENTS and request.scale == SMALL:
        for path, text in ((README, readme.summary(SMALL, book)), (RESULTS, readme.section(studies, SMALL, book))):
            replace_section(path, readme.BEGIN, readme.END, text)
