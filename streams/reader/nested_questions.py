"""Questions in the nested form of the SQuAD files: articles with paragraphs, which have a context and its questions.

They become the flat rows of ``rajpurkar/squad`` and ``squad_v2`` on the Hub, with all keys that a question, its paragraph and
its article have; of keys with the same name, the one nearest to the question counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from continual_petl.errors import InputError, show


def are_articles(rows: Sequence[Any]) -> bool:
    """Return whether rows are articles with paragraphs, rather than questions."""
    return bool(rows) and all(isinstance(row, dict) and "paragraphs" in row for row in rows)


def flat_questions(place: str, articles: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the questions.

    Args:
        place: beginning of the messages; names the file.
        articles: the list under ``data``.

    Raises:
        InputError: if something else is in place of a list of paragraphs, questions or answers.
    """
    for at, article in enumerate(articles):
        for paragraph, there in _objects(place, article, "paragraphs", f"data[{at}]"):
            for question, here in _objects(place, paragraph, "qas", there):
                answers = [answer for answer, _ in _objects(place, {"answers": [], **question}, "answers", here)]
                rest = [
                    {key: each[key] for key in each if key not in ("paragraphs", "qas")}
                    for each in (article, paragraph)
                ]
                lists = {key: [answer.get(key) for answer in answers] for key in ("text", "answer_start")}
                yield {**rest[0], **rest[1], **question, "answers": lists}


def _objects(place: str, holder: dict[str, Any], key: str, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects in a list, each with its place."""
    found = holder.get(key)
    if not isinstance(found, list):
        raise InputError(
            f"{place}: {where}.{key} is {show(found)}, not a list as in SQuAD (data, paragraphs, qas, answers): repair it"
        )
    for at, each in enumerate(found):
        if not isinstance(each, dict):
            raise InputError(f"{place}: {where}.{key}[{at}] is {show(each)}, not an object ({{...}}): repair it")
        yield each, f"{where}.{key}[{at}]"
