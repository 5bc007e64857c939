"""The lines of Python in README.md of an export: rows in, predictions out, exactly as the bank computes them.

Rows are truncated as in training, text is generated with the settings of the task and not with those of the base model, and
what a class of another library does differently is avoided: a class that finds the last token by its id gets one text at a
time, since padding, an end token inside the text, or a text that ends with the padding token would mislead it. An export is
only written if these lines, as they stand, give the bank's predictions; see `continual_petl.exchange.check_readme`. The lines
themselves are in readme_code.j2; here is what fills them in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.learner.generate import ends_of
from continual_petl.learner.task_bank import start_token
from continual_petl.streams.encoding.image_processing import image_processing
from continual_petl.streams.encoding.tokenise_sources import adds_end, num_closing, room_for
from continual_petl.streams.encoding.tokenizer_calls import glues_words

_POOLED = {
    "first": "states[:, 0]",
    "pooler": "output.pooler_output",
    "mean": "(states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)",
    "last": "states[range(len(states)), mask.cumsum(1).argmax(1)]",
}
TEXTS = '["some text", "and another"]'
"""The example rows of a task on texts."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How a format is loaded."""

    modules: tuple[str, ...]
    """Imports of the format."""
    auto: str
    """The class of transformers that loads the model; empty if ``modules`` imports it."""
    place: str
    """The line that names the folder, and the base model."""
    model: tuple[str, ...]
    """The lines that load the model."""
    source: str
    """What the tokenizer is loaded from: the name of a variable, and further arguments."""
    separate: bool = False
    """Whether the head is in a file of its own."""
    one_by_one: bool = False
    """Whether every row is passed on its own."""
    skipped: int = 0
    """Number of virtual tokens whose states precede those of the text."""
    generator: str = "model"
    """The variable with the model whose generation settings are used."""
    saved: bool = False
    """Whether the folder has the tokenizer, with its padding, and the generation settings."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """The parts of the code, in their order."""

    imports: tuple[str, ...]
    place: str
    model: tuple[str, ...]
    reader: tuple[str, ...]
    """The lines that load the tokenizer."""
    rows: str
    """The variable with the rows."""
    example: str
    """Its value in README.md."""
    encode: tuple[str, ...]
    compute: tuple[str, ...]
    results: tuple[str, ...] = field(default=("logits",))
    """The variables with the outputs."""

    @property
    def text(self) -> str:
        """The whole code."""
        lines = [*self.imports, "", self.place, *self.model, *self.reader]
        return "\n".join([*lines, f"{self.rows} = {self.example}", *self.encode, *self.compute])


def code_of(subject: Subject, how: Loading) -> Code:
    """Return the code that uses an export.

    Args:
        subject: the task.
        how: how the format is loaded.
    """
    plan, tokenizer = subject.plan, subject.tokenizer
    classes = {how.auto} - {""}
    modules = [*how.modules, *(["from safetensors.torch import load_file"] if how.separate else [])]
    if tokenizer is None:
        code = _of_images(subject)
        modules += ["import numpy as np", "import torch.nn.functional as F", "from PIL import Image, ImageOps"]
    else:
        code = _of_texts(subject, how)
        # For some model types AutoTokenizer builds the family's own tokenizer, even if the files declare the general one.
        general = type(tokenizer).__name__ in {"PreTrainedTokenizerFast", "TokenizersBackend"} and not how.saved
        name = "PreTrainedTokenizerFast" if general else "AutoTokenizer"
        classes |= {name}
        sides = "" if how.saved else f', padding_side="{tokenizer.padding_side}"'
        reader = [f"tokenizer = {name}.from_pretrained({how.source}{sides})"]
        if not how.one_by_one and tokenizer.pad_token is not None:
            reader += [f"tokenizer.pad_token = tokenizer.pad_token or {str(tokenizer.pad_token)!r}"]
        if plan.chat is not None:
            reader += [f"tokenizer.chat_template = {plan.chat.template!r}"]
        code = replace(code, reader=tuple(reader))
    if how.separate:
        code = replace(code, compute=_pooled(subject, how))
    if kind_of(plan).per_word:
        code = replace(code, compute=(*code.compute, *_lines("tags")[1]))
    needed = "\n".join([*code.encode, *code.compute])
    classes |= {class_name for class_name in _OF_GENERATION if class_name in needed}
    imports = sorted({"import torch", *modules}, key=lambda line: (line.startswith("from"), line))
    if classes:
        imports.append(f"from transformers import {', '.join(sorted(classes))}")
    return replace(code, imports=tuple(sorted(imports, key=_order)), place=how.place, model=how.model)


_OF_GENERATION = (
    "GenerationConfig",
    "LogitsProcessorList",
    "LogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "StoppingCriteriaList",
    "StoppingCriteria",
)


def _order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line.split()[1].lower()


@cache
def _template() -> Template:
    source = files("continual_petl.exchange").joinpath("readme_code.j2").read_text("utf-8")
    # The text is code, not HTML.
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    return environment.from_string(source)


def _lines(macro: str, **values: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines of a macro of the template: those that encode rows, and those that compute."""
    text: str = getattr(_template().make_module(values), macro)()
    encode, _, compute = text.partition("---\n")
    return tuple(filter(str.strip, encode.splitlines())), tuple(filter(str.strip, compute.splitlines()))


