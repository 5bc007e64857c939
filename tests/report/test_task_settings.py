"""Every setting of the schema that was set is shown: on the page, by ``show``, and where runs are compared."""

from __future__ import annotations

from typing import Any

import pytest

from continual_petl.banks.config.presets import PRESETS
from continual_petl.banks.config.spec import BankSpec, Modification, default_of
from continual_petl.callbacks.logged_values import settings_of
from continual_petl.report.run_facts import RunFacts
from continual_petl.report.task_settings import changed, epochs_in_words, named, settings_in_words, training_in_words
from continual_petl.store.certificate.history import ScorePoint
from continual_petl.streams.schema.generation import GenerationSpec
from continual_petl.streams.schema.training_spec import ResolvedTraining, TrainingSpec

TRAINING: dict[str, tuple[Any, str]] = {
    "epochs": (7, "7 epochs"),
    "max_steps": (3_000, "3,000"),
    "batch_size": (3_000, "3,000"),
    "eval_batch_size": (64, "64"),
    "max_tokens": (4_096, "4,096"),
    "packing": (True, "on"),
    "eval_max_tokens": (8_192, "8,192"),
    "learning_rate": (0.00003, "3e-05"),
    "layer_decay": (0.9, "0.9"),
    "optimizer": ("sgd", "sgd"),
    "weight_decay": (0.0, "0"),
    "momentum": (0.5, "0.5"),
    "betas": ((0.8, 0.99), "0.8, 0.99"),
    "eps": (1e-6, "1e-06"),
    "schedule": ("constant", "constant"),
    "warmup": (0.0, "0"),
    "gradient_clip": (None, "none"),
    "accumulate": (4, "4"),
    "precision": ("bf16", "bf16"),
    "head_dropout": (0.0, "0"),
    "label_smoothing": (0.1, "0.1"),
    "class_weights": ({"yes": 2.0, "no": 0.5}, "yes 2, no 0.5"),
    "backbone_dropout": (True, "on"),
    "gradient_checkpointing": (True, "on"),
    "cuda_graphs": (True, "on"),
    "prefix_cache": ("off", "off"),
    "prefix_cache_bytes": (10, "10"),
    "select": ("last", "last"),
    "patience": (2, "2"),
    "checkpoint_every": (5, "5"),
    "num_workers": (2, "2"),
}
"""For every key, a value that is not the default, and how it is shown."""


def test_every_training_key_is_in_this_file() -> None:
    missing = set(TrainingSpec.model_fields) ^ set(TRAINING)
    assert not missing, f"add a value for {missing} to TRAINING, so that its place in the report is tested"


@pytest.mark.parametrize("key", TRAINING)
def test_every_training_key_that_was_set_is_shown(key: str, facts: RunFacts) -> None:
    value, shown = TRAINING[key]
    before = facts.tasks[0].certificate
    environment = before.environment.model_copy(update={"precision": "bf16"})
    training = before.training.model_copy(update={key: value})
    assert value != TrainingSpec.model_fields[key].default
    lines = settings_in_words(before.model_copy(update={"training": training, "environment": environment}), None)
    assert lines[named(key)] == shown
    assert named(key).removesuffix("s") in training_in_words(training)
    assert shown in training_in_words(training)


def test_options_of_a_schedule_are_shown_and_logged(facts: RunFacts) -> None:
    schedule = {"name": "cosine_with_restarts", "num_cycles": 2}
    training = ResolvedTraining(epochs=3, learning_rate=1e-3, schedule=schedule)
    certificate = facts.tasks[0].certificate.model_copy(update={"training": training})
    assert "schedule name cosine_with_restarts, num cycles 2" in training_in_words(training)
    assert settings_in_words(certificate, None)["schedule"] == "name cosine_with_restarts, num cycles 2"
    assert settings_of(certificate)["training"] == {"schedule": schedule}
    assert ResolvedTraining.model_validate_json(training.model_dump_json()) == training


def test_defaults_are_left_out_except_the_most_important_ones(facts: RunFacts) -> None:
    certificate = facts.tasks[0].certificate
    plain = ResolvedTraining(epochs=3, learning_rate=1e-3)
    lines = settings_in_words(certificate.model_copy(update={"training": plain}), None)
    assert {named(key) for key in TRAINING} & set(lines) == {"learning rate", "epochs", "batch size", "precision"}
    assert training_in_words(plain) == "learning rate 0.001, 3 epochs, batch size 32"


