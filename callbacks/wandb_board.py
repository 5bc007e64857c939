"""W&B-specific output: the report's figures and tables, and banks as artifacts with their provenance."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import WandbLogger

from continual_petl._version import VERSION
from continual_petl.callbacks.sink import Sink, send
from continual_petl.report.figures.registry import figures_of_task
from continual_petl.report.figures.style import as_figure
from continual_petl.report.page.sections import sections
from continual_petl.report.read_facts import Reader, RunFacts
from continual_petl.store.store import Store

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from wandb import Artifact

DRAWN_UP_TO = 20
"""Up to this many tasks, everything is redrawn after each task; later, after every further 10 % of tasks, and at the end."""
WHOLE_UP_TO = 100
"""Up to this many tasks, the table of R has every known cell; beyond that, the first and newest score of each task."""


class WandbBoard:
    """The tables, figures and artifacts of one run.

    Args:
        store: the run.
        sink: the W&B logger.
        log_banks: whether banks are uploaded as artifacts.
    """

    def __init__(self, store: Store, sink: Sink, *, log_banks: bool) -> None:
        self._store, self._sink, self._log_banks = store, sink, log_banks
        self._reader = Reader(store.folder)
        self._drawn, self._learned = 0, False

    def begin(self) -> None:
        """Log the provenance of the run: versions and digests, without any text of its rows."""
        self._sink.guarded(
            lambda: self._sink.logger.log_hyperparams({"continual-petl": VERSION, **learned_from(self._store)})
        )

    def after(self, task: str) -> None:
        """Show a learned task."""
        self._learned = True
        self._sink.guarded(lambda: self._show(task))

    def end(self) -> None:
        """Redraw everything, now with how long the newest task took, if tasks were learned."""
        if self._learned:
            self._sink.guarded(self._draw)

    def _show(self, task: str) -> None:
        if self._log_banks:
            assert isinstance(self._sink.logger, WandbLogger)
            self._sink.logger.experiment.log_artifact(artifact(self._store, task))
        # The same names for all tasks, so that W&B shows them in turn.
        self._send({f"newest task/{name}": figure for name, figure in figures_of_task(self._reader.task(task)).items()})
        count = len(self._store.tasks)
        if count <= DRAWN_UP_TO or count >= 1.1 * self._drawn:
            self._draw()

    def _draw(self) -> None:
        import wandb

        facts = self._reader.read()
        # W&B would keep the figure of a task that is half learned, and the curve is logged anyway.
        shown = [figure for part in sections(facts) if part.id != "half" for figure in part.figures]
        drawn = {f"tables/{name}": wandb.Table(dataframe=table) for name, table in tables(facts).items()}
        self._send({f"figures/{figure.name}": as_figure(figure.figure) for figure in shown}, drawn)
        self._drawn = len(facts.tasks)

    def _send(self, figures: Mapping[str, go.Figure], more: Mapping[str, object] | None = None) -> None:
        import wandb

        values = {**{name: wandb.Plotly(figure) for name, figure in figures.items()}, **(more or {})}
        if values:
            send(self._sink.logger, values, self._sink.axis.logged)


def tables(facts: RunFacts) -> dict[str, pd.DataFrame]:
    """Return the tables ``R``, with the known scores, and ``growth``, with a row for each task."""
    import pandas as pd  # takes a moment to import

    cells, tasks = facts.results.to_pandas(tidy=True), facts.results.tasks
    if len(tasks) > WHOLE_UP_TO:
        cells = cells[(cells["after"] == cells["task"]) | (cells["after"] == tasks[-1])]
    return {"R": cells, "growth": pd.DataFrame(map(asdict, facts.growth))}


def learned_from(store: Store) -> dict[str, Any]:
    """Return the provenance that all banks of a run share."""
    pinned = store.pinned()
    stream = store.stream_file
    return {
        "backbone": None if pinned is None else pinned.name,
        "backbone revision": None if pinned is None else pinned.revision,
        "backbone digest": None if pinned is None else pinned.digest,
        "stream digest": hashlib.sha256(stream.read_bytes()).hexdigest() if stream.is_file() else None,
    }


def artifact(store: Store, task: str) -> Artifact:
    """Return a bank as an artifact, with its provenance: backbone, stream, and the bank it started from, if any."""
    import wandb

    certificate = store.certificate(task)
    parent = certificate.parent
    metadata = {
        **learned_from(store),
        "task": task,
        "kind": certificate.kind,
        "digest": certificate.digest,
        "seal": certificate.seal,
        "predecessor": certificate.predecessor,
        "scope": certificate.bank.scope,
        "began as": None if parent is None else {"task": parent.task, "digest": parent.digest},
        "parameters": sum(certificate.parameters.values()),
        "continual-petl": VERSION,
    }
    how = certificate.started_from if parent is None else f"a copy of bank-{parent.task} ({parent.digest[:12]})"
    description = f"Bank of the task {task}, learned from {how} on the backbone {metadata['backbone']}."
    bank = wandb.Artifact(f"bank-{task}", type="bank", description=description, metadata=metadata)
    bank.add_dir(str(store.bank_folder(task)))
    return bank
