"""The options --limits.cell_mb, --limits.unpacked_gb and --limits.ratio: how large data files may be.

``run`` reads these limits from each task in the stream file; commands that read other data take them as options.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from continual_petl.errors import InputError
from continual_petl.streams.schema.limits_spec import SIZES, LimitsSpec


def given_limits(arguments: argparse.Namespace, tasks: Sequence[LimitsSpec] = ()) -> LimitsSpec:
    """Return the limits set by options; other limits are the largest among the given tasks, or the defaults.

    Raises:
        InputError: if an option is not a finite number greater than 0.
    """
    options = {key: value for key in SIZES if (value := getattr(arguments, f"limits.{key}")) is not None}
    for key, value in options.items():
        if not 0 < value < math.inf:
            raise InputError(f"--limits.{key}: got {value:g}; it must be a finite number greater than 0")
    known = {key: max(getattr(task, key) for task in tasks) for key in SIZES} if tasks else {}
    return LimitsSpec(**(known | options))
