"""Preflight checks before anything is learned: run folder, trainer, backbone, data and banks of all tasks.

A run takes hours, so a missing file of the third task should be reported before the first two are learned. All
problems are reported at once, and a stream that fails these checks leaves the run folder unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from continual_petl.backbones.available import MissingBackboneError
from continual_petl.backbones.backbone_files import source_of
from continual_petl.engine.changed_settings import other_seeds
from continual_petl.engine.checks.changed_tasks import check_replaced
from continual_petl.engine.checks.mistakes import CHECKED_TASKS, Problems, check_meant, key_of
from continual_petl.engine.checks.other_banks import check_copies, check_order, check_shared
from continual_petl.engine.session import Session
from continual_petl.engine.trainers import check_trainer_arguments, check_validated, num_processes
from continual_petl.errors import InputError, Key, about
from continual_petl.kind_registry import kind_of
from continual_petl.learner.cuda_graphs import check_graphs
from continual_petl.learner.optimizer import check_8bit, check_layer_decay, check_schedule
from continual_petl.learner.packing import check_packing
from continual_petl.learner.plan import RowFacts, build_bank, check_kind
from continual_petl.learner.prefix_cache import check_kept
from continual_petl.store.files.reading import refuse_link
from continual_petl.store.folder.stream_seal import stream_problem
from continual_petl.streams.preparation.prepare import check_data
from continual_petl.streams.protocols.rules import evaluated_by_label, label_clashes, unfit_kind
from continual_petl.streams.schema.data_spec import needs_no_network
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.sources.label_file import read_label_names
from continual_petl.streams.stream_file.yaml_file import load_stream


def preflight(session: Session, replace: Collection[str] = (), only: Collection[str] | None = None) -> None:
    """Check a run before its first step; nothing is written.

    Args:
        session: the stream and its run folder.
        replace: learned tasks that are to be learned again.
        only: names of the tasks to learn; None means all.

    Raises:
        InputError: with all problems found.
        StoreError: if the run folder is damaged or belongs to another backbone.
    """
    check_session(session)
    check_replaced(session, replace)
    find_problems(session, asked_tasks(session, replace, only)).raise_all()


def asked_tasks(session: Session, replace: Collection[str], only: Collection[str] | None) -> list[TaskSpec]:
    """Return the tasks to learn: those of the stream that are not learned, or learned again; see `preflight`."""
    learned = set(session.store.tasks).difference(replace)
    return [task for task in session.spec.tasks if task.name not in learned and (only is None or task.name in only)]


def find_problems(session: Session, tasks: Sequence[TaskSpec]) -> Problems:
    """Return the problems with the backbone and with the tasks to be learned: their kinds, banks, lengths and data.

    Args:
        session: the stream and its run folder.
        tasks: the tasks to check. If there are many, data is read only for the first ones, and for tasks whose labels have to
            be compared with those of other tasks.
    """
    problems, spec = Problems(), session.spec
    loads = _loads(session, tasks, problems)
    # If the backbone cannot learn a task's kind, the data is not read, since another kind would need other columns.
    fitting = [task for task in tasks if _fits(session, task, problems)] if loads else tasks
    planned = set()
    for number, task in enumerate(fitting if loads else ()):
        with problems.collected(key_of(spec, task)):
            with about("bank"):
                check_order(session, task, [each.name for each in tasks])
            if number < CHECKED_TASKS:
                check_plan(session, task)
                planned.add(task.name)
    if loads:
        with problems.collected():
            check_shared(session, fitting)
    # Without a backbone, no data is downloaded: the stream is rejected anyway.
    read = fitting if loads else [task for task in fitting if needs_no_network(spec.resolved_data(task))]
    found = dict[str, tuple[str, ...] | None]()
    for number, task in enumerate(read):
        if number >= CHECKED_TASKS and not needs_labels(spec, task):
            continue
        with problems.collected(key_of(spec, task)):
            found[task.name] = check_data(spec, task, test=session.reads_test)
            if task.name in planned:
                session.plan(task, RowFacts(found[task.name]))
    problems.found += protocol_problems(session, found, [task.name for task in tasks])
    return problems


def check_session(session: Session) -> None:
    """Check everything except the tasks: the run folder, its contents and the Trainer.

    Raises:
        InputError: with all problems found.
        StoreError: if the chain is broken, or a part of the run is missing.
    """
    _check_folder(session)
    refuse_link(session.store.stream_file)
    session.store.check_complete()
    problems = Problems()
    with problems.collected():
        _check_same_stream(session)
    with problems.collected(("backbone", "revision")):
        _check_revision(session)
    with problems.collected(("trainer",)):
        _check_trainer(session)
    problems.raise_all()


def _check_folder(session: Session) -> None:
    folder = session.store.folder.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"--run-dir {session.folder}: {there} is a file, not a folder; give another run folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--run-dir {session.folder}: {there} cannot be written to; give another run folder")


def _check_same_stream(session: Session) -> None:
    """Reject a run folder whose tasks were learned from another stream: one with another name or seed."""
    store, spec = session.store, session.spec
    tasks = store.tasks
    if not tasks:
        return
    # A stream.yaml that has been edited is not trusted.
    known = (
        load_stream(store.stream_file, code=False)
        if store.stream_file.is_file() and stream_problem(store) is None
        else spec
    )
    if (known.name, known.seed) != (spec.name, spec.seed):
        raise InputError(
            f"--run-dir {session.folder}: this folder holds the stream {known.name!r} with seed {known.seed}, but the one "
            f"given is {spec.name!r} with seed {spec.seed}. One run is one stream: give another --run-dir, or the same name "
            "and seed as before."
        )
    if other_seeds(store, spec.seed, tasks[-1:]):
        raise InputError(
            f"--run-dir {session.folder}: task {tasks[-1]!r} was learned in this folder with a seed other than the "
            f"stream's, {spec.seed}. One run is one stream: give another --run-dir, or the same seed as before."
        )


def _check_revision(session: Session) -> None:
    """Reject a revision for a backbone without revisions, unless the run has already pinned its backbone."""
    spec = session.spec.backbone
    if spec.revision is None or session.store.pinned() is not None or not os.path.isdir(source_of(spec.name)):
        return
    what = "the packaged model" if spec.name == "minilm" else "a folder"
    raise InputError(
        f"backbone.revision: got {spec.revision!r}; only models on the Hub have revisions, and {spec.name!r} is {what}. "
        "Remove the key, or write --backbone.revision null."
    )


def _check_trainer(session: Session) -> None:
    check_trainer_arguments(session.spec.trainer)
    num_processes(session.spec)


def _loads(session: Session, tasks: Iterable[TaskSpec], problems: Problems) -> bool:
    """Load the backbone in the precision of each task; at the first failure, record it and return False.

    A missing backbone is looked up once, not again for every task.
    """
    num_problems = len(problems.found)
    with problems.collected(("backbone",)), about("name"):
        try:
            for task in tasks:
                session.backbone(task)
        except MissingBackboneError as error:
            check_meant(session.spec.backbone, error.near, problems)
            raise
    return len(problems.found) == num_problems


def check_pinned(session: Session) -> None:
    """Check that the banks of the run folder belong to the stream's backbone, also if nothing is left to learn.

    Raises:
        InputError: if the backbone cannot be loaded.
        StoreError: if the banks belong to another backbone.
    """
    problems = Problems()
    with problems.collected(("backbone",)), about("name"):
        session.check_backbone()
    problems.raise_all()


def _fits(session: Session, task: TaskSpec, problems: Problems) -> bool:
    """Return whether the backbone can learn a task of this kind; if not, record the problem."""
    backbone = session.backbone(task)
    num_problems = len(problems.found)
    with problems.collected(key_of(session.spec, task)), about("kind"):
        check_kind(task, backbone)
    return len(problems.found) == num_problems


def check_plan(session: Session, task: TaskSpec) -> None:
    """Check everything about a task that can be checked without its data: settings, bank and inputs.

    Raises:
        InputError: if the task cannot be learned on the backbone.
        StoreError: if the run belongs to another backbone.
    """
    backbone, models = session.backbone(task), session.models
    if session.store.pinned() is not None:
        session.store.write_backbone(backbone)  # already pinned, so this only compares
    tokenizer = models.tokenizer
    num_known = 0 if tokenizer is None else int(backbone.model.config.vocab_size)
    if tokenizer is not None and len(tokenizer) > num_known:
        raise InputError(
            f"backbone {backbone.name!r}: its tokenizer has {len(tokenizer)} tokens, but the model has {num_known}; the two "
            "do not belong together. Put the tokenizer.json that belongs to the model next to its config.json."
        )
    # The labels are not known yet, but their number only determines the width of the head.
    plan = session.plan(task)
    with about("training", "optimizer"):
        check_8bit(plan.training)
    with about("training", "schedule"):
        check_schedule(plan.training)
    if plan.training.packing:
        with about("training", "packing"):
            check_packing(plan.name, backbone)
    check_validated(plan, session.spec.trainer)
    if plan.training.cuda_graphs:
        with about("training", "cuda_graphs"):
            check_graphs(plan, backbone.model.device, num_processes(session.spec))
    with about("bank"):
        bank = build_bank(plan, backbone)
        check_kept(plan, bank)
    with about("training", "layer_decay"):
        check_layer_decay(plan, bank)
    check_copies(session, plan, backbone)
    try:
        kind = kind_of(task)
        how = kind.how_encoded(
            task, tokenizer=tokenizer, max_length=backbone.max_length, images=models.images, chat=plan.chat
        )
        kind.encode([], how, pairs=None if task.columns.text_pair is None else [])
    except InputError as error:
        raise InputError(f"task {task.name!r}, {error}", key=("max_target_length",)) from None


Found = Mapping[str, tuple[str, ...] | None]
"""The labels in the data of each task, by task name; None for kinds without labels."""


def needs_labels(spec: StreamSpec, task: TaskSpec) -> bool:
    """Return whether a task's data must be read before anything is learned, since its labels are not listed elsewhere."""
    return spec.protocol in ("class", "domain") and task.labels is None


