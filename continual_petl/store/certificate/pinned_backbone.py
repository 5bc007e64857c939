"""``backbone.json``: the pin, digests of the one backbone that all of a run's banks use.

The digests cover the backbone's tensors, its configuration (an epsilon affects outputs just as a weight does) and its files
(see `check_files`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from continual_petl._strict_model import StrictModel
from continual_petl.errors import InputError, StoreError, counted
from continual_petl.store.files.sealed import read_record, write_record

if TYPE_CHECKING:
    from continual_petl.backbones.backbone import Backbone


class PinnedBackbone(StrictModel):
    """The record of a run's backbone."""

    format_version: Literal[2] = 2
    name: str
    revision: str | None
    digest: str
    """Digest of all tensors together."""
    family: str
    num_parameters: int
    remote_code: bool = False
    """Whether Python code that came with the model was executed."""
    config: dict[str, Any]
    """The content of its config.json."""
    tensors: dict[str, str]
    """Digest of every tensor."""
    files: dict[str, str]
    """SHA-256 of every file."""


def pin_backbone(path: Path, backbone: Backbone) -> None:
    """Write the pin if there is none yet; otherwise, compare the backbone with it.

    Raises:
        StoreError: if the run already has another backbone.
    """
    pinned = read_pinned(path)
    if pinned is not None:
        check_pinned(path, pinned, backbone)
        return
    pinned = PinnedBackbone(
        name=backbone.name,
        revision=backbone.revision,
        digest=backbone.digest,
        family=backbone.anatomy.family,
        num_parameters=backbone.num_parameters,
        remote_code=getattr(backbone, "remote_code", False),
        config=backbone.config_facts,
        tensors=backbone.tensor_digests,
        files=backbone.file_digests(),
    )
    write_record(path, pinned)


def check_pinned(path: Path, pinned: PinnedBackbone, backbone: Backbone) -> None:
    """Raise `StoreError`, naming what differs, unless this is the pinned backbone."""
    if pinned.digest != backbone.digest:
        changed = [
            n for n in sorted(pinned.tensors | backbone.tensor_digests) if not _same(n, pinned.tensors, backbone)
        ]
        differs = counted(len(changed), "tensor differs", "tensors differ")
        which = f" ({differs}; the first is {changed[0]})" if changed else ""
        raise StoreError(
            f"{path}: this run was learned on backbone {pinned.name!r} with digest {pinned.digest[:12]}; "
            f"{backbone.name!r} has {backbone.digest[:12]}{which}. The run's banks would predict differently on it: "
            "use the backbone of the run, or another --run-dir."
        )
    for key in sorted(pinned.config | backbone.config_facts):
        then, now = pinned.config.get(key), backbone.config_facts.get(key)
        if then != now:
            raise StoreError(
                f"{path}: this run was learned on backbone {pinned.name!r}, whose config.json had {key}: "
                f"{_short(then, now)}; in {backbone.name!r}, it is {_short(now, then)}. With this value, the same "
                "weights compute different outputs: restore config.json."
            )


def check_files(
    path: Path, pinned: PinnedBackbone, name: str, revision: str | None, backbone: Backbone | None
) -> list[str]:
    """Return one problem for each file of the backbone that is not byte for byte the pinned one.

    Args:
        path: path of the pin, for messages.
        pinned: the pin.
        name: the backbone's name, as in the stream.
        revision: the revision, if the name is a Hub id.
        backbone: the loaded backbone, which also lists files that were added later; None if it cannot be loaded.
    """
    from continual_petl.backbones.backbone_files import digests_of  # imports transformers

    try:
        digests = digests_of(name, revision, pinned.files) if backbone is None else backbone.file_digests()
    except InputError as error:
        return [str(error)]
    return [
        f"backbone {name!r}: its file {file} "
        + ("is missing" if file not in digests else "was added" if file not in pinned.files else "has changed")
        + f" (digest in {path.name}: {pinned.files.get(file, 'none')[:12]}, now: {digests.get(file, 'none')[:12]}). It was "
        "damaged or edited after the run began: restore it from a copy."
        for file in sorted(pinned.files | digests)
        if pinned.files.get(file) != digests.get(file)
    ]


def read_pinned(path: Path) -> PinnedBackbone | None:
    """Return the pin; None if none has been written yet.

    Raises:
        StoreError: if the file is damaged.
    """
    try:
        return read_record(path, PinnedBackbone)[0]
    except FileNotFoundError:
        return None


def _same(name: str, recorded: dict[str, str], backbone: Backbone) -> bool:
    return recorded.get(name) == backbone.tensor_digests.get(name)


def _short(value: object, other: object) -> str:
    """Return a value in at most 60 characters or, if it is longer, the part where it differs from another."""
    text, differing = repr(value), repr(other)
    if len(text) <= 60:
        return text
    start = next((n for n, (a, b) in enumerate(zip(text, differing, strict=False)) if a != b), len(differing))
    start = 0 if start < 50 else start - 10
    return f"{'...' if start else ''}{text[start : start + 57]}{'...' if len(text) > start + 57 else ''}"
