"""The index makes it unnecessary to read certificates, and the store agrees with them whatever the index file contains."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run
from continual_petl.engine.commands import forget
from continual_petl.errors import StoreError
from continual_petl.report.inventory import listed
from continual_petl.store.certificate.chain import Link, link_of
from continual_petl.store.files.atomic import line_bytes
from continual_petl.store.files.reading import Stamp, stamp_of
from continual_petl.store.files.sealed import seal_of
from continual_petl.store.folder.index import _SUMMARY, Entry, add_to_index, index_file, read_index, write_index
from continual_petl.store.store import Store
from tests.store.fabricated import Looks, multiply
from tests.store.tampering import edit, learn_one_more, problems

Folder = Callable[..., Path]
CERTIFICATES = 5


@pytest.fixture
def many(folder: Path) -> Path:
    """Return a run of five banks, all of them in the index."""
    return indexed(multiply(folder, CERTIFICATES))


def indexed(folder: Path) -> Path:
    """Add all banks to the index, as the next commit would."""
    store = Store(folder)
    store.note(store.tasks[0])
    return folder


def links_of(folder: Path) -> list[Link]:
    return Store(folder, indexed=False).links()


def entry_of(folder: Path, link: Link, signature: Stamp | None = None) -> Entry:
    """Return an index entry for the given link, with the summary of bank "one"."""
    signature = signature or stamp_of(folder / "banks" / link.task / "bank.json")
    one = link_of(Store(folder).certificate("one"))
    return signature, link.model_copy(update={name: getattr(one, name) for name in _SUMMARY})


def test_an_indexed_store_opens_without_reading_a_certificate(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, looks = links_of(many), Looks(many, monkeypatch)
    for count in (CERTIFICATES, 2 * CERTIFICATES):
        if count > CERTIFICATES:
            indexed(multiply(many, count))
            expected = links_of(many)
        with looks.fresh():
            assert Store(many).links() == expected
            assert looks.opened == [".index.jsonl"]
            assert sum(path.endswith("bank.json") for path in looks.asked) == count


def test_without_an_index_every_certificate_is_read(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index_file(many).unlink()
    looks = Looks(many, monkeypatch)
    assert (
        len(Store(many).links()) == len([path for path in looks.opened if path.endswith("bank.json")]) == CERTIFICATES
    )


def test_run_maintains_the_index(learned: Path, folder: Path, backbone_folder: Folder) -> None:
    whole = read_index(index_file(learned))
    assert [link for _, link in whole.values()] == links_of(learned), "the run did not index the banks that it learned"
    assert all(entry[0] == stamp_of(learned / "banks" / task / "bank.json") for task, entry in whole.items())
    stale = index_file(folder).read_bytes()
    learn_one_more(backbone_folder(), folder)
    assert index_file(folder).read_bytes() != stale
    remade = [link for _, link in read_index(index_file(folder)).values()]
    assert sorted(remade, key=lambda link: link.index) == links_of(folder), "the index of a copied folder lacks banks"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"[]",
        b"\xff\xfe{",
        b"[" * 100_000,
        b"9" * 5000,
        b"{}" * 3000,
        b'{"version": 2}\n',
        b'{"file": NaN, "index": NaN, "predecessor": null, "seal": 0, "shared": 0, "task": 0, "version": 1}\n',
    ],
)
def test_invalid_index_is_ignored(many: Path, content: bytes) -> None:
    expected = links_of(many)
    index_file(many).write_bytes(content)
    assert Store(many).links() == expected
    assert problems(many) == {}


@pytest.mark.parametrize("place", ["folder", "link", "pipe"])
def test_index_that_is_not_a_file_is_ignored(many: Path, tmp_path: Path, place: str) -> None:
    expected, path, elsewhere = links_of(many), index_file(many), tmp_path / "elsewhere"
    shutil.move(path, elsewhere)
    before = elsewhere.read_bytes()
    if place == "folder":
        path.mkdir()
    elif place == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    assert Store(many).links() == expected
    add_to_index(path, entry_of(many, expected[0], (1, 2, 3, 4)))
    assert elsewhere.read_bytes() == before, "something was written through the link"


def test_torn_index_line_affects_only_itself(many: Path) -> None:
    path, expected = index_file(many), links_of(many)
    for size in range(0, path.stat().st_size, 37):
        os.truncate(path, path.stat().st_size - min(37, path.stat().st_size))
        add_to_index(path, entry_of(many, expected[0]))
        assert read_index(path)["one"][1] == expected[0], size
        assert Store(many).links() == expected


def test_flipped_bit_affects_only_its_index_line(many: Path) -> None:
    path, expected = index_file(many), links_of(many)
    whole = path.read_bytes()
    for place in range(0, len(whole), 23):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert len(read_index(path)) >= CERTIFICATES - 2
        assert Store(many).links() == expected


@pytest.mark.parametrize("way", ["in place", "with its old times"])
def test_changed_certificate_is_reread(many: Path, way: str) -> None:
    path = many / "banks" / "one" / "bank.json"
    before = path.stat()
    edit(path, sealed=True, notices=("x",))
    if way == "with its old times":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Store(many).links() == links_of(many)
    assert Store(many).broken().keys() == {"two"}


def test_replaced_certificate_of_equal_size_is_reread(many: Path) -> None:
    path = many / "banks" / "one" / "bank.json"
    content = json.loads(path.read_text())
    beside = path.with_name("other")
    beside.write_bytes(path.read_bytes().replace(content["seal"].encode(), b"0" * 64))
    before = path.stat()
    os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
    beside.replace(path)
    with pytest.raises(StoreError, match="its content does not match its seal"):
        Store(many).links()


def test_forged_index_is_detected_by_the_first_certificate_read(many: Path) -> None:
    true, path = links_of(many), index_file(many)
    changed = {"shared": True, "seal": "0" * 64}
    forged = (link.model_copy(update={**changed, "index": CERTIFICATES - 1 - link.index}) for link in true)
    write_index(path, [entry_of(many, link) for link in forged])
    store = Store(many)
    assert [link.task for link in store.links()] == [link.task for link in reversed(true)], "the index is not used"
    store.certificate("copy4")
    assert store.links() == true
    assert problems(many) == {}, "verify must not use the index"


def test_list_from_the_index_matches_the_certificates(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, looks = listed(Store(many, indexed=False)), Looks(many, monkeypatch)
    assert listed(Store(many)) == expected
    assert looks.opened == [".index.jsonl"]


def test_forged_summary_is_detected_by_its_certificate(many: Path) -> None:
    true, links = listed(Store(many, indexed=False)), links_of(many)
    better = [link.model_copy(update={"score": 1.0}) for _, link in (entry_of(many, link) for link in links)]
    write_index(index_file(many), [(stamp_of(many / "banks" / link.task / "bank.json"), link) for link in better])
    store = Store(many)
    assert [task["score"] for task in listed(store)] == [1.0] * CERTIFICATES, "the index is not used"
    store.certificate("copy4")
    assert listed(store) == true


@pytest.mark.parametrize(
    "change",
    [{"release": "0.0.1"}, {"version": 1}, {"summary": {}}, {"summary": None}]
    + [{"summary": {key: value}} for key, value in (("score", "1"), ("score", True), ("split", "train"), ("more", 1))]
    + [{"summary": {"parameters": {"own": 1.5}}}],
)
def test_index_line_of_another_format_is_ignored(many: Path, change: dict[str, Any]) -> None:
    path, expected = index_file(many), listed(Store(many, indexed=False))
    lines = []
    for line in filter(None, path.read_bytes().split(b"\n")):
        content = json.loads(line)
        content.pop("seal")
        for key, value in change.items():
            content[key] = {**content[key], **value} if value and isinstance(value, dict) else value
        lines.append(line_bytes({**content, "seal": seal_of(content)}))
    path.write_bytes(b"".join(lines))
    assert read_index(path) == {}
    assert listed(Store(many)) == expected


def test_commit_does_not_trust_a_forged_index(many: Path) -> None:
    true = links_of(many)
    add_to_index(index_file(many), entry_of(many, true[-1].model_copy(update={"seal": "0" * 64})))
    assert Store(many).head() == true[-1]


def test_verify_reads_every_certificate(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(many)
    run.verify("one")
    looks = Looks(many, monkeypatch)
    run.verify()
    assert {f"banks/{link.task}/bank.json" for link in links_of(many)} <= set(looks.opened)
    assert ".index.jsonl" not in looks.opened


@pytest.mark.slow
def test_index_follows_forgotten_and_replaced_banks(many: Path, backbone_folder: Folder) -> None:
    forget(many, "copy3")
    assert Store(many).links() == links_of(many)
    assert "copy3" not in Store(many).tasks
    assert not Store(many).has("copy3")
    learn_one_more(backbone_folder(), many)
    assert Store(many).links() == links_of(many)
    assert Store(many).tasks[-1] == "four"


def test_index_does_not_add_folders_without_certificate(many: Path) -> None:
    (many / "banks" / "nine").mkdir()
    add_to_index(index_file(many), entry_of(many, Link(index=9, seal="a" * 64, predecessor="b" * 64, task="nine")))
    with pytest.raises(StoreError, match="nine"):
        Store(many).links()


@pytest.mark.slow
def test_single_task_is_read_alone_after_a_replacement(
    many: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn_one_more(backbone_folder(), many)
    learn_one_more(backbone_folder(), many, replace=["four"])
    edit(many / "banks" / "copy3" / "bank.json", sealed=False, seed=5)
    store = Store(many)
    assert store.tombstone(store.tombstone_files()[-1]).why == "replaced"
    looks = Looks(many, monkeypatch)
    assert store.has("one")
    assert store.has("four")
    assert {path for path in looks.asked if path.endswith("bank.json")} == {
        "banks/one/bank.json",
        "banks/four/bank.json",
    }


def test_unwritable_index_is_not_an_error(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, expected = index_file(many), links_of(many)

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    add_to_index(path, entry_of(many, expected[0], (1, 2, 3, 4)))
    whole = path.read_bytes()
    write_index(path, [])
    monkeypatch.undo()
    assert path.read_bytes() == whole
    assert not list(many.glob(".*.new"))
    assert Store(many).links() == expected


@pytest.mark.parametrize("name", ["", ".", "..", "../one", "one/", "banks/one", ".one", "one\0", "nine", 3, None])
def test_unlearned_task_is_not_in_the_store(many: Path, name: object) -> None:
    assert Store(many).has("one")
    assert not Store(many).has(name)  # type: ignore[arg-type]
