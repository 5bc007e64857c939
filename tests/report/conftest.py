"""One run with tasks of several kinds, and one of a bank that all tasks share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from continual_petl import learn
from continual_petl.report.facts import read_facts
from continual_petl.report.growth import GrowthRow
from continual_petl.report.results import Results
from continual_petl.report.run_facts import RunFacts
from tests.streams_in_code import regression_task, stream, task, task_of_kind

Folder = Callable[..., Path]


@pytest.fixture(scope="session")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of four tasks; copy it before you change it."""
    folder = tmp_path_factory.mktemp("reported") / "banks"
    tasks = [task("one"), regression_task("two"), task_of_kind("multilabel", num_rows=20), task("four", pairs=True)]
    learn(stream(backbone_folder(), tasks), folder)
    return folder


@pytest.fixture(scope="session")
def facts(learned: Path) -> RunFacts:
    """Return what is read of that run."""
    return read_facts(learned)


@pytest.fixture(scope="session")
def shared(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of two of those tasks, the other way round, with one bank for both."""
    folder = tmp_path_factory.mktemp("reported") / "shared"
    bank = {"preset": "houlsby", "bottleneck": 4, "scope": "shared"}
    learn(stream(backbone_folder(), [task("four", pairs=True), task("one")], bank=bank), folder)
    return folder


def many(facts: RunFacts, count: int) -> RunFacts:
    """Return a run of many tasks made of the first one of another run: every twentieth score of R is known."""
    first = facts.tasks[0]
    names = tuple(f"t{number:04}" for number in range(count))
    tasks = tuple(
        dataclasses.replace(
            first,
            manifest=first.manifest.model_copy(update={"task": name}),
            check=dataclasses.replace(first.check, task=name),
        )
        for name in names
    )
    place = torch.arange(count)
    known = (place[None] <= place[:, None]) & ((place[:, None] - place[None]) % 20 == 0)
    known[-1] = True
    R_TT = torch.where(
        known, 0.5 + 0.4 * torch.rand(count, generator=torch.Generator().manual_seed(0)).double(), torch.nan
    )
    status = [["certified" if cell else "not measured" for cell in row] for row in known.tolist()]
    results = Results(
        tasks=names,
        metrics=("accuracy",) * count,
        R=R_TT,
        status=tuple(map(tuple, status)),  # type: ignore[arg-type]
        seconds=dict.fromkeys(names, facts.results.seconds[first.name]),
    )
    row = facts.growth[0]
    growth = tuple(
        GrowthRow(
            task=name,
            trainable=row.trainable,
            share=row.share,
            stored=row.trainable * number,
            active=row.active,
            num_bytes=row.num_bytes,
            cumulative_bytes=row.num_bytes * number,
            full_copies=row.full_copies * number,
        )
        for number, name in enumerate(names, 1)
    )
    return dataclasses.replace(facts, num_planned=count, results=results, growth=growth, tasks=tasks)
