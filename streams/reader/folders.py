"""Rows of folders: images in a folder for each class, and data sets that ``save_to_disk`` of `datasets` wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from continual_petl.errors import InputError, known_names
from continual_petl.spelling import half_character
from continual_petl.streams.reader.faulty_rows import Numbered
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.containers import with_names
from continual_petl.streams.schema.data_spec import join_path
from continual_petl.streams.schema.limits_spec import LimitsSpec

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
"""The suffixes of images."""
_STATE, _INFO = "state.json", "dataset_info.json"
_OF_SYSTEMS = ("Thumbs.db", "desktop.ini")
_LARGEST = 2**26


def reader_of_folder(path: str) -> str | None:
    """Return what a folder holds: ``saved`` for a data set, ``images``, or None."""
    if os.path.isfile(os.path.join(path, _STATE)) and os.path.isfile(os.path.join(path, _INFO)):
        return "saved"
    entries = entries_of(path)
    images = any(map(_is_image, entries)) or any(
        any(map(_is_image, entries_of(entry.path))) for entry in entries if entry.is_dir()
    )
    return "images" if images else None


def folder_records(
    place: str,
    path: str,
    reader: str,
    limits: LimitsSpec,
    wanted: Wanted,
) -> Iterator[Numbered]:
    """Yield the rows of a folder, each with its number.

    Images have the columns ``image``, an absolute path, and ``label``, the name of the image's folder, in the order of these
    names; images in a folder without others have no label. The numbers of classes of a saved data set become their names.

    Args:
        place: beginning of the messages; names the folder.
        path: path of the folder.
        reader: from `reader_of_folder`.
        limits: limits of the task.
        wanted: what is read of a saved data set.

    Raises:
        InputError: if something in the folder is neither an image nor a folder of images, or a file cannot be read.
    """
    if reader == "images":
        yield from enumerate(_images(place, path), 1)
    else:
        yield from _saved(place, path, limits, wanted)


def entries_of(path: str) -> list[os.DirEntry[str]]:
    """Return what is in a folder in the order of names, without hidden files and those that systems put into folders."""
    try:
        with os.scandir(path) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".") and entry.name not in _OF_SYSTEMS]
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror or error}: check its permissions") from error
    return sorted(visible, key=lambda entry: entry.name)


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(IMAGES) and entry.is_file()


def _images(place: str, path: str) -> Iterator[dict[str, Any]]:
    entries = entries_of(path)
    classes = [entry for entry in entries if entry.is_dir()]
    if not classes:
        yield from ({"image": image} for image in _images_in(place, entries))
        return
    if files := [entry.name for entry in entries if not entry.is_dir()]:
        raise InputError(
            f"{place}: {known_names(files, limit=5)} {'are' if len(files) > 1 else 'is'} beside the folders "
            f"{known_names([each.name for each in classes], limit=5)}, which name the classes of the images in them: move "
            "images into the folder of their class, and other files out of this folder"
        )
    for each in classes:
        images = _images_in(place, entries_of(each.path))
        if not images:
            raise InputError(f"{place}: the folder {each.name} has no images: add some, or remove it")
        yield from ({"image": image, "label": each.name} for image in images)


def _images_in(place: str, entries: list[os.DirEntry[str]]) -> list[str]:
    if (strange := next((entry.path for entry in entries if half_character(entry.path)), None)) is not None:
        raise InputError(f"{place}: the path {strange!a} is not valid text: rename the image or its folder")
    if (other := next((entry for entry in entries if not _is_image(entry)), None)) is not None:
        raise InputError(
            f"{place}: {other.path} is {'a folder' if other.is_dir() else 'not named like an image'}, but a folder of a "
            f"class has images only, with these suffixes: {', '.join(IMAGES)}. Move it away."
        )
    return [join_path(os.getcwd(), entry.path) for entry in entries]


def _saved(place: str, path: str, limits: LimitsSpec, wanted: Wanted) -> Iterator[Numbered]:
    from continual_petl.streams.reader.columnar import columnar_records  # importing pyarrow takes a moment

    state, info = _json(place, path, _STATE), _json(place, path, _INFO)
    given = state.get("_data_files")
    given = given if isinstance(given, list) and given else [None]
    files: list[Any] = [each.get("filename") if isinstance(each, Mapping) else None for each in given]
    features = info.get("features")
    features = features if isinstance(features, Mapping) else {}
    if state.get("_indices_files") or not all(isinstance(name, str) and Path(name).name == name for name in files):
        raise InputError(
            f"{place}: {_STATE} does not name the files of the data set as current versions of datasets do: load the folder "
            "with the version that saved it (load_from_disk), and save it again with a current one"
        )
    before = number = 0
    for name in files:
        shard = f"{place}, {name}"
        if not os.path.isfile(file := os.path.join(path, name)):
            raise InputError(f"{shard}: {_STATE} names this file, but it is not there: copy the folder again")
        for number, record in columnar_records(shard, file, "arrow", limits, wanted):
            yield (
                before + number,
                {column: with_names(features.get(column), value, shard, _INFO) for column, value in record.items()},
            )
        before += number


def _json(place: str, path: str, name: str) -> Mapping[str, Any]:
    file = os.path.join(path, name)
    try:
        if os.path.getsize(file) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST:,} bytes")
        found = json.loads(Path(file).read_text("utf-8"))
        if isinstance(found, Mapping):
            return found
        raise ValueError("it is not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{place}: {name} cannot be read: {error}. Copy the folder again.") from error
