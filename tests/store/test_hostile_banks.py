"""Malicious content in a run folder is refused with the file name, before memory is allocated or a link followed."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from continual_petl import Run
from continual_petl.banks.config.presets import PRESETS
from continual_petl.digests import combined_digest, file_digest, tensor_digests
from continual_petl.errors import StoreError
from continual_petl.learner.plan import build_bank
from continual_petl.store.files.atomic import json_bytes
from continual_petl.store.files.sealed import SEAL, write_sealed
from continual_petl.store.ledger.ledger_file import read_ledger
from continual_petl.store.ledger.lines import CommitLine, FinishedLine, ForgetLine, Removed
from continual_petl.store.model_cache import ModelCache
from continual_petl.store.store import Store
from tests.store.tampering import change_tensors, nudge, reseal, rewrite
from tests.usual import few

Folder = Callable[..., Path]
BANK, PROBE, CERTIFICATE = (f"banks/one/{name}" for name in ("bank.safetensors", "probe.safetensors", "bank.json"))
_MOST = 64 * 2**20
_WARM: list[ModelCache] = []


@cache
def _residents(learned: Path) -> ModelCache:
    models = Run(learned).session.models
    assert models.tokenizer is not None
    return models


def told(folder: Path) -> str:
    """Return the messages with which verify and the loader refuse task one, after checking that both used little memory."""
    run = Run(folder)
    models, loaded = run.session.models, _WARM[0]
    models.backbones, models._tokenizer = dict(loaded.backbones), loaded._tokenizer
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problems = [text for check in run.verify() for text in check.problems]
    try:
        run.store.load_bank("one", models.backbone("fp32"))
    except StoreError as error:
        problems.append(str(error))
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < _MOST
    assert problems
    return "\n".join(problems)


@pytest.fixture(autouse=True)
def _warm(learned: Path) -> None:
    _WARM[:] = [_residents(learned)]


def edit_sealed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_bytes())
    del content[SEAL]
    change(content)
    write_sealed(path, content)
    reseal(path, onwards=True)


def exchange_probe(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change a probe, and seal the certificate again with the changed probe's digests."""
    change_tensors(folder / PROBE, change)
    tensors = load_file(folder / PROBE)

    def seal(certificate: dict[str, Any]) -> None:
        certificate["files"]["probe.safetensors"] = file_digest(folder / PROBE)
        certificate["probe"] = combined_digest(tensor_digests(tensors))

    edit_sealed(folder / CERTIFICATE, seal)


def raw_tensors(path: Path, header: dict[str, Any] | bytes, body: int = 64, length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + bytes(body))


@pytest.mark.parametrize("file", few([BANK, PROBE, CERTIFICATE, "ledger.jsonl", "backbone.json"]))
@pytest.mark.parametrize("what", ["link", "pipe", "folder", "sparse"])
def test_non_file_instead_of_a_file_is_refused(folder: Path, tmp_path: Path, file: str, what: str) -> None:
    path = folder / file
    kept = shutil.copy(path, tmp_path / "kept")
    path.unlink()
    match what:
        case "link":
            path.symlink_to(kept)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            with path.open("wb") as handle:
                handle.truncate(10 * 2**30)
    assert path.name in told(folder)


@pytest.mark.parametrize("place", few(["banks", "banks/one"]))
def test_linked_or_replaced_folder_is_refused(folder: Path, tmp_path: Path, place: str) -> None:
    path, elsewhere = folder / place, tmp_path / "elsewhere"
    path.rename(elsewhere) if path.exists() else elsewhere.mkdir()
    path.symlink_to(elsewhere)
    assert f"{path}: it is a link" in told(folder)
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    assert f"{path}: it is a link" in told(folder)
    path.unlink()
    path.write_text("a file")
    assert str(path) in told(folder)


def test_run_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert all(check.ok for check in Run(tmp_path / "link").verify())


def test_only_leftovers_of_kills_are_removed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (folder / "banks" / ".one.1.new").symlink_to(tmp_path / "mine")
    with pytest.raises(StoreError, match="banks: could not be written"):
        Store(folder).clean()
    assert (tmp_path / "mine").is_dir()


