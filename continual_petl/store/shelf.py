"""The shelf: what lies in a run folder now, bank folders and tombstones, each read once and kept while it is the same file.

Nothing here waits or compares: `steady` makes sure that what is read belongs together, and `Store` is what others use.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from continual_petl.errors import StoreError
from continual_petl.store import chain
from continual_petl.store.chain import Link
from continual_petl.store.files import Signature, entries, refuse_link, signature_of
from continual_petl.store.manifest import Manifest, read_manifest
from continual_petl.store.tombstone import Tombstone, read_tombstone

MOST_MANIFESTS = 64


class Shelf:
    """The bank folders and tombstones of a run folder.

    Args:
        folder: the run folder.
        most_manifests: how many manifests are kept in memory.
    """

    def __init__(self, folder: Path, *, most_manifests: int = MOST_MANIFESTS) -> None:
        self.folder = folder
        self.banks = folder / "banks"
        self.tombstone_folder = folder / "tombstones"
        self._most = most_manifests
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._links: dict[str, tuple[Signature, Link]] = {}
        self._tombstones: dict[Path, tuple[Signature, Tombstone]] = {}

    def live(self) -> list[Link]:
        """Return the links of the banks that count, in the order of learning."""
        return chain.live(map(self.link, self.names()), self.counting())

    def counting(self) -> list[Tombstone]:
        """Return the tombstones that count, in the order of the chain."""
        return chain.counting(list(map(self.tombstone, self.tombstone_files())), map(self.link, self.names()))

    def names(self) -> list[str]:
        """Return the names of all bank folders, readable or not."""
        return [path.name for path in entries(self.banks)]

    def tombstone_files(self) -> list[Path]:
        """Return where the tombstones lie."""
        return entries(self.tombstone_folder)

    def tombstone(self, path: Path) -> Tombstone:
        """Return one tombstone; it is read again only if another file lies there."""
        signature = signature_of(path)
        if path not in self._tombstones or self._tombstones[path][0] != signature:
            self._tombstones[path] = (signature, read_tombstone(path))
        return self._tombstones[path][1]

    def link(self, task: str) -> Link:
        """Return the link of one bank folder; a manifest is read again only if another file lies there."""
        signature = signature_of(self.bank_folder(task) / "bank.json")
        known = self._links.get(task)
        if known is None or known[0] != signature:
            self._manifests.pop(task, None)
            return self._read(task, signature)[1]
        return known[1]

    def manifest(self, task: str) -> Manifest:
        """Return a learned task's manifest."""
        self.link(task)
        if task not in self._manifests:
            return self._read(task, signature_of(self.bank_folder(task) / "bank.json"))[0]
        self._manifests.move_to_end(task)
        return self._manifests[task]

    def _read(self, task: str, signature: Signature) -> tuple[Manifest, Link]:
        path = self.bank_folder(task) / "bank.json"
        refuse_link(path.parent)
        if not path.parent.exists():
            raise StoreError(
                f"task {task!r}: {path.parent} is missing; it was never learned in this run, or was forgotten"
            )
        manifest = read_manifest(path)
        if manifest.task != task:
            raise StoreError(f"{path}: this is the manifest of task {manifest.task!r}; a folder was renamed or copied")
        self._manifests[task] = manifest
        while len(self._manifests) > self._most:
            self._manifests.popitem(last=False)
        self._links[task] = (signature, chain.link_of(manifest))
        return manifest, self._links[task][1]

    def bank_folder(self, task: str) -> Path:
        """Return the folder of one bank."""
        return self.banks / task

    def probe_file(self, task: str) -> Path:
        """Return where a bank's probe lies."""
        return self.bank_folder(task) / "probe.safetensors"

    def progress_folder(self, task: str) -> Path:
        """Return where a half-learned task keeps its checkpoint.

        Raises:
            StoreError: if it is a link: what lies there is written to, and removed with all that is in it.
        """
        path = self.folder / ".progress" / task
        refuse_link(path.parent)
        refuse_link(path)
        return path

    def num_bytes(self, task: str) -> int:
        """Return the bytes on disk of one learned task, certificate included."""
        return sum(signature_of(path)[2] for path in entries(self.bank_folder(task)))
