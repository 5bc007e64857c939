"""A backbone's remote code is executed only on request, and is then recorded among its files."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from continual_petl import Run, learn
from continual_petl.backbones import anatomy, find_anatomy, register_anatomy
from continual_petl.backbones.backbone import load_backbone, load_tokenizer
from continual_petl.cli.main import main
from continual_petl.errors import InputError
from continual_petl.streams.schema.stream_spec import BackboneSpec
from tests.backbones.own_code import bring_code, change
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
WRITE = r"not executed without your permission.*write backbone: \{name: \.\.\., remote_code: true\}"


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the module cache of transformers to a temporary folder, and undo registrations after each test."""
    forget_modules(monkeypatch)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setattr(anatomy, "_ANATOMIES", dict(anatomy._ANATOMIES))


def forget_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget imported remote code, so that loading it again executes it again."""
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        monkeypatch.delitem(sys.modules, name)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_remote_code_is_off_by_default() -> None:
    assert not BackboneSpec.model_validate("minilm").remote_code
    assert BackboneSpec.model_validate({"name": "x", "remote_code": True}).remote_code
    with pytest.raises(ValueError, match="remote_code"):
        BackboneSpec.model_validate({"name": "x", "remote_code": "yes"})


@pytest.mark.parametrize("also_after", [False, True])
def test_remote_code_is_not_executed_by_default(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also_after: bool
) -> None:
    folder = tmp_path / "own"
    trace = bring_code(backbone_folder(), folder, model_type="ownbert")
    register_anatomy(replace(find_anatomy("bert"), family="ownbert", model_types=("ownbert",)))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on standard input"))
    if also_after:
        assert type(load_backbone(str(folder), remote_code=True).model).__name__ == "OwnModel"
        trace.unlink()
        forget_modules(monkeypatch)
    with pytest.raises(InputError, match=rf"backbone '.*own': its model needs Python code.*{WRITE}"):
        load_backbone(str(folder))
    assert not trace.exists()


def test_remote_code_is_executed_on_request(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    trace = bring_code(backbone_folder(), folder)
    backbone = load_backbone(str(folder), remote_code=True)
    assert trace.read_text() == "executed"
    assert type(backbone.model).__name__ == "OwnModel"
    assert backbone.remote_code
    assert backbone.digest == load_backbone(str(backbone_folder())).digest
    files = backbone.file_digests()
    assert {name: files[name] for name in ("own.py", "helper.py")} == {
        name: sha256(folder / name) for name in ("own.py", "helper.py")
    }


def test_failing_remote_code_is_reported_as_the_backbones(backbone_folder: Folder, tmp_path: Path) -> None:
    bring_code(backbone_folder(), tmp_path / "own")
    (tmp_path / "own" / "helper.py").write_text("import no_such_package\n")
    with pytest.raises(InputError, match=r"own' cannot be loaded: .*no_such_package"):
        load_backbone(str(tmp_path / "own"), remote_code=True)


def test_known_model_type_uses_the_class_of_transformers(backbone_folder: Folder, tmp_path: Path) -> None:
    trace = bring_code(backbone_folder(), tmp_path / "own")
    backbone = load_backbone(str(tmp_path / "own"))
    assert type(backbone.model).__module__.startswith("transformers.")
    assert "own.py" not in backbone.file_digests()
    assert not trace.exists()


def test_model_type_without_anatomy_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    bring_code(backbone_folder(), tmp_path / "own", model_type="ownbert")
    with pytest.raises(InputError, match=r"model type 'ownbert' has no anatomy.*register_anatomy"):
        load_backbone(str(tmp_path / "own"), remote_code=True)


def test_tokenizer_code_is_not_executed_by_default(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    trace = bring_code(backbone_folder(), folder, tokenizer=True)
    # transformers uses its own tokenizer if it has one for the model type.
    assert type(load_tokenizer(str(folder))).__module__.startswith("transformers.")
    change(folder / "config.json", model_type="ownbert")
    with pytest.raises(InputError, match=rf"its tokenizer needs Python code.*{WRITE}"):
        load_tokenizer(str(folder))
    assert not trace.exists()
    change(folder / "config.json", model_type="bert")
    assert type(load_tokenizer(str(folder), remote_code=True)).__name__ == "OwnTokenizerFast"
    assert trace.exists()
    assert "own.py" in load_backbone(str(folder), remote_code=True).file_digests()


def test_untrusted_run_folder_executes_no_code(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = tmp_path / "own", tmp_path / "run"
    trace = bring_code(backbone_folder(), folder)
    backbone = {"name": str(folder), "pooling": "mean", "remote_code": True}
    learn(stream(folder, [task("one", num_rows=16)], backbone=backbone, training={"epochs": 1}), run)
    assert trace.exists()
    trace.unlink()
    forget_modules(monkeypatch)
    stranger = Run(run)
    for ask in (stranger.verify, lambda: stranger.predict(["w0"], task="one")):
        with pytest.raises(InputError, match=r"stream\.yaml: key backbone\.remote_code: true.*pass --remote-code"):
            ask()
    (tmp_path / "two.yaml").write_text("{name: two, kind: classification, data: nowhere}")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    words = {"verify": [], "predict": ["--task", "one", "w0"], "learn": [str(tmp_path / "two.yaml"), "--quiet"]}
    for command, more in words.items():
        assert main([command, str(run), *more]) == 2
        assert "key backbone.remote_code: true: it asks to execute" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert main(["report", str(run)]) == 0
    assert not trace.exists()
    assert all(check.ok for check in Run(run, remote_code=True).verify())
    assert main(["verify", str(run), "--remote-code"]) == 0
    assert main(["learn", str(run), str(tmp_path / "two.yaml"), "--quiet", "--remote-code"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert trace.exists()


def test_image_processor_code_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    from continual_petl.streams.encoding.image_processing import image_processing

    folder = Path(shutil.copytree(backbone_folder("vit"), tmp_path / "vit"))
    change(folder / "preprocessor_config.json", auto_map={"AutoImageProcessor": "own.Own"})
    with pytest.raises(InputError, match=r"asks for auto_map: .* which is not supported here"):
        image_processing(str(folder), None, load_backbone(str(folder)).model.config)
