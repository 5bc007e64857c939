"""The ledger: whatever happens to the file, a prefix of what was written is read from it, or the damage is reported."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl import Run
from continual_petl.engine.commands import forget
from continual_petl.errors import StoreError
from continual_petl.report.inventory import listed
from continual_petl.store import store as store_module
from continual_petl.store.inspect import Inspection
from continual_petl.store.ledger.entries import Entries
from continual_petl.store.ledger.ledger_file import NAME, Mark, is_at, read_ledger, sealed_lines
from continual_petl.store.ledger.lines import CommitLine, FinishedLine, ForgetLine, Line, forget_line
from continual_petl.store.store import Store
from tests.store.fabricated import Looks, multiply
from tests.store.tampering import edit, learn_one_more, lines_of, problems, rewrite
from tests.usual import few

Folder = Callable[..., Path]
CERTIFICATES = 5
NAMES = ("a", "b", "c")
Act = tuple[str, str]


@pytest.fixture
def many(folder: Path) -> Path:
    """Return a run of five banks."""
    return multiply(folder, CERTIFICATES)


def played(acts: list[Act]) -> tuple[list[Line], list[dict[str, int]]]:
    """Return the lines of a run in which tasks were learned, replaced and dropped, and the learned tasks after each line.

    Learned tasks are tracked in the most direct way, as a mapping to the positions of their entries.
    """
    lines, entries, known, learned = list[Line](), Entries(), list[dict[str, int]](), dict[str, int]()
    for act, task in acts:
        index, predecessor = entries.next
        line: Line
        if act == "forget" and task in learned:
            line = forget_line(index, predecessor, entries.live[task], "forgotten")
            del learned[task]
        elif act == "commit":
            replaces = entries.live[task].removed if task in learned else None
            line = CommitLine(index=index, predecessor=predecessor, task=task, seal=f"{index:064x}", replaces=replaces)
            learned.pop(task, None)
            learned[task] = index
        else:
            line = FinishedLine(task=task, index=index, certificate="0" * 64, seconds={"train": 0.5})
        entries.add(line, "here")
        lines.append(line)
        known.append(dict(learned))
    return lines, known


ACTS = st.lists(
    st.tuples(st.sampled_from(("commit", "commit", "forget", "finish")), st.sampled_from(NAMES)), max_size=9
)


def read(path: Path) -> Entries:
    entries = Entries()
    entries.read(read_ledger(path))
    return entries


@given(acts=ACTS, data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_cut_leaves_a_prefix(acts: list[Act], data: st.DataObject, tmp_path_factory: Any) -> None:
    """A write may stop after any byte: the lines before it count, and the next writer continues from there."""
    path = tmp_path_factory.mktemp("cut") / NAME
    lines, known = played(acts)
    content, _ = sealed_lines(lines, Mark())
    size = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:size])
    whole = content[:size].count(b"\n")
    assert [sealed.parsed() for sealed in read_ledger(path)] == lines[:whole]
    entries = read(path)
    assert {task: commit.index for task, commit in entries.live.items()} == (known[whole - 1] if whole else {})
    assert list(entries.live) == (list(known[whole - 1]) if whole else [])
    assert [entry.index for entry in entries.chain] == list(range(len(entries.chain)))
    rest, _ = sealed_lines(lines[whole:], entries.mark)
    assert content[: entries.mark.offset] + rest == content


@given(acts=ACTS.filter(bool), data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_flipped_bit_is_found(acts: list[Act], data: st.DataObject, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("flip") / NAME
    content = bytearray(sealed_lines(played(acts)[0], Mark())[0])
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(StoreError, match=NAME):
        read(path)


@given(acts=ACTS.filter(lambda acts: len(acts) > 1), data=st.data())
@settings(max_examples=60, deadline=None)
def test_lost_repeated_moved_and_foreign_lines_are_found(
    acts: list[Act], data: st.DataObject, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("moved") / NAME
    lines, _ = played(acts)
    written = sealed_lines(lines, Mark())[0].splitlines(keepends=True)
    at = data.draw(st.integers(0, len(written) - 2))
    changed = {
        "lost": [*written[:at], *written[at + 1 :]],
        "repeated": [*written[: at + 1], *written[at:]],
        "moved": [*written[:at], written[at + 1], written[at], *written[at + 2 :]],
        "foreign": [*written[:at], sealed_lines(lines[at : at + 1], Mark(seal="1" * 64))[0], *written[at + 1 :]],
    }[data.draw(st.sampled_from(("lost", "repeated", "moved", "foreign")))]
    path.write_bytes(b"".join(changed))
    with pytest.raises(StoreError, match=f"{NAME}:{at + 1}|{NAME}:{at + 2}|{NAME}:{at + 3}"):
        read(path)


@given(acts=ACTS, data=st.data())
@settings(max_examples=40, deadline=None)
def test_reading_on_from_a_position_gives_the_same(acts: list[Act], data: st.DataObject, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("on") / NAME
    lines, _ = played(acts)
    first = data.draw(st.integers(0, len(lines)))
    start, mark = sealed_lines(lines[:first], Mark())
    path.write_bytes(start)
    entries = read(path)
    before = entries.copy()
    path.write_bytes(start + sealed_lines(lines[first:], mark)[0])
    assert first == 0 or is_at(path, entries.mark)
    entries.read(read_ledger(path, entries.mark))
    assert entries == read(path)
    assert before.mark == mark
    assert [sealed.parsed() for sealed in read_ledger(path, end=before.mark)] == lines[:first]


def commit(index: int, task: str, **more: Any) -> CommitLine:
    before = f"{index - 1:064x}" if index else None
    return CommitLine(**{"index": index, "predecessor": before, "task": task, "seal": f"{index:064x}"} | more)


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        ([commit(1, "a")], "entry 1 of a chain .* but entry 0 .* comes next"),
        ([commit(0, "a"), commit(1, "b", predecessor="f" * 64)], "names the predecessor ffffffffffff"),
        ([commit(0, "a"), commit(1, "a")], "task 'a' is learned twice"),
        ([commit(0, "a", replaces={"index": 3, "seal": "0" * 64})], "replaces a bank that is not there"),
        (
            [commit(0, "a"), commit(1, "a", replaces={"index": 0, "seal": "e" * 64})],
            "replaces a bank that is not there",
        ),
        ([forget_line(0, None, commit(0, "a"), "forgotten")], "drops a bank of task 'a' that is not there"),
    ],
)
def test_forged_lines_that_contradict_each_other_are_refused(tmp_path: Path, lines: list[Line], match: str) -> None:
    """A knowledgeable attacker gives every line a valid seal."""
    rewrite(tmp_path, lines)
    with pytest.raises(StoreError, match=rf"{NAME}:{len(lines)}: .*{match}"):
        read(tmp_path / NAME)


@pytest.mark.parametrize(
    "content",
    few(
        [
            b'{"type": "commit"}',
            b'{"type": "feast"}',
            b"[]",
            b"",
            b'{"type": "row", "after": "../x", "index": 0, "cells": []}',
            b'{"type": "finished", "task": "a", "index": 1e400, "certificate": "' + b"0" * 64 + b'", "seconds": {}}',
            b'{"type": "finished", "task": "\\ud800", "index": 0, "certificate": "' + b"0" * 64 + b'", "seconds": {}}',
            b'{"type": "finished", "task": "a", "index": 0, "certificate": "'
            + b"0" * 64
            + b'", "seconds": {"a": NaN}}',
            b'{"type": "row", "after": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        ]
    ),
)
def test_sealed_lines_that_no_store_writes_are_refused(
    folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Raw(FinishedLine):
        def model_dump(self, **_: Any) -> dict[str, Any]:
            return {"type": "finished"}

    with monkeypatch.context() as patch:
        patch.setattr("continual_petl.store.ledger.ledger_file.json.dumps", lambda *_, **__: content.decode("latin-1"))
        line = sealed_lines(
            [Raw(task="a", index=0, certificate="0" * 64, seconds={})], Store(folder).state().entries.mark
        )
    (folder / NAME).write_bytes((folder / NAME).read_bytes() + line[0])
    assert NAME in problems(folder)[f"({NAME})"]
    with pytest.raises(StoreError, match=NAME):
        Store(folder).results()


def test_run_writes_what_lists_show(learned: Path) -> None:
    store = Store(learned)
    kinds = [line.type for line in lines_of(learned)]
    assert kinds == ["commit", "row", "finished"] * 3
    for task, link in zip(store.tasks, store.commits(), strict=True):
        certificate = store.certificate(task)
        assert (link.seal, link.index, link.predecessor) == (
            certificate.seal,
            certificate.index,
            certificate.predecessor,
        )
        assert (link.score, link.digest, link.kind) == (certificate.score, certificate.digest, certificate.kind)
        assert link.bytes == sum(file.stat().st_size for file in store.bank_folder(task).iterdir())


def test_opening_reads_only_the_ledger(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(many, monkeypatch)
    for count in (CERTIFICATES, 2 * CERTIFICATES):
        multiply(many, count)
        with looks.fresh():
            store = Store(many)
            assert len(store.tasks) == len(listed(store)) == count
            assert looks.opened == [NAME]
            assert not any(path.endswith("bank.json") for path in looks.asked)


def test_writer_reads_only_new_lines(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(many)
    before = store.tasks
    parsed: list[bytes] = []
    real = CommitLine.model_validate_json

    def noted(_: type[CommitLine], data: bytes) -> CommitLine:
        parsed.append(data)
        return real(data)

    monkeypatch.setattr(CommitLine, "model_validate_json", classmethod(noted))
    store.append([FinishedLine(task="one", index=0, certificate="0" * 64, seconds={})])
    assert store.tasks == before
    assert parsed == []
    assert Store(many).tasks == before
    assert len(parsed) == CERTIFICATES


def test_torn_last_line_is_cut_off_by_the_next_write(many: Path) -> None:
    path, before = many / NAME, lines_of(many)
    whole = path.read_bytes()
    line = FinishedLine(task="one", index=0, certificate="0" * 64, seconds={})
    torn = sealed_lines([line], Store(many).state().entries.mark)[0]
    for size in range(1, len(torn), 41):
        path.write_bytes(whole + torn[:size])
        assert problems(many) == {}
        assert lines_of(many) == before
        Store(many).append([line])
        assert path.read_bytes() == whole + torn
    # Copies of the file, also on the Hub, have no torn line that a later copy would lack.
    path.write_bytes(whole + torn[:-1])
    with Store(many).lock():
        Store(many).clean()
    assert path.read_bytes() == whole
    path.write_bytes(whole + torn[:-1] + b"\x8a")
    with pytest.raises(StoreError, match="the end of the line is damaged"):
        Store(many).append([line])


def test_nothing_is_written_to_a_damaged_run_even_after_it_was_inspected(many: Path) -> None:
    path = many / NAME
    path.write_bytes(path.read_bytes().replace(b'"task": "one"', b'"task": "own"', 1))
    before, store = path.read_bytes(), Store(many)
    assert f"({NAME})" in Inspection(store).unreadable
    with pytest.raises(StoreError, match=rf"{NAME}:1: this line is not the one that was written here"):
        store.append([FinishedLine(task="one", index=0, certificate="0" * 64, seconds={})])
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["folder", "link", "pipe"])
def test_ledger_that_is_not_a_file_is_refused(many: Path, tmp_path: Path, place: str) -> None:
    path, elsewhere = many / NAME, tmp_path / "elsewhere"
    shutil.move(path, elsewhere)
    before = elsewhere.read_bytes()
    if place == "folder":
        path.mkdir()
    elif place == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    with pytest.raises(StoreError, match=NAME):
        Store(many).append([FinishedLine(task="one", index=0, certificate="0" * 64, seconds={})])
    assert elsewhere.read_bytes() == before, "something was written through the link"


@pytest.mark.parametrize("num_lost", [1, 2, 3])
def test_lost_lines_of_the_newest_banks_are_found_again(folder: Path, backbone_folder: Folder, num_lost: int) -> None:
    """The banks are there, and their certificates say where they belong; only rows have to be measured again."""
    before, path = lines_of(folder), folder / NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) - 3 * num_lost]))
    assert Store(folder).tasks == ["one", "two", "three"]
    if num_lost < 3:
        assert problems(folder).keys() == ({f"({NAME})"} if num_lost > 1 else set())
    learn_one_more(backbone_folder(), folder)
    assert problems(folder) == {}
    after = lines_of(folder)
    entries = [line for line in after if isinstance(line, CommitLine)]
    assert entries[:3] == [line for line in before if isinstance(line, CommitLine)]
    assert Store(folder).tasks == ["one", "two", "three", "four"]


@pytest.mark.slow
def test_every_prefix_is_harmless_or_reported(folder: Path, backbone_folder: Folder) -> None:
    """However many of its newest lines are lost, no other bank than the present one counts, and losses are reported."""
    forget(folder, "two")
    learn_one_more(backbone_folder(), folder)
    learn_one_more(backbone_folder(), folder, replace=["one"])
    path, whole, seals = folder / NAME, lines_of(folder), {c.task: c.seal for c in Store(folder).commits()}
    assert list(seals) == ["three", "two", "four", "one"]
    lines = path.read_bytes().splitlines(keepends=True)
    reported = []
    for kept in range(len(lines) + 1):
        path.write_bytes(b"".join(lines[:kept]))
        store, found, told = Store(folder), dict[str, str](), problems(folder)
        for task in store.tasks:
            with suppress(StoreError):  # whatever predicts reads the certificate
                found[task] = store.certificate(task).seal
        assert found.items() <= seals.items()
        assert told or found == seals, f"{kept} of {len(lines)} lines: {seals.keys() - found.keys()} are not reported"
        reported.append(bool(told))
    # A run may be killed before the last task's row is written, or right after it.
    newest = max(number for number, line in enumerate(whole) if isinstance(line, CommitLine))
    assert reported == [True] * newest + [False] * (len(lines) + 1 - newest)


def test_ledger_of_another_run_is_reported(many: Path) -> None:
    """Its banks are not there, and the banks that are there belong to another chain."""
    alien = CommitLine(index=0, predecessor=None, task="alien", seal="a" * 64)
    rewrite(many, [alien])
    assert Store(many).tasks == []
    told = problems(many)
    assert "task 'alien' was learned as entry 0 of the chain, but its bank is missing" in told["alien"]
    assert "ledger.jsonl does not name it" in told["one"]
    assert told.keys() >= {"alien", "one", "copy3", "copy4"}
    with pytest.raises(StoreError, match="does not name it"):
        Store(many).check_complete()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_two_processes_append_in_turn(many: Path) -> None:
    """Each continues from the line that the other one has written."""

    def add_lines(certificate: str) -> None:
        store = Store(many)
        for number in range(20):
            with store.lock(wait=True):
                store.append([FinishedLine(task="one", index=number, certificate=certificate, seconds={})])

    before, child, failed = lines_of(many), os.fork(), 1
    if child == 0:
        try:
            add_lines("1" * 64)
            failed = 0
        finally:
            os._exit(failed)
    add_lines("0" * 64)
    assert os.waitpid(child, 0)[1] == 0
    after = lines_of(many)
    assert after[: len(before)] == before
    added = [line for line in after[len(before) :] if isinstance(line, FinishedLine)]
    for certificate in ("0" * 64, "1" * 64):
        assert [line.index for line in added if line.certificate == certificate] == list(range(20))
    assert len(added) == 40
    assert problems(many) == {}


@pytest.mark.parametrize("way", ["in place", "with its old times"])
def test_changed_certificate_is_noticed(many: Path, way: str) -> None:
    store = Store(many)
    store.check_complete()
    path = many / "banks" / "one" / "bank.json"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"index": 0', b'"index": 7'))
    if way == "with its old times":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for reader in (store, Store(many)):
        with pytest.raises(StoreError, match="does not match its seal"):
            reader.check_complete()
    assert Store(many).tasks == store.tasks


def test_replaced_certificate_is_noticed(many: Path) -> None:
    path = many / "banks" / "one" / "bank.json"
    beside = path.with_name("other")
    seal = Store(many).commit("one").seal
    beside.write_bytes(path.read_bytes().replace(seal.encode(), b"0" * 64))
    before = path.stat()
    os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
    beside.replace(path)
    with pytest.raises(StoreError, match="its content does not match its seal"):
        Store(many).check_complete()


def test_forged_summary_is_contradicted_by_the_certificate(many: Path) -> None:
    """Lists show what the ledger says; but a forged seal is not that of the certificate."""
    forged = [
        line.model_copy(update={"seal": "0" * 64, "file": "0" * 64})
        if isinstance(line, CommitLine) and line.task == "copy4"
        else line
        for line in lines_of(many)
    ]
    rewrite(many, forged)
    assert "is not the one that ledger.jsonl names" in problems(many)["copy4"]
    with pytest.raises(StoreError, match="is not the one that"):
        Store(many).check_complete()


def test_verify_reads_every_certificate(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(many)
    run.verify("one")
    looks = Looks(many, monkeypatch)
    run.verify()
    assert {f"banks/{commit.task}/bank.json" for commit in Store(many).commits()} <= set(looks.opened)


@pytest.mark.slow
def test_ledger_follows_forgotten_and_replaced_banks(many: Path, backbone_folder: Folder) -> None:
    forget(many, "copy3")
    assert "copy3" not in Store(many).tasks
    assert not Store(many).has("copy3")
    learn_one_more(backbone_folder(), many)
    assert Store(many).tasks[-1] == "four"
    learn_one_more(backbone_folder(), many, replace=["four"])
    store = Store(many)
    assert store.tasks[-1] == "four"
    assert store.bank_folder("four").name == f"four@{store.commit('four').index}"
    assert not (many / "banks" / "four").exists()
    learn_one_more(backbone_folder(), many, replace=["four"])
    assert problems(many) == {}


def test_folder_that_the_ledger_does_not_name_is_reported(many: Path) -> None:
    (many / "banks" / "nine").mkdir()
    assert "nine/bank.json: missing" in problems(many)["nine"]
    with pytest.raises(StoreError, match="nine"):
        Store(many).check_complete()
    assert "nine" not in Store(many).tasks


def test_single_task_is_read_alone(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(many / "banks" / "copy3" / "bank.json", sealed=False, seed=5)
    store, looks = Store(many), Looks(many, monkeypatch)
    assert store.has("one")
    assert store.certificate("one").task == "one"
    assert {path for path in looks.asked if path.endswith("bank.json")} == {"banks/one/bank.json"}


@pytest.mark.parametrize("name", ["", ".", "..", "../one", "one/", "banks/one", ".one", "one\0", "nine", 3, None])
def test_unlearned_task_is_not_in_the_store(many: Path, name: object) -> None:
    assert Store(many).has("one")
    assert not Store(many).has(name)  # type: ignore[arg-type]


def test_snapshot_does_not_change(many: Path) -> None:
    taken = Store(many).snapshot()
    tasks, results = taken.tasks, taken.results()
    forget(many, "copy4")
    assert (taken.tasks, taken.results()) == (tasks, results)
    assert Store(many).tasks == tasks[:-1]
    assert isinstance(Store(many).head(), ForgetLine)


def test_store_that_keeps_changing_is_reported(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PATIENCE", 0.1)
    store, numbers = Store(many), iter(range(10**6))
    monkeypatch.setattr(store, "_seen", lambda task: next(numbers))
    with pytest.raises(StoreError, match="faster than they can be read"):
        store.consistently(lambda: None)


def test_reader_does_not_depend_on_what_another_thread_found(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Store(many)._reader
    before, real = reader.state(), reader.stamps

    def stamps() -> Any:
        found = real()
        reader._state = None  # as by a thread that just met a damaged ledger
        return found

    monkeypatch.setattr(reader, "stamps", stamps)
    assert reader.state() == before


def test_folder_that_keeps_changing_is_not_read_forever(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For instance, on a file system whose inodes change with every look."""
    reader, times = Store(many)._reader, itertools.count()
    monkeypatch.setattr("continual_petl.store.folder_reader.PATIENCE", 0.2)
    stop = time.monotonic() + 5

    def stamps() -> Any:
        assert time.monotonic() < stop, "the reader does not give up"
        return (next(times), 0, 0, 0), (0, 0, 0, 0)

    monkeypatch.setattr(reader, "stamps", stamps)
    with pytest.raises(StoreError, match="it changes faster than it can be read"):
        reader.state()
