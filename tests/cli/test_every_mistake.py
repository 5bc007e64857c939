"""All mistakes in a stream file are reported in one pass, each with its line."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cli.bench import Bench
from tests.cli.light import LightProcesses

STREAM = """\
name: files
seed: 1
backbone:
  name: minlm
  max_length: 4096
training: {epochs: 1}
tasks:
  - name: gone
    kind: classification
    data: data/gone.csv
  - name: columns
    kind: classification
    data: data/single
    columns:
      text: txt
      label: lable
  - name: labels
    kind: classification
    data: data/single
    labels: ["no", "maybe"]
  - name: preset
    kind: classification
    data: data/other
    bank: houlsbi
"""
SAYS = {
    4: "key backbone.name: backbone 'minlm' cannot be loaded (did you mean 'minilm'?)",
    5: "key backbone.max_length: backbone.max_length: got 4096, but the model accepts only 512 tokens",
    10: "key tasks.0.data: task 'gone', data ",
    15: "key tasks.1.columns.text: task 'columns', split train",
    16: "key tasks.1.columns.label: task 'columns', split train",
    20: "key tasks.2.labels: task 'labels', split train",
    24: "key tasks.3.bank.preset (task preset): unknown preset 'houlsbi'",
}


def _told(bench: Bench, text: str, capsys: Any, *words: str) -> dict[int, str]:
    """Return the message for each faulty line of a stream file that is refused."""
    (bench.folder / "wrong.yaml").write_text(text)
    capsys.readouterr()
    assert bench.main("run", "FOLDER/wrong.yaml", "--run-dir", "FOLDER/new", *words) == 2
    said = capsys.readouterr().err
    assert said.startswith("continual-petl: the stream cannot be used:\n"), said
    found = re.findall(r"^.*?wrong\.yaml:(\d+): (.*)$", said, re.MULTILINE)
    assert len(found) == len(said.splitlines()) - 1
    assert [int(line) for line, _ in found] == sorted(int(line) for line, _ in found)
    assert not (bench.folder / "new").exists()
    return {int(line): text for line, text in found}


@pytest.fixture
def meant(backbone_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the configuration of the packaged MiniLM with a small one."""
    import transformers

    config = transformers.BertConfig(max_position_embeddings=512)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: config)
    monkeypatch.setattr("continual_petl.backbones.max_length.source_of", lambda name: name)


@pytest.mark.usefixtures("meant")
@pytest.mark.parametrize("words", [["--dry-run"], ["--quiet"]])
def test_all_mistakes_are_reported_in_one_pass(bench: Bench, words: list[str], capsys: Any) -> None:
    told = _told(bench, STREAM, capsys, *words)
    assert list(told) == list(SAYS)
    for line, says in SAYS.items():
        assert told[line].startswith(says), told[line]
    # The mistake that the schema finds hides no other: after it is corrected, the rest is reported as before.
    right = _told(bench, STREAM.replace("houlsbi", "houlsby"), capsys, *words)
    assert right == {line: text for line, text in told.items() if line != 24}


@pytest.mark.usefixtures("meant")
@pytest.mark.parametrize(
    ("old", "new", "at"),
    [
        ("kind: classification\n    data: data/gone.csv", "kind: clasification\n    data: data/gone.csv", 9),
        ("data: data/gone.csv", "data: {path: csv, datafiles: data/gone.csv}", 10),
        ("data: data/gone.csv", "limits: {train: -1}", 10),
    ],
)
def test_mistake_in_one_task_does_not_hide_others_or_shift_lines(
    bench: Bench, old: str, new: str, at: int, capsys: Any
) -> None:
    told = _told(bench, STREAM.replace(old, new, 1), capsys)
    assert list(told) == sorted({4, 5, 15, 16, 20, 24, at} | ({8} if "limits" in new else set()))
    for line in (4, 5, 15, 16, 20, 24):
        assert told[line].startswith(SAYS[line]), told[line]


