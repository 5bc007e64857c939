"""What one process holds of a run in memory: tokenizer or image processing, backbones by precision, the bank that answers
now.
"""

from __future__ import annotations

import json
from typing import Any

from transformers import PreTrainedTokenizerBase

from continual_petl.backbones.backbone import Backbone, Precision, load_backbone, load_tokenizer
from continual_petl.digests import combined_digest
from continual_petl.errors import InputError, StoreError
from continual_petl.learner import ContinualLearner
from continual_petl.store.pin import check_files, check_pin
from continual_petl.store.store import Store
from continual_petl.streams.encoding.image_processing import ImageProcessing, image_processing
from continual_petl.streams.encoding.tokenise import padding_id
from continual_petl.streams.schema.stream_spec import BackboneSpec

_USUAL = {"truncation_side": "right", "split_special_tokens": False, "clean_up_tokenization_spaces": False}
"""At which end long texts are cut, whether texts may spell special tokens, and how generated tokens become a text."""
_IMAGES = ("processing of images", "image would become other pixels")


class Residents:
    """Backbone and banks of a run, loaded when they are needed and only then.

    Args:
        store: the run folder.
        spec: which backbone.
        consent: whether what ``spec`` says of remote code is the user's own word, and not that of a run folder.
    """

    def __init__(self, store: Store, spec: BackboneSpec, *, consent: bool = True) -> None:
        self.store = store
        self.spec = spec
        self.consent = consent
        self.backbones: dict[str, Backbone] = {}
        self._learners: dict[str, ContinualLearner] = {}
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._images: ImageProcessing | None = None
        self._preparation: str | None = None
        self._first: str | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The backbone's tokenizer; None where it reads images."""
        if self._tokenizer is None and not self._any_backbone().anatomy.images:
            self._tokenizer = load_tokenizer(
                self.spec.name, revision=self.spec.revision, remote_code=self.spec.remote_code
            )
        return self._tokenizer

    @property
    def images(self) -> ImageProcessing | None:
        """What makes the backbone's inputs of images; None where it reads texts."""
        backbone = self._any_backbone()
        if self._images is None and backbone.anatomy.images:
            self._images = image_processing(self.spec.name, self.spec.revision, backbone.model.config)
        return self._images

    @property
    def pad_token_id(self) -> int:
        """What fills up short rows."""
        return 0 if self.tokenizer is None else padding_id(self.tokenizer)

    @property
    def preparation(self) -> str:
        """Digest of everything that decides how a text becomes token ids, or an image pixels."""
        if self._preparation is None:
            self._preparation = self._digest()
        return self._preparation

    def look_again(self) -> None:
        """Make the digest of tokenizer or image processing anew: someone may have changed the one in memory."""
        self._preparation = self._first = None

    def _rules(self) -> dict[str, Any]:
        assert self.tokenizer is not None
        rules: dict[str, Any] = json.loads(self.tokenizer.backend_tokenizer.to_str())
        # What the last call asked for, not what the tokenizer is.
        del rules["truncation"], rules["padding"]
        return rules

    def _first_digest(self) -> str | None:
        """Return the digest that the first certificates held, which knew no generation."""
        if self._first is None and self.tokenizer is not None:
            inputs, pad = self.tokenizer.model_input_names, int(self.tokenizer.pad_token_id or 0)
            self._first = combined_digest({"tokenizer": self._rules(), "inputs": inputs, "pad": pad})
        return self._first

    def _digest(self) -> str:
        if self.images is not None:
            return self.images.digest
        assert self.tokenizer is not None
        rules = self._rules()
        # The end token is what targets end with.
        special = {"pad": self.pad_token_id, "end": self.tokenizer.eos_token_id}
        # Settings of tokenizer_config.json that the rules do not hold; what is usual is left out.
        named = {key: getattr(self.tokenizer, key, usual) for key, usual in _USUAL.items()}
        unusual = {key: value for key, value in named.items() if value != _USUAL[key]}
        return combined_digest({"tokenizer": rules, "inputs": self.tokenizer.model_input_names, **special, **unusual})

    def check_preparation(self, task: str) -> list[str]:
        """Return one problem if tokenizer or image processing are not those that a task was learned with."""
        manifest = self.store.manifest(task)
        then = manifest.preparation
        if then == self.preparation or (manifest.written_in == 1 and then == self._first_digest()):
            return []
        what, same = ("tokenizer", "text would become other tokens") if self.images is None else _IMAGES
        return [
            f"task {task!r} was learned with a {what} of digest {then[:12]}, but that of backbone {self.spec.name!r} "
            f"has {self.preparation[:12]}: the same {same}. Restore the {what}'s files."
        ]

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
                raise InputError(" ".join([str(error), *changed])) from error
            if pin is not None:
                check_pin(self.store.pin_file, pin, backbone)
            self.backbones[precision] = backbone
        return self.backbones[precision]

    def backbone_of(self, task: str) -> Backbone:
        """Return the backbone in the precision that a learned task answers in."""
        return self.backbone("bf16" if self.store.manifest(task).environment.precision == "bf16" else "fp32")

    def learner(self, precision: Precision) -> ContinualLearner:
        """Return the learner on the backbone of one precision."""
        if precision not in self._learners:
            self._learners[precision] = ContinualLearner(self.backbone(precision))
        return self._learners[precision]

    def resident(self, task: str, *, as_committed: bool = False) -> ContinualLearner:
        """Return a learner in which a learned task's bank is loaded and active, every other bank evicted.

        A task with ``scope: shared`` answers with the newest shared body and its own head, unless the bank is wanted
        as it was committed.

        Raises:
            StoreError: if bank, backbone or tokenizer are not those that the task was learned with.
        """
        manifest = self.store.manifest(task)
        for problem in self.check_preparation(task):
            raise StoreError(problem)
        learner = self.learner(self.backbone_of(task).precision)
        for other in list(learner.plans):
            learner.evict(other)
        bank = self.store.load_bank(task, learner.backbone)
        newest = self.newest_shared()
        if not as_committed and manifest.bank.scope == "shared" and newest is not None and newest != task:
            bank.copy_body(self.store.load_bank(newest, learner.backbone).body())
        learner.add_bank(self.store.plan(task), bank, tokenizer=self.tokenizer)
        return learner

    def newest_shared(self) -> str | None:
        """Return the newest learned task whose bank is shared."""
        shared = [link.task for link in self.store.links() if link.shared]
        return shared[-1] if shared else None
