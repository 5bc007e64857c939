"""Every name that the package offers at its top is there, and is the one of its room."""

from __future__ import annotations

import pytest

import continual_petl


@pytest.mark.parametrize("name", continual_petl.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(continual_petl, name).__name__ == name
    assert name in dir(continual_petl)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"it has .*ContinualLearner"):
        continual_petl.lern  # noqa: B018
