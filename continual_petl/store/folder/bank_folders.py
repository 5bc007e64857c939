"""The bank folders and tombstones of a run folder. Each file is read once, and again only if it has changed.

The facts that the chain and listings need about a bank may come from the index while the bank's certificate is unchanged; as
soon as a certificate contradicts the index, the whole index is ignored.

`BankFolders` does not guard against concurrent changes. `Store`, which other code uses, does so with `consistently`.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakValueDictionary

from continual_petl.errors import StoreError
from continual_petl.store.certificate import chain
from continual_petl.store.certificate.certificate import Certificate, read_certificate
from continual_petl.store.certificate.chain import Link
from continual_petl.store.certificate.tombstone import Tombstone, read_tombstone
from continual_petl.store.files.reading import Stamp, entries, refuse_link, stamp_of
from continual_petl.store.folder.index import Entries, Entry, add_to_index, index_file, read_index, write_index
from continual_petl.store.folder.results_file import was_committed

MAX_CERTIFICATES = 64
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")


def is_name(task: object) -> bool:
    """Return whether this is a valid task name: neither a path nor hidden."""
    return isinstance(task, str) and _NAME.fullmatch(task) is not None


class BankFolders:
    """The bank folders and tombstones of a run folder.

    Args:
        folder: the run folder.
        max_certificates: number of certificates to keep in memory, besides those that cached banks or other objects hold.
        indexed: whether the index may be used; without it, every certificate is read and checked.
    """

    def __init__(self, folder: Path, *, max_certificates: int = MAX_CERTIFICATES, indexed: bool = True) -> None:
        self.folder = folder
        self.banks = folder / "banks"
        self.tombstone_folder = folder / "tombstones"
        self.stream_file = folder / "stream.yaml"
        self.results_file = folder / "results.jsonl"
        self.pin_file = folder / "backbone.json"
        self._max_certificates = max_certificates
        self._certificates: OrderedDict[str, Certificate] = OrderedDict()
        self._in_use: WeakValueDictionary[str, Certificate] = WeakValueDictionary()
        self._entries: Entries = {}
        """Entries of the certificates that have been read."""
        self._indexed: Entries | None = None if indexed else {}
        """The content of the index; None until it is read."""
        self._noted = False
        """Whether the index is up to date."""
        self._tombstones: dict[Path, tuple[Stamp, Tombstone]] = {}

    def live(self) -> list[Link]:
        """Return the links of the live banks (neither replaced nor dropped), in the order they were learned."""
        stones = self.counting()
        return chain.live(list(self._each()), stones)

    def counting(self) -> list[Tombstone]:
        """Return the tombstones in effect, in chain order."""
        stones = list(map(self.tombstone, self.tombstone_files()))
        # Only the newest replacement depends on the banks in the folder.
        links = list(self._each()) if stones and stones[-1].why == "replaced" else []
        return chain.counting(stones, links, lambda index: was_committed(self.results_file, index + 1))

    def _each(self) -> Iterator[Link]:
        """Yield the link of every bank folder."""
        self.read_index()
        yield from map(self.link, self.names())

    def read_index(self) -> None:
        """Load the index unless it is loaded already; called before many links are read."""
        if self._indexed is None:
            self._indexed = read_index(index_file(self.folder))

    def counts(self, task: str) -> bool:
        """Return whether a task has a live bank; other banks are read only if a tombstone names this bank.

        Raises:
            StoreError: if its certificate, or a tombstone, cannot be read.
        """
        if not (is_name(task) and os.path.lexists(self.bank_folder(task))):
            return False
        seal = self.link(task).seal
        if all(self.tombstone(path).removed.seal != seal for path in self.tombstone_files()):
            return True
        # A bank with a tombstone was left by a killed process, or restored. Whether the tombstone is in effect depends on
        # the other banks.
        return any(link.seal == seal for link in self.live())

    def names(self) -> list[str]:
        """Return the names of all bank folders, readable or not."""
        return [path.name for path in entries(self.banks)]

    def tombstone_files(self) -> list[Path]:
        """Return the paths of the tombstones."""
        return entries(self.tombstone_folder)

    def tombstone(self, path: Path) -> Tombstone:
        """Return one tombstone; it is read again only if the file has changed."""
        signature = stamp_of(path)
        if path not in self._tombstones or self._tombstones[path][0] != signature:
            self._tombstones[path] = (signature, read_tombstone(path))
        return self._tombstones[path][1]

    def link(self, task: str) -> Link:
        """Return the link of one bank folder; its certificate is read again only if the file has changed."""
        return self._entry(task)[1]

    def _entry(self, task: str) -> Entry:
        signature = stamp_of(f"{self.banks}/{task}/bank.json")
        known = self._known(task)
        if known is not None and known[0] == signature:
            return known
        self._certificates.pop(task, None)
        self._in_use.pop(task, None)
        return self._read(task, signature)[1]

    def certificate(self, task: str) -> Certificate:
        """Return a learned task's certificate."""
        self.link(task)
        certificate = self._in_use.get(task)
        if certificate is None:
            return self._read(task, stamp_of(self.bank_folder(task) / "bank.json"))[0]
        self._keep(certificate)
        return certificate

    def _keep(self, certificate: Certificate) -> None:
        self._certificates[certificate.task] = self._in_use[certificate.task] = certificate
        self._certificates.move_to_end(certificate.task)
        while len(self._certificates) > self._max_certificates:
            self._certificates.popitem(last=False)

    def _read(self, task: str, signature: Stamp) -> tuple[Certificate, Entry]:
        path = self.bank_folder(task) / "bank.json"
        refuse_link(path.parent)
        if os.path.isfile(path.parent):
            raise StoreError(
                f"{path.parent}: this is a file, but only task folders belong here. Move it out of the run folder."
            )
        if not os.path.exists(path.parent):
            raise StoreError(
                f"task {task!r}: {path.parent} is missing; the task was never learned in this run, or was forgotten"
            )
        certificate = read_certificate(path)
        if certificate.task != task:
            raise StoreError(
                f"{path}: this is the certificate of task {certificate.task!r}; a folder was renamed or copied"
            )
        self._keep(certificate)
        before, entry = self._known(task), (signature, chain.link_of(certificate))
        self._entries[task] = entry
        if before is not None and before[1] != entry[1]:
            self._reread(task)
        indexed = (self._indexed or {}).get(task)
        if indexed is not None and indexed[0] == signature and indexed != entry:
            # The index was not made from this certificate, so none of it can be trusted.
            self._indexed, self._noted = {}, False
        return certificate, entry

    def _reread(self, task: str) -> None:
        """Called when a bank's certificate has changed since it was last read; does nothing in this class."""

    def note(self, task: str) -> None:
        """Add a newly committed bank to the index, and any other banks missing from it.

        Raises:
            StoreError: if its certificate cannot be read.
        """
        entry = self._entry(task)
        if self._noted:
            add_to_index(index_file(self.folder), entry)
            return
        path = index_file(self.folder)
        there, known = read_index(path), {name: self._known(name) for name in self.names()}
        missing = [name for name, entry in known.items() if entry is not None and there.get(name) != entry]
        if missing == [task]:
            add_to_index(path, entry)
        elif missing:
            write_index(path, (entry for entry in known.values() if entry is not None))
        self._noted = True

    def _known(self, task: str) -> Entry | None:
        return self._entries.get(task) or (self._indexed or {}).get(task)

    def bank_folder(self, task: str) -> Path:
        """Return the path of one bank's folder."""
        return self.banks / task

    def probe_file(self, task: str) -> Path:
        """Return the path of a bank's probe."""
        return self.bank_folder(task) / "probe.safetensors"

    def progress_folder(self, task: str) -> Path:
        """Return the folder in which a half-learned task keeps its checkpoint.

        Raises:
            StoreError: if it is a link: the folder is written to, and removed with everything in it.
        """
        path = self.folder / ".progress" / task
        refuse_link(path.parent)
        refuse_link(path)
        return path

    def num_bytes(self, task: str) -> int:
        """Return the size on disk of one learned task in bytes, certificate included."""
        return sum(stamp_of(path)[2] for path in entries(self.bank_folder(task)))
