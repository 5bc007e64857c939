"""Mistakes of a user, collected so that all are reported together, each with the key of the stream that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from continual_petl.errors import InputError, Key, StreamFileError, raise_problems
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.places import Places


class Problems:
    """What was found wrong so far."""

    def __init__(self) -> None:
        self.found: list[tuple[Key, str]] = []

    @contextmanager
    def collected(self, above: Key = ()) -> Iterator[None]:
        """Take note of an `InputError` that ends the block, and go on after it.

        Args:
            above: the key under which those of the errors lie.
        """
        try:
            yield
        except StreamFileError as error:
            self.found += [((*above, *key), text) for key, text in zip(error.keys, error.problems, strict=True)]
        except InputError as error:
            self.found.append(((*above, *error.key), str(error)))

    def raise_all(self) -> None:
        """Raise `InputError` if there are any; its keys count from the top of the stream."""
        try:
            raise_problems([text for _, text in self.found], [key for key, _ in self.found])
        except InputError as error:
            error.from_top = True
            raise


def key_of(spec: StreamSpec, task: TaskSpec) -> Key:
    """Return the key of a task of a stream."""
    return ("tasks", [each.name for each in spec.tasks].index(task.name))


def with_lines(error: InputError, places: Places | None) -> InputError:
    """Return an error whose paragraphs begin with the file and line of what they are about, as far as that is known.

    Args:
        error: what `Problems.raise_all` raised; any other comes back as it is.
        places: where the keys of the stream are written; None if it was not read from a file.
    """
    if places is None or not error.from_top:
        return error
    if isinstance(error, StreamFileError):
        return StreamFileError(places.with_more(zip(error.keys, error.problems, strict=True)))
    return InputError(*places.with_more([(error.key, str(error))])) if error.key else error
