"""Read data sets from the Hub with ``datasets``."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from continual_petl._hub_cache import refuse_damaged
from continual_petl.errors import InputError, counted
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.schema.stream_spec import SPLITS, DataSpec, SplitName
from continual_petl.streams.sources.checks import Where
from continual_petl.streams.sources.local_files import ALIASES
from continual_petl.streams.sources.row_ids import ID_COLUMNS
from continual_petl.streams.sources.split_rows import Columns, SplitRows, pick

_AT_THE_END = re.compile(r"\s*-([0-9_.]+)%\s*:")


def from_hub(
    task: str, data: DataSpec, columns: Columns, splits: Sequence[SplitName], limits: LimitsSpec
) -> dict[SplitName, SplitRows]:
    """Read the splits of a data set from the Hub.

    Raises:
        InputError: if the data set cannot be loaded, lacks the training split or a column, or has a text that is too long.
    """
    where = f"task {task!r}, data"
    config = f" (configuration {data.name})" if data.name else ""
    files: Any = data.model_dump(mode="json")["data_files"]  # lists instead of tuples

    def cannot(why: str) -> str:
        return (
            f"{where}: cannot load {data.path!r}{config} from the Hub: {why}. Check the name and "
            "the network (HF_HUB_OFFLINE allows cached data only); offline, put the files into a folder and write "
            "data: FOLDER, or give a --data-dir with copies if the stream names them (data.local). For "
            f"local data that is not on the Hub, begin the path with ./ (./{data.path})."
        )

    def load(split: str | None) -> Any:
        options = {"revision": data.revision, "data_files": files, "data_dir": data.data_dir, "split": split}
        found = load_dataset(where, data.path, data.name, cannot, **options)
        if split is not None:
            whole = getattr(getattr(found, "info", None), "splits", None) or {}
            try:
                check_shares(split, {name: one.num_examples for name, one in whole.items()})
            except ValueError as error:
                raise InputError(f"{where}: cannot read {split!r} of {data.path} on the Hub: {error}.") from error
        return found

    if data.split is not None:
        given = data.split
        loaded: Mapping[str, Any] = {
            split: load(given[split]) for split in SPLITS if split in given and split in splits
        }
    else:
        loaded = load(None)
    wanted = {split: rows for split, rows in by_split(loaded).items() if split in splits}
    if "train" in splits and "train" not in wanted:
        raise no_train(f"task {task!r}, data {data.path}", loaded)
    found = {}
    for split, dataset in wanted.items():
        names = class_names(dataset.features.get([*columns.values()][-1]))
        place = Where(task=task, split=split, origin=f"Hub {data.path}")
        table = columns_of(dataset, str(place), limits)
        place = replace(place, ids={name: table[name] for name in table if name in ID_COLUMNS})
        found[split] = pick(place, table, columns, data, class_names=names)
    return found


def no_train(where: str, splits: Iterable[str]) -> InputError:
    """Return the error for a data set without training rows; ``splits`` are those that it has."""
    return InputError(
        f"{where}: there is no split named train; it has {', '.join(map(str, splits))}. Map the splits in the stream file: "
        'data: {path: ..., split: {train: "...", test: "..."}}.'
    )


def check_shares(expression: str, lengths: Mapping[Any, int]) -> None:
    """Raise `ValueError` for a share at the end that is no row: to `datasets`, ``train[-1%:]`` of 30 rows is all rows.

    Args:
        expression: what a split is made of, such as ``train[:80%]+test``.
        lengths: the number of rows of the named splits, where it is known.
    """
    for part in expression.split("+"):
        name, _, places = part.partition("[")
        share, count = _AT_THE_END.match(places), lengths.get(name.strip(), 0)
        if share is not None and count and round(float(share[1]) * count / 100) == 0:
            raise ValueError(
                f"the last {share[1]}% of {counted(count, 'row')} are less than half a row, so none is selected"
            )


def by_split(loaded: Mapping[str, Any]) -> dict[SplitName, Any]:
    """Return the splits of a data set by their usual names; of two for one split, such as dev and val, the first."""
    found: dict[SplitName, Any] = {}
    for name, rows in loaded.items():
        if name in ALIASES:
            found.setdefault(ALIASES[name], rows)
    return found


def load_dataset(where: str, path: str, name: str | None, cannot: Callable[[str], str], **options: Any) -> Any:
    """Return what `datasets.load_dataset` loads from the Hub.

    Args:
        where: beginning of the message about a damaged download.
        path: id of the data set.
        name: its configuration.
        cannot: returns the message if it cannot be loaded, for the reason.
        **options: more arguments of `datasets.load_dataset`.

    Raises:
        InputError: if it cannot be loaded, or a download is damaged.
    """
    import datasets  # import takes seconds, and files are checked without it

    revision = options.get("revision")
    try:
        loaded = datasets.load_dataset(path, name, **options)
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError, LookupError) as error:
        if isinstance(error.__cause__, MemoryError):
            raise
        refuse_damaged(path, revision, where, "datasets")
        raise InputError(cannot(f"{type(error).__name__}: {' '.join(str(error).split())[:600]}")) from error
    try:
        refuse_damaged(path, revision, where, "datasets")
    except InputError:
        _remove_prepared(loaded.values() if isinstance(loaded, dict) else [loaded])
        raise
    return loaded


def _remove_prepared(loaded: Iterable[Any]) -> None:
    """Remove the copies of rows that `datasets` made from damaged files, and would read again."""
    import datasets

    root = Path(datasets.config.HF_DATASETS_CACHE).resolve()
    for folder in [Path(each["filename"]).resolve().parent for dataset in loaded for each in dataset.cache_files]:
        if folder.is_relative_to(root) and folder != root:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and messages of ``datasets``; errors are still raised."""
    import datasets

    were_on, verbosity = datasets.are_progress_bars_disabled() is False, datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if were_on:
            datasets.enable_progress_bars()


def columns_of(dataset: Any, place: str, limits: LimitsSpec) -> dict[str, list[Any]]:
    """Return the columns of a data set as plain values; images and the like remain bytes and paths.

    Args:
        dataset: a data set from `datasets`.
        place: name of the data set, for messages.
        limits: limits of the task.

    Raises:
        InputError: if the text of a cell is too long.
    """
    from continual_petl.streams.reader.columnar import cells_of, check_cells, from_json  # pyarrow is already imported

    rows, table = dataset.with_format("arrow")[:], {}
    for name, feature in dataset.features.items():
        check_cells(place, name, rows[name], limits)
        cells = cells_of(rows[name])
        table[name] = [from_json(feature, value) for value in cells] if "Json(" in repr(feature) else cells
    return table


def class_names(feature: Any) -> tuple[str, ...] | None:
    """Return the label names that a data set declares, also for columns with a list of labels per row."""
    import datasets

    while not isinstance(feature, datasets.ClassLabel) and hasattr(feature, "feature"):
        feature = feature.feature
    return tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else None