@pytest.mark.usefixtures("meant")
def test_backbone_is_checked_even_if_every_task_has_a_mistake(bench: Bench, capsys: Any) -> None:
    told = _told(bench, STREAM.replace("kind: classification", "kind: clasification"), capsys)
    assert list(told) == [4, 5, 9, 12, 18, 22, 24]


@pytest.mark.usefixtures("meant")
def test_misspelt_key_does_not_stop_other_checks_unless_it_affects_reading(bench: Bench, capsys: Any) -> None:
    assert list(_told(bench, STREAM.replace("training:", "trainign:"), capsys)) == sorted({6, *SAYS})
    # Without data_dir no file can be found, so mistakes in the data are not reported.
    assert list(_told(bench, STREAM.replace("training: {epochs: 1}", "data_dri: copies"), capsys)) == [6, 24]


def test_unsupported_length_is_reported_with_other_mistakes(bench: Bench, backbone_folder: Any, capsys: Any) -> None:
    told = _told(bench, STREAM.replace("minlm", str(backbone_folder())), capsys)
    assert list(told) == [line for line in SAYS if line != 4]
    assert told[5].startswith(
        "key backbone.max_length: backbone.max_length: got 4096, but the model accepts only 64 tokens"
    )


@pytest.mark.parametrize("words", [["--dry-run"], ["--quiet"]])
def test_bank_and_data_mistakes_are_reported_together(
    bench: Bench, backbone_folder: Any, words: list[str], capsys: Any
) -> None:
    loads = STREAM.replace("minlm", str(backbone_folder())).replace("  max_length: 4096", "  pooling: mean")
    wide = loads.replace("houlsbi", "{preset: houlsby, bottleneck: 17}")
    stream = wide.replace("seed: 1", "bank: {preset: houlsby, bottleneck: 4}")
    told = _told(bench, stream, capsys, *words)
    assert list(told) == [10, 15, 16, 20], "a missing file is reported before the model, which takes seconds to load"
    told = _told(bench, stream.replace("data/gone.csv", "data/other"), capsys, *words)
    assert list(told) == [15, 16, 20, 24]
    assert told[24].startswith("key tasks.3.bank: task 'preset', bank: bottleneck 17")


@pytest.mark.usefixtures("meant")
@pytest.mark.parametrize("preset", ["houlsbi", "houlsby"])
def test_invalid_stream_downloads_nothing(
    bench: Bench, preset: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(
        "continual_petl.streams.sources.read_splits.from_hub", lambda *_, **__: pytest.fail("data was downloaded")
    )
    far = STREAM.replace("data/gone.csv", "{path: some-user/some-data}").replace(
        "data/other", "https://localhost:1/b.csv"
    )
    told = _told(bench, far.replace("houlsbi", preset), capsys)
    assert list(told) == [line for line in SAYS if line not in ((10,) if preset == "houlsbi" else (10, 24))]


def test_single_mistake_is_one_paragraph_with_its_line(bench: Bench, capsys: Any) -> None:
    (bench.folder / "data" / "other" / "train.jsonl").unlink()
    assert bench.main("run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/new") == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert re.match(r"continual-petl: .*stream\.yaml:10: key tasks\.1\.data: task 'other', data ", said)


@pytest.mark.parametrize("where", ["a misspelt key", "a missing file"])
def test_mistake_is_reported_without_importing_training_libraries(
    bench: Bench, light_processes: LightProcesses, where: str
) -> None:
    if where == "a misspelt key":
        (bench.folder / "typo.yaml").write_text(STREAM.split("tasks:")[0].replace("training:", "trainign:"))
    heavy = {"torch", "transformers", "lightning", "torchmetrics", "wandb", "tokenizers"}
    done = light_processes.run(["run", str(bench.folder / "typo.yaml")], bench.folder)
    assert (done.code, heavy & done.modules) == (2, set()), done.err
