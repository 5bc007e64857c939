"""Convert certificates of older formats to the current one. What they did not record stays empty.

Format 1 had no digests of whole files and no parent. Its first certificates knew classification and regression of texts on
encoders only, called the digest of the inputs' preparation ``tokenizer``, left the place inside a layer out of the names
of tensors, and described banks by the options of that time; every later option has the default that those banks were
learned with.
"""

from __future__ import annotations

import re
from typing import Any

_ABSENT: dict[str, Any] = {"class_weights": None, "generation": None, "max_target_length": None}
_PLACES = {"attention": "self", "ffn": "ffn"}
"""The place in a layer of an encoder, as in today's tensor names, by what a modification modifies."""
_OLD_NAME = re.compile(r"modifications\.(\d{1,3})\.(layer_\d+)\.((?:down|up|norm)\..*|scale)")


def upgraded(raw: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Convert the content of a manifest of any readable format to the newest one, without validating it.

    Returns:
        The content, and today's names by the names in the bank's file, where they differ.
    """
    if raw.get("format_version") != 1:
        return raw, {}
    content = {**_ABSENT, **raw, "format_version": 2, "files": {}, "parent": None}
    if "tokenizer" not in content or "preparation" in content:
        return content, {}
    content["preparation"] = content.pop("tokenizer")
    tensors = content.get("tensors")
    if not isinstance(tensors, dict):
        return content, {}
    names = {name: new for name in tensors if (new := _renamed(name, content.get("bank"))) != name}
    content["tensors"] = {names.get(name, name): entry for name, entry in tensors.items()}
    return content, names


def _renamed(name: str, bank: Any) -> str:
    match = _OLD_NAME.fullmatch(name)
    if match is None:
        return name
    number, layer, rest = match.groups()
    try:
        place = _PLACES[bank["modifications"][int(number)]["modifies"]]
    except (KeyError, IndexError, TypeError):
        return name  # a name that does not fit is reported when the bank is built
    return f"modifications.{number}.{layer}.{place}.{rest}"
