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
    place = _fresh_difference(backbone, name)
    where = (
        "" if place is None else f", where value {list(place.position)} is {place.found!r} but was {place.certified!r}"
    )
    cause = (
        "an optimizer that holds it, an edit in place, or the model itself, which creates or moves a buffer as it runs"
    )
    return [
        Finding(
            message=f"backbone {backbone.name!r}: {counted(len(changed), 'tensor differs', 'tensors differ')} from "
            f"what was loaded (the first is {name}{where}). Something wrote to the frozen model: {cause}.",
            tensor=name,
            position=None if place is None else place.position,
            found=None if place is None else place.found,
            certified=None if place is None else place.certified,
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
    one, other = module_tensors(backbone.model).get(name), module_tensors(fresh.model).get(name)
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return None
    return first_difference(one, other)
