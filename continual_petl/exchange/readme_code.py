"""The lines of Python in README.md of an export: rows in, predictions out, exactly as the bank computes them.

Rows are truncated as in training, text is generated with the settings of the task and not with those of the base model, and
what a class of another library does differently is avoided: a class that finds the last token by its id gets one text at a
time, since padding, an end token inside the text, or a text that ends with the padding token would mislead it. An export is
only written if these lines, as they stand, give the bank's predictions; see `continual_petl.exchange.check_readme`. The lines
themselves are in readme_code.j2; here is what fills them in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from continual_petl.exchange.model_card import HERE, base_model, template
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
_CHOSEN = ("scores", "answers")


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How an export is loaded."""

    library: Literal["transformers", "peft", "adapters"]
    auto: str
    """The class of transformers that loads the model; empty if it is a class of the library."""
    headed: bool = False
    """Whether the model's class has the head; otherwise the head is in a file of its own, or the backbone's."""
    one_by_one: bool = False
    """Whether every row is passed on its own."""
    skipped: int = 0
    """Number of virtual tokens whose states precede those of the text."""

    @property
    def saved(self) -> bool:
        """Whether the folder has the tokenizer, with its padding, and the generation settings."""
        return self.library == "transformers"


@dataclass(frozen=True, kw_only=True)
class Code:
    """The parts of the code, in their order."""

    imports: tuple[str, ...] = ()
    place: str = ""
    model: tuple[str, ...] = ()
    reader: tuple[str, ...] = ()
    """The lines that load the tokenizer."""
    rows: str
    """The variable with the rows."""
    example: str
    """Its value in README.md."""
    encode: tuple[str, ...]
    compute: tuple[str, ...]
    results: tuple[str, ...] = ("logits",)
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
        how: how the export is loaded.
    """
    tokenizer, backbone = subject.tokenizer, subject.backbone
    revision = "" if backbone.revision is None else f", revision={backbone.revision!r}"
    loading = _lines(
        "loading",
        **vars(how),
        base=repr(base_model(backbone.name) or backbone.name),
        here=HERE,
        revision=revision,
        num_labels=subject.plan.num_outputs,
        eager=bool(subject.bank.prefixes()),
    )
    modules = ["import torch", *loading["encode"]]
    place, *model = loading["compute"]
    if tokenizer is None:
        code = _of_images(subject)
        modules += ["import numpy as np", "import torch.nn.functional as F", "from PIL import Image, ImageOps"]
    else:
        source = "FOLDER" if how.saved else f"BASE{revision}"
        code = replace(_of_texts(subject, how), reader=_reader(subject, tokenizer, source, how))
    if not how.saved and not how.headed and not kind_of(subject.plan).generates:
        code = replace(code, compute=_pooled(subject, how))
        modules += ["from safetensors.torch import load_file"]
    if kind_of(subject.plan).per_word:
        code = replace(code, compute=(*code.compute, *_lines("tags")["compute"]))
    needed = "\n".join([*code.reader[:1], *code.encode, *code.compute])
    classes = {name for name in _CLASSES if name in needed} | ({how.auto} - {""})
    modules += [f"from transformers import {', '.join(sorted(classes))}"] if classes else []
    return replace(code, imports=tuple(sorted(modules, key=_order)), place=place, model=tuple(model))


def _reader(subject: Subject, tokenizer: Any, source: str, how: Loading) -> tuple[str, ...]:
    """Return the lines that load the tokenizer from a source: a variable, and further arguments."""
    # For some model types AutoTokenizer builds the family's own tokenizer, even if the files declare the general one.
    general = type(tokenizer).__name__ in {"PreTrainedTokenizerFast", "TokenizersBackend"} and not how.saved
    name = "PreTrainedTokenizerFast" if general else "AutoTokenizer"
    sides = "" if how.saved else f', padding_side="{tokenizer.padding_side}"'
    lines = [f"tokenizer = {name}.from_pretrained({source}{sides})"]
    if not how.one_by_one and tokenizer.pad_token is not None:
        lines += [f"tokenizer.pad_token = tokenizer.pad_token or {str(tokenizer.pad_token)!r}"]
    if subject.plan.chat is not None:
        lines += [f"tokenizer.chat_template = {subject.plan.chat.template!r}"]
    return tuple(lines)


_CLASSES = (
    "AutoTokenizer",
    "PreTrainedTokenizerFast",
    "GenerationConfig",
    "LogitsProcessorList",
    "LogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "StoppingCriteriaList",
    "StoppingCriteria",
)
"""Classes of transformers besides those of models."""


def _order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line.split()[1].lower()


def _lines(macro: str, **values: Any) -> dict[str, Any]:
    """Return the lines of a macro of the template: those that encode rows, and those that compute."""
    text: str = getattr(template("exchange", "readme_code.j2").make_module(values), macro)()
    encode, _, compute = text.partition("---\n")
    return {
        name: tuple(filter(str.strip, part.splitlines())) for name, part in (("encode", encode), ("compute", compute))
    }


def _of_texts(subject: Subject, how: Loading) -> Code:
    plan, kind, max_length = subject.plan, kind_of(subject.plan), subject.max_length
    if kind.chooses:
        example = "[('some text', ['one', 'another'])]"
        return Code(rows="rows", example=example, results=_CHOSEN, **_lines("choosing", max_length=max_length))
    if plan.options_from is not None:
        return _of_options(subject)
    if kind.generates:
        return _generating(subject, how)
    if kind.per_word:
        assert subject.tokenizer is not None
        glues = glues_words(subject.tokenizer)
        lines = _lines("words", glues=glues, max_length=max_length, labels=list(plan.labels or ()))
        example = '[["some", "words"], ["and", "another", "row"]]'
        return Code(rows="rows", example=example, results=("logits", "tags"), **lines)
    lines = _lines("texts", one_by_one=how.one_by_one, pair=plan.pair, max_length=max_length)
    example = '[("some text", "its second text"), ("and another", "and its second")]' if plan.pair else TEXTS
    return Code(rows="texts", example=example, **lines)


def _pooled(subject: Subject, how: Loading) -> tuple[str, ...]:
    """Return the lines that apply a head from a separate file."""
    reads_texts, pooling = subject.tokenizer is not None, subject.plan.pooling
    features = "states" if kind_of(subject.plan).per_word else _POOLED[pooling]
    if not reads_texts and pooling == "mean":
        features = "states.mean(1)"
    start = start_token(subject.backbone) if subject.backbone.anatomy.is_encoder_decoder else None
    values = {"start": start, "skipped": how.skipped, "reads_texts": reads_texts, "features": features}
    lines: tuple[str, ...] = _lines("pooled", **values)["compute"]
    return lines


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
    settings, processors = "", list[str]()
    if not how.saved:
        settings = ", ".join(f"{key}={value!r}" for key, value in generation_settings(subject, file=False).items())
    if spec.repetition_penalty != 1:
        processors.append(f"OfGenerated(RepetitionPenaltyLogitsProcessor({spec.repetition_penalty}))")
    if spec.no_repeat_ngram_size:
        processors.append(f"OfGenerated(NoRepeatNGramLogitsProcessor({spec.no_repeat_ngram_size}))")
    lines = _lines(
        "generating",
        **values,
        in_loop=how.one_by_one and rows == "texts",
        settings=settings,
        # Not every class of peft passes on its own settings.
        generator="base" if how.library == "peft" else "model",
        processors=processors,
        stop=list(spec.stop or ()),
        saved=how.saved,
        end=ends_of(tokenizer, subject.plan.chat).end,
    )
    return Code(rows=rows, example=example, results=("answers",), **lines)


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
    return Code(rows=rows, example=example, results=_CHOSEN, **lines)


def _of_images(subject: Subject) -> Code:
    known = image_processing(subject.backbone.name, subject.backbone.revision, subject.backbone.model.config)
    return Code(rows="images", example='[Image.open("an-image.png")]', **_lines("images", processing=known))
