"""Every setting of a plan takes part in its identity, unless it is named as not deciding the bank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.digests import combined_digest
from continual_petl.learner.task_plan import NOT_DECIDING, TaskPlan
from continual_petl.store.certificate.certificate import read_certificate
from continual_petl.streams.schema.training_spec import ResolvedTraining
from tests.other_values import WHOLE, changed, name_of, paths

GOLDEN = Path(__file__).parent.parent / "golden" / "stores" / "written"


@pytest.mark.parametrize("path", list(paths()), ids=lambda path: ".".join(map(str, path)))
def test_every_setting_decides_unless_it_is_named(path: tuple[str | int, ...]) -> None:
    other, name = changed(path), name_of(path)
    assert other != WHOLE
    found = WHOLE.differs(other)
    if name in NOT_DECIDING:
        assert (found, other.identity) == ({}, WHOLE.identity)
        return
    one, two = found[name]
    assert one != two
    assert other.differs(WHOLE)[name] == [two, one]
    assert other.identity != WHOLE.identity


def test_the_walk_reaches_every_field() -> None:
    walked = {str(path[-1]) for path in paths()}
    for model, nested in ((TaskPlan, {"bank", "training", "generation", "chat", "tags", "targets", "decision"}),
                          (ResolvedTraining, set()), (BankSpec, {"modifications"}), (Modification, set())):  # fmt: skip
        assert model.model_fields.keys() - nested <= walked
    assert NOT_DECIDING.keys() <= {name_of(path) for path in paths()}


def test_a_value_is_named_with_both_sides() -> None:
    other = WHOLE.model_copy(update={"training": WHOLE.training.model_copy(update={"patience": 3}), "chat": None})
    assert WHOLE.differs(other) == {"chat": [WHOLE.chat.model_dump() if WHOLE.chat else None, None],
                                    "training.patience": [None, 3]}  # fmt: skip
    assert WHOLE.differs(WHOLE.model_copy()) == {}


def test_options_have_the_name_that_users_gave_them() -> None:
    one, two = (
        WHOLE.model_copy(update={"normalise": "tokens", "labels": labels}) for labels in (("a", "b"), ("b", "a"))
    )
    assert one.differs(two) == {"options": [["a", "b"], ["b", "a"]]}


def test_identity_is_the_digest_of_the_settings_that_are_set() -> None:
    """A setting that is added later, and has no value, leaves the identity of earlier plans as it was."""
    content = json.loads(WHOLE.model_dump_json(exclude={"task"}))
    training = content.pop("training")
    flat = content | {f"training.{key}": value for key, value in training.items()}
    flat["the code of the metric"], flat["the scale of the targets"] = flat.pop("metric_code"), flat.pop("targets")
    expected = {
        key: value
        for key, value in flat.items()
        if key not in NOT_DECIDING and not (value is None or value is False or value == [])
    }
    assert WHOLE.settings == expected
    assert WHOLE.identity == combined_digest(expected)


@pytest.mark.parametrize("file", sorted(GOLDEN.rglob("bank.json")), ids=lambda file: file.parent.name)
def test_a_certificate_has_the_identity_of_its_plan(file: Path) -> None:
    certificate = read_certificate(file)
    plan = TaskPlan(**{name: getattr(certificate, name) for name in TaskPlan.model_fields})
    assert (certificate.identity, certificate.settings) == (plan.identity, plan.settings)
    assert certificate.differs(plan) == plan.differs(certificate) == {}