def _code(rows: str, example: str, lines: tuple[tuple[str, ...], tuple[str, ...]], *results: str) -> Code:
    return Code(
        imports=(),
        place="",
        model=(),
        reader=(),
        rows=rows,
        example=example,
        encode=lines[0],
        compute=lines[1],
        results=results or ("logits",),
    )


def _of_texts(subject: Subject, how: Loading) -> Code:
    plan, kind, max_length = subject.plan, kind_of(subject.plan), subject.max_length
    if kind.chooses:
        lines = _lines("choosing", max_length=max_length)
        return _code("rows", "[('some text', ['one', 'another'])]", lines, "scores", "answers")
    if plan.options_from is not None:
        return _of_options(subject)
    if kind.generates:
        return _generating(subject, how)
    if kind.per_word:
        glues = glues_words(subject.tokenizer)  # type: ignore[arg-type]
        lines = _lines("words", glues=glues, max_length=max_length, labels=list(plan.labels or ()))
        return _code("rows", '[["some", "words"], ["and", "another", "row"]]', lines, "logits", "tags")
    lines = _lines("texts", one_by_one=how.one_by_one, pair=plan.pair, max_length=max_length)
    example = '[("some text", "its second text"), ("and another", "and its second")]' if plan.pair else TEXTS
    return _code("texts", example, lines)


def _pooled(subject: Subject, how: Loading) -> tuple[str, ...]:
    """Return the lines that apply a head from a separate file."""
    reads_texts, pooling = subject.tokenizer is not None, subject.plan.pooling
    features = "states" if kind_of(subject.plan).per_word else _POOLED[pooling]
    if not reads_texts and pooling == "mean":
        features = "states.mean(1)"
    start = start_token(subject.backbone) if subject.backbone.anatomy.is_encoder_decoder else None
    return _lines("pooled", start=start, skipped=how.skipped, reads_texts=reads_texts, features=features)[1]


def _sources(subject: Subject) -> tuple[str, str, dict[str, Any]]:
    """Return the variable with the sources of a generative task, an example, and the values that encode them."""
    plan, tokenizer = subject.plan, subject.tokenizer
    assert tokenizer is not None
    kind: Any = plan.kind
    values = {
        "chat": plan.chat is not None,
        "room": room_for(kind, subject.max_length, plan.max_target_length)[0],
        "closing": num_closing(tokenizer) if kind_of(plan).continues else 0,
        "types": ", return_token_type_ids=False" if "token_type_ids" in tokenizer.model_input_names else "",
        "decodes": kind_of(plan).decodes,
        "start": start_token(subject.backbone) if kind_of(plan).decodes else None,
    }
    if plan.chat is None:
        return "texts", TEXTS, values
    system = [] if plan.chat.system is None else [{"role": "system", "content": plan.chat.system}]
    return "messages", repr([*system, {"role": "user", "content": "some text"}]), values


