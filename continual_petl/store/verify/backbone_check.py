"""Check that the backbone in memory has not changed since it was loaded; if it has, find the changed value."""

from __future__ import annotations

from continual_petl.backbones.backbone import Backbone, load_backbone
from continual_petl.backbones.quantised import is_quantised
from continual_petl.digests import module_tensors
from continual_petl.errors import InputError, counted
from continual_petl.store.certificate.finding import Difference, Finding, first_difference


def check_backbone(backbone: Backbone) -> list[Finding]:
    """Return a finding if any tensor of the backbone in memory has changed since it was loaded."""
    changed = backbone.changed()
    if not changed:
        return []
    name = changed[0]
    difference = _fresh_difference(backbone, name)
    where = (
        ""
        if difference is None
        else f", where value {list(difference.position)} is {difference.found!r} but was {difference.certified!r}"
    )
    cause = (
        "an optimizer that holds it, an edit in place, or the model itself, which creates or moves a buffer as it runs"
    )
    return [
        Finding(
            message=f"backbone {backbone.name!r}: {counted(len(changed), 'tensor differs', 'tensors differ')} from "
            f"what was loaded (the first is {name}{where}). Something wrote to the frozen model: {cause}.",
            tensor=name,
            position=None if difference is None else difference.position,
            found=None if difference is None else difference.found,
            certified=None if difference is None else difference.certified,
            cause=cause,
        )
    ]


def _fresh_difference(backbone: Backbone, name: str) -> Difference | None:
    """Return the first value of a tensor in memory that differs from a freshly loaded backbone; None if loading fails."""
    if is_quantised(module_tensors(backbone.model)[name]):
        return None  # a quantised tensor consists of several tensors: codes and scales
    try:
        fresh = load_backbone(
            backbone.name,
            revision=backbone.revision,
            precision=backbone.precision,
            attention="sdpa" if backbone.attention == "sdpa" else "eager",
            remote_code=backbone.remote_code,
            quantize=backbone.quantize,
        )
    except InputError:
        return None
    in_memory, reloaded = module_tensors(backbone.model).get(name), module_tensors(fresh.model).get(name)
    if in_memory is None or reloaded is None or (in_memory.shape, in_memory.dtype) != (reloaded.shape, reloaded.dtype):
        return None
    return first_difference(in_memory, reloaded)
