"""Hyperparameter search on each task's validation split: size x learning rate x epochs, as in Houlsby et al. 2019.

The procedure follows sections 3.1 and 3.2 of https://arxiv.org/abs/1902.00751: a grid of settings is tried for each task,
and the settings with the best validation scores are learned again with several seeds. No choice depends on the test split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.sweep.protocol import sweep as sweep
    from continual_petl.sweep.result import SweepResult as SweepResult
    from continual_petl.sweep.settings import load_sweep as load_sweep
    from continual_petl.sweep.spec import Range as Range
    from continual_petl.sweep.spec import SweepSpec as SweepSpec

__getattr__, __dir__, __all__ = lazy_names(__name__)
