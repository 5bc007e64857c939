"""A run in memory: tokenizer or image processing, backbones by precision, and banks within a memory limit.

A bank in memory is used only while its certificate is still the one on disk, so no stale bank is ever used. Prediction needs
no learner; `resident` loads a bank into a learner so that Lightning can evaluate it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from continual_petl.backbones.attention_switch import attend_as, switchable
from continual_petl.backbones.auto_defaults import fastest
from continual_petl.backbones.available import MissingBackboneError
from continual_petl.backbones.backbone import Backbone, Precision, load_backbone, load_tokenizer
from continual_petl.backbones.device import device_of
from continual_petl.backbones.weights import ran_out
from continual_petl.banks.mixed.stack_cache import stacks_of
from continual_petl.digests import combined_digest
from continual_petl.errors import InputError, StoreError
from continual_petl.store.bank_cache import RESIDENT_BYTES, BankCache, CachedBank
from continual_petl.store.certificate.pinned_backbone import check_files, check_pinned
from continual_petl.store.certificate.tensor_file import num_bytes
from continual_petl.store.dependencies import read_certificates
from continual_petl.store.store import Store
from continual_petl.streams.encoding.image_processing import ImageProcessing, image_processing
from continual_petl.streams.encoding.tokenise import padding_id
from continual_petl.streams.schema.stream_spec import BackboneSpec

if TYPE_CHECKING:
    from continual_petl.learner import ContinualLearner
    from continual_petl.store.certificate.certificate import Certificate


_USUAL = {"truncation_side": "right", "split_special_tokens": False, "clean_up_tokenization_spaces": False}
"""Defaults for the truncation side, for special tokens inside texts, and for the cleanup of generated text."""
_IMAGES = ("image processing", "image would become different pixels")


class ModelCache:
    """The backbone and banks of a run, loaded only when needed.

    Args:
        store: the run folder.
        spec: the backbone's specification.
        consent: whether the user allows the remote code that ``spec`` requests; the run folder alone cannot allow it.
        resident_bytes: memory limit for all banks together, in bytes; one bank is always held, however large it is.
        trainer: the stream's Trainer arguments, which determine the device of the backbones and banks; see `device_of`.
    """

    def __init__(
        self,
        store: Store,
        spec: BackboneSpec,
        *,
        consent: bool = True,
        resident_bytes: int = RESIDENT_BYTES,
        trainer: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.store, self.spec, self.consent, self.trainer = store, spec, consent, trainer
        self.backbones: dict[str, Backbone] = {}
        self.held_banks = BankCache(resident_bytes)
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._images: ImageProcessing | None = None
        self._preparation: str | None = None
        self._learners: dict[str, ContinualLearner] = {}

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The backbone's tokenizer; None if it reads images."""
        if self._tokenizer is None and not self._any_backbone().anatomy.images:
            b = self.spec
            self._tokenizer = load_tokenizer(b.name, revision=b.revision, remote_code=b.remote_code)
        return self._tokenizer

    @property
    def images(self) -> ImageProcessing | None:
        """The backbone's image processing; None if it reads text."""
        backbone = self._any_backbone()
        if self._images is None and backbone.anatomy.images:
            self._images = image_processing(self.spec.name, self.spec.revision, backbone.model.config)
        return self._images

    @property
    def pad_token_id(self) -> int:
        """The token that pads short rows."""
        return 0 if self.tokenizer is None else padding_id(self.tokenizer)

    @property
    def preparation(self) -> str:
        """Digest of everything that affects how texts become token ids, or images become pixels; cached."""
        if self._preparation is None:
            self._preparation = self._digest_of_inputs()
        return self._preparation

    def _digest_of_inputs(self) -> str:
        if self.images is not None:
            return self.images.digest
        assert self.tokenizer is not None
        rules: dict[str, Any] = json.loads(self.tokenizer.backend_tokenizer.to_str())
        # The arguments of the last call, which are not part of the tokenizer.
        del rules["truncation"], rules["padding"]
        # The end token matters too, since it ends every target.
        special = {"pad": self.pad_token_id, "end": self.tokenizer.eos_token_id}
        # Settings of tokenizer_config.json that backend_tokenizer does not contain; defaults are left out.
        named = {key: getattr(self.tokenizer, key, usual) for key, usual in _USUAL.items()}
        unusual = {key: value for key, value in named.items() if value != _USUAL[key]}
        return combined_digest({"tokenizer": rules, "inputs": self.tokenizer.model_input_names, **special, **unusual})

    def forget_digest(self) -> None:
        """Forget the cached digest of the tokenizer or image processing, which may have been changed in memory."""
        self._preparation = None

    def check_preparation(self, certificate: Certificate) -> list[str]:
        """Return a problem if the tokenizer or image processing differs from the one a task was learned with.

        A bank learned with one tokenizer is useless with another: its certificate holds the digest, and nothing is predicted
        unless the current tokenizer has the same digest.
        """
        then, now = certificate.preparation, self.preparation
        if then == now:
            return []
        processor, same = ("tokenizer", "text would become different tokens") if self.images is None else _IMAGES
        return [
            f"task {certificate.task!r}: the {processor} that it was learned with has the digest {then[:12]}, but the "
            f"{processor} of backbone {self.spec.name!r} has {now[:12]}: the same {same}. Restore the {processor}'s files."
        ]

    def check_code(self) -> None:
        """Raise `InputError` if the backbone needs remote code that the user has not allowed."""
        if self.spec.remote_code and not self.consent:
            raise InputError(
                f"{self.store.stream_file}: key backbone.remote_code: true: it asks to execute Python code that comes with "
                f"backbone {self.spec.name!r}, which can do whatever you can. A run folder may come from anyone, so it "
                "cannot give that permission. Read the code, then pass --remote-code, or Run(folder, remote_code=True)."
            )

    def _any_backbone(self) -> Backbone:
        if self.backbones:
            return next(iter(self.backbones.values()))
        tasks = self.store.tasks
        return self.backbone_of(tasks[0]) if tasks else self.backbone("fp32")

    def backbone(self, precision: Precision) -> Backbone:
        """Return the backbone in one precision, with the attention implementation for predictions; it is loaded only once.

        Raises:
            InputError: if it cannot be loaded.
            StoreError: if it is not the backbone that the run's tasks were learned on.
        """
        if precision not in self.backbones:
            self.check_code()
            b = self.spec
            pinned = self.store.pinned()
            try:
                loaded = load_backbone(
                    b.name,
                    revision=b.revision,
                    precision=precision,
                    attention=b.attention,
                    pooling=b.pooling,
                    max_length=b.max_length,
                    remote_code=b.remote_code,
                    quantize=b.quantize,
                )
            except MissingBackboneError as error:
                if pinned is None or pinned.name == b.name:
                    raise
                raise error.in_run(pinned.name) from error
            except InputError as error:
                # transformers rarely names the damaged file in its message.
                changed = [] if pinned is None else check_files(self.store.pin_file, pinned, b.name, b.revision, None)
                if not changed:
                    raise
                raise InputError(" ".join([str(error), *changed])) from error
            self.adopt(loaded)
        return self.backbones[precision]

    def adopt(self, backbone: Backbone) -> None:
        """Use a backbone that is in memory, on the device and with the attention implementation for predictions.

        Raises:
            StoreError: if it is not the backbone that the run's tasks were learned on.
        """
        if (pinned := self.store.pinned()) is not None:
            check_pinned(self.store.pin_file, pinned, backbone)
        self._move(backbone)
        self.backbones[backbone.precision] = attend_as(backbone, self._attention(backbone))

    def _move(self, backbone: Backbone) -> None:
        device = device_of(self.trainer)
        try:
            torch.nn.Module.to(backbone.model, device)
        except RuntimeError as error:
            if not ran_out(error):
                raise
            raise InputError(
                f"backbone {self.spec.name!r} does not fit into the free memory of {device} "
                f"({str(error).partition('. ')[0]}). Free memory that other processes hold, name another GPU "
                "(trainer.devices: [1]), or use the CPU (trainer.accelerator: cpu)."
            ) from error

    def _attention(self, backbone: Backbone) -> str:
        if self.spec.attention != "auto":
            return backbone.attention
        # The fastest implementation may differ on this machine, or may have changed since: a run keeps using the same one.
        first = next(self._certificates(), None)
        return fastest().attention if first is None else first.environment.attention

    def training_attention(self, backbone: Backbone) -> str:
        """Return the attention implementation for training new banks; with ``auto``, a run keeps using the same one."""
        if self.spec.attention != "auto":
            return backbone.attention
        # Banks that were not trained by a run are skipped.
        first = next((certificate for certificate in self._certificates() if certificate.origin is None), None)
        if first is None:
            return switchable(backbone, fastest().training_attention)
        return switchable(backbone, first.training_attention or first.environment.attention)

    def _certificates(self) -> Iterator[Certificate]:
        tasks: list[str] = []
        with suppress(StoreError):  # reported when the ledger is read
            tasks = self.store.tasks
        for name in tasks:
            with suppress(StoreError):  # reported when this task is used
                yield self.store.certificate(name)

    def backbone_of(self, task: str) -> Backbone:
        """Return the backbone in a learned task's precision."""
        return self.backbone("bf16" if self.store.certificate(task).environment.precision == "bf16" else "fp32")

    def learner(self, precision: Precision) -> ContinualLearner:
        """Return the learner for the backbone in the given precision."""
        # Lightning takes seconds to import, and prediction does not need it.
        from continual_petl.learner import ContinualLearner

        if precision not in self._learners:
            self._learners[precision] = ContinualLearner(self.backbone(precision))
        return self._learners[precision]

    def evict_all(self) -> None:
        """Release all banks in memory and all copies of them; banks on disk stay."""
        self.held_banks.clear()
        for backbone in self.backbones.values():
            stacks_of(backbone.model).clear()
        for learner in self._learners.values():
            for task in list(learner.plans):
                learner.evict(task)

    def held(self, task: str, *, as_committed: bool = False) -> CachedBank:
        """Return a learned task's bank, ready for prediction; it is read from disk only if it is not in memory.

        A task with ``scope: shared`` uses the newest shared bank with its own head, unless ``as_committed`` is set.

        Raises:
            StoreError: if the bank, backbone or tokenizer differs from the one the task was learned with.
        """
        return self._hold(task, as_committed, keep=())

    def hold(self, tasks: Sequence[str]) -> list[CachedBank]:
        """Return everything needed to predict with several learned tasks, in order, all in memory at once.

        Raises:
            InputError: if their banks exceed the memory limit; no bank beyond the limit is loaded.
            StoreError: if a bank, backbone or tokenizer differs from the one the task was learned with.
        """
        names, total = dict.fromkeys(tasks), 0
        cached_banks: dict[str, CachedBank] = {}
        for task in names:
            total += self._size(task)
            if total > self.held_banks.max_bytes and len(names) > 1:
                raise InputError(
                    f"{len(names)} banks at once: the first {len(cached_banks) + 1} of them take up {total} bytes, "
                    f"but the limit for banks in memory is {self.held_banks.max_bytes}. Ask for fewer tasks at a time, "
                    "or raise the limit: Run(folder, resident_bytes=...)."
                )
            cached_banks[task] = self._hold(task, False, keep=names)
        return [cached_banks[task] for task in tasks]

    def _size(self, task: str) -> int:
        if (held := self.held_banks.peek(task)) is not None:
            return held.num_bytes
        try:
            return self._num_bytes(self.store.certificate(task))
        except ValueError:
            return 0  # an unsupported dtype, which loading reports

    def _num_bytes(self, certificate: Certificate) -> int:
        """Return the size in bytes of a bank in memory, including the banks that it reads."""
        read = read_certificates(self.store, certificate, certificate.reads)
        return sum(num_bytes(cert.tensors) for cert in (certificate, *read))

    def _hold(self, task: str, as_committed: bool, keep: Collection[str]) -> CachedBank:
        commit, body = self.store.commit(task), None
        self.store.check_certificate(commit)
        if commit.shared and not as_committed:
            newest = self.newest_shared()
            body = None if newest in (None, task) else newest
        # The key of the bank as committed ends with a slash, which no task name contains.
        name = f"{task}/" if commit.shared and as_committed else task
        seals = (commit.seal,) if body is None else (commit.seal, self.store.commit(body).seal)
        held = self.held_banks.get(name, seals)
        if held is None:
            held = self._load(task, body, seals)
            self.held_banks.put(name, held, keep)
        for problem in self.check_preparation(held.certificate):
            raise StoreError(problem)
        device = held.backbone.model.device
        if held.bank.training or next(held.bank.parameters()).device != device:
            held.bank.to(device).eval()
        return held

    def _load(self, task: str, body: str | None, seals: tuple[str, ...]) -> CachedBank:
        certificate, backbone = self.store.certificate(task), self.backbone_of(task)
        for problem in self.check_preparation(certificate):
            raise StoreError(problem)  # before any bank is read
        bank = self.store.load_bank(task, backbone)
        if body is not None:
            bank.copy_body(self.store.load_bank(body, backbone).body())
        return CachedBank(
            plan=certificate,
            bank=bank,
            backbone=backbone,
            seals=seals,
            num_bytes=self._num_bytes(certificate),
        )

    def resident(self, task: str, *, as_committed: bool = False) -> ContinualLearner:
        """Return a learner in which a learned task's bank is active and is the only one loaded; see `held`."""
        held = self.held(task, as_committed=as_committed)
        learner = self.learner(held.backbone.precision)
        if learner.active != task or learner.bank(task) is not held.bank:
            for loaded in list(learner.plans):
                learner.evict(loaded)
            learner.add_bank(held.plan, held.bank, tokenizer=self.tokenizer)
        return learner

    def newest_shared(self) -> str | None:
        """Return the newest learned task whose bank is shared."""
        shared = [commit.task for commit in self.store.commits() if commit.shared]
        return shared[-1] if shared else None
