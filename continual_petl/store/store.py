"""The store: an append-only folder of learned banks. JSON and safetensors only; a task is there whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.errors import StoreError
from continual_petl.learner.isolation import check_modes
from continual_petl.learner.plan import TaskPlan, build_bank
from continual_petl.store.atomic import append_lines, make_folder, new_folder, read_lines, write_file, write_tensors
from continual_petl.store.environment import current_environment
from continual_petl.store.lock import RunLock
from continual_petl.store.manifest import Manifest, Parent, SplitScores, TensorEntry, read_manifest, write_manifest
from continual_petl.store.pin import pin_backbone, read_pin
from continual_petl.store.probe import OUTPUTS, replay


class Store:
    """A run folder. Reading never blocks; writing wants the `lock`.

    Args:
        folder: the run folder, created when something is first written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.banks = folder / "banks"
        self.stream_file = folder / "stream.yaml"
        self._manifests: dict[str, Manifest] = {}

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, tasks: {', '.join(self.tasks) or 'none'})"

    @property
    def tasks(self) -> list[str]:
        """Learned tasks in the order of learning."""
        names = [path.name for path in self.banks.iterdir() if not path.name.startswith(".")] if self._exists else []
        return sorted(names, key=lambda name: self.manifest(name).index)

    @property
    def _exists(self) -> bool:
        return self.banks.is_dir()

    def lock(self, *, wait: bool = False) -> AbstractContextManager[Any]:
        """Hold the run folder for writing; another process that already does is waited for, or a `StoreError`."""
        make_folder(self.folder)
        return RunLock(self.folder, wait=wait)

    def manifest(self, task: str) -> Manifest:
        """Return a learned task's manifest; manifests never change, so each is read once."""
        if task not in self._manifests:
            path = self.bank_folder(task) / "bank.json"
            manifest = read_manifest(path)
            if manifest.task != task:
                raise StoreError(
                    f"{path}: this is the manifest of task {manifest.task!r}; a folder was renamed or copied"
                )
            self._manifests[task] = manifest
        return self._manifests[task]

    def bank_folder(self, task: str) -> Path:
        """Return the folder of one bank."""
        return self.banks / task

    def progress_folder(self, task: str) -> Path:
        """Return where a half-learned task keeps its checkpoint."""
        return self.folder / ".progress" / task

    def num_bytes(self, task: str) -> int:
        """Return the bytes on disk of one learned task, certificate included."""
        return sum(path.stat().st_size for path in self.bank_folder(task).iterdir())

    def tensors(self, task: str) -> dict[str, Tensor]:
        """Return a bank's stored tensors, each checked against its digest in the manifest.

        Raises:
            StoreError: naming the first tensor that is missing, unexpected or changed.
        """
        path, manifest = self.bank_folder(task) / "bank.safetensors", self.manifest(task)
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise StoreError(f"task {task!r}: {path} cannot be read ({error}); it is damaged or missing") from error
        for name in sorted(tensors.keys() ^ manifest.tensors.keys()):
            state = "is in the manifest but not in the file" if name in manifest.tensors else "is not in the manifest"
            raise StoreError(f"task {task!r}: {path}: tensor {name} {state}; one of the two files was exchanged")
        for name, digest in tensor_digests(tensors).items():
            if digest != manifest.tensors[name].digest:
                raise StoreError(
                    f"task {task!r}: {path}: tensor {name} has the digest {digest[:12]}, certified was "
                    f"{manifest.tensors[name].digest[:12]}; the file was changed after the task was learned"
                )
        return tensors

    def plan(self, task: str) -> TaskPlan:
        """Return what the learner knew of a learned task."""
        m = self.manifest(task)
        return TaskPlan(
            name=m.task,
            kind=m.kind,
            pair=m.pair,
            labels=m.labels,
            bank=m.bank,
            training=m.training,
            pooling=m.pooling,
            metric=m.metric,
            seed=m.seed,
            class_weights=m.class_weights,
            generation=m.generation,
            max_target_length=m.max_target_length,
        )

    def load_bank(self, task: str, backbone: Backbone) -> Bank:
        """Return a learned bank, strictly: same backbone, every tensor with its shape and digest, nothing else."""
        manifest = self.manifest(task)
        if manifest.backbone != backbone.digest:
            raise StoreError(
                f"task {task!r} was learned on a backbone with digest {manifest.backbone[:12]}, but {backbone.name!r} has "
                f"{backbone.digest[:12]}. A bank answers only on the backbone it was learned on: give that one."
            )
        bank = build_bank(self.plan(task), backbone, folded=True)
        _fill(bank, self.tensors(task), task)
        return bank.requires_grad_(False).eval()

    def commit(
        self,
        plan: TaskPlan,
        bank: Bank,
        backbone: Backbone,
        probe: Mapping[str, Tensor],
        *,
        scores: Mapping[str, SplitScores],
        data: Mapping[str, str],
        notices: tuple[str, ...],
        max_length: int,
        preparation: str,
        parent: Parent | None = None,
    ) -> Manifest:
        """Write a learned task with its certificate, in one step.

        The certified outputs are those of the bank as read back from the disk, so a write that went wrong never
        becomes a task.
        """
        check_modes(plan.name, backbone.model, dropout=False)
        before = self.tasks
        with new_folder(self.bank_folder(plan.name)) as folder:
            tensors = {name: tensor.to("cpu").contiguous().clone() for name, tensor in bank.tensors().items()}
            write_tensors(folder / "bank.safetensors", tensors)
            written = build_bank(plan, backbone, folded=True)
            _fill(written, load_file(folder / "bank.safetensors"), plan.name)
            device = backbone.model.device
            outputs = replay(backbone, written.to(device).eval(), plan.pooling, dict(probe))
            certified = {**probe, OUTPUTS: outputs}
            write_tensors(folder / "probe.safetensors", certified)
            digests = tensor_digests(tensors)
            manifest = Manifest(
                task=plan.name,
                index=len(before),
                predecessor=self.manifest(before[-1]).chain_digest() if before else None,
                kind=plan.kind,
                pair=plan.pair,
                labels=plan.labels,
                class_weights=plan.class_weights,
                bank=plan.bank,
                training=plan.training,
                pooling=plan.pooling,
                metric=plan.metric,
                seed=plan.seed,
                generation=plan.generation,
                max_length=max_length,
                max_target_length=plan.max_target_length,
                backbone=backbone.digest,
                preparation=preparation,
                tensors={
                    name: TensorEntry(
                        dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape), digest=digests[name]
                    )
                    for name, t in tensors.items()
                },
                digest=combined_digest(digests),
                probe=combined_digest(tensor_digests(certified)),
                scores=dict(scores),
                data=dict(data),
                notices=notices,
                parameters=bank.count(),
                environment=current_environment(device, backbone.precision, backbone.attention),
                parent=parent,
            )
            write_manifest(folder / "bank.json", manifest)
        return manifest

    def results(self) -> list[dict[str, Any]]:
        """Return every committed line of results.jsonl, oldest first."""
        return read_lines(self.folder / "results.jsonl")

    def append_results(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append lines to results.jsonl, flushed to disk."""
        append_lines(self.folder / "results.jsonl", rows)

    def write_stream(self, text: str) -> None:
        """Write the resolved stream."""
        write_file(self.stream_file, text.encode())

    def write_backbone(self, backbone: Backbone) -> None:
        """Pin the backbone; another one than the run already has is a `StoreError`."""
        pin_backbone(self._pin, backbone)

    def backbone_facts(self) -> dict[str, Any] | None:
        """Return what backbone.json says, or None before the first run."""
        return read_pin(self._pin)

    @property
    def _pin(self) -> Path:
        return self.folder / "backbone.json"


def _fill(bank: Bank, tensors: Mapping[str, Tensor], task: str) -> None:
    """Copy stored tensors into a bank, after checking every name, shape and dtype against what its spec builds."""
    expected = bank.tensors()
    for name in sorted(expected.keys() | tensors.keys()):
        mine, stored = expected.get(name), tensors.get(name)
        if mine is None or stored is None or (mine.shape, mine.dtype) != (stored.shape, stored.dtype):
            raise StoreError(
                f"task {task!r}: tensor {name}: stored {_describe(stored)}, but its bank's specification builds "
                f"{_describe(mine)}; bank.safetensors and bank.json do not belong together"
            )
    bank.load_state_dict(dict(tensors), strict=True)


def _describe(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
