"""Write the text of a first stream file: one task for each data set, with comments that explain each line."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from typing import Any

from continual_petl.errors import InputError
from continual_petl.heads.tag_scheme import AmbiguousTags, UnfitTags, alike, read_tags
from continual_petl.kind_registry import kind_of
from continual_petl.streams.preparation.labels import read_label_names
from continual_petl.streams.scaffold.choose_backbone import Chosen
from continual_petl.streams.scaffold.guess import Guess
from continual_petl.streams.scaffold.inspect_data import InspectedData
from continual_petl.streams.scaffold.profile import is_number
from continual_petl.streams.schema.data_spec import SPLITS, local_path
from continual_petl.streams.schema.limits_spec import SIZES
from continual_petl.streams.schema.option_columns import names_of
from continual_petl.streams.stream_file.dump import inline

_SHOWN = 6
_LENGTHS = (64, 128, 256, 512)
_LENGTHS_OF_CHATS = (1024, 2048)
_LETTERS_OF_TOKEN = 4
"""Letters per token, for English; if a language has fewer, more rows are truncated, and the run reports how many."""
_EPOCHS, _MAX_EPOCHS, _BATCH = 3, 20, 32
_STEPS = 300
"""Minimum number of optimizer steps, unless they would need more than `_MAX_EPOCHS`."""


def draft(file: str, name: str, tasks: Sequence[tuple[InspectedData, Guess]], folder: str, *, backbone: Chosen) -> str:
    """Return the text of a stream file.

    Args:
        file: where it will be written, for the commands in its comments.
        name: name of the stream.
        tasks: the summary of each data set, and the guess based on it.
        folder: folder of the file; paths are written relative to it.
        backbone: the backbone of the stream.
    """
    letters = max(guess.letters for _, guess in tasks)
    epochs = min(_epochs(seen) for seen, _ in tasks)
    lines = [
        "# Drafted from the data by `continual-petl init`: please check it. `continual-petl schema` lists every key.",
        f"#   continual-petl run {_word(file)} --dry-run    shows what would be learned",
        f"#   continual-petl run {_word(file)}              learns it",
        f"name: {inline(name)}",
        "seed: 13",
        "backbone:",
        f"  # {backbone.why}",
        f"  name: {inline(_name_or_path(backbone.name, folder))}",
    ]
    length = _max_length(letters, backbone, [guess for _, guess in tasks])
    if letters:
        room = f"99 % of rows have at most {letters:,} characters"
        lines.append(f"  # tokens; {room}; longer rows are truncated, and the run reports it")
        lines.append(f"  max_length: {length}")
    lines += [
        "bank: houlsby    # each task gets its own; others: lora, parallel, prefix, mam, ... (docs/methods.md)",
        "# houlsby cannot be exported to other libraries, lora can (peft); --dry-run says it for each task",
        "# fewer rows need more epochs, because a bank starts as a no-op; a task can have its own `training`;",
        "# learning_rate is not set: each preset has its own default, including presets chosen by --bank (docs/methods.md)",
        f"training: {{epochs: {epochs}, batch_size: {_BATCH}}}",
        "tasks:",
    ]
    used: set[str] = set()
    for seen, guess in tasks:
        lines += _task(seen, guess, _fresh(seen.task, used), folder, length)
        if (own := _epochs(seen)) > 2 * epochs:
            lines.append(f"    training: {{epochs: {own}}}")
    return "\n".join(lines) + "\n"


def _chat(guess: Guess, max_length: int) -> list[str]:
    """Return the settings for a conversation task."""
    longest = _answer_length(guess)
    length = min(longest, max_length // 2)
    return [
        "    # all assistant messages are learned; loss_on: last learns only the last one, loss_on: all every token;",
        "    # system: TEXT begins every conversation; template: FILE replaces the chat template of the tokenizer",
        "    chat: {loss_on: response}",
        f"    max_target_length: {length}    # tokens of the last message",
        f"    generation: {{max_new_tokens: {length}}}",
    ]


def _answer_length(guess: Guess) -> int:
    wanted = guess.answer_letters / _LETTERS_OF_TOKEN
    return next((each for each in (32, *_LENGTHS) if each >= wanted), _LENGTHS[-1])


def _task(seen: InspectedData, guess: Guess, name: str, folder: str, max_length: int) -> list[str]:
    names = _label_names(seen, guess)
    lines = [f"  - name: {inline(name)}"]
    lines += [f"    # {line}" for line in _comments(seen, guess, names)]
    lines.append(f"    kind: {guess.kind}")
    lines.append(f"    data: {inline(_data(seen, folder, guess))}")
    read = {key: [*names_of(column)] for key, column in guess.columns.items()}
    lines.append(f"    columns: {inline({key: own if len(own) > 1 else own[0] for key, own in read.items()})}")
    if guess.answer_letters:
        lines += _chat(guess, max_length)
    if settings := kind_of(guess).drafted(guess, max_length):
        lines.append(f"    kind_settings: {inline(settings)}")
    if kind_of(guess).per_word and not names and not _marks_entities(guess.labels):
        lines.append(
            "    metric: accuracy    # the tags mark no entities; the other scores count entities (docs/tasks.md)"
        )
    if names is not None and seen.labels is not None:
        lines.append(f"    labels: {inline(_path(seen.labels, folder))}")
    sizes = ", ".join(f"{key}: {getattr(seen.limits, key):g}" for key in SIZES if key in seen.limits.model_fields_set)
    if sizes:
        lines.append(f"    limits: {{{sizes}}}")
    return lines


def _comments(seen: InspectedData, guess: Guess, names: Sequence[str] | None) -> list[str]:
    about = [f"read as: {guess.words}, because {_safe(guess.why)} in {seen.rows}"]
    if guess.labels:
        shown = names or guess.labels
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        about.append(f"labels: {_safe(', '.join(shown[:_SHOWN]))}{more}")
    if guess.flags == 1:
        about.append("write lists of label names instead, [] for none; or kind: classification and no lists")
    elif guess.flags and names is None:
        about.append(f"add `labels: [...]` with the {guess.flags} names of the entries of each list, in their order")
    if kind_of(guess).per_word and (names or guess.labels):
        about.append(_safe(_about_tags(names or guess.labels)))
    if (remark := about_numbers(seen, guess)) is not None:
        about.append(remark)
    if guess.pairing:
        about.append(_safe(guess.pairing))
    if guess.unread:
        about.append(f"not read: {_safe(', '.join(guess.unread))}")
    if (left := about_texts_left(guess)) is not None:
        about.append(_safe(left))
    missing = [split for split in SPLITS[1:] if split not in seen.splits]
    if seen.hidden:
        about.append(f"the labels of {', '.join(seen.hidden)} are hidden (-1), so these rows are left out")
    if "validation" in missing:
        about.append("no validation rows: a tenth of the training rows is held out (`validation: 0.1`)")
    if "test" in missing:
        about.append("no test rows: scores are measured on the validation rows")
    return about


def _about_tags(labels: Sequence[str]) -> str:
    """Return how the tags are read, or why they mark no entities; only rows tell apart schemes with the same letters."""
    try:
        reading = read_tags(labels)
    except AmbiguousTags:
        return "tags: B-I may be B of type I or I of type B; if need be, write `tags: {position: prefix}` or suffix"
    except UnfitTags as error:
        return str(error)
    return f"tags: {reading.in_words.replace(reading.scheme, ' or '.join(alike(reading.scheme)), 1)}"


def _marks_entities(labels: Sequence[str]) -> bool:
    try:
        return read_tags(labels).scheme != "none"
    except UnfitTags as error:
        return isinstance(error, AmbiguousTags)


def about_numbers(seen: InspectedData, guess: Guess) -> str | None:
    """Return a comment if the labels are numbers without names, otherwise None."""
    numbers = len(guess.labels) > 2 and all(map(is_number, guess.labels))
    kind = kind_of(guess)
    if not (kind.has_one_label and kind.reads_texts and numbers) or _label_names(seen, guess) is not None:
        return None
    return "the labels are numbers: if their order matters, as with star ratings, use `kind: regression`"


def about_texts_left(guess: Guess) -> str | None:
    """Return a comment on text columns that the task does not read; None if there are none."""
    if not guess.texts_left:
        return None
    several, names = len(guess.texts_left) > 1, ", ".join(guess.texts_left)
    notice = f"column{'s' * several} {names} hold{'s' * (not several)} texts and {'are' if several else 'is'} not read"
    if "text" in guess.columns and "text_pair" not in guess.columns:
        return f"{notice}; to read a second text, write `columns: {{text_pair: {guess.texts_left[0]}}}`"
    return f"{notice}; `data.templates` joins several columns into one"


def _label_names(seen: InspectedData, guess: Guess) -> tuple[str, ...] | None:
    """Return the names in labels.json if the labels of the rows are these names or their positions."""
    kind = kind_of(guess)
    if seen.labels is None or not kind.has_labels or kind.reads_images:
        return None
    try:
        names = read_label_names(local_path(seen.labels))
    except InputError:
        return None  # a file with this name that holds something else
    if guess.flags:
        return names if len(names) == guess.flags else None
    return names if set(guess.labels) <= {*names} or set(guess.labels) <= set(map(str, range(len(names)))) else None


def _epochs(seen: InspectedData) -> int:
    """Return the number of epochs: enough for `_STEPS`, between `_EPOCHS` and `_MAX_EPOCHS`."""
    steps = math.ceil(seen.num_rows * (1 if "validation" in seen.splits else 0.9) / _BATCH)
    return max(_EPOCHS, min(_MAX_EPOCHS, math.ceil(_STEPS / max(1, steps))))


def _data(seen: InspectedData, folder: str, guess: Guess) -> str | dict[str, Any]:
    made = {key: columns for key, columns in (("templates", guess.templates), ("lists", guess.lists)) if columns}
    if not seen.on_hub and not made and not seen.files:
        return _path(seen.data, folder)
    where: dict[str, Any] = {"path": seen.data}
    if seen.files:
        files = {split: [_path(file, folder) for file in some] for split, some in seen.files.items()}
        of_splits = {split: some if len(some) > 1 else some[0] for split, some in files.items()}
        where = {"path": seen.reader, "data_files": of_splits}
    elif not seen.on_hub and os.path.isdir(local_path(seen.data)):
        where = {"path": _name_or_path(seen.data, folder)}
    elif not seen.on_hub:
        where = {"path": seen.reader, "data_files": _path(seen.data, folder)}
    if seen.config is not None:
        where["name"] = seen.config
    if seen.hidden:
        where["split"] = {split: split for split in SPLITS if split in seen.splits}
    return where | made


def _max_length(letters: int, backbone: Chosen, guesses: Sequence[Guess]) -> int:
    """Return a maximum length in tokens that fits most rows, limited by the backbone."""
    # In a causal-lm task, the target follows the source in the same row.
    targets = [_answer_length(guess) if guess.answer_letters else 128 for guess in guesses if kind_of(guess).continues]
    wanted = letters / _LETTERS_OF_TOKEN + max(targets, default=0)
    lengths = (*_LENGTHS, *_LENGTHS_OF_CHATS) if any(guess.answer_letters for guess in guesses) else _LENGTHS
    length = next((each for each in lengths if each >= wanted), lengths[-1])
    return length if backbone.max_tokens is None else min(length, backbone.max_tokens)


def _name_or_path(name: str, folder: str) -> str:
    """Return a name, or a path in the form that a stream file requires for paths."""
    if os.path.isabs(name) or not os.path.isdir(local_path(name)):
        return name
    path = os.path.relpath(local_path(name), folder)
    return path if path.startswith("..") else os.path.join(".", path)


def _path(path: str, folder: str) -> str:
    path = local_path(path)
    return path if os.path.isabs(path) else os.path.relpath(path, folder)


def _fresh(name: str, used: set[str]) -> str:
    fresh, number = name, 1
    while fresh in used:
        number += 1
        fresh = f"{name}-{number}"
    used.add(fresh)
    return fresh


def _word(path: str) -> str:
    """Return a path as one word of a command line, in a comment."""
    return shlex.quote("".join(letter if letter.isprintable() else "?" for letter in path))


def _safe(text: str) -> str:
    """Return the text for a comment: on one line, and shortened."""
    line = " ".join(text.split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= 100 else line[:99] + "…"
