"""The lines of Python in README.md of an export: rows in, predictions out, exactly as the bank computes them.

Rows are truncated as in training, text is generated with the settings of the task and not with those of the base model, and
what a class of another library does differently is avoided: a class that finds the last token by its id gets one text at a
time, since padding, an end token inside the text, or a text that ends with the padding token would mislead it. An export is
only written if these lines, as they stand, give the bank's predictions; see `continual_petl.exchange.check_readme`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.learner.generate import ends_of
from continual_petl.learner.task_bank import start_token
from continual_petl.streams.encoding.image_processing import image_processing
from continual_petl.streams.encoding.tokenise_sources import adds_end, num_closing, room_for
from continual_petl.streams.encoding.tokenizer_calls import glues_words

GRAD = "with torch.no_grad():"
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
        code = replace(code, compute=(*code.compute, *_TAGS))
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


def _empty(rows: str, example: str, encode: Sequence[str], compute: Sequence[str], *results: str) -> Code:
    return Code(
        imports=(),
        place="",
        model=(),
        reader=(),
        rows=rows,
        example=example,
        encode=tuple(encode),
        compute=tuple(compute),
        results=results or ("logits",),
    )


def _of_texts(subject: Subject, how: Loading) -> Code:
    plan = subject.plan
    if kind_of(plan).chooses:
        return _choosing(subject)
    if plan.options_from is not None:
        return _of_options(subject)
    if kind_of(plan).generates:
        return _generating(subject, how)
    if kind_of(plan).per_word:
        return _of_words(subject)
    limits = f"truncation=True, max_length={subject.max_length}"
    example = '[("some text", "its second text"), ("and another", "and its second")]' if plan.pair else TEXTS
    if how.one_by_one:
        row = "*text" if plan.pair else "text"
        encode = [f'rows = [tokenizer({row}, {limits}, return_tensors="pt") for text in texts]']
        # Padding, or an end token inside a text, would mislead the class.
        compute = [f"{GRAD}  # one text at a time, since the class finds the last token by its id"]
        return _empty(
            "texts", example, encode, [*compute, "    logits = torch.cat([model(**row).logits for row in rows])"]
        )
    encode = ["first, second = map(list, zip(*texts))"] if plan.pair else []
    texts = "first, second" if plan.pair else "texts"
    encode += [f'inputs = tokenizer({texts}, {limits}, padding=True, return_tensors="pt")']
    return _empty("texts", example, encode, [GRAD, "    logits = model(**inputs).logits"])


def _choosing(subject: Subject) -> Code:
    """Return the code of a head that scores a text together with each of its options."""
    call = f"tokenizer([text] * len(options), options, truncation=True, max_length={subject.max_length}, padding=True"
    lines = ["scores, answers = [], []", "for text, options in rows:", f'    inputs = {call}, return_tensors="pt")']
    lines += [f"    {GRAD}", "        logits = model(**{name: each[None] for name, each in inputs.items()}).logits[0]"]
    lines += ["    scores.append(logits.tolist())", "    answers.append(options[int(logits.argmax())])"]
    return _empty("rows", "[('some text', ['one', 'another'])]", (), lines, "scores", "answers")


def _of_words(subject: Subject) -> Code:
    """Return the code of a tagger: the tag of a word is that of its first piece."""
    encode, rows = [], "rows"
    if glues_words(subject.tokenizer):  # type: ignore[arg-type]
        rows = "spaced"
        encode = ['spaced = [[word if n == 0 else f" {word}" for n, word in enumerate(row)] for row in rows]']
    call = f"tokenizer({rows}, is_split_into_words=True, truncation=True, max_length={subject.max_length}"
    encode += [f'inputs = {call}, padding=True, return_tensors="pt")']
    encode += [f"labels = {list(subject.plan.labels or ())!r}"]
    return _empty(
        "rows",
        '[["some", "words"], ["and", "another", "row"]]',
        encode,
        [GRAD, "    logits = model(**inputs).logits"],
        "logits",
        "tags",
    )


_TAGS = (
    "tags = []  # of each word, that of its first piece; words that do not fit are left out",
    "for row, best in enumerate(logits.argmax(-1).tolist()):",
    "    words = [None, *inputs.word_ids(row)]",
    "    tags.append([labels[best[n]] for n, word in enumerate(words[1:]) if word not in (None, words[n])])",
)


def _pooled(subject: Subject, how: Loading) -> tuple[str, ...]:
    """Return the lines that apply a head from a separate file."""
    lines = []
    if subject.backbone.anatomy.is_encoder_decoder:
        lines += ['ids = inputs["input_ids"]  # the decoder reads the text as well, shifted by its start token']
        start = start_token(subject.backbone)
        lines += [f'inputs["decoder_input_ids"] = ids.roll(1, 1).index_fill(1, ids.new_tensor([0]), {start})']
    lines += [GRAD, "    output = model(**inputs)"]
    cut = f"[:, {how.skipped}:]  # without the prompt" if how.skipped else ""
    lines += [f"states = output.last_hidden_state{cut}"]
    if subject.tokenizer is not None:
        lines += ['mask = inputs["attention_mask"]']
    token = kind_of(subject.plan).per_word
    pooled = "states" if token else _POOLED[subject.plan.pooling]
    if subject.tokenizer is None and subject.plan.pooling == "mean":
        pooled = "states.mean(1)"
    lines += ['head = load_file(f"{ADAPTER}/head.safetensors")']
    return (*lines, f'logits = {pooled} @ head["weight"].T + head["bias"]')


def _sources(subject: Subject) -> tuple[str, str, list[str]]:
    """Return the variable with the sources of a generative task, an example, and the lines that encode them."""
    plan, tokenizer = subject.plan, subject.tokenizer
    assert tokenizer is not None
    kind: Any = plan.kind
    room = room_for(kind, subject.max_length, plan.max_target_length)[0]
    if plan.chat is not None:
        system = [] if plan.chat.system is None else [{"role": "system", "content": plan.chat.system}]
        options = "{'add_generation_prompt': True, 'return_dict': True, 'return_tensors': 'pt'}"
        lines = [f"options = {options}", "inputs = tokenizer.apply_chat_template(messages, **options)"]
        lines += [f'if inputs["input_ids"].shape[1] > {room}:']
        lines += [
            f'    raise ValueError("more than {room} tokens: leave out the oldest turns, or shorten the message")'
        ]
        return "messages", repr([*system, {"role": "user", "content": "some text"}]), lines
    closing = num_closing(tokenizer) if kind_of(plan).continues else 0
    types = ", return_token_type_ids=False" if "token_type_ids" in tokenizer.model_input_names else ""
    call = f"tokenizer(texts, truncation=True, max_length={room + closing}{types}"
    if not closing:
        return "texts", TEXTS, [f'inputs = {call}, padding=True, return_tensors="pt")']
    lines = [f"ids = [row[:-{closing}] for row in {call})['input_ids']]  # the target continues the text"]
    return "texts", TEXTS, [*lines, 'inputs = tokenizer.pad({"input_ids": ids}, return_tensors="pt")']


def _generating(subject: Subject, how: Loading) -> Code:
    spec, tokenizer = subject.plan.generation, subject.tokenizer
    assert spec is not None
    assert tokenizer is not None
    rows, example, encode = _sources(subject)
    start = "1" if kind_of(subject.plan).decodes else 'inputs["input_ids"].shape[1]'
    lines, extra = list[str](), list[str]()
    if not how.saved:
        settings = ", ".join(f"{key}={value!r}" for key, value in generation_settings(subject, file=False).items())
        lines += ["# the settings of the task, not those of the base model"]
        lines += [f"{how.generator}.generation_config = GenerationConfig({settings})"]
    if spec.repetition_penalty != 1 or spec.no_repeat_ngram_size:
        lines += _OF_GENERATED
        processors = []
        if spec.repetition_penalty != 1:
            processors.append(f"OfGenerated(RepetitionPenaltyLogitsProcessor({spec.repetition_penalty}))")
        if spec.no_repeat_ngram_size:
            processors.append(f"OfGenerated(NoRepeatNGramLogitsProcessor({spec.no_repeat_ngram_size}))")
        extra += [f"logits_processor=LogitsProcessorList([{', '.join(processors)}])"]
        extra += ["repetition_penalty=1.0, no_repeat_ngram_size=0"] if how.saved else []
    if spec.stop:
        lines += [f"stop = {list(spec.stop)!r}", *_STOPS]
        extra += ["stopping_criteria=StoppingCriteriaList([Stops()])"]
    lines += ["answers = []"]
    inner = [f"given = {start}", f"ids = model.generate({', '.join(['**inputs', *extra])})"]
    end = ends_of(tokenizer, subject.plan.chat).end
    inner += ["for row in ids[:, given:].tolist():"]
    inner += [f"    row = row[: row.index({end})] if {end} in row else row"] if end is not None else []
    inner += ["    text = tokenizer.decode(row, skip_special_tokens=True)"]
    if spec.stop:
        inner += ["    text = text[: min((text.find(each) for each in stop if each in text), default=None)]"]
    inner += ["    answers.append(text.strip())"]
    if how.one_by_one and rows == "texts":
        # peft would count the padding between prompt and text as positions.
        lines += ["for text in texts:  # one at a time, without padding"]
        inner = [f"    {line.replace('tokenizer(texts', 'tokenizer([text]')}" for line in (*encode, *inner)]
        encode = []
    return _empty(rows, example, encode, [*lines, *inner], "answers")


_OF_GENERATED = [
    "class OfGenerated(LogitsProcessor):  # transformers would count the tokens of the source as well",
    "    def __init__(self, processor):",
    "        self.processor = processor",
    "    def __call__(self, ids, scores):",
    "        return self.processor(ids[:, given:], scores)",
]
_STOPS = [
    "class Stops(StoppingCriteria):",
    "    def __call__(self, ids, scores, **more):",
    "        texts = tokenizer.batch_decode(ids[:, given:], skip_special_tokens=True)",
    "        return torch.tensor([any(each in text for each in stop) for text in texts], device=ids.device)",
]


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
    """Return the code that chooses an option: the one whose tokens, with the end token, are the most likely."""
    plan, tokenizer = subject.plan, subject.tokenizer
    assert tokenizer is not None
    seq2seq, own = kind_of(plan).decodes, plan.options_from == "row"
    rows, example, encode = _sources(subject)
    end = plan.chat.end if plan.chat is not None else tokenizer.eos_token_id
    special = seq2seq and plan.chat is None
    ends = (
        f" + [{end}]" if end is not None and (plan.chat is not None or not adds_end(tokenizer, special=special)) else ""
    )
    how = "text_target=option" if plan.chat is None else "option"
    target = f"tokenizer({how}, add_special_tokens={special})['input_ids']{ends}"
    if own:
        first = f"({example}, ['one', 'another'])" if plan.chat is not None else "('some text', ['one', 'another'])"
        example, head = f"[{first}]", [f"for {rows if plan.chat is not None else 'text'}, options in rows:"]
        rows = "rows"
    else:
        head = [f"options = {list(plan.options or ())!r}"]
        head += ["for text in texts:"] if plan.chat is None else ["for messages in [messages]:"]
    inner = [
        line.replace("tokenizer(texts", "tokenizer([text]").replace("options = {", "settings = {") for line in encode
    ]
    inner = [line.replace("**options", "**settings") for line in inner]
    lines = ["scores, answers = [], []", *head, *(f"    {line}" for line in inner)]
    lines += ["    found = []", "    for option in options:", f"        target = {target}"]
    divisor = {"none": "", "tokens": " / len(target)", "characters": " / len(option)"}[str(plan.normalise)]
    if seq2seq:
        lines += [f"        decoder_input_ids = torch.tensor([[{start_token(subject.backbone)}, *target[:-1]]])"]
        lines += [f"        {GRAD}"]
        lines += ["            logits = model(**inputs, decoder_input_ids=decoder_input_ids).logits[0]"]
    else:
        lines += ['        ids = torch.cat([inputs["input_ids"], torch.tensor([target])], 1)', f"        {GRAD}"]
        lines += ["            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]"]
        lines += ["        logits = logits[-len(target) - 1 : -1]"]
    lines += ["        chances = logits.log_softmax(-1).gather(1, torch.tensor(target)[:, None])"]
    lines += [f"        found.append(float(chances.sum()){divisor})"]
    lines += ["    scores.append(found)", "    answers.append(options[found.index(max(found))])"]
    return _empty(rows, example, (), lines, "scores", "answers")


def _of_images(subject: Subject) -> Code:
    """Return the code of a task on images, whose pixels are those of `image_processing`."""
    known = image_processing(subject.backbone.name, subject.backbone.revision, subject.backbone.model.config)
    lines = ["def pixels(image):  # first horizontally, then vertically, with rounding in between"]
    lines += ['    image = np.array(ImageOps.exif_transpose(image).convert("RGB"))']
    lines += ["    x = torch.from_numpy(image).movedim(-1, 0).float()"]
    if known.resize is not None:
        if isinstance(known.resize, int):
            lines += ["    short, long = sorted(x.shape[1:])", f"    other = int({known.resize} * long / short)"]
            lines += [
                f"    size = ({known.resize}, other) if x.shape[1] <= x.shape[2] else (other, {known.resize})",
            ]
        else:
            lines += [f"    size = {tuple(known.resize)}"]
        if known.mode == "nearest":
            lines += ["    if tuple(x.shape[1:]) != size:"]
            lines += ["        steps = [(before / after, after) for before, after in zip(x.shape[1:], size)]"]
            lines += ["        a, b = (np.cumsum([0.5 * s, *[s] * (n - 1)]).astype(np.int64) for s, n in steps)"]
            lines += ["        x = x[:, torch.from_numpy(a)[:, None], torch.from_numpy(b)]"]
        else:
            lines += ["    for target in ((x.shape[1], size[1]), size):", "        if target != tuple(x.shape[1:]):"]
            lines += [f'            x = F.interpolate(x[None], size=target, mode="{known.mode}", antialias=True)[0]']
            lines += ["            x = x.round().clamp(0, 255)"]
    if known.crop is not None:
        lines += [f"    for axis, wanted in enumerate({tuple(known.crop)}, 1):"]
        lines += ["        missing = max(0, wanted - x.shape[axis])", "        pad = [-(-missing // 2), missing // 2]"]
        lines += ["        x = F.pad(x, [0, 0, *pad] if axis == 1 else pad)"]
        lines += ["        x = x.narrow(axis, (x.shape[axis] - wanted) // 2, wanted)"]
    mean, std = (f"torch.tensor({value!r}).view(3, 1, 1)" for value in (known.mean, known.std))
    lines += [f"    return (x * {known.scale!r} - {mean}) / {std}"]
    lines += ['inputs = {"pixel_values": torch.stack([pixels(image) for image in images])}']
    return _empty("images", '[Image.open("an-image.png")]', lines, [GRAD, "    logits = model(**inputs).logits"])