def protocol_problems(session: Session, found: Found, new: Collection[str]) -> list[tuple[Key, str]]:
    """Return a message for each violation of the protocol, with the key in the stream that it concerns.

    Labels listed in the stream file were checked when it was read. Here, labels are also read from the data, from label
    files and, for learned tasks, from their certificates.

    Args:
        session: the stream and its run folder.
        found: labels that were read from data.
        new: the tasks that are to be learned; they replace learned tasks of the same name.
    """
    spec, store = session.spec, session.store
    if not evaluated_by_label(spec.protocol):
        return []
    problems: list[tuple[Key, str]] = []
    labelled: list[tuple[str, Collection[str] | None]] = []
    keys: list[Key] = []
    learned = [name for name in store.tasks if name not in new]
    for name in learned:
        certificate = store.certificate(name)
        if text := unfit_kind(spec.protocol, certificate.kind):
            problems.append((("protocol",), f"protocol: task {name!r} is already learned: {text}"))
        labelled.append((name, certificate.labels))
        keys.append(("protocol",))
    for task in spec.tasks:
        if task.name in learned:
            continue
        if text := unfit_kind(spec.protocol, task.kind):
            problems.append(((*key_of(spec, task), "kind"), f"task {task.name!r}, kind: {text}"))
        labelled.append((task.name, found.get(task.name) or _written(spec, task)))
        keys.append((*key_of(spec, task), "labels"))
    for number, text in label_clashes(spec.protocol, labelled):
        where = "protocol" if keys[number] == ("protocol",) else "labels"
        problems.append((keys[number], f"task {labelled[number][0]!r}, {where}: {text}"))
    return problems


def _written(spec: StreamSpec, task: TaskSpec) -> tuple[str, ...] | None:
    """Return the labels of a task whose data was not read; None if they are not known."""
    labels = spec.resolved_labels(task)
    try:
        return read_label_names(labels) if isinstance(labels, str) else labels
    except InputError:
        return None  # reported when the task's data is checked
