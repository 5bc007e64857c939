"""CITATION.cff follows the Citation File Format 1.2.0."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from tests.docs.blocks import ROOT

CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

_AUTHORS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "anyOf": [
            {"required": ["name"], "properties": {"name": {"type": "string"}}},
            {
                "required": ["family-names", "given-names"],
                "properties": {key: {"type": "string"} for key in ("family-names", "given-names")},
                "additionalProperties": False,
            },
        ]
    },
}
_REFERENCE = {
    "required": ["authors", "title", "type"],
    "properties": {
        "authors": _AUTHORS,
        "title": {"type": "string"},
        "type": {"enum": ["article", "conference-paper", "book", "software"]},
        "year": {"type": "integer"},
        "url": {"pattern": "^https://"},
        "conference": {"required": ["name"]},
        "collection-title": {"type": "string"},
    },
    "additionalProperties": False,
}
SCHEMA = {
    "required": ["authors", "cff-version", "message", "title"],
    "properties": {
        "cff-version": {"const": "1.2.0"},
        "type": {"enum": ["dataset", "software"]},
        "authors": _AUTHORS,
        "references": {"type": "array", "items": _REFERENCE},
        "keywords": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        **{key: {"type": "string"} for key in ("message", "title", "abstract", "license")},
    },
    "additionalProperties": False,
}
"""The parts of the official schema (https://github.com/citation-file-format, schema.json of 1.2.0) that CITATION.cff uses."""


def test_citation_file_has_required_fields() -> None:
    jsonschema.validate(CITATION, SCHEMA)
    assert CITATION["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8").split("TERMS")[0]


def test_citation_file_cites_both_papers() -> None:
    cited = {reference["authors"][0]["family-names"]: reference["year"] for reference in CITATION["references"]}
    assert cited == {"Houlsby": 2019, "He": 2022}


@pytest.mark.parametrize(
    "wrong", [{"cff-version": "1.1"}, {"authors": []}, {"doi": ""}, {"references": [{"type": "x"}]}]
)
def test_malformed_citation_is_reported(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(CITATION | wrong, SCHEMA)
