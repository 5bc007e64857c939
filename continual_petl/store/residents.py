"""What one process holds of a run in memory: tokenizer or image processing, backbones by precision, banks within a budget.

A bank in memory answers only while its certificate is the one on disk, so nothing stale ever does. Answering needs no
learner; `resident` puts a bank into one for those that measure with Lightning.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from continual_petl.backbones.attending import attend_as
from continual_petl.backbones.backbone import Backbone, Precision, load_backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.stacks import Stacks
from continual_petl.errors import InputError, StoreError
from continual_petl.store.held import RESIDENT_BYTES, Held, HeldBanks
from continual_petl.store.inputs import BackboneInputs
from continual_petl.store.pin import check_files, check_pin
from continual_petl.store.store import Store
from continual_petl.store.tensor_file import num_bytes
from continual_petl.streams.encoding.image_processing import ImageProcessing
from continual_petl.streams.schema.stream_spec import BackboneSpec

if TYPE_CHECKING:
    from continual_petl.learner import ContinualLearner
    from continual_petl.store.manifest import Manifest


class Residents:
    """Backbone and banks of a run, loaded when they are needed and only then.

    Args:
        store: the run folder.
        spec: which backbone.
        consent: whether what ``spec`` says of remote code is the user's own word, and not that of a run folder.
        resident_bytes: how much the banks in memory may take together; one is always held, however large it is.
    """

    def __init__(
        self, store: Store, spec: BackboneSpec, *, consent: bool = True, resident_bytes: int = RESIDENT_BYTES
    ) -> None:
        self.store, self.spec, self.consent = store, spec, consent
        self.backbones: dict[str, Backbone] = {}
        self.held_banks = HeldBanks(resident_bytes)
        self.stacks = Stacks()
        self.inputs = BackboneInputs(spec, self._any_backbone)
        self._learners: dict[str, ContinualLearner] = {}

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The backbone's tokenizer; None where it reads images."""
        return self.inputs.tokenizer

    @property
    def images(self) -> ImageProcessing | None:
        """What makes the backbone's inputs of images; None where it reads texts."""
        return self.inputs.images

    @property
    def pad_token_id(self) -> int:
        """What fills up short rows."""
        return self.inputs.pad_token_id

    @property
    def preparation(self) -> str:
        """Digest of everything that decides how a text becomes token ids, or an image pixels."""
        return self.inputs.digest

    def look_again(self) -> None:
        """Make the digest of tokenizer or image processing anew: someone may have changed the one in memory."""
        self.inputs.look_again()

    def check_preparation(self, manifest: Manifest) -> list[str]:
        """Return one problem if tokenizer or image processing are not those that a task was learned with."""
        return self.inputs.problems(manifest.task, manifest.preparation, manifest.written_in)

    def check_code(self) -> None:
        """Raise `InputError` if the run folder asks to execute code, and nobody else does."""
        if self.spec.remote_code and not self.consent:
            raise InputError(
                f"{self.store.stream_file}: key backbone.remote_code: true: it asks to execute Python code that lies beside "
                f"backbone {self.spec.name!r}, which can do whatever you can. A run folder may come from anyone, so this is "
                "not for it to say. Read the code, then give --remote-code, or Run(folder, remote_code=True) in Python."
            )

    def _any_backbone(self) -> Backbone:
        if self.backbones:
            return next(iter(self.backbones.values()))
        tasks = self.store.tasks
        return self.backbone_of(tasks[0]) if tasks else self.backbone("fp32")

    def backbone(self, precision: Precision) -> Backbone:
        """Return the backbone in one precision, loaded once.

        Raises:
            InputError: if it cannot be loaded.
            StoreError: if it is not the one that the run was learned on.
        """
        if precision not in self.backbones:
            self.check_code()
            b = self.spec
            pin = self.store.pin()
            try:
                backbone = load_backbone(
                    b.name,
                    revision=b.revision,
                    precision=precision,
                    attention=b.attention,
                    pooling=b.pooling,
                    max_length=b.max_length,
                    remote_code=b.remote_code,
                )
            except InputError as error:
                # What transformers says of a damaged file seldom names it.
                changed = [] if pin is None else check_files(self.store.pin_file, pin, b.name, b.revision, None)
                if not changed:
                    raise
                raise InputError(" ".join([str(error), *changed])) from error
            if pin is not None:
                check_pin(self.store.pin_file, pin, backbone)
            # What is fastest may be another attention on this machine, or since then; answers would differ by rounding.
            self.backbones[precision] = attend_as(backbone, self._learned_attention() or backbone.attention)
        return self.backbones[precision]

    def _learned_attention(self) -> str | None:
        """Return the attention of the run's certificates where the stream leaves it open: a run goes on with its own."""
        for name in self.store.names() if self.spec.attention == "auto" else []:
            try:
                return self.store.manifest(name).environment.attention
            except StoreError:
                continue  # told by whoever asks for this task
        return None

    def backbone_of(self, task: str) -> Backbone:
        """Return the backbone in the precision that a learned task answers in."""
        return self.backbone("bf16" if self.store.manifest(task).environment.precision == "bf16" else "fp32")

    def learner(self, precision: Precision) -> ContinualLearner:
        """Return the learner on the backbone of one precision."""
        # Lightning takes seconds to import, and who only answers does without.
        from continual_petl.learner import ContinualLearner

        if precision not in self._learners:
            self._learners[precision] = ContinualLearner(self.backbone(precision))
        return self._learners[precision]

    def evict_all(self) -> None:
        """Let go of every bank in memory, and of copies of them; those on disk stay."""
        self.held_banks.clear()
        self.stacks = Stacks()
        for learner in self._learners.values():
            for task in list(learner.plans):
                learner.evict(task)

    def held(self, task: str, *, as_committed: bool = False) -> Held:
        """Return a learned task's bank in memory, ready to answer; it is read from the disk only if it is not held yet.

        A task with ``scope: shared`` answers with the newest shared body and its own head, unless the bank is wanted
        as it was committed.

        Raises:
            StoreError: if bank, backbone or tokenizer are not those that the task was learned with.
        """
        return self._hold(task, as_committed, keep=())

    def banks(self, tasks: Sequence[str]) -> list[Bank]:
        """Return the banks of several learned tasks, in order, all in memory at once; see `hold`."""
        return [held.bank for held in self.hold(tasks)]

    def hold(self, tasks: Sequence[str]) -> list[Held]:
        """Return what is needed to answer several learned tasks, in order, all of it in memory at once.

        Raises:
            InputError: if their banks are more than the budget allows; nothing is held beyond it.
            StoreError: if one of them, its backbone or its tokenizer is not what the task was learned with.
        """
        wanted, total = dict.fromkeys(tasks), 0
        found: dict[str, Held] = {}
        for task in wanted:
            total += self._size(task)
            if total > self.held_banks.most and len(wanted) > 1:
                raise InputError(
                    f"{len(wanted)} banks at once: the first {len(found) + 1} of them take {total} bytes, and banks in "
                    f"memory may take {self.held_banks.most}. Ask fewer tasks at a time, or allow more: "
                    "Run(folder, resident_bytes=...)."
                )
            found[task] = self._hold(task, False, keep=wanted)
        return [found[task] for task in tasks]

    def _size(self, task: str) -> int:
        if (held := self.held_banks.peek(task)) is not None:
            return held.num_bytes
        try:
            return num_bytes(self.store.manifest(task).tensors)
        except ValueError:
            return 0  # a dtype that no store holds, which loading tells

    def _hold(self, task: str, as_committed: bool, keep: Collection[str]) -> Held:
        link, body = self.store.link(task), None
        if link.shared and not as_committed:
            newest = self.newest_shared()
            body = None if newest in (None, task) else newest
        # Behind a slash, which no name of a task has, the bank as it was committed.
        name = f"{task}/" if link.shared and as_committed else task
        made_of = (link.seal,) if body is None else (link.seal, self.store.link(body).seal)
        held = self.held_banks.get(name, made_of)
        if held is None:
            held = self._load(task, body, made_of)
            self.held_banks.put(name, held, keep)
        for problem in self.inputs.problems(task, held.preparation, held.written_in):
            raise StoreError(problem)
        device = held.backbone.model.device
        if held.bank.training or next(held.bank.parameters()).device != device:
            held.bank.to(device).eval()
        return held

    def _load(self, task: str, body: str | None, made_of: tuple[str, ...]) -> Held:
        manifest, backbone = self.store.manifest(task), self.backbone_of(task)
        for problem in self.check_preparation(manifest):
            raise StoreError(problem)  # before any bank is read
        bank = self.store.load_bank(task, backbone)
        if body is not None:
            bank.copy_body(self.store.load_bank(body, backbone).body())
        return Held(
            plan=manifest.plan(),
            bank=bank,
            backbone=backbone,
            max_length=manifest.max_length,
            preparation=manifest.preparation,
            written_in=manifest.written_in,
            made_of=made_of,
            num_bytes=num_bytes(manifest.tensors),
        )

    def resident(self, task: str, *, as_committed: bool = False) -> ContinualLearner:
        """Return a learner in which a learned task's bank is active, and no other; see `held`."""
        held = self.held(task, as_committed=as_committed)
        learner = self.learner(held.backbone.precision)
        if learner.active != task or learner.bank(task) is not held.bank:
            for other in list(learner.plans):
                learner.evict(other)
            learner.add_bank(held.plan, held.bank, tokenizer=self.tokenizer)
        return learner

    def newest_shared(self) -> str | None:
        """Return the newest learned task whose bank is shared."""
        shared = [link.task for link in self.store.links() if link.shared]
        return shared[-1] if shared else None
