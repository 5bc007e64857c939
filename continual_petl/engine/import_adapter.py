"""Commit an adapter that was trained with another library as a task of a run."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from pydantic import ValidationError

from continual_petl.banks.bank import Bank
from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.spec import BankSpec
from continual_petl.engine.checks.preflight import find_problems
from continual_petl.engine.session import Session
from continual_petl.engine.task.finish_task import finish_committed, finish_task
from continual_petl.engine.task.learn_task import NO_CURVE, certifying_probe, commit_bank, scored
from continual_petl.engine.task_run import Clock, TaskRun
from continual_petl.errors import InputError
from continual_petl.exchange.import_adapter import check_base, read_adapter, translate
from continual_petl.exchange.imported import Imported, check_imported, put, resolve_labels
from continual_petl.exchange.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.heads.tag_scheme import TagReading, UnfitTags, read_tags
from continual_petl.kind_registry import kind_of
from continual_petl.learner.plan import RowFacts, build_bank
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.seeding import derive_seed
from continual_petl.store.certificate.history import History
from continual_petl.store.certificate.values import Origin
from continual_petl.store.commit import TrainedBank
from continual_petl.store.folder.stream_seal import check_stream
from continual_petl.store.open_run import open_store
from continual_petl.store.verify.probe import make_probe
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.dump import dump_stream, without_unused_settings
from continual_petl.streams.stream_file.yaml_file import load_stream


class ImportOptions(TypedDict, total=False):
    """Options of `continual_petl.import_adapter` and `Run.import_adapter`; all may be left out."""

    data: Any
    """Rows to measure scores on, as in a stream file; None, the default, means no scores."""
    kind: str | None
    """The kind of the task; None, the default, takes it from the adapter."""
    labels: Sequence[str] | None
    """Names of the head's outputs, in output order; None, the default, takes them from the head's file, if it has them."""
    pooling: str | None
    """How token states are pooled before a head in head.safetensors; None, the default, takes it from that file, or from the
    stream."""
    base: str | None
    """The name of the adapter's base model, if the run's backbone is the same model under another name."""
    remote_code: bool
    """As in `Run`."""
    wait: bool
    """Whether to wait for another process that writes to the run folder, instead of raising; default: False."""


def commit_adapter(
    run_dir: str | Path,
    folder: str | Path,
    task: str,
    *,
    data: Any = None,
    kind: str | None = None,
    labels: Sequence[str] | None = None,
    pooling: str | None = None,
    base: str | None = None,
    remote_code: bool = False,
    wait: bool = False,
) -> Session:
    """Commit an adapter as the next task of a run; see `continual_petl.import_adapter` and `ImportOptions`."""
    files = read_adapter(folder)
    store = open_store(run_dir)
    with store.lock(wait=wait):
        store.clean()
        check_stream(store)
        opened = Session(load_stream(store.stream_file), store, consent=remote_code)
        opened.check_code()
        _check_name(opened, task)
        opened.store.check_complete()
        opened.check_backbone()
        backbone = opened.models.backbone("fp32")
        imported = translate(files, backbone, kind=kind, pooling=pooling)
        check_base(imported.base, imported.revision, backbone, base)
        spec, entry = _entry(opened.spec, imported, task, data, labels)
        session = Session(spec, opened.store)
        session.models.backbones.update(opened.models.backbones)
        with session.learning():
            finish_committed(session, num_more=1)
            if data is not None:
                find_problems(session, [entry]).raise_all()
            origin = Origin(format=imported.format, method=imported.method, base=imported.base, files=files.digests)
            learned = (_without_rows if data is None else _with_rows)(session, entry, imported, origin)
            session.store.write_backbone(learned.backbone)
            seconds = commit_bank(session, learned)
            if data is not None:
                session.store.write_stream(dump_stream(without_unused_settings(spec.anchored())))
            finish_task(session, task, seconds)
    return session


def _check_name(run: Session, task: str) -> None:
    known = {*run.store.tasks, *(each.name for each in run.spec.tasks)}
    if task.casefold() in {name.casefold() for name in known}:
        raise InputError(
            f"task: the run {run.store.folder} already has a task {task!r}, learned or in its stream; a task is "
            "never replaced by an import: give another name."
        )


def _entry(
    spec: StreamSpec, imported: Imported, name: str, data: Any, labels: Sequence[str] | None
) -> tuple[StreamSpec, TaskSpec]:
    """Return the stream (with the new task added if it has data) and the task."""
    head = imported.head
    if data is not None and kind_of(head).has_labels and labels is None and head.labels is None:
        raise InputError(
            f"labels: the adapter does not say which label each of its {len(head.tensors['weight'])} outputs stands for, so "
            "rows cannot be scored: give the labels in the order of the outputs (--labels)."
        )
    if labels is not None and (isinstance(labels, str) or not all(isinstance(name, str | int) for name in labels)):
        raise InputError(f"labels: got {repr(labels)[:200]}; give a list with one name for each output.")
    named = resolve_labels(head, None if labels is None else tuple(labels))
    row: dict[str, Any] = {"name": name, "kind": head.kind, "data": "not read", "bank": _choice(imported.draft.spec)}
    if head.pooling is not None:
        row["pooling"] = head.pooling
    if data is not None:
        # As on the command line, a path is relative to the working directory.
        row["data"] = os.path.abspath(data) if isinstance(data, str) and os.path.exists(data) else data
    if named is not None:
        row["labels"] = list(named)
        if kind_of(head).per_word and _tags(named).scheme == "none":
            row["metric"] = "accuracy"
    try:
        entry = TaskSpec.checked(row)
    except ValidationError as error:
        first = error.errors()[0]
        key, got = "task" if first["loc"][:1] == ("name",) else str(first["loc"][0]), repr(first["input"])[:200]
        raise InputError(f"{key}: got {got}: {first['msg'].removeprefix('Value error, ')}.") from error
    return (spec if data is None else spec.model_copy(update={"tasks": (*spec.tasks, entry)})), entry


def _tags(labels: tuple[str, ...]) -> TagReading:
    """Return how tags mark entities; without rows, IOB2 and IOE2 are assumed where other schemes have the same letters."""
    try:
        return read_tags(labels)
    except UnfitTags:
        return TagReading(scheme="none")


def _choice(spec: BankSpec) -> BankChoice:
    tree = {"modifications": spec.model_dump(mode="json")["modifications"], "layernorms": spec.layernorms}
    choice = BankChoice.model_validate(tree | ({} if spec.layers == "all" else {"layers": spec.layers}))
    assert choice.resolve() == spec
    return choice


def _write(session: Session, plan: TaskPlan, bank: Bank, imported: Imported, probe: Any) -> tuple[str, ...]:
    """Write the adapter's values into a bank, and check that its outputs are those of the adapter in the other library.

    Returns:
        Notices about rows that the other library reads otherwise.
    """
    imported.draft.write(bank)
    if isinstance(bank.head, LinearHead):
        put(bank.head.output.weight, imported.head.tensors["weight"], "weight")
        put(bank.head.output.bias, imported.head.tensors["bias"], "bias")
    bank.requires_grad_(False).eval()
    backbone = session.models.backbone("fp32")
    compared = copy.deepcopy(bank).to(backbone.model.device)
    subject = Subject.of(plan, compared, backbone, probe, session.models.tokenizer, backbone.max_length)
    return check_imported(imported, subject)[1]


def _with_rows(session: Session, entry: TaskSpec, imported: Imported, origin: Origin) -> TrainedBank:
    """Return the bank with scores on its rows."""
    run = TaskRun.begin(session, entry, learns=False)
    run.clock.lap("data")
    differing = _write(session, run.plan, run.bank, imported, certifying_probe(run))
    run.learner.eval()
    return scored(run, notices=(_notice(entry, origin), *differing), lost=run.data.remarks, origin=origin)


def _without_rows(session: Session, entry: TaskSpec, imported: Imported, origin: Origin) -> TrainedBank:
    """Return the bank without scores."""
    clock, backbone = Clock(), session.backbone(entry)
    labels = entry.labels if isinstance(entry.labels, tuple) else None
    tags = _tags(labels) if labels is not None and kind_of(entry).per_word else None
    plan = session.plan(entry, RowFacts(labels, tags=tags))
    bank = build_bank(plan, backbone, folded=True)
    bank.initialise(backbone.model, derive_seed(plan.seed, "init"))
    probe = make_probe(plan, backbone, session.models.tokenizer, backbone.max_length)
    differing = _write(session, plan, bank, imported, probe)
    session.request.stop_here(f"before task {plan.name!r} was committed", "starts over")
    notice = f"{_notice(entry, origin)}; it was imported without rows, so its scores are not measured"
    facts = dict(
        origin=origin,
        max_length=backbone.max_length,
        preparation=session.models.preparation,
        scores={},
        data={},
        notices=(notice, *differing),
    )
    history = History(task=plan.name, curve=NO_CURVE, kept=None, answered={})
    clock.lap("evaluate")
    return TrainedBank(backbone, plan, bank, facts=facts, probe=probe, history=history, seconds=clock.laps)


def _notice(entry: TaskSpec, origin: Origin) -> str:
    based = "" if origin.base is not None else " that names no base model"
    return f"task {entry.name!r}: not learned here, but {origin.in_words}{based}"
