"""Collect a user's mistakes so that all are reported together, each with the key of the stream that it concerns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from continual_petl.errors import InputError, Key, StreamFileError, raise_problems
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.places import Places


class Problems:
    """The problems found so far."""

    def __init__(self) -> None:
        self.found: list[tuple[Key, str]] = []

    @contextmanager
    def collected(self, above: Key = ()) -> Iterator[None]:
        """Record an `InputError` raised inside the block, and continue after it.

        Args:
            above: the key under which the errors' keys are nested.
        """
        try:
            yield
        except StreamFileError as error:
            self.found += [((*above, *key), text) for key, text in zip(error.keys, error.problems, strict=True)]
        except InputError as error:
            self.found.append(((*above, *error.key), str(error)))

    def raise_all(self) -> None:
        """Raise `InputError` if there are any problems; its keys start at the top of the stream."""
        try:
            raise_problems([text for _, text in self.found], [key for key, _ in self.found])
        except InputError as error:
            error.from_top = True
            raise


def key_of(spec: StreamSpec, task: TaskSpec) -> Key:
    """Return a task's key in its stream."""
    return ("tasks", [each.name for each in spec.tasks].index(task.name))


def with_lines(error: InputError, places: Places | None, top: Key = ()) -> InputError:
    """Return an error whose paragraphs start with the file and line they concern, if known.

    Args:
        error: an error from `Problems.raise_all`; any other is returned unchanged.
        places: where the keys of the stream, or of one of its tasks, are in their file; None if there is no file.
        top: the task's key in its stream, if the file describes one task; empty if it describes a stream.
    """
    if places is None or not error.from_top:
        return error
    if isinstance(error, StreamFileError):
        found = [_in_file(key, text, places, top) for key, text in zip(error.keys, error.problems, strict=True)]
        return StreamFileError(places.with_more(found))
    key, text = _in_file(error.key, str(error), places, top)
    return InputError(*places.with_more([(key, text)])) if error.key else error


def _in_file(key: Key, text: str, places: Places, top: Key) -> tuple[Key, str]:
    """Return the key relative to the file (empty if it is not in this file) and the text."""
    if key[: len(top)] != top:
        return (), text
    return key[len(top) :], f"{places.file}: {text}" if top and key == top else text