FLOATS: dict[str, Any] = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "header",
    few(
        [
            {"a": FLOATS | {"shape": [2**40]}},
            {"a": FLOATS | {"shape": [2**62, 2**62]}},
            {"a": FLOATS | {"shape": [-4]}},
            {"a": FLOATS | {"dtype": "F7"}},
            {"a": FLOATS | {"dtype": "C64"}},
            {"a": FLOATS, "b": FLOATS},
            {"a": FLOATS | {"data_offsets": [8, 24]}},
            {"a": FLOATS | {"data_offsets": [16, 0]}},
            {"../../../x": FLOATS, "/etc/x": FLOATS | {"data_offsets": [16, 32]}},
            {"__metadata__": {"a": 1}, "a": FLOATS},
            b'{"a":' * 1000,
            b'{"\\ud800": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}',
            b"\xff\xfe",
        ]
    ),
)
def test_lying_headers_are_refused(folder: Path, header: Any) -> None:
    size = FLOATS["data_offsets"][1]
    raw_tensors(folder / BANK, header, body=2 * size if isinstance(header, dict) and len(header) > 1 else size)
    assert "bank.safetensors" in told(folder)


@pytest.mark.parametrize("length", few([2**63, 2**40, 0]))
def test_header_longer_than_the_file_is_refused(folder: Path, length: int) -> None:
    raw_tensors(folder / BANK, {"a": FLOATS}, length=length)
    assert "bank.safetensors" in told(folder)


def test_an_enormous_size_is_refused_before_it_is_allocated(folder: Path) -> None:
    size = 2**20  # the largest that a specification allows
    edit_sealed(folder / CERTIFICATE, lambda m: m["bank"]["modifications"][0].update(bottleneck=size))
    assert f"bottleneck {size} is larger than 16" in told(folder)
    prompt = PRESETS["prompt"].modifications[0].model_dump(mode="json") | {"bottleneck": size}
    edit_sealed(folder / CERTIFICATE, lambda m: m.update(bank={"modifications": [prompt]}))
    assert "its bank's specification requires" in told(folder)
    plan = Store(folder).plan("one")
    with torch.device("meta"):
        expected = build_bank(plan, _WARM[0].backbone("fp32"), folded=True).tensors()
    zeros = "0" * 64
    entries = {name: {"dtype": "float32", "shape": list(t.shape), "digest": zeros} for name, t in expected.items()}
    assert any(size in entry["shape"] for entry in entries.values())
    digest = combined_digest(dict.fromkeys(entries, zeros))
    edit_sealed(folder / CERTIFICATE, lambda m: m.update(tensors=entries, digest=digest))
    assert "is in the certificate but not in the file" in told(folder)


@pytest.mark.parametrize(
    ("change", "match"),
    few(
        [
            (lambda m: m["bank"]["modifications"][0].update(bottleneck=10**30), "bottleneck: Input should be less"),
            (lambda m: next(iter(m["tensors"].values())).update(dtype="../x"), "dtype: Input should be 'float64'"),
            (lambda m: next(iter(m["tensors"].values())).update(shape=[2**70]), "tensors"),
            (lambda m: next(iter(m["tensors"].values())).update(dtype="float64"), "float64"),
            (lambda m: m.update(task="../one"), "cannot be the name of a folder"),
            (lambda m: m.update(task="/etc/one"), "cannot be the name of a folder"),
            (lambda m: m.update(kind="sorting"), "kind"),
            (lambda m: m.update(kind="regression"), "labels"),
            (lambda m: m.update(kind="seq2seq", labels=None, metric="rougeL"), "generation"),
            (lambda m: m.update(labels=["a", "b", "c"]), r"tensor head\.output"),
            (lambda m: m.update(class_weights=[1.0]), "class_weights: got 1 for 2 labels"),
            (lambda m: m.update(metric="beauty"), "metric"),
            (lambda m: m.update(labels=[]), "labels"),
            (lambda m: m.update(scores={}), "scores"),
            (lambda m: m.update(data={}), "scores: the validation scores, or the digest of a split's data"),
            (lambda m: m.update(digest="0" * 64), r"bank\.json's digest does not match the tensors it lists"),
            (lambda m: m.update(probe="0" * 64), r"probe\.safetensors is not the certified probe"),
            (lambda m: m.update(files={}), "files: expected bank.safetensors, probe.safetensors, history.json"),
            (lambda m: m.update(files={"../x": "0" * 64}), "files"),
            (lambda m: m.update(parameters={"head": 1}), "parameters"),
            (lambda m: m.update(index=2**60), "index"),
            (lambda m: m.update(labels=["\ud800", "b"]), "surrogates not allowed"),
            (lambda m: m["environment"].update(precision="fp7"), "precision"),
        ]
    ),
)
def test_resealed_certificates_are_refused(folder: Path, change: Callable[[Any], object], match: str) -> None:
    edit_sealed(folder / CERTIFICATE, change)
    assert re.search(match, told(folder)), told(folder)


