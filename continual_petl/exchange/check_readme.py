"""Runs the code in README.md of an export on hard rows, and compares what it gives with the bank's predictions.

The code runs as it is written, in a namespace of its own; only the rows are others, the folder is the one that is being
written, and the model is the one that was already loaded, or what peft or adapters is known to compute.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from continual_petl.backbones.backbone_files import source_of
from continual_petl.errors import ExportError
from continual_petl.exchange.compare import (
    NUM_GENERATED,
    TOLERANCE,
    Compute,
    check_outputs,
    encoded,
    expected_of,
    flat,
    rows_of,
)
from continual_petl.exchange.model_card import HERE
from continual_petl.exchange.readme_code import Code
from continual_petl.exchange.subject import Subject
from continual_petl.streams.encoding.images import pillow
from continual_petl.streams.schema.generation import GenerationSpec
from continual_petl.streams.sources.checks import show


class OnDevice:
    """A model on any device as one on the CPU: inputs are moved to it, and outputs back.

    Args:
        model: a function from named inputs to an output with tensors as attributes.
        device: the model's device.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model, self._device = model, device

    def __call__(self, **inputs: Any) -> Any:
        """Return the model's output."""
        output = self._model(**{name: tensor.to(self._device) for name, tensor in inputs.items()})
        for name in ("logits", "last_hidden_state", "pooler_output"):
            if isinstance(logits := getattr(output, name, None), Tensor):
                setattr(output, name, logits.cpu())
        return output

    def generate(self, **given: Any) -> Tensor:
        """Return generated tokens."""
        moved = {name: value.to(self._device) if isinstance(value, Tensor) else value for name, value in given.items()}
        tokens: Tensor = self._model.generate(**moved)
        return tokens.cpu()

    @contextmanager
    def generating(self, spec: GenerationSpec | None) -> Iterator[None]:
        """Generate at most as many tokens as ``spec`` allows inside the block, if the model generates."""
        config = getattr(self._model, "generation_config", None)
        if config is None or spec is None:
            yield
            return
        before, config.max_new_tokens = config.max_new_tokens, spec.max_new_tokens
        try:
            yield
        finally:
            config.max_new_tokens = before


def check_export(
    subject: Subject, code: Code, folder: Path, compute: Compute, output: Any, *, one_by_one: bool = False
) -> float:
    """Check that an export computes what the bank computes, on the inputs of its certificate and on hard rows.

    Args:
        subject: the task.
        code: the code in README.md.
        folder: the folder of the export.
        compute: computes logits with the exported files.
        output: what the code's model is: a function from named inputs to an output with tensors as attributes.
        one_by_one: whether every row is passed on its own, without padding.

    Returns:
        The largest difference found; see `check_outputs`.

    Raises:
        ExportError: if something differs.
        InputError: for images, if Pillow is not installed.
    """
    difference = check_outputs(subject, compute, one_by_one=one_by_one)
    model = OnDevice(output, subject.backbone.model.device)
    check_written(subject, code, folder, model, generates=isinstance(output, nn.Module))
    return difference


def check_written(subject: Subject, code: Code, folder: Path, model: OnDevice, *, generates: bool) -> None:
    """Check that the code of an export gives the bank's predictions for hard rows.

    Args:
        subject: the task.
        code: the code.
        folder: the folder of the export.
        model: computes what the code's model computes.
        generates: whether the model can generate text; if not, only the inputs of generated texts are compared.

    Raises:
        ExportError: if a prediction differs.
        InputError: for images, if Pillow is not installed.
    """
    if subject.tokenizer is None:
        pillow()
    short = _shortened(subject)
    for rows in rows_of(subject):
        if not rows:
            continue
        space: dict[str, Any] = {"__name__": "README"}
        assignment = code.place.replace(f'"{HERE}"', repr(str(folder)))
        # The other library may not be installed; its part of the code is the model.
        imports = [line for line in code.imports if line.split()[1] not in ("peft", "adapters")]
        _run(subject, [*imports, assignment], space)
        if "BASE" in space:
            space["BASE"] = source_of(subject.backbone.name)
        space["model"] = model
        _run(subject, code.reader, space)
        given = [_as_written(subject, row) for row in rows]
        space[code.rows] = given[0] if code.rows == "messages" else given
        _run(subject, code.encode, space)
        spec = subject.plan.generation
        if spec is not None and (spec.do_sample or not generates):
            _compare_inputs(subject, rows, space)
            continue
        with model.generating(short.plan.generation):
            _run(subject, code.compute, space)
        results = {name: space[name] for name in code.results}
        if "tags" in results:
            results["logits"] = flat(results["logits"], space["inputs"]["attention_mask"])
        _compare(subject, rows, expected_of(short, rows), results)


