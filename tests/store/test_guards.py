"""Whatever is changed in a run folder, or under it, is noticed and named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from continual_petl import ForgettingError, Run, learn
from continual_petl.course import learn_task, row
from continual_petl.errors import IsolationError, StoreError
from continual_petl.store.atomic import append_lines, new_folder, read_lines
from continual_petl.store.manifest import SplitScores, read_manifest, write_manifest
from continual_petl.store.probe import make_probe
from continual_petl.store.store import Store
from tests.streams_in_code import stream, task
from tests.tiny import make_model

Folder = Callable[..., Path]
TASKS = [task(name, num_rows=16) for name in ("one", "two", "three")]
QUICK = {"epochs": 1}


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned") / "run"
    learn(stream(backbone_folder(), TASKS, training=QUICK), folder)
    return folder


@pytest.fixture
def folder(learned: Path, tmp_path: Path) -> Path:
    return shutil.copytree(learned, tmp_path / "run")


def learn_one_more(backbone: Path, folder: Path) -> Run:
    return learn(stream(backbone, [*TASKS, task("four", num_rows=16)], training=QUICK), folder)


def problems(folder: Path) -> dict[str, str]:
    return {check.task: " ".join(check.problems) for check in Run(folder).verify() if not check.ok}


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def nudge(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors[name].view(-1)[0].add_(1e-7)


def test_an_unchanged_copy_holds(folder: Path) -> None:
    assert problems(folder) == {}


@pytest.mark.parametrize("name", ["head.output.bias", "modifications.0.layer_1.self.up.bias"])
def test_one_nudged_bias_on_disk(folder: Path, backbone_folder: Folder, name: str) -> None:
    change_tensors(folder / "banks" / "one" / "bank.safetensors", nudge(name))
    found = problems(folder)
    assert set(found) == {"one"}
    assert f"tensor {name} has the digest" in found["one"]
    with pytest.raises(StoreError, match=f"task 'one'.*tensor {name}"):
        Run(folder).predict(["w0 w1"], task="one")
    with pytest.raises((ForgettingError, StoreError), match=f"task 'one'.*tensor {name}"):
        learn_one_more(backbone_folder(), folder)
    # What is red stays red until it is repaired.
    with pytest.raises((ForgettingError, StoreError), match=f"task 'one'.*tensor {name}"):
        learn_one_more(backbone_folder(), folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("head.output.bias"), "head.output.bias is in the manifest but not in the file"),
        (lambda t: t.update(extra=torch.zeros(1)), "extra is not in the manifest"),
        (lambda t: t.update({"head.output.bias": t["head.output.bias"].double()}), "head.output.bias has the digest"),
        (lambda t: t.update({"head.output.bias": t["head.output.bias"][None]}), "head.output.bias has the digest"),
    ],
)
def test_tensors_exchanged(folder: Path, change: Any, named: str) -> None:
    change_tensors(folder / "banks" / "two" / "bank.safetensors", change)
    assert named in problems(folder)["two"]


@pytest.mark.parametrize("file", ["bank.safetensors", "probe.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_file(folder: Path, file: str, damage: str) -> None:
    path = folder / "banks" / "two" / file
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    found = problems(folder)
    assert set(found) == {"two"}
    assert file in found["two"]


@pytest.mark.parametrize("name", ["outputs", "input_ids", "attention_mask"])
def test_a_changed_probe(folder: Path, name: str) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[1] += 1

    change_tensors(folder / "banks" / "two" / "probe.safetensors", change)
    found = problems(folder)
    assert set(found) == {"two"}
    assert "is not the certified probe" in found["two"]


def edit(path: Path, *, sealed: bool, **values: Any) -> None:
    """Change a manifest; with ``sealed``, as someone would who knows how it is sealed."""
    if sealed:
        write_manifest(path, read_manifest(path).model_copy(update=values))
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("name", ["one", "three"])
@pytest.mark.parametrize(
    "values", [{"labels": ["yes", "no"]}, {"pooling": "first"}, {"metric": "matthews"}, {"index": 1}]
)
def test_an_edited_manifest(folder: Path, name: str, values: dict[str, Any]) -> None:
    path = folder / "banks" / name / "bank.json"
    if read_manifest(path).labels == tuple(values.get("labels", ())):
        values = {"labels": ["no", "yes"]}
    edit(path, sealed=False, **values)
    with pytest.raises(StoreError, match=f"{name}/bank.json: its content is not what its seal.*task '{name}'"):
        Run(folder).verify()
    with pytest.raises(StoreError, match="seal"):
        Run(folder).predict(["w0"], task=name)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "not JSON"),
        ("[]", "whole file"),
        ('{"format_version": 2}', "format version 2, this release reads 1"),
        ('{"format_version": 1}', "Field required"),
    ],
)
def test_a_manifest_that_is_none(folder: Path, content: str, match: str) -> None:
    (folder / "banks" / "one" / "bank.json").write_text(content)
    with pytest.raises(StoreError, match=f"(?s)one/bank.json.*{match}"):
        Run(folder).verify()


def test_an_unknown_key_in_a_manifest(folder: Path) -> None:
    edit(folder / "banks" / "one" / "bank.json", sealed=False, extra=1)
    with pytest.raises(StoreError, match=r"one/bank.json: extra"):
        Run(folder).verify()


def test_a_manifest_edited_and_sealed_again_breaks_the_chain(folder: Path) -> None:
    edit(folder / "banks" / "one" / "bank.json", sealed=True, labels=("yes", "no", "perhaps"))
    found = problems(folder)
    assert "predecessor" in found["two"]
    # Its bank no longer fits either.
    assert "head.output.bias" in found["one"]


def test_tasks_reordered_removed_or_renamed(folder: Path) -> None:
    banks = folder / "banks"
    shutil.copytree(banks, folder / "kept")
    edit(banks / "one" / "bank.json", sealed=True, index=1)
    edit(banks / "two" / "bank.json", sealed=True, index=0)
    assert set(problems(folder)) == {"one", "two", "three"}
    shutil.rmtree(banks)
    shutil.copytree(folder / "kept", banks)
    shutil.rmtree(banks / "two")
    assert "a task was removed" in problems(folder)["three"]
    (banks / "three").rename(banks / "two")
    with pytest.raises(StoreError, match=r"two/bank.json: this is the manifest of task 'three'"):
        Run(folder).verify()


def test_a_manifest_changed_after_it_was_read(folder: Path) -> None:
    run = Run(folder)
    assert all(check.ok for check in run.verify())
    edit(folder / "banks" / "two" / "bank.json", sealed=False, metric="matthews")
    with pytest.raises(StoreError, match="seal"):
        run.verify()


def test_another_backbone(folder: Path, tmp_path: Path, backbone_folder: Folder) -> None:
    other = shutil.copytree(backbone_folder(), tmp_path / "other")
    model = make_model("bert")
    with torch.no_grad():
        model.get_parameter("pooler.dense.bias")[0] += 1e-7
    model.save_pretrained(other)
    with pytest.raises(StoreError, match=r"backbone\.json: this run was learned on backbone"):
        learn_one_more(other, folder)
    (folder / "stream.yaml").write_text(
        (folder / "stream.yaml").read_text().replace(str(backbone_folder()), str(other))
    )
    found = problems(folder)
    assert set(found) == {"one", "two", "three"}
    assert "was learned on a backbone with digest" in found["two"]


def test_another_tokenizer(folder: Path, tmp_path: Path, backbone_folder: Folder) -> None:
    other = shutil.copytree(backbone_folder(), tmp_path / "other")
    path = other / "tokenizer.json"
    rules = json.loads(path.read_text())
    words = rules["model"]["vocab"]
    words["w0"], words["w1"] = words["w1"], words["w0"]
    path.write_text(json.dumps(rules))
    (folder / "stream.yaml").write_text(
        (folder / "stream.yaml").read_text().replace(str(backbone_folder()), str(other))
    )
    assert "was learned with a tokenizer of digest" in problems(folder)["one"]
    with pytest.raises(StoreError, match="task 'two' was learned with a tokenizer"):
        Run(folder).predict(["w0"], task="two")


@pytest.mark.parametrize(
    "setting", [{"truncation_side": "left"}, {"clean_up_tokenization_spaces": True}, {"split_special_tokens": True}]
)
def test_a_tokenizer_with_another_setting(
    folder: Path, tmp_path: Path, backbone_folder: Folder, setting: dict[str, Any]
) -> None:
    other = shutil.copytree(backbone_folder(), tmp_path / "other")
    path = other / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    (folder / "stream.yaml").write_text(
        (folder / "stream.yaml").read_text().replace(str(backbone_folder()), str(other))
    )
    assert "was learned with a tokenizer of digest" in problems(folder)["one"]


def test_a_backbone_changed_in_memory(folder: Path) -> None:
    run = Run(folder)
    run.verify()
    backbone = run.session.residents.backbone("fp32")
    with torch.no_grad():
        backbone.model.get_parameter("encoder.layer.0.output.dense.bias")[3] += 1e-6
    for check in run.verify():
        assert "1 tensors are no longer what was loaded, first encoder.layer.0.output.dense.bias" in check.problems[0]


def test_dropout_left_on_in_memory(folder: Path) -> None:
    run = Run(folder)
    model = run.session.residents.backbone("fp32").model
    model.train()
    (check,) = run.verify("one")
    assert "dropout or training mode is on" in check.problems[0]
    before = run.predict(["w0 w9"], task="one")
    assert run.predict(["w0 w9"], task="one") == before


def test_no_certificate_is_made_with_dropout_on(folder: Path) -> None:
    residents = Run(folder).session.residents
    backbone, store = residents.backbone("fp32"), residents.store
    backbone.model.train()
    plan, bank = store.plan("one"), store.load_bank("one", backbone)
    probe = make_probe(plan, backbone, residents.tokenizer, 16)
    with pytest.raises(IsolationError, match="in training mode"):
        store.commit(
            plan, bank, backbone, probe, scores={}, data={}, notices=(), max_length=16, preparation=""
        )  # fmt: skip
    backbone.model.train(False)
    with pytest.raises(StoreError, match="already exists; a learned task is never overwritten"):
        store.commit(
            plan, bank, backbone, probe, scores={}, data={}, notices=(), max_length=16, preparation=""
        )  # fmt: skip


def test_an_accuracy_that_changed_though_the_rows_did_not(
    folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., SplitScores] = vars(row)["evaluate"]

    def one_row_less(*args: Any) -> SplitScores:
        scores = real(*args)
        changed = {**scores.scores, "accuracy": scores.scores["accuracy"] - 1 / scores.num_examples}
        return scores.model_copy(update={"scores": changed})

    monkeypatch.setattr(row, "evaluate", one_row_less)
    with pytest.raises(
        ForgettingError, match=r"task 'one': its accuracy on its test split was .* and is .* after 'four'"
    ):
        learn_one_more(backbone_folder(), folder)
    monkeypatch.undo()
    assert learn_one_more(backbone_folder(), folder).results.forgetting == 0.0


def test_an_accuracy_on_validation_that_changed(
    tmp_path: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [task(name, num_rows=16) for name in ("one", "two")]
    for spec in tasks:
        del spec["data"]["test"]
    real: Callable[..., SplitScores] = vars(row)["evaluate"]
    monkeypatch.setattr(row, "evaluate", lambda *args: real(*args).model_copy(update={"scores": {"accuracy": 0.123}}))
    with pytest.raises(ForgettingError, match="task 'one': its accuracy on its validation split"):
        learn(stream(backbone_folder(), tasks, training=QUICK), tmp_path / "run")


def test_rows_changed_since(folder: Path, backbone_folder: Folder) -> None:
    changed = [dict(spec) for spec in TASKS]
    changed[1] = {**changed[1], "data": {**changed[1]["data"], "test": changed[1]["data"]["test"][1:]}}
    four = task("four", num_rows=16)
    run = learn(stream(backbone_folder(), [*changed, four], training=QUICK), folder)
    assert run.results.status[3] == ("measured", "not measured", "measured", "measured")
    found = {check.task: check for check in run.verify(data=True)}
    assert not found["two"].ok
    assert "not those it was certified on" in found["two"].problems[0]


def test_a_changed_bank_is_noticed_also_where_nothing_is_measured(
    folder: Path, tmp_path: Path, backbone_folder: Folder
) -> None:
    """The last row was never written, the stream knows only the last task, and the first bank was changed meanwhile."""
    lines = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    assert json.loads(lines[-1])["type"] == "task"
    (folder / "results.jsonl").write_text("".join(lines[:-1]))
    change_tensors(folder / "banks" / "one" / "bank.safetensors", nudge("head.output.bias"))
    with pytest.raises(ForgettingError, match=r"task 'one'.*head\.output\.bias"):
        learn(stream(backbone_folder(), TASKS[2:], training=QUICK), folder)


@pytest.mark.parametrize("policy", ["certified", "sample"])
def test_a_certificate_that_does_not_hold_is_not_just_unmeasured(
    folder: Path, backbone_folder: Folder, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row, "_SAMPLE", 0)
    change_tensors(folder / "banks" / "one" / "bank.safetensors", nudge("head.output.bias"))
    tasks = stream(backbone_folder(), [*TASKS, task("four", num_rows=16)], training=QUICK, evaluate=policy)
    with pytest.raises(ForgettingError, match=r"task 'one'.*tensor head.output.bias"):
        learn(tasks, folder)


def test_the_lock_of_another_process(folder: Path, backbone_folder: Folder) -> None:
    code = (
        f"from filelock import FileLock\nwith FileLock({str(folder / '.lock')!r}):\n print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="another process is writing to this run"):
            learn_one_more(backbone_folder(), folder)
        assert problems(folder) == {}, "readers never wait"
        process.communicate("\n")
    assert learn_one_more(backbone_folder(), folder).store.tasks == ["one", "two", "three", "four"]


def test_a_bank_that_diverged_is_still_unchanged(
    tmp_path: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn_task, "_check_finite", lambda *_: None)  # which keeps such a bank out today
    wild = {"learning_rate": 1e30, "optimizer": "sgd", "gradient_clip": None, "warmup": 0.0, "epochs": 1}
    run = learn(stream(backbone_folder(), TASKS[:2], training=wild), tmp_path / "run")
    assert run.store.tensors("one")["head.output.bias"].isnan().all()
    assert all(check.ok for check in run.verify())


def test_a_torn_last_line_never_counted(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_lines(path, [{"a": 1}, {"a": 2}])
    path.write_bytes(path.read_bytes() + b'{"a": 3')
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    append_lines(path, [{"a": 4}])
    assert read_lines(path) == [{"a": 1}, {"a": 2}, {"a": 4}]
    path.write_bytes(b"no\n" + path.read_bytes())
    with pytest.raises(StoreError, match=r"results\.jsonl:1: not a JSON line"):
        read_lines(path)


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "[one]"
    (tmp_path / ".[one].123456789.new").mkdir()
    (tmp_path / ".o.1.new").mkdir()

    def fail() -> None:
        with new_folder(path) as inside:
            (inside / "file").write_text("half")
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        fail()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".o.1.new"]
    with new_folder(path) as inside:
        (inside / "file").write_text("whole")
        assert not path.exists()
    assert (path / "file").read_text() == "whole"
    with pytest.raises(StoreError, match="already exists"), new_folder(path):
        raise AssertionError


def test_readers_see_tasks_in_the_order_of_learning(folder: Path) -> None:
    assert Store(folder).tasks == ["one", "two", "three"]
    (folder / "banks" / ".four.1.new").mkdir()
    assert Store(folder).tasks == ["one", "two", "three"]


def test_the_newest_bank_is_gone(folder: Path) -> None:
    """No later certificate names it."""
    for gone, left in (("three", {"one", "two"}), ("two", {"one"}), ("one", set())):
        shutil.rmtree(folder / "banks" / gone)
        checks = {check.task: check for check in Run(folder).verify()}
        assert {name for name, check in checks.items() if check.ok} == left
        assert f"task {gone!r} was learned, but its bank is gone" in checks[gone].problems[0]


def test_a_run_in_which_nothing_is_learned_yet(folder: Path) -> None:
    shutil.rmtree(folder / "banks")
    (folder / "results.jsonl").unlink()
    run = Run(folder)
    found = run.results.to_json()
    assert (found["tasks"], found["R"], found["acc"], found["bwt"], found["forgetting"]) == ([], [], None, None, None)
    assert run.growth == []
    assert run.verify() == []


def test_a_stream_on_another_backbone_leaves_the_run_as_it_is(folder: Path, backbone_folder: Folder) -> None:
    before = (folder / "stream.yaml").read_bytes()
    with pytest.raises(StoreError, match="this run was learned on backbone"):
        learn_one_more(backbone_folder("electra"), folder)
    assert (folder / "stream.yaml").read_bytes() == before
    assert problems(folder) == {}