BANK: dict[str, tuple[Any, str]] = {
    "layernorms": ("own", "own"),
    "layers": ("top-3", "top-3"),
    "scope": ("shared", "shared"),
}


def test_every_bank_key_that_was_set_is_shown(facts: RunFacts) -> None:
    assert set(BankSpec.model_fields) == {*BANK, "modifications", "start_from", "fuse"}
    certificate = facts.tasks[0].certificate
    for key, (value, shown) in BANK.items():
        bank = BankSpec.model_validate({"modifications": PRESETS["lora"].modifications, key: value})
        assert settings_in_words(certificate.model_copy(update={"bank": bank}), None)[named(key)] == shown


@pytest.mark.parametrize("preset", PRESETS)
def test_every_option_of_every_preset_is_shown(preset: str, facts: RunFacts) -> None:
    bank = PRESETS[preset]
    lines = settings_in_words(facts.tasks[0].certificate.model_copy(update={"bank": bank}), None)
    for modification in bank.modifications:
        for key in Modification.model_fields:
            value = getattr(modification, key)
            if key in ("form", "modifies"):
                assert str(value) in lines["bank"]
            elif key == "bottleneck":
                assert value is None or f"({value})" in lines["bank"]
            elif value != default_of(key, modification.form):
                assert named(key) in lines[f"{modification.form} on {modification.modifies}"]


def test_changed_generation_settings_are_shown(facts: RunFacts) -> None:
    spec = GenerationSpec(num_beams=3, length_penalty=0.5, stop=("\n",))
    assert changed(spec) == {"num_beams": 3, "length_penalty": 0.5, "stop": ("\n",)}
    certificate = facts.tasks[0].certificate.model_copy(update={"generation": spec})
    assert settings_in_words(certificate, None)["generation"] == (
        "max new tokens 64, num beams 3, length penalty 0.5, stop \n"
    )


def test_mean_and_deviation_of_targets_are_shown(facts: RunFacts) -> None:
    shown = settings_in_words(facts.tasks[1].certificate, None)["targets"]
    targets = facts.tasks[1].certificate.targets
    assert targets is not None
    assert shown == f"standardised: mean {targets.mean:.15g}, standard deviation {targets.deviation:.6g}"


def test_epochs_are_those_that_were_run_of_those_that_were_planned(facts: RunFacts) -> None:
    history = facts.tasks[0].history
    assert history is not None
    points = tuple(ScorePoint(step=5 * epoch, epoch=epoch, scores={}) for epoch in range(1, 5))
    curve = history.curve.model_copy(update={"scores": points})

    def words(planned: int, kept: int | None, patience: int | None = None) -> str:
        training = ResolvedTraining(epochs=planned, learning_rate=1e-3, patience=patience)
        return epochs_in_words(training, history.model_copy(update={"curve": curve, "kept": kept}))

    assert words(4, 20) == words(4, None) == "4 epochs"
    assert words(4, 10) == "4 epochs; the bank of epoch 2 was kept"
    assert words(9, 10, 2) == "4 of 9 epochs (no better score in 2 validations); the bank of epoch 2 was kept"
    assert epochs_in_words(ResolvedTraining(epochs=1, learning_rate=1e-3), None) == "1 epoch"
    steps = ResolvedTraining(max_steps=18, learning_rate=1e-3)
    assert epochs_in_words(steps, None) == "until step 18"
    assert training_in_words(steps) == "learning rate 0.001, batch size 32, max steps 18"
    ended = (*points[:-1], points[-1].model_copy(update={"step": 18}))
    for found, more, shown in (
        (ended, {}, "4 epochs, until step 18; the bank of epoch 2 was kept"),
        (
            points[:3],
            {"patience": 1},
            "3 epochs, until step 15 of 18 (no better score in 1 validation); the bank of epoch 2 was kept",
        ),
    ):
        past = history.model_copy(update={"curve": curve.model_copy(update={"scores": found}), "kept": 10})
        assert epochs_in_words(steps.model_copy(update=more), past) == shown
