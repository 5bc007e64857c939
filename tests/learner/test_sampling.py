"""Sampled texts do not depend on the batch and follow the right probabilities; stop strings end a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from continual_petl import Run, learn
from continual_petl.backbones.backbone import load_backbone
from continual_petl.errors import InputError
from continual_petl.learner.generate import decode
from continual_petl.learner.sampling import Sampler
from continual_petl.streams.schema.stream_spec import GenerationSpec
from tests.learner.passes import generated
from tests.learner.test_generate import FAMILIES, SOURCES, wandering
from tests.streams_in_code import stream
from tests.tiny import make_tokenizer
from tests.usual import few

Folder = Callable[..., Path]
SAMPLED = GenerationSpec(max_new_tokens=6, do_sample=True, temperature=1.5, top_p=0.95)


@pytest.mark.parametrize(("family", "kind"), few(FAMILIES, 3))
def test_sampled_answer_does_not_depend_on_the_batch(backbone_folder: Folder, family: str, kind: str) -> None:
    backbone, tokenizer = load_backbone(str(backbone_folder(family))), make_tokenizer(family)
    bank = wandering(backbone, kind, "houlsby")
    batch = {"input_ids": SOURCES, "attention_mask": (SOURCES != 0).long()}
    together = generated(backbone, bank, SAMPLED, batch, tokenizer, seed=3)
    assert together == generated(backbone, bank, SAMPLED, batch, tokenizer, seed=3)
    for row, said in zip([SOURCES[0, 2:], SOURCES[1]], together, strict=True):
        alone = {"input_ids": row[None], "attention_mask": torch.ones(1, len(row)).long()}
        assert generated(backbone, bank, SAMPLED, alone, tokenizer, seed=3) == [said]
    others = [generated(backbone, bank, SAMPLED, batch, tokenizer, seed=seed) for seed in range(4, 8)]
    assert any(other != together for other in others)


def test_sampling_follows_temperature_and_top_p() -> None:
    spec = GenerationSpec(do_sample=True, temperature=2.0, top_p=0.9)
    logits = torch.tensor([3.0, 2.0, 1.0, -6.0])
    wanted = torch.softmax(logits / 2, -1)
    wanted[3] = 0  # the other three tokens together reach top_p
    wanted /= wanted.sum()
    count = 20_000
    ids = torch.arange(count)[:, None]  # each row has its own source
    drawn = Sampler(spec, 0, ids, torch.ones_like(ids))(ids, logits.expand(count, -1)).argmax(-1)
    found = torch.bincount(drawn, minlength=4) / count
    assert found.tolist() == pytest.approx(wanted.tolist(), abs=0.015), "differs by more than four standard deviations"


def test_top_k_keeps_the_likeliest_tokens_before_top_p() -> None:
    logits = torch.tensor([3.0, 2.9, 2.8, 2.0, 1.0])
    ids = torch.arange(500)[:, None]
    for top_p, allowed in ((1.0, {0, 1, 2}), (0.6, {0, 1})):  # among the three, the first two together have 0.69
        spec = GenerationSpec(do_sample=True, top_k=3, top_p=top_p)
        drawn = Sampler(spec, 0, ids, torch.ones_like(ids))(ids, logits.expand(500, -1)).argmax(-1)
        assert set(drawn.tolist()) == allowed


@pytest.mark.parametrize(("family", "kind"), few(FAMILIES, 3))
@pytest.mark.parametrize("beams", [1, 3])
def test_repetition_penalty_counts_generated_tokens_only(
    backbone_folder: Folder, family: str, kind: str, beams: int
) -> None:
    backbone, tokenizer = load_backbone(str(backbone_folder(family))), make_tokenizer(family)
    bank = wandering(backbone, kind, "houlsby")
    batch = {"input_ids": SOURCES, "attention_mask": (SOURCES != 0).long()}

    def made(penalty: float, length: int, rows: slice = slice(None), skip: int = 0) -> list[list[int]]:
        spec = GenerationSpec(max_new_tokens=length, min_new_tokens=length, num_beams=beams, repetition_penalty=penalty)
        own = {name: tensor[rows, skip:] for name, tensor in batch.items()}
        return generated(backbone, bank, spec, own, tokenizer)

    assert made(1e6, 1) == made(1.0, 1), "tokens of the source were counted"
    strict = made(1e6, 6)
    assert made(1e6, 6, slice(1), 2) == strict[:1], "padding was counted"
    if beams == 1:
        assert all(len(set(row)) == 6 for row in strict)


@pytest.mark.parametrize(("family", "kind"), few(FAMILIES, 3))
@pytest.mark.parametrize("beams", [1, 3])
def test_an_answer_ends_before_a_stop_text(backbone_folder: Folder, family: str, kind: str, beams: int) -> None:
    backbone, tokenizer = load_backbone(str(backbone_folder(family))), make_tokenizer(family)
    bank = wandering(backbone, kind, "houlsby")
    batch = {"input_ids": SOURCES, "attention_mask": (SOURCES != 0).long()}
    free = generated(backbone, bank, GenerationSpec(max_new_tokens=8), batch, tokenizer)
    texts = decode(tokenizer, free)
    stop = texts[0].split()[1]
    spec = GenerationSpec(max_new_tokens=8, stop=(stop,), num_beams=beams)
    rows = generated(backbone, bank, spec, batch, tokenizer)
    for text in decode(tokenizer, rows, spec.stop):
        assert stop not in text
    if beams == 1:
        assert decode(tokenizer, rows, spec.stop) == [text.split(stop)[0].strip() for text in texts]
        alone = {name: tensor[:1, 2:] for name, tensor in batch.items()}
        assert generated(backbone, bank, spec, alone, tokenizer) == rows[:1], (
            "a row's answer depends on longer ones in its batch"
        )


def test_sampling_keys_do_not_change_older_certificates() -> None:
    old = {
        "num_beams": 1,
        "max_new_tokens": 64,
        "min_new_tokens": 0,
        "no_repeat_ngram_size": 0,
        "length_penalty": 1.0,
        "early_stopping": False,
    }
    assert GenerationSpec().model_dump_json() == json.dumps(old, separators=(",", ":"))
    assert GenerationSpec.model_validate(SAMPLED.model_dump(mode="json")) == SAMPLED
    assert SAMPLED.model_dump(mode="json").items() >= {"do_sample": True, "temperature": 1.5, "top_p": 0.95}.items()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temperature": 0.5}, "temperature has no effect without do_sample"),
        ({"top_p": 0.5}, "top_p has no effect without do_sample"),
        ({"top_k": 5}, "top_k has no effect without do_sample"),
        ({"repetition_penalty": 0.0}, "a number above 0"),
        ({"do_sample": True, "num_beams": 2}, "do_sample samples one text, and num_beams is 2"),
        ({"do_sample": True, "temperature": 0.0}, "a number above 0"),
        ({"stop": ("",)}, "text, not empty"),
    ],
)
def test_meaningless_settings_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        GenerationSpec.model_validate(settings)


@pytest.mark.slow
def test_a_sampling_task_is_certified_and_answers_the_same_again(backbone_folder: Folder, tmp_path: Path) -> None:
    rows = [{"source": f"w{number} w50", "target": "w7 w8"} for number in range(10, 34)]
    data = {"train": rows[:12], "validation": rows[12:18], "test": rows[18:]}
    generation = {"max_new_tokens": 6, "do_sample": True, "temperature": 0.7, "stop": ["w8"]}
    one = {"name": "one", "kind": "seq2seq", "data": data, "generation": generation}
    run = learn(stream(backbone_folder("t5"), [one], training={"epochs": 1}), tmp_path / "run")
    assert all(check.ok for check in run.verify(data=True))
    sources = [row["source"] for row in rows]
    found = Run(tmp_path / "run").predict(sources, "one")
    assert [run.predict(source, "one") for source in sources[:4]] == found[:4]
    assert all("w8" not in str(answer.value) for answer in found)
