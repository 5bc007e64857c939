"""All mistakes in a stream file are reported at once, each with its line and a clear message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from continual_petl.banks.config.legal import LEGAL
from continual_petl.banks.config.presets import PRESETS
from continual_petl.errors import StreamFileError
from continual_petl.streams.schema.stream_spec import TrainingSpec
from continual_petl.streams.stream_file.yaml_file import MAX_BYTES, load_stream, load_task

GOOD = """\
name: desk
backbone: minilm
tasks:
  - {name: a, kind: classification, data: a.csv}
"""

MANY_MISTAKES = """\
name: 2024
seed: true
backbone: {nam: minilm, max_length: 2}
bank: {preset: houlsbee, rank: 0, foo: 1}
training:
  epochs: 1.5
  optimizer: AdamW2
  betas: [0.9]
  epocs: 3
  gradient_clip: big
  precision:
trainer: {max_epochs: 3}
epochs: 3
data_dir: ${NO_SUCH_VARIABLE}/x
tasks:
  - name: a/b
    kind: clasification
    data: {path: json, data_files: {trian: x}}
  - name: sst
    kind: classification
    metric: macrof1
    data: {train: [{text: a}, 3]}
    training:
      epochs: 0
      epochs: 2
      momentum: 0.5
  - name: SST
    kind: regression
    labels: [a, b]
    bank:
      modifications:
        - {form: bottleneck, modifies: query, insertion: parallel, bottleneck: 4}
        - {form: lowrank, modifies: query, rank: 3, bottleneck: 4, insertion: parallel}
  - 3
  - {name: nul, kind: regression, data: x.csv, 1: x, pooling: maen}
