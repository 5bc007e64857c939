"""What is announced before a task is learned is what an export does afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from continual_petl import InputError, learn
from continual_petl.banks.config.presets import PRESETS
from continual_petl.cli.main import main
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.exchange.adapterhub.adapter import write_adapters
from continual_petl.exchange.expressible import announced, check_format
from continual_petl.exchange.formats import FORMATS, ONLY_IF, CannotExpressError, in_words, refused_by_bank
from continual_petl.exchange.merged import write_checkpoint
from continual_petl.exchange.peft.adapter import write_peft
from continual_petl.kind_registry import find_kind
from continual_petl.store.store import Store
from tests.exchange.subjects import Folder, subject_of
from tests.exchange.test_adapters import bottleneck
from tests.kinds import METRICS
from tests.small import small
from tests.streams_in_code import stream, task
from tests.tiny import FAMILIES
from tests.usual import walk

WRITE: dict[str, Any] = {"merged": write_checkpoint, "peft": write_peft, "adapters": write_adapters}
POOLINGS = (None, "mean", "first", "last", "pooler")


def agrees(backbone_folder: Folder, family: str, kind: str, preset: Any, pooling: str | None) -> None:
    """Compare what is announced for a task with what each export does with its learned bank."""
    try:
        subject = subject_of(backbone_folder(family), kind, preset, pooling)
    except InputError:
        assume(False)  # no such task on this backbone
    said = announced(subject.plan, subject.backbone, subject.tokenizer, subject.max_length)
    assert tuple(sorted(said)) == tuple(sorted(FORMATS))
    known_before = refused_by_bank(subject.plan.bank)
    assert {format: said[format] for format in known_before} == known_before
    for format, why in said.items():
        if format not in find_kind(kind).formats:
            assert why is not None
            continue
        with TemporaryDirectory() as folder:
            try:
                assert WRITE[format](subject, Path(folder)) <= 1e-5
                found = None
            except CannotExpressError as error:
                found = error.why
        assert found == why or str(why).startswith(ONLY_IF), (format, found, why)


CASES = st.tuples(
    st.sampled_from(FAMILIES),
    st.sampled_from([kind for kind in METRICS if find_kind(kind).auto_class is not None]),
    st.sampled_from(tuple(PRESETS)),
    st.sampled_from(POOLINGS),
)


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(case=CASES)
def test_what_is_announced_is_what_an_export_does(backbone_folder: Folder, case: Any) -> None:
    agrees(backbone_folder, *case)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(case=CASES)
def test_what_is_announced_is_what_an_export_does_in_many_cases(backbone_folder: Folder, case: Any) -> None:
    agrees(backbone_folder, *case)


@pytest.mark.parametrize(
    ("family", "preset", "pooling", "able"),
    [
        ("bert", "houlsby", "mean", []),
        ("bert", "lora", "mean", ["peft", "adapters"]),
        ("bert", "lora", "first", ["merged", "peft", "adapters"]),
        ("bert", "pfeiffer", "mean", ["adapters"]),
        ("bert", "bitfit", "first", ["merged"]),
        ("llama", "prefix_flat", "last", ["peft"]),
    ],
)
def test_each_refusal_names_what_works_for_this_task(
    backbone_folder: Folder, family: str, preset: str, pooling: str, able: list[str]
) -> None:
    subject = subject_of(backbone_folder(family), "classification", preset, pooling)
    agrees(backbone_folder, family, "classification", preset, pooling)
    told = {
        (): "No format can express this task: use Run.predict, or continual-petl serve.",
        **{tuple(able): f"This task can be exported in format {' or '.join(map(repr, able))}, or use Run.predict."},
    }[tuple(able)]
    told = "No format can express this task: use Run.predict, or continual-petl serve." if not able else told
    for format in FORMATS:
        if format in able:
            check_format(subject, format)
            continue
        with pytest.raises(InputError) as caught:
            check_format(subject, format)
        assert str(caught.value).startswith(f"format: got '{format}' for task 'classification', but ")
        assert str(caught.value).endswith(told)
        assert not set(FORMATS) - {*able, format} & {
            word.strip("',") for word in str(caught.value).split(". ")[-1].split()
        }


INNER = {"form": "rescale", "modifies": "ffn_inner", "insertion": "sequential", "composition": "multiply"}
BESIDE = {"modifications": [*bottleneck("attention")["modifications"], INNER]}


@pytest.mark.parametrize("choice", ["ia3", BESIDE], ids=str)
def test_factors_that_may_become_negative_are_a_condition(backbone_folder: Folder, choice: Any) -> None:
    agrees(backbone_folder, "t5", "classification", choice, "mean")
    subject = subject_of(backbone_folder("t5"), "classification", choice, "mean")
    said = announced(subject.plan, subject.backbone, subject.tokenizer, subject.max_length)
    assert str(said["adapters"]).startswith(ONLY_IF)
    assert "adapters only if no factor" in in_words(said)


def test_dry_run_show_and_draft_say_which_formats_there_will_be(
    backbone_folder: Folder, tmp_path: Path, capsys: Any
) -> None:
    banks = {"far": small("houlsby"), "near": small("lora")}
    tasks = [task(name, num_rows=16, bank=bank) for name, bank in banks.items()]
    tiny = stream(backbone_folder("bert"), tasks, training={"epochs": 1})
    facts = {each.task: each.exports for each in dry_run(Session(tiny.spec, Store(tmp_path / "run")))}
    assert [name for name, why in facts["near"].items() if why is None] == ["peft", "adapters"]
    assert None not in facts["far"].values()
    learn(tiny, tmp_path / "run")
    for name, said in facts.items():
        capsys.readouterr()
        assert main(["show", str(tmp_path / "run"), name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["exports"] == said
    assert main(["show", str(tmp_path / "run"), "near"]) == 0
    assert "as peft or adapters; not as merged (AutoModelFor" in " ".join(capsys.readouterr().out.split())
    assert main(["show", str(tmp_path / "run"), "far"]) == 0
    assert "in no format; it can be served; not as" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("family", walk(FAMILIES, ("bert", "gpt2")))
def test_comment_in_a_draft_is_true_for_every_family(backbone_folder: Folder, family: str) -> None:
    kind = "image-classification" if family == "vit" else "classification"
    for preset, able in (("houlsby", False), ("lora", True)):
        subject = subject_of(backbone_folder(family), kind, preset)
        said = announced(subject.plan, subject.backbone, subject.tokenizer, subject.max_length)
        assert (said["peft"] is None) == able
        assert able or None not in said.values()