@pytest.mark.parametrize(
    "content",
    few(
        [
            b'{"a":' * 900 + b"1" + b"}" * 900,
            b'{"a": 1, "a": 2}',
            b'{"format_version": NaN}',
            b'{"format_version": ' + b"9" * 5000 + b"}",
            b'{"format_version": ' + b"9" * 4000 + b"}",
            b'{"\\ud800": 1}',
            b"\xff\xfe{\x00}\x00",
            b"",
        ]
    ),
)
@pytest.mark.parametrize("file", few([CERTIFICATE, "ledger.jsonl", "backbone.json"]))
def test_invalid_json_is_refused(folder: Path, file: str, content: bytes) -> None:
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content + b"\n")
    assert path.name in told(folder)
    try:
        path.write_bytes(json_bytes(json.loads(content)))
    except ValueError:
        return
    assert path.name in told(folder)


def test_task_names_with_paths_are_refused(tmp_path: Path) -> None:
    seal = "0" * 64
    for name in ("../one", "/etc", "..", "a/b", "x" * 65):
        commit = CommitLine.model_construct(
            type="commit", index=0, predecessor=None, task=name, seal=seal, file=None, replaces=None
        )
        done = FinishedLine.model_construct(
            type="finished", task=name, index=0, certificate=seal, seconds={}, checks={}
        )
        dropped = ForgetLine.model_construct(
            type="forget",
            index=0,
            predecessor=None,
            task=name,
            seal=seal,
            why="lost",
            removed=Removed(index=0, seal=seal),
        )
        for line in (commit, dropped, done):
            rewrite(tmp_path, [line])
            with pytest.raises(StoreError, match=r"ledger\.jsonl:1: task"):
                [sealed.parsed() for sealed in read_ledger(tmp_path / "ledger.jsonl")]


@pytest.mark.parametrize(
    ("name", "made"),
    few(
        [
            ("input_ids", torch.full((8, 32), 95)),
            ("input_ids", torch.full((8, 32), -1)),
            ("input_ids", torch.zeros(8, 65, dtype=torch.int64)),
            ("input_ids", torch.zeros(8, 32)),
            ("input_ids", torch.zeros(9, 32, dtype=torch.int64)),
            ("input_ids", torch.tensor(1)),
            ("attention_mask", torch.full((8, 32), 2)),
            ("token_type_ids", torch.full((8, 32), 2)),
            ("position_ids", torch.zeros(8, 32, dtype=torch.int64)),
            ("outputs", torch.zeros(8, 2, dtype=torch.float64)),
        ]
    ),
)
def test_exchanged_and_resealed_probes_are_detected(folder: Path, name: str, made: torch.Tensor) -> None:
    exchange_probe(folder, lambda tensors: tensors.update({name: made}))
    assert "probe.safetensors does not match this task" in told(folder)


@pytest.mark.slow
def test_resealed_probe_without_answers_is_detected(folder: Path) -> None:
    exchange_probe(folder, lambda tensors: tensors.pop("outputs"))
    assert "probe.safetensors is not the certified probe" in told(folder)


@pytest.mark.slow
def test_changed_bank_is_not_hidden_by_an_exchanged_probe(folder: Path) -> None:
    def longer(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: torch.cat([tensor, tensor[:1]]) for name, tensor in tensors.items()})

    exchange_probe(folder, longer)
    change_tensors(folder / BANK, nudge("head.output.bias"))
    found = told(folder)
    assert "tensor head.output.bias has the digest" in found
    assert "With it, probe row" not in found
    assert "The probe's outputs" not in found
