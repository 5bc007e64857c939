"""Continual learning that provably forgets nothing: a bank per task on one frozen transformer.

The names below are imported on first use, so that importing the package is fast.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from continual_petl._lazy import FROM_ABOVE, lazy_names
from continual_petl._version import VERSION

if TYPE_CHECKING:
    from continual_petl.backbones.backbone import load_backbone as load_backbone
    from continual_petl.callbacks import Loggers as Loggers
    from continual_petl.callbacks import NoForgetting as NoForgetting
    from continual_petl.callbacks import ParameterGrowth as ParameterGrowth
    from continual_petl.callbacks import Progress as Progress
    from continual_petl.callbacks import RoutingWatch as RoutingWatch
    from continual_petl.callbacks import StreamCallback as StreamCallback
    from continual_petl.engine.commands import commit as commit
    from continual_petl.engine.commands import forget as forget
    from continual_petl.engine.commands import import_adapter as import_adapter
    from continual_petl.engine.commands import learn as learn
    from continual_petl.engine.commands import reevaluate as reevaluate
    from continual_petl.engine.run import Run as Run
    from continual_petl.errors import DivergedError as DivergedError
    from continual_petl.errors import ExportError as ExportError
    from continual_petl.errors import ForgettingError as ForgettingError
    from continual_petl.errors import InputError as InputError
    from continual_petl.errors import Interrupted as Interrupted
    from continual_petl.errors import IsolationError as IsolationError
    from continual_petl.errors import MemoryRanOutError as MemoryRanOutError
    from continual_petl.errors import RunInUseError as RunInUseError
    from continual_petl.errors import StoreError as StoreError
    from continual_petl.learner import ContinualLearner as ContinualLearner
    from continual_petl.streams.schema.stream_spec import StreamSpec as StreamSpec
    from continual_petl.streams.stream import TaskStream as TaskStream
    from continual_petl.sweep.result import SweepResult as SweepResult
    from continual_petl.sweep.spec import SweepSpec as SweepSpec

__version__ = VERSION

# torchao, which transformers imports if it is installed, warns about kernels for devices that this machine may not have.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)


def _mistakes(*found: Any) -> Any:
    from continual_petl.streams.stream_file.python_mistakes import mistakes  # after a mistake only, since it takes time

    return mistakes(*found)


FROM_ABOVE["mistakes"] = _mistakes

__getattr__, __dir__, __all__ = lazy_names(__name__)