def _shortened(subject: Subject) -> Subject:
    spec = subject.plan.generation
    if spec is None:
        return subject
    most = min(spec.max_new_tokens, max(NUM_GENERATED, spec.min_new_tokens))
    plan = subject.plan.model_copy(update={"generation": spec.model_copy(update={"max_new_tokens": most})})
    return replace(subject, plan=plan)


def _as_written(subject: Subject, row: Any) -> Any:
    """Return a row as the code takes it: a Pillow image, or a conversation with its system prompt."""
    if subject.tokenizer is None:
        return pillow().fromarray(np.asarray(row))
    if subject.plan.chat is None or subject.plan.chat.system is None:
        return row
    system = {"role": "system", "content": subject.plan.chat.system}
    return ([system, *row[0]], row[1]) if subject.plan.options_from == "row" else [system, *row]


def _run(subject: Subject, lines: Sequence[str], space: dict[str, Any]) -> None:
    try:
        exec(compile("\n".join(lines), "README.md", "exec"), space)
    except Exception as error:  # whatever the code of an export raises, it is not written
        raise ExportError(
            f"task {subject.plan.name!r}: the code in README.md of this export fails on a row that its bank predicts "
            f"({type(error).__name__}: {' '.join(str(error).split())}). Nothing was written."
        ) from error


def _compare_inputs(subject: Subject, rows: Sequence[Any], space: Mapping[str, Any]) -> None:
    """Check that sources are encoded as a run encodes them; the model's logits for given tokens are compared elsewhere."""
    if "inputs" not in space:
        return
    rows_encoded, inputs = encoded(subject, rows), space["inputs"]
    for number, (ids, mask) in enumerate(zip(inputs["input_ids"], inputs["attention_mask"], strict=True)):
        right = rows_encoded.ids[rows_encoded.offsets[number] : rows_encoded.offsets[number + 1]].tolist()
        if ids[mask.bool()].tolist() != right:
            raise _differs(subject, rows[number], "tokens other than")


def _compare(subject: Subject, rows: Sequence[Any], expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name, right in expected.items():
        got = found[name]
        if name in ("answers", "tags"):
            wrong = next((n for n, (a, b) in enumerate(zip(got, right, strict=True)) if a != b), None)
            close = name == "answers" and "scores" in expected  # ties are compared by their scores
            if wrong is not None and not close:
                raise _differs(subject, rows[wrong], f"{got[wrong]!r} instead of {right[wrong]!r} for")
            continue
        if name == "scores":
            got, right = (torch.tensor([value for row in part for value in row]) for part in (got, right))
        scale = max(1.0, float(right.abs().max()))
        apart = (got.float() - right).abs() / scale if got.shape == right.shape else torch.tensor([math.nan])
        if not float(apart.max()) <= TOLERANCE:
            number = int(apart.flatten(1).max(1).values.argmax()) if len(apart) == len(rows) and apart.ndim > 1 else 0
            raise _differs(
                subject, rows[number], f"outputs that differ by {float(apart.max()):.2g} from the bank's for"
            )


def _differs(subject: Subject, row: Any, what: str) -> ExportError:
    return ExportError(
        f"task {subject.plan.name!r}: the code in README.md of this export gives {what} a row such as {show(row)}, so "
        "it does not compute what the bank predicts. Nothing was written."
    )
