"""A run folder: open it to read its results, verify it and predict with its banks; create it; change it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from continual_petl import _notebook
from continual_petl._process import heavy_imports
from continual_petl.errors import InputError, StoreError
from continual_petl.hub.address import Address, check_repo
from continual_petl.hub.open_anywhere import open_anywhere
from continual_petl.hub.refusal import problems_of, refusal
from continual_petl.report.growth import GrowthRow, growth
from continual_petl.report.inventory import entry_of, listed, run_to_json
from continual_petl.report.wrong_predictions import MAX_SHOWN, WrongPredictions
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.open_run import allow_kinds, check_learned, check_local, is_on_hub
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.yaml_file import load_stream

# Opening a run does not need torch, which takes seconds to import: an invalid command should be refused immediately.
if TYPE_CHECKING:
    import pandas as pd  # its types are a package of their own

    from continual_petl.engine.ablation.measure import Spans
    from continual_petl.engine.ablation.result import Ablation
    from continual_petl.engine.import_adapter import ImportOptions
    from continual_petl.engine.learn import LearnOptions
    from continual_petl.engine.reevaluate import Reevaluation
    from continual_petl.engine.session import Session
    from continual_petl.engine.verify.digests import OnProgress
    from continual_petl.exchange.task_model import TaskModel
    from continual_petl.heads.predictions import Prediction
    from continual_petl.hub.push import Pushed
    from continual_petl.learner import ContinualLearner
    from continual_petl.predictor.records import OneRow, Row
    from continual_petl.report.figures.registry import Figures
    from continual_petl.report.results import Results
    from continual_petl.streams.batches.datamodule import TaskDataModule
    from continual_petl.streams.schema.routing_spec import Reject

_SHOWN = ("task", "kind", "bank", "metric", "score", "parameters", "bytes", "routing_bytes")


class Run:
    """A run folder: its results, its banks, and the methods that change it.

    `learn`, `forget`, `reevaluate`, `import_adapter` and `commit` change the folder; no other method does. They lock it while
    they work, and the same object shows the result afterwards.

    Args:
        folder: the run folder, or the address of a run on the Hub: ``hf://USER/RUN``, ``hf://USER/RUN@REVISION``. Such a run
            is downloaded, verified before its first prediction, and never changed.
        session: the session in which the run was learned, if it is still in memory; None reads everything from the folder.
        remote_code: whether Python code that comes with the backbone, or computes a metric, may be executed if the folder's
            stream asks for it. A folder may come from anyone; without your permission, all that needs this code is refused.
        resident_bytes: memory limit for all banks together; the least recently used bank is evicted first, and one bank is
            always held. Default: 1 GiB, or the session's value. Batches with rows of several tasks need stacked copies of
            the banks, of which up to 256 MiB are kept in addition.

    Raises:
        InputError: if the folder does not contain a run, or the run cannot be downloaded.
        StoreError: if a downloaded run was changed.
        ValueError: if ``resident_bytes`` is negative.

    Example::

        run = Run.open("runs/quickstart")
        run.results.R, run.verify(), run.predict("some text", task="agnews").value
        run.learn("trec.yaml")
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        session: Session | None = None,
        remote_code: bool = False,
        resident_bytes: int | None = None,
    ) -> None:
        if remote_code and session is None:
            allow_kinds(folder)
        # The session's store has already read much of the folder.
        self.store = open_anywhere(folder, remote_code=remote_code) if session is None else session.store
        self._session, self._remote_code, self._resident_bytes = session, remote_code, resident_bytes
        self.address = str(folder) if session is None and is_on_hub(folder) else None
        """The address of a downloaded run."""
        self._verified = self.address is None
        """Whether the probes of a downloaded run were replayed."""
        self._spec = load_stream(self.store.stream_file, code=remote_code) if session is None else session.spec
        if resident_bytes is not None:
            self._opened()

    @classmethod
    def open(cls, folder: str | Path, *, remote_code: bool = False, resident_bytes: int | None = None) -> Run:
        """Open a run folder, or a run on the Hub; the same as ``Run(folder)``."""
        return cls(folder, remote_code=remote_code, resident_bytes=resident_bytes)

    @classmethod
    def create(cls, stream: TaskStream, run_dir: str | Path) -> Run:
        """Create the folder of a run that has learned nothing yet; `learn` learns its tasks, or one after the other.

        Args:
            stream: the stream; its tasks are checked when they are learned.
            run_dir: a folder without a run; created if it does not exist.

        Raises:
            InputError: if the folder holds a run, or cannot be used.

        Example::

            run = Run.create(TaskStream.from_yaml("stream.yaml"), "runs/mine")
            for task in stream:
                run.learn(task)
        """
        check_local(run_dir)
        if os.path.isfile(Store(Path(run_dir)).stream_file):
            raise InputError(f"{run_dir}: there is a run already; open it with Run.open, or give another folder")
        with heavy_imports():
            from continual_petl.engine.learn import learn_tasks

        session = learn_tasks(stream, run_dir, only=(), progress=False)
        return cls(session.store.folder, session=session)

    @classmethod
    def from_hub(
        cls, repo: str, *, revision: str | None = None, remote_code: bool = False, resident_bytes: int | None = None
    ) -> Run:
        """Download a run, and replay every probe before it is opened; see `Run`.

        Args:
            repo: the repository, ``USER/RUN``.
            revision: branch, tag or commit; None means ``main``.
            remote_code: as in `Run`.
            resident_bytes: as in `Run`.

        Raises:
            InputError: if it cannot be downloaded, is not a run, or its backbone needs code that you have not allowed.
            StoreError: if it does not match its certificates; the message lists the findings.
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
        if self._resident_bytes is not None:
            self._session.models.held_banks.limit(self._resident_bytes)
        return self._session

    # Changing the run
    def learn(
        self,
        tasks: TaskStream | TaskSpec | Mapping[str, Any] | str | Path | None = None,
        **options: Unpack[LearnOptions],
    ) -> Run:
        """Learn one task, or every task of a stream that the run does not have yet.

        Args:
            tasks: a task, as a `TaskSpec`, a mapping or the file of one task, which is added to the run's stream; or a
                stream, as a `TaskStream` or a file, which replaces the run's (learned tasks stay). None learns the rest of
                the run's stream. Paths of a task in Python are relative to the working directory.
            options: see `LearnOptions`.

        Returns:
            This run.

        Raises:
            InputError: as `continual_petl.learn`; or if the run was downloaded, or has another task of this name.

        Example::

            run.learn("trec.yaml")
            run.learn({"name": "mood", "kind": "classification", "data": "data/mood"}, progress=False)
        """
        self._check_can_change()
        with heavy_imports():
            from continual_petl.engine.learn import learn_into

        self.session.check_code()  # what the folder asks for; a task or stream given here is trusted
        self._session = None  # a backbone in memory would be there twice
        return self._changed(learn_into(self.store.folder, tasks, **options))

    def forget(self, task: str | None = None, *, entry: int | None = None) -> Run:
        """Drop a learned task; return this run. See `continual_petl.forget`."""
        from continual_petl.engine.forget import drop_task

        self._check_can_change()
        drop_task(self.store.folder, task, entry=entry)
        return self._changed()

    def reevaluate(self, *, wait: bool = False) -> Reevaluation:
        """Fill in unknown cells of R from certificates; see `continual_petl.reevaluate`.

        Example::

            run.reevaluate().certified, run.results.forgetting
        """
        self._check_can_change()
        with heavy_imports():
            from continual_petl.engine.reevaluate import certify_cells

        return certify_cells(self._changed().session, wait=wait)

    def import_adapter(self, folder: str | Path, task: str, **options: Unpack[ImportOptions]) -> Run:
        """Commit an adapter of another library as a task; return this run. See `continual_petl.import_adapter`."""
        self._check_can_change()
        with heavy_imports():
            from continual_petl.engine.import_adapter import commit_adapter

        self._session = None  # a backbone in memory would be there twice
        options = {"remote_code": self._remote_code, **options}
        return self._changed(commit_adapter(self.store.folder, folder, task, **options))

    def commit(self, learner: ContinualLearner, data: TaskDataModule, *, wait: bool = False) -> Run:
        """Commit a bank that your own Trainer has trained; return this run. See `continual_petl.commit`."""
        self._check_can_change()
        with heavy_imports():
            from continual_petl.engine.task.own_trainer import commit_trained  # imports Lightning, which takes seconds

        commit_trained(learner, data, self.store.folder, wait=wait)
        return self._changed()

    def _check_can_change(self) -> None:
        check_local(self.address or self.store.folder)

    def _changed(self, session: Session | None = None) -> Run:
        """Read the folder again after a change; a backbone in memory stays there."""
        before, self._session = self._session, session
        self.store = open_anywhere(self.store.folder) if session is None else session.store
        self._spec = load_stream(self.store.stream_file) if session is None else session.spec
        if before is not None and session is None:
            self._opened().models.backbones.update(before.models.backbones)
        return self

    # Results
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
        from continual_petl.report.figures.registry import figures_of_run, figures_of_task
        from continual_petl.report.read_facts import read_facts

        if task is not None:
            self.check_learned(task)
        facts = read_facts(self.store.folder)
        own = next((each for each in facts.tasks if each.name == task), None)
        return figures_of_run(facts) if own is None else figures_of_task(own)

    def wrong_predictions(self, task: str, limit: int = MAX_SHOWN) -> WrongPredictions:
        """Predict a task's test rows (or validation rows) again; return the first rows that its bank gets wrong.

        For regression these are the rows with the largest errors. If the rows are not available, or the task generates text,
        nothing is raised, and ``why_none`` gives the reason.

        Args:
            task: a learned task.
            limit: maximum number of rows to return.

        Raises:
            InputError: if the task is not learned.

        Example::

            for row in run.wrong_predictions("agnews").rows:
                print(row.given, row.correct, row.predicted, row.probability)
        """
        with heavy_imports():
            from continual_petl.engine.scoring.wrong_predictions import wrong_predictions  # imports Lightning

        self.check_learned(task)
        return wrong_predictions(self.session, task, limit)

    def to_json(self) -> dict[str, Any]:
        """Return everything about the run as JSON values, including the machines and software it was learned with."""
        return self.store.consistently(lambda: run_to_json(self.store.snapshot(), self._spec.name))

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
            jobs: maximum number of processes that run banks, used where that saves time; None: one for each core. In
                a script, call this under ``if __name__ == "__main__":``, since the processes import the script. If a backbone
                is already in memory, that copy is checked, in this process alone. No effect with ``probe=False``.
            progress: called with the number of certificates checked so far and the total.

        Returns:
            One check per task that was checked. Problems with files that belong to no task come last; instead of a task,
            they name the file in parentheses.

        Raises:
            InputError: if the task is not learned, ``jobs`` is less than 1, or ``probe=False`` is combined with ``data`` or
                ``limit``.
        """
        if jobs is not None and jobs < 1:
            raise InputError(f"jobs: got {jobs}; the number of processes must be at least 1.")
        if task is not None:
            self.check_learned(task)
        from continual_petl.engine.verify.digests import verify_digests, with_metric

        if not probe:
            if data or limit is not None:
                raise InputError(
                    "probe: False compares the digests of all files, and cannot be combined with data or limit."
                )
            checks = list(verify_digests(self.store, self._spec.seed, task, progress=progress))
        else:
            with heavy_imports():
                from continual_petl.engine.verify.whole_run import verify_run  # imports torch, which takes seconds

            checks = list(verify_run(self._opened(), task, data=data, limit=limit, jobs=jobs, progress=progress))
            if task is None and limit is None and not problems_of(checks):
                self._verified = True
        return [with_metric(self.store, check) for check in checks]

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

    # Predictions. A string, a tuple and a mapping are iterable too: the first signature that fits applies.
    @overload
    def predict(  # type: ignore[overload-overlap]  # a text is iterable too
        self,
        rows: OneRow,
        task: str | None = None,
        *,
        batch_size: int = 32,
        reject: Reject = None,
        candidates: int | None = None,
    ) -> Prediction: ...
    @overload
    def predict(
        self,
        rows: Iterable[Row],
        task: str | Iterable[str] | None = None,
        *,
        batch_size: int = 32,
        reject: Reject = None,
        candidates: int | None = None,
    ) -> list[Prediction]: ...
    def predict(
        self,
        rows: Any,
        task: str | Iterable[str] | None = None,
        *,
        batch_size: int = 32,
        reject: Reject = None,
        candidates: int | None = None,
    ) -> Prediction | list[Prediction]:
        """Return the prediction for one row, or a list of predictions for several rows, each by the bank of its row's task.

        Args:
            rows: a single row: a text, a tuple, an image, a mapping; or several in a list, another container, or a table with
                the columns of the task (such as a DataFrame); see `Predictor.predict`. A list is always several rows, and
                their predictions are in its order.
            task: the learned task whose bank predicts, or a list with one task per row; None lets the run find the task of
                each row, among the tasks that were learned with ``routing``.
            batch_size: rows per batch.
            reject: allowed only without a task. A row gets no prediction if a smaller share than this of the most probable
                task's own rows is as far from it (`Prediction.known`): 0.05 rejects about 5 % of its own rows, and more
                foreign ones than 0.01. ``never``: the most probable task predicts every row. None: the limit that the task
                was learned with, by default 0.01.
            candidates: allowed only without a task: 1 to 4; of each row, also return the predictions of so many of its most
                probable tasks, in `Prediction.candidates`, without tasks that refuse the row.

        Example::

            run.predict("How far is the moon?", task="topics").value
            [prediction.value for prediction in run.predict(["one text", "and another"], task="topics")]
            run.predict("How far is the moon?").task  # found by the run
        """
        with heavy_imports():
            from continual_petl.predictor.predictor import Predictor  # imports torch and transformers

        return Predictor(self.session.models).predict(
            rows, task, batch_size=batch_size, reject=reject, candidates=candidates
        )

    @overload
    def predict_all(  # type: ignore[overload-overlap]  # a text is iterable too
        self, rows: OneRow, tasks: str | Iterable[str], *, batch_size: int = 32
    ) -> dict[str, Prediction]: ...
    @overload
    def predict_all(
        self, rows: Iterable[Row], tasks: str | Iterable[str], *, batch_size: int = 32
    ) -> dict[str, list[Prediction]]: ...
    def predict_all(
        self, rows: Any, tasks: str | Iterable[str], *, batch_size: int = 32
    ) -> dict[str, Prediction] | dict[str, list[Prediction]]:
        """Return the predictions of several tasks for the same row or rows; see `Predictor.predict_all`."""
        with heavy_imports():
            from continual_petl.predictor.predictor import Predictor

        return Predictor(self.session.models).predict_all(rows, tasks, batch_size=batch_size)

    def generate(self, row: Row, task: str) -> Iterator[str]:
        """Return the text that a task generates for one row, in pieces, while it is generated.

        Joined together, the pieces are exactly the text that `predict` returns, without a stop string and without leading or
        trailing spaces. Closing the iterator stops the generation. If the row is too long, so that only a part of it is read,
        a warning is logged; `Prediction.truncated` says so of a whole prediction.

        Args:
            row: a single row; see `predict`. A list of messages is one conversation.
            task: a learned seq2seq or causal-lm task that generates without beams.

        Raises:
            InputError: if the task is not learned, generates no text or uses beams, or the row cannot be used; raised here,
                before the first piece.

        Example::

            for piece in run.generate("How far is the moon?", task="answers"):
                print(piece, end="", flush=True)
        """
        self.check_learned(task)
        with heavy_imports():
            from continual_petl.predictor.generate import generate

        return generate(self.session.models, row, task)

    def pipeline(self, task: str) -> Callable[..., Any]:
        """Return a function that maps one row or a list of rows to a learned task's predictions; see `predict`.

        Example::

            classify = run.pipeline("agnews")
            classify("some text").value
        """
        self.check_learned(task)
        return partial(self.predict, task=task)

    def similar(self, target: str | Sequence[Row]) -> dict[str, float]:
        """Return the distance of each learned task from the given task or rows, nearest first.

        Args:
            target: a learned task, which is left out of the result, or rows, all of one type, as in `predict`.

        Example::

            run.similar("sst2")  # {"yelp": 21.3, "trec": 34.0}
            run.similar(["some new text", "and another"])
        """
        with heavy_imports():
            from continual_petl.predictor.task_finder import similar_tasks

        return similar_tasks(self.session.models, target)

    # Banks for use elsewhere
    def export(self, task: str, format: str, folder: str | Path) -> Path:
        """Write a task's bank in a format that other libraries load; return the folder. See `export.write.export_task`.

        Args:
            task: a learned task.
            format: ``merged``: a `transformers` checkpoint; ``peft``: a `peft` adapter;
                ``adapters``: an adapter of `adapters`.
            folder: where the files go; must not exist.

        Raises:
            InputError: if the task is not learned, the folder cannot be used, or the format cannot express the bank.
            ExportError: if the exported model does not give the same outputs as the bank; then nothing is written.

        Example::

            run.export("agnews", "merged", "exported/agnews")
            transformers.pipeline("text-classification", model="exported/agnews")("some text")
        """
        from continual_petl.exchange.export_task import check_request, export_task

        self.check_learned(task)
        check_request(self.store, format, folder)  # before the session imports torch
        return export_task(self.session.models, task, format, folder)

    def push(
        self,
        repo: str,
        *,
        task: str | None = None,
        format: str = "peft",
        private: bool = False,
        revision: str | None = None,
    ) -> Pushed:
        """Upload the run, or the export of one task, to the Hub as one commit; only what changed is sent.

        Args:
            repo: the repository, ``USER/NAME``; created if it does not exist.
            task: upload only this task, exported, so that others can load it without this package; see `export`.
            format: format of that export: ``peft`` or ``merged``.
            private: create the repository as private, and refuse one that is public.
            revision: the branch; created if it does not exist. None means ``main``.

        Raises:
            InputError: if nothing has been learned, the task cannot be exported, the Hub cannot be reached or refuses the
                upload, or the repository holds something else.
            ExportError: as in `export`.
            StoreError: if the run is damaged.
            RunInUseError: if another process writes to the run.

        Example::

            run.push("user/mine", private=True)
            run.push("user/mine-agnews", task="agnews")
        """
        from continual_petl.hub.push import check_export, push_export, push_run

        check_repo(repo)
        if task is None:
            check_local(self.address or self.store.folder)
            return push_run(self.store, repo, private=private, revision=revision)
        check_export(self.store, task, format)
        with TemporaryDirectory() as place:
            folder = self.export(task, format, Path(place, "export"))
            return push_export(folder, task, repo, private=private, revision=revision)

    def model(self, task: str) -> TaskModel:
        """Return a task's backbone and bank as one frozen `nn.Module`: tokenised inputs in, logits out.

        Args:
            task: a learned task.

        Raises:
            InputError: if the task is not learned.

        Example::

            run.model("agnews")(**tokenizer(["some text"], return_tensors="pt")).softmax(-1)
        """
        self.check_learned(task)
        from continual_petl.exchange.task_model import TaskModel

        return TaskModel(self.session.models.held(task))
