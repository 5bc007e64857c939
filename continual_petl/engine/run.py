"""Open a run folder to read its results, verify it, and predict with its banks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from continual_petl import _notebook
from continual_petl._process import heavy_imports
from continual_petl.engine.sharing import Sharing
from continual_petl.errors import InputError, StoreError
from continual_petl.heads.metric_code import code_problem
from continual_petl.hub.address import Address
from continual_petl.hub.opened import open_anywhere
from continual_petl.hub.refusal import problems_of, refusal
from continual_petl.report.growth import GrowthRow, growth
from continual_petl.report.inventory import entry_of, listed
from continual_petl.report.misread import MAX_MISREAD, MisreadRows
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.open_run import check_learned, is_on_hub
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import load_stream

# Opening a run does not need torch, which takes seconds to import: an invalid command should be refused immediately.
if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

    from continual_petl.engine.ablation.measure import Spans
    from continual_petl.engine.ablation.result import Ablation
    from continual_petl.engine.session import Session
    from continual_petl.engine.verify.in_processes import OnProgress
    from continual_petl.learner import ContinualLearner
    from continual_petl.report.figures.registry import Figures
    from continual_petl.report.results import Results
    from continual_petl.streams.batches.datamodule import TaskDataModule
    from continual_petl.streams.schema.stream_spec import StreamSpec

_SHOWN = ("task", "kind", "bank", "metric", "score", "parameters", "bytes")


class Run(Sharing):
    """A run folder, opened for reading. None of the methods changes the folder.

    Args:
        folder: the run folder, or the address of a run on the Hub: ``hf://USER/RUN``, ``hf://USER/RUN@REVISION``. Such a run
            is downloaded, and verified before its first prediction; see `from_hub`.
        session: the session in which the run was learned, if it is still in memory; None reads everything from the folder.
        remote_code: whether Python code that comes with the backbone, or computes a metric, may be executed if the folder's
            stream asks for it. A folder may come from anyone; without your permission, everything that needs this code is
            refused.
        resident_bytes: memory limit for all banks together; the least recently used bank is evicted first, and one bank is
            always held. Default: 1 GiB, or the session's value. Batches with rows of several tasks need stacked copies of
            the banks, of which up to 256 MiB are kept in addition.

    Raises:
        InputError: if the folder does not contain a run, or the run cannot be downloaded.
        StoreError: if a downloaded run was changed.
        ValueError: if ``resident_bytes`` is negative.

    Example::

        run = Run("runs/quickstart")
        run.results.R, run.verify(), run.predict("some text", task="agnews").value
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        session: Session | None = None,
        remote_code: bool = False,
        resident_bytes: int | None = None,
    ) -> None:
        # The session's store has already read much of the folder.
        self.store = open_anywhere(folder) if session is None else session.store
        self._session, self._remote_code = session, remote_code
        self.address = str(folder) if session is None and is_on_hub(folder) else None
        """The address of a downloaded run."""
        self._verified = self.address is None
        """Whether the probes of a downloaded run were replayed."""
        self._spec = load_stream(self.store.stream_file) if session is None else session.spec
        if resident_bytes is not None:
            self._opened().models.held_banks.limit(resident_bytes)

    @classmethod
    def from_hub(
        cls,
        repo: str,
        *,
        revision: str | None = None,
        remote_code: bool = False,
        resident_bytes: int | None = None,
    ) -> Run:
        """Download a run from the Hub, verify it, and open it for reading.

        Every digest is checked before the run appears on disk; then the backbone is loaded and every probe is replayed. A
        run that was changed anywhere is refused.

        Args:
            repo: the repository, ``USER/RUN``.
            revision: branch, tag or commit; None means ``main``.
            remote_code: as in `Run`.
            resident_bytes: as in `Run`.

        Raises:
            InputError: if it cannot be downloaded, is not a run, or its backbone needs code that you have not allowed.
            StoreError: if it does not match its certificates; the message lists the findings.

        Example::

            run = Run.from_hub("user/mine", revision="v1")
            run.predict("some text", task="agnews").value
        """
        address = str(Address.of(repo, revision))
        run = cls(address, remote_code=remote_code, resident_bytes=resident_bytes)
        run._check_unverified()
        return run

    def __repr__(self) -> str:
        return f"Run({str(self.store.folder)!r}, tasks: {_notebook.names(lambda: self.store.tasks)})"

    def _repr_html_(self) -> str:
        try:
            tasks = self.store.tasks
            # A generator, since the table only shows the first tasks if there are many, and the others need not be read.
            rows = ([entry[key] for key in _SHOWN] for entry in map(partial(entry_of, self.store), tasks))
            return _notebook.table(f"Run {self.store.folder}", _SHOWN, rows, len(tasks))
        except (StoreError, OSError):
            return _notebook.table(repr(self), (), (), 0)

    @property
    def spec(self) -> StreamSpec:
        """The stream."""
        return self._spec

    @property
    def session(self) -> Session:
        """The session: the stream and its run folder, with backbones and banks in memory."""
        self._check_unverified()
        return self._opened()

    def _check_unverified(self) -> None:
        """Replay the probes of a downloaded run, once; raise `StoreError` if anything differs."""
        if not self._verified:
            checks = self.verify()
            if not self._verified:
                raise StoreError(refusal(str(self.address), problems_of(checks)))

    def _opened(self) -> Session:
        if self._session is None:
            with heavy_imports():
                from continual_petl.engine.session import Session  # imports torch and transformers

            self._session = Session(self._spec, self.store, consent=self._remote_code)
        return self._session

    @property
    def results(self) -> Results:
        """The result matrix R and the scores derived from it."""
        from continual_petl.report.results import read_results  # imports torch

        return self.store.consistently(lambda: read_results(self.store.snapshot()))

    @property
    def growth(self) -> list[GrowthRow]:
        """The cost of each task, in parameters and in bytes on disk."""
        return self.store.consistently(lambda: growth(self.store.snapshot()))

    def figures(self, task: str | None = None) -> Figures:
        """Return the report's figures for the run or one task, as plotly figures by name; a notebook shows them inline.

        Args:
            task: a learned task; None means the run.

        Raises:
            InputError: if the task is not learned.

        Example::

            run.figures()  # all of them
            run.figures()["matrix"]  # one
            run.figures("agnews")["curve"]
        """
        from continual_petl.report.facts import read_facts
        from continual_petl.report.figures.registry import figures_of_run, figures_of_task

        if task is not None:
            self.check_learned(task)
        facts = read_facts(self.store.folder)
        own = next((each for each in facts.tasks if each.name == task), None)
        return figures_of_run(facts) if own is None else figures_of_task(own)

    def misread(self, task: str, limit: int = MAX_MISREAD) -> MisreadRows:
        """Predict a task's test rows (or validation rows) again; return the first rows that its bank gets wrong.

        For regression these are the rows with the largest errors. If the rows are not available, or the task generates text,
        nothing is raised, and ``why_none`` gives the reason.

        Args:
            task: a learned task.
            limit: maximum number of rows to return.

        Raises:
            InputError: if the task is not learned.

        Example::

            for row in run.misread("agnews").rows:
                print(row.given, row.correct, row.predicted, row.probability)
        """
        with heavy_imports():
            from continual_petl.engine.scoring.misread import misread_rows  # imports Lightning, which takes seconds

        self.check_learned(task)
        return misread_rows(self.session, task, limit)

    def to_json(self) -> dict[str, Any]:
        """Return everything about the run as JSON values, including the machines and software it was learned with."""
        return self.store.consistently(lambda: self._as_json(self.store.snapshot()))

    def _as_json(self, store: Store) -> dict[str, Any]:
        from continual_petl.report.results import read_results

        head = store.head()
        pin, manifests = store.pin(), {task: store.manifest(task) for task in store.tasks}
        backbone = None if pin is None else pin.model_dump(mode="json", exclude={"tensors", "config"})
        return {
            "stream": self._spec.name,
            "backbone": backbone,
            "environments": {task: m.environment.model_dump(mode="json") for task, m in manifests.items()},
            "scores": {
                task: {split: scores.model_dump(mode="json") for split, scores in m.scores.items()}
                for task, m in manifests.items()
            },
            "results": read_results(store).to_json(),
            "growth": [row.to_json() for row in growth(store)],
            "chain": None if head is None else {"entries": head.index + 1, "seal": head.seal},
        }

    def check_learned(self, task: str) -> None:
        """Raise `InputError`, naming the learned tasks, unless ``task`` is one of them."""
        check_learned(self.store, task)

    def verify(
        self,
        task: str | None = None,
        *,
        data: bool = False,
        probe: bool = True,
        limit: int | None = None,
        jobs: int | None = 1,
        progress: OnProgress | None = None,
    ) -> list[TaskCheck]:
        """Check the certificate of one task or of all tasks; problems are reported, never raised.

        Args:
            task: a learned task; None means all.
            data: also predict the test rows again, and compare scores and all predictions.
            probe: whether banks are run on their probes; False only checks the chain and the digests of all files, which
                needs neither the backbone nor torch.
            limit: check at most this many certificates, as learning does in a run of many tasks: those of the newest tasks
                and of some other tasks. The whole chain is checked in any case.
            jobs: maximum number of processes, used where that saves time; None: one for each core. In a script, call this
                under ``if __name__ == "__main__":``, since the processes import the script. If a backbone is already in
                memory, that copy is checked, in this process alone.
            progress: called with the number of certificates checked so far and the total.

        Returns:
            One check per task that was checked. Problems with files that belong to no task come last; instead of a task,
            they name the file in parentheses.

        Raises:
            InputError: if the task is not learned, or ``probe=False`` is combined with ``data`` or ``limit``.
        """
        if task is not None:
            self.check_learned(task)
        if not probe:
            if data or limit is not None:
                raise InputError(
                    "probe: False compares the digests of all files, and cannot be combined with data or limit."
                )
            from continual_petl.engine.verify.digests import verify_digests

            checks = verify_digests(self.store, self._spec.seed, task, jobs=jobs, progress=progress)
            return [self._with_metric(check) for check in checks]
        with heavy_imports():
            from continual_petl.engine.verify.whole_run import verify_run  # imports torch, which takes seconds

        found = list(verify_run(self._opened(), task, data=data, limit=limit, jobs=jobs, progress=progress))
        if task is None and limit is None and not problems_of(found):
            self._verified = True
        return [self._with_metric(check) for check in found]

    def _with_metric(self, check: TaskCheck) -> TaskCheck:
        """Add a finding if the code of the task's own metric is missing or differs; predictions do not need this code."""
        with suppress(StoreError):
            if self.store.has(check.task) and (code := (manifest := self.store.manifest(check.task)).metric_code):
                problem = code_problem(manifest.metric, code)
                if problem is not None and not any(problem in known for known in check.problems):
                    finding = Finding(message=f"task {check.task!r}: {problem}", unchecked="score")
                    return replace(check, findings=(*check.findings, finding))
        return check

    def ablate(
        self,
        task: str,
        spans: Spans | None = None,
        split: Literal["validation", "test"] = "validation",
        *,
        progress: OnProgress | None = None,
    ) -> Ablation:
        """Score a bank with its modifications removed in spans of layers, without training (Houlsby et al. 2019, 3.6).

        Args:
            task: a learned task; its rows have to be available.
            spans: ``all`` (None means the same), ``single``, or a list of spans: (first, last), both inclusive.
            split: the split to evaluate.
            progress: called with the number of measurements done so far and the total.

        Raises:
            InputError: if the bank has no modification in any layer, a span is not within its backbone's layers, or the
                rows are missing.

        Example::

            found = run.ablate("agnews")
            found.full, found[0, 3].relative  # the score, and its relative change without layers 0 to 3
            found.figure()
        """
        self.check_learned(task)
        with heavy_imports():
            from continual_petl.engine.ablation.measure import ablate_task  # imports Lightning, which takes seconds

        return ablate_task(self.session, task, spans, split=split, progress=progress)

    def to_frame(self) -> pd.DataFrame:
        """Return the learned tasks as a pandas table with one row per task: kind, bank, metric, score, parameters, bytes.

        Example::

            run.to_frame().sort_values("score")
        """
        import pandas as pd  # installed with datasets; takes a moment to import

        found = self.store.consistently(lambda: listed(self.store.snapshot()))
        return pd.DataFrame(found, columns=list(_SHOWN)).set_index("task")

    def commit(self, learner: ContinualLearner, data: TaskDataModule, *, wait: bool = False) -> None:
        """Commit a bank that your own Trainer has trained as the next task of this run; see `continual_petl.commit`."""
        with heavy_imports():
            from continual_petl.engine.task.own_trainer import commit_trained  # imports Lightning, which takes seconds

        commit_trained(learner, data, self.address or self.store.folder, wait=wait)
        self._session, self._spec = None, load_stream(self.store.stream_file)