def _generating(subject: Subject, how: Loading) -> Code:
    spec, tokenizer = subject.plan.generation, subject.tokenizer
    assert spec is not None
    assert tokenizer is not None
    rows, example, values = _sources(subject)
    settings, processors, arguments = "", [], ["**inputs"]
    if not how.saved:
        settings = ", ".join(f"{key}={value!r}" for key, value in generation_settings(subject, file=False).items())
    if spec.repetition_penalty != 1:
        processors.append(f"OfGenerated(RepetitionPenaltyLogitsProcessor({spec.repetition_penalty}))")
    if spec.no_repeat_ngram_size:
        processors.append(f"OfGenerated(NoRepeatNGramLogitsProcessor({spec.no_repeat_ngram_size}))")
    if processors:
        arguments.append(f"logits_processor=LogitsProcessorList([{', '.join(processors)}])")
        arguments += ["repetition_penalty=1.0, no_repeat_ngram_size=0"] if how.saved else []
    if spec.stop:
        arguments.append("stopping_criteria=StoppingCriteriaList([Stops()])")
    lines = _lines(
        "generating",
        **values,
        in_loop=how.one_by_one and rows == "texts",
        settings=settings,
        generator=how.generator,
        processors=processors,
        stop=list(spec.stop or ()),
        arguments=", ".join(arguments),
        end=ends_of(tokenizer, subject.plan.chat).end,
    )
    return _code(rows, example, lines, "answers")


def generation_settings(subject: Subject, *, file: bool) -> dict[str, Any]:
    """Return the arguments of the `GenerationConfig` with a task's settings.

    Args:
        subject: the task.
        file: whether it is for the file of a checkpoint, which is read without the code: it then has the settings against
            repetition, for which `generate` counts the tokens of the source as well.
    """
    spec = subject.plan.generation
    assert subject.tokenizer is not None
    settings: dict[str, Any] = {}
    if spec is not None:  # a task with options has none
        left_out = {"stop"} if file else {"stop", "repetition_penalty", "no_repeat_ngram_size"}
        settings = spec.model_dump(exclude=left_out, exclude_defaults=True) | {"max_new_tokens": spec.max_new_tokens}
        if spec.do_sample:
            settings["top_k"] = spec.top_k  # transformers samples among the 50 most likely tokens if this is not set
    end, pad = ends_of(subject.tokenizer, subject.plan.chat)
    settings |= {"eos_token_id": end, "pad_token_id": pad}
    if kind_of(subject.plan).decodes:
        settings["decoder_start_token_id"] = start_token(subject.backbone)
    return settings


def _of_options(subject: Subject) -> Code:
    """Return the code that chooses an option."""
    plan, tokenizer = subject.plan, subject.tokenizer
    assert tokenizer is not None
    own = plan.options_from == "row"
    rows, example, values = _sources(subject)
    end = plan.chat.end if plan.chat is not None else tokenizer.eos_token_id
    special = kind_of(plan).decodes and plan.chat is None
    needs_end = end is not None and (plan.chat is not None or not adds_end(tokenizer, special=special))
    lines = _lines(
        "of_options",
        **values,
        own=own,
        options=list(plan.options or ()),
        special=special,
        ends=f" + [{end}]" if needs_end else "",
        divisor={"none": "", "tokens": " / len(target)", "characters": " / len(option)"}[str(plan.normalise)],
    )
    if own:
        row = example if plan.chat is not None else "'some text'"
        rows, example = "rows", f"[({row}, ['one', 'another'])]"
    return _code(rows, example, lines, "scores", "answers")


def _of_images(subject: Subject) -> Code:
    known = image_processing(subject.backbone.name, subject.backbone.revision, subject.backbone.model.config)
    return _code("images", '[Image.open("an-image.png")]', _lines("images", processing=known))