"""

EXPECTED = [
    (1, "name", "got 2024; allowed: text; if it is meant as text, put it in quotes: '2024'"),
    (2, "seed", "got true; allowed: a whole number of at least 0"),
    (3, "backbone.name", "is missing: add it, for instance `name: minilm`. The packaged minilm"),
    (3, "backbone.nam", "unknown key 'nam' (did you mean 'name'?); allowed here: name, revision, max_length"),
    (3, "backbone.max_length", "got 2; allowed: a whole number of at least 4 or null"),
    (4, "bank.preset", "unknown preset 'houlsbee'"),
    (4, "bank.rank", "got 0; allowed: a whole number of at least 1"),
    (4, "bank.foo", "unknown key 'foo'; allowed here: preset, modifications"),
    (6, "training.epochs", "got 1.5; allowed: a whole number of at least 1"),
    (7, "training.optimizer", "got 'AdamW2' (did you mean 'adamw'?); allowed: adamw, adamw_8bit, adam, sgd"),
    (8, "training.betas.1", "is missing: add it; allowed: a number of at least 0 and below 1"),
    (9, "training.epocs", "unknown key 'epocs' (did you mean 'epochs'?)"),
    (10, "training.gradient_clip", "got 'big'; allowed: a number above 0 or null"),
    (11, "training.precision", "got nothing (null); allowed: auto, bf16, fp32; leave the key out for its default"),
    (12, "trainer.max_epochs", "this is set by training.epochs"),
    (13, "epochs", "unknown key 'epochs' (it belongs under training)"),
    (14, "data_dir", "needs the environment variable NO_SUCH_VARIABLE, which is not set"),
    (16, "tasks.0.name", "'a/b' cannot be the name of a folder on every system"),
    (17, "tasks.0.kind", "allowed: causal-lm, classification"),
    (18, "tasks.0.data.data_files.trian", "unknown key 'trian' (did you mean 'train'?); allowed here: train,"),
    (21, "tasks.1.metric", "got 'macrof1'; allowed for kind classification: accuracy, macro_f1, matthews"),
    (22, "tasks.1.data.train.1", "got 3; a row is a mapping from column to value"),
    (24, "tasks.1.training.epochs", "got 0; allowed: a whole number of at least 1"),
    (25, "tasks.1.training.epochs", "is written twice, first on line 24"),
    (27, "tasks.2.name", "'SST' is already the name of tasks.1 (as 'sst'"),
    (27, "tasks.2.data", "is missing: add it, for instance `data: data/topics.csv`. A path"),
    (29, "tasks.2.labels", "has no effect on a regression task (it is for classification"),
    (32, "tasks.2.bank.modifications.0", "no method has bottleneck on query"),
    (33, "tasks.2.bank.modifications.1.rank", "is another name for bottleneck, which is given as well"),
    (34, "tasks.3", "got 3; allowed: a mapping with the keys name, kind"),
    (35, "tasks.4.name", "'nul' is a reserved device name on Windows"),
    (35, "tasks.4", "the key '1' is not text"),
    (35, "tasks.4.pooling", "got 'maen' (did you mean 'mean'?); allowed: first, pooler, mean"),
]


def _problems(path: Path, text: str, load: Any = load_stream) -> tuple[str, ...]:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StreamFileError) as caught:
        load(path)
    problems: tuple[str, ...] = caught.value.problems
    assert str(caught.value) == "\n".join(problems)
    return problems


def test_every_mistake_is_reported_at_once_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "stream.yaml"
    problems = _problems(file, MANY_MISTAKES)
    for line, key, text in EXPECTED:
        pattern = re.compile(rf"{re.escape(f'{file}:{line}: key {key}')}( \(task [^)]*\))?: .*{re.escape(text)}")
        assert any(pattern.match(problem) for problem in problems), (line, key, text, problems)
    assert len(problems) == len(EXPECTED)
    lines = [int(problem.removeprefix(f"{file}:").split(":")[0]) for problem in problems]
    assert lines == sorted(lines)


def test_missing_key_error_has_a_working_example(tmp_path: Path) -> None:
    file = tmp_path / "stream.yaml"
    text, found = "seed: 1\n", 0
    for problem in _problems(file, text):
        found += 1
        example = re.search(r"for instance `(.*?)`", problem)
        assert example is not None, problem
        text += example[1] + "\n"
    assert found == 3
    assert "tasks: [{name: topics, kind: classification, data: data/topics.csv}]" in text
    file.write_text(text)
    assert [task.name for task in load_stream(file).tasks] == ["topics"]


def test_messages_do_not_expose_pydantic(tmp_path: Path) -> None:
    text = "\n".join(_problems(tmp_path / "stream.yaml", MANY_MISTAKES)).replace(str(tmp_path), "")
    leaks = r"pydantic|\[type=|https?:|Input should|Extra inputs|_error|ValueError|Spec\b|<\w+>|\[key\]"
    assert not re.search(leaks, text)


def test_an_unknown_preset_lists_the_known_ones(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path / "s.yaml", GOOD + "bank: houlsbee\n")
    assert ":5: key bank.preset: unknown preset 'houlsbee'" in problem
    assert all(name in problem for name in PRESETS)
    assert "(did you mean 'houlsby'?)" in problem


def test_an_illegal_modification_keeps_the_list_of_the_nearest_legal_ones(tmp_path: Path) -> None:
    row = "{form: lowrank, modifies: ffn, insertion: parallel, bottleneck: 4}"
    (problem,) = _problems(tmp_path / "s.yaml", f"{GOOD}bank:\n  modifications:\n    - {row}\n")
    assert ":7: key bank.modifications.0: no method has lowrank on ffn" in problem
    # Of the two listed combinations, one has the same form, the other the same insertion and modified representation.
    assert {legal.form for legal in LEGAL if str(legal) in problem} == {"lowrank", "bottleneck"}
    assert problem.endswith(f"docs/methods.md lists all {len(LEGAL)}")


def test_an_unknown_key_lists_all_that_are_allowed(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path / "s.yaml", GOOD + "training: {lerning_rate: 1}\n")
    assert "(did you mean 'learning_rate'?)" in problem
    assert all(key in problem for key in TrainingSpec.model_fields)


def test_position_is_correct_however_a_key_is_written(tmp_path: Path) -> None:
    data = '{path: csv, data_files: {"<text>": [null], "[key]": x}}'
    text = GOOD.replace("a.csv", data)
    problems = _problems(tmp_path / "s.yaml", text)
    assert [problem.split(":4: key tasks.0.data.data_files.")[1].split(";")[0] for problem in problems] == [
        "<text> (task a): unknown key '<text>' (did you mean 'test'?)",
        "<text>.0 (task a): got nothing (null)",
        "[key] (task a): unknown key '[key]'",
    ]


def test_a_task_file_has_problems_at_its_own_keys(tmp_path: Path) -> None:
    text = "name: a\nkind: regression\ntraining:\n  epochs: many\n"
    problems = _problems(tmp_path / "task.yaml", text, load_task)
    assert [problem.split("task.yaml")[1][:24] for problem in problems] == [
        ":1: key data: is missing",
        ":4: key training.epochs:",
    ]


@pytest.mark.parametrize(
    ("text", "line", "fragment"),
    [
        ("", 1, "the file is empty; write at least the keys name, backbone, tasks"),
        ("# nothing\n", 1, "the file is empty"),
        ("just words\n", 1, "got 'just words'; allowed: lines of the form key: value"),
        ("name: a\n\tseed: 1\n", 2, "indent with spaces, not with tabs"),
        ("name: [a\nseed: 1\n", 2, "not readable as YAML"),
        (
            "name: a\nseed: 1: 2\n",
            2,
            "not allowed here: check the indentation of this line and the one above; a text that",
        ),
        ("name: a\n  seed: 1\n", 2, "not allowed here: check the indentation of this line and the one above"),
        ("name: a\ntasks:\n  - name: b\n kind: c\n", 4, "check the indentation of this line"),
        ("name: 'a\nseed: 1\n", 3, ": a quote is missing"),
        ("name: a\n---\nname: b\n", 2, "not readable as YAML: expected a single document"),
        ("name: *nobody\n", 1, "undefined alias"),
        ("name: a\x07b\n", 1, "not readable as YAML"),
    ],
)
def test_file_that_is_not_a_mapping_is_refused(tmp_path: Path, text: str, line: int, fragment: str) -> None:
    (problem,) = _problems(tmp_path / "s.yaml", text)
    assert problem.startswith(f"{tmp_path / 's.yaml'}:{line}: ")
    assert fragment in problem


def test_tags_and_merge_keys_are_named(tmp_path: Path) -> None:
    text = GOOD + "trainer:\n  <<: {a: 1}\n  b: !!python/name:os.system\n  c: !!timestamp 2024-01-01\n"
    merge, python, timestamp = _problems(tmp_path / "s.yaml", text)
    assert ":6: key trainer: merge keys (<<) are not part of YAML 1.2" in merge
    assert ":7: key trainer.b: the tag !!python/name:os.system is not supported" in python
    assert ":8: key trainer.c: the tag !!timestamp is not supported" in timestamp


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamFileError, match="there is no such file"):
        load_stream(tmp_path / "absent.yaml")
    with pytest.raises(StreamFileError, match="cannot be read"):
        load_stream(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(StreamFileError, match="save the file as UTF-8"):
        load_stream(tmp_path / "latin.yaml")
    with open(tmp_path / "huge.yaml", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(StreamFileError, match="is this a data file"):
        load_stream(tmp_path / "huge.yaml")


def test_task_key_at_the_top_level_error_points_to_tasks(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path / "s.yaml", GOOD + "limits: {train: 10}\n")
    assert (
        "unknown key 'limits' (it belongs to a task; on the command line: --tasks.0.limits, or --tasks.*.limits"
        in problem
    )
