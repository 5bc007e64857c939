"""Folders that are read as one: images by class, and saved data sets, for each split or for all rows."""

from __future__ import annotations

from collections.abc import Mapping

from continual_petl.errors import InputError, known_names
from continual_petl.streams.reader.folders import entries_of
from continual_petl.streams.reader.records import reader_of
from continual_petl.streams.schema.stream_spec import SPLITS, SplitName


def split_folders(here: str, path: str, aliases: Mapping[str, SplitName]) -> dict[SplitName, list[str]]:
    """Return the folder of each split, or the folder itself as the training split; nothing if its content is not known.

    Args:
        here: beginning of the messages.
        path: a folder without files that are named after splits.
        aliases: accepted names of each split.

    Raises:
        InputError: if two folders are named after the same split, rows are in a folder beside those of the splits, or it is
            unclear whether folders are splits or classes.
    """
    below = entries_of(path)
    folders = {entry.name: entry.path for entry in below if entry.name.lower() in aliases and entry.is_dir()}
    if reader_of(path) is not None:
        if folders and len(folders) == len(below):
            raise InputError(
                f"{here}: the folders {known_names([*folders])} are named after splits, but they hold images without a "
                "class: put each image into a folder of its class, as in train/cat/1.png; if these are the classes, give the "
                "folders other names"
            )
        return {"train": [path]}
    found: dict[SplitName, list[str]] = {}
    for name, folder in folders.items():
        if reader_of(folder) is not None:
            found.setdefault(aliases[name.lower()], []).append(folder)
    for split, several in found.items():
        if len(several) > 1:
            raise InputError(
                f"{here}: more than one folder could be the {split} split: {', '.join(several)}. Keep one, or give the "
                "others another name"
            )
    others = [entry.path for entry in below if entry.name not in folders and entry.is_dir()] if found else []
    # A saved data set may have more splits, as on the Hub.
    if unused := [folder for folder in others if reader_of(folder) == "images"]:
        raise InputError(
            f"{here}: beside the folders of the splits, there are rows in {', '.join(unused)}, which is not named after a "
            "split: name it train, validation or test, or move it away"
        )
    return {split: found[split] for split in SPLITS if split in found}
