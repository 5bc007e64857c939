"""Continual learning that provably forgets nothing: a bank per task on one frozen transformer.

The names below load what they need when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from continual_petl._version import VERSION

if TYPE_CHECKING:
    from continual_petl.backbones.backbone import load_backbone as load_backbone
    from continual_petl.callbacks import Dashboard as Dashboard
    from continual_petl.callbacks import NoForgetting as NoForgetting
    from continual_petl.callbacks import ParameterGrowth as ParameterGrowth
    from continual_petl.callbacks import Progress as Progress
    from continual_petl.callbacks import StreamCallback as StreamCallback
    from continual_petl.course.loop import learn as learn
    from continual_petl.course.reevaluate import reevaluate as reevaluate
    from continual_petl.course.run import Run as Run
    from continual_petl.errors import DivergedError as DivergedError
    from continual_petl.errors import ForgettingError as ForgettingError
    from continual_petl.errors import InputError as InputError
    from continual_petl.errors import Interrupted as Interrupted
    from continual_petl.errors import IsolationError as IsolationError
    from continual_petl.errors import MemoryRanOutError as MemoryRanOutError
    from continual_petl.errors import RunInUseError as RunInUseError
    from continual_petl.errors import StoreError as StoreError
    from continual_petl.learner import ContinualLearner as ContinualLearner
    from continual_petl.learner.begin import begin_task as begin_task
    from continual_petl.streams.schema.stream_spec import StreamSpec as StreamSpec
    from continual_petl.streams.stream import TaskStream as TaskStream
    from continual_petl.sweep.result import SweepResult as SweepResult
    from continual_petl.sweep.spec import SweepSpec as SweepSpec

__version__ = VERSION

_HOME = {
    "ContinualLearner": "continual_petl.learner",
    "Dashboard": "continual_petl.callbacks",
    "DivergedError": "continual_petl.errors",
    "ForgettingError": "continual_petl.errors",
    "InputError": "continual_petl.errors",
    "Interrupted": "continual_petl.errors",
    "IsolationError": "continual_petl.errors",
    "MemoryRanOutError": "continual_petl.errors",
    "RunInUseError": "continual_petl.errors",
    "StoreError": "continual_petl.errors",
    "NoForgetting": "continual_petl.callbacks",
    "ParameterGrowth": "continual_petl.callbacks",
    "Progress": "continual_petl.callbacks",
    "Run": "continual_petl.course.run",
    "StreamCallback": "continual_petl.callbacks",
    "StreamSpec": "continual_petl.streams.schema.stream_spec",
    "SweepResult": "continual_petl.sweep.result",
    "SweepSpec": "continual_petl.sweep.spec",
    "TaskStream": "continual_petl.streams.stream",
    "begin_task": "continual_petl.learner.begin",
    "learn": "continual_petl.course.loop",
    "load_backbone": "continual_petl.backbones.backbone",
    "reevaluate": "continual_petl.course.reevaluate",
}

__all__ = [*_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
