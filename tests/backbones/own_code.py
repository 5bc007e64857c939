"""Backbones with their own Python code, which writes a file when it is executed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

CODE = """
from pathlib import Path

from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from .helper import TRACE

Path(TRACE).write_text("executed")


class OwnConfig(BertConfig):
    model_type = {model_type!r}


class OwnModel(BertModel):
    config_class = OwnConfig


class OwnTokenizerFast(PreTrainedTokenizerFast):
    pass
"""


def bring_code(backbone: Path, folder: Path, *, model_type: str = "bert", tokenizer: bool = False) -> Path:
    """Copy a BERT, add Python code for the model or the tokenizer, and return the path of the file that the code writes."""
    shutil.copytree(backbone, folder)
    trace = folder / "trace"
    (folder / "own.py").write_text(CODE.format(model_type=model_type))
    (folder / "helper.py").write_text(f"TRACE = {str(trace)!r}\n")
    if tokenizer:
        more = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizerFast"]}}
        change(folder / "tokenizer_config.json", **more)
    else:
        classes = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
        change(folder / "config.json", model_type=model_type, auto_map=classes)
    return trace


def change(path: Path, **more: Any) -> None:
    """Set keys in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
