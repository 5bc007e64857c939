"""Read data sets from the Hub with ``datasets``."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from continual_petl._hub_cache import refuse_damaged
from continual_petl.errors import InputError
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.schema.stream_spec import SPLITS, DataSpec, SplitName
from continual_petl.streams.sources.checks import Where
from continual_petl.streams.sources.local_files import ALIASES
from continual_petl.streams.sources.row_ids import ID_COLUMNS
from continual_petl.streams.sources.split_rows import Columns, SplitRows, pick


def from_hub(
    task: str, data: DataSpec, columns: Columns, splits: Sequence[SplitName], limits: LimitsSpec
) -> dict[SplitName, SplitRows]:
    """Read the splits of a data set from the Hub.

    Raises:
        InputError: if the data set cannot be loaded, lacks the training split or a column, or has a text that is too long.
    """
    import datasets  # type: ignore[import-untyped]  # import takes seconds, and files are checked without it

    loaded: dict[SplitName, datasets.Dataset] = {}

    def load(expression: str | None) -> Any:
        files: Any = data.model_dump(mode="json")["data_files"]  # lists instead of tuples
        return datasets.load_dataset(
            data.path, data.name, revision=data.revision, data_files=files, data_dir=data.data_dir, split=expression
        )

    where = f"task {task!r}, data"
    try:
        if data.split is not None:
            loaded = {split: load(data.split[split]) for split in SPLITS if split in data.split and split in splits}
            there = list(loaded)
        else:
            everything = load(None)
            there = list(everything)
            for name in there:
                split = ALIASES.get(name)
                if split in splits and split is not None:
                    loaded.setdefault(split, everything[name])
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError, LookupError) as error:
        if isinstance(error.__cause__, MemoryError):
            raise
        refuse_damaged(data.path, data.revision, where, "datasets")
        config = f" (configuration {data.name})" if data.name else ""
        raise InputError(
            f"{where}: cannot load {data.path!r}{config} from the Hub: {type(error).__name__}: {error}. "
            "Check the name and "
            "the network (HF_HUB_OFFLINE allows cached data only); offline, put the files into a folder and write "
            "data: FOLDER, or give a --data-dir with copies if the stream names them (data.local). For "
            f"local data that is not on the Hub, begin the path with ./ (./{data.path})."
        ) from error
    try:
        refuse_damaged(data.path, data.revision, where, "datasets")
    except InputError:
        _remove_prepared(loaded.values())
        raise
    found = {}
    for split, dataset in loaded.items():
        names = class_names(dataset.features.get([*columns.values()][-1]))
        place = Where(task=task, split=split, origin=f"Hub {data.path}")
        table = columns_of(dataset, str(place), limits)
        place = replace(place, ids={name: table[name] for name in table if name in ID_COLUMNS})
        found[split] = pick(place, table, columns, data, class_names=names)
    if "train" in splits and "train" not in found:
        raise InputError(
            f"task {task!r}, data {data.path}: there is no split named train; it has {', '.join(there)}. Map the "
            'splits: data: {path: ..., split: {train: "...", test: "..."}}.'
        )
    return found


def _remove_prepared(loaded: Iterable[Any]) -> None:
    """Remove the copies of rows that `datasets` made from damaged files, and would read again."""
    import datasets

    root = Path(datasets.config.HF_DATASETS_CACHE).resolve()
    for file in [Path(each["filename"]) for dataset in loaded for each in dataset.cache_files]:
        if file.resolve().parent.is_relative_to(root) and file.resolve().parent != root:
            shutil.rmtree(file.resolve().parent, ignore_errors=True)


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
