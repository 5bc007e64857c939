"""Banks: the parts that a task adds to the frozen backbone (specification, presets, arithmetic, attachment)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.banks.attach import attached as attached
    from continual_petl.banks.attach import run as run
    from continual_petl.banks.bank import Bank as Bank
    from continual_petl.banks.config.choice import BankChoice as BankChoice
    from continual_petl.banks.config.forms import register_form as register_form
    from continual_petl.banks.config.forms.base import PROJECTIONS as PROJECTIONS
    from continual_petl.banks.config.forms.base import Combination as Combination
    from continual_petl.banks.config.forms.base import FormConfig as FormConfig
    from continual_petl.banks.config.legal import LEGAL as LEGAL
    from continual_petl.banks.config.presets import PRESETS as PRESETS
    from continual_petl.banks.config.presets import RECIPES as RECIPES
    from continual_petl.banks.config.spec import BankSpec as BankSpec
    from continual_petl.banks.config.spec import Modification as Modification
    from continual_petl.banks.forms.arithmetic import Delta as Delta
    from continual_petl.banks.forms.projection import OnProjection as OnProjection
    from continual_petl.banks.forms.projection import projections as projections
    from continual_petl.banks.merge import merged as merged

__getattr__, __dir__, __all__ = lazy_names(__name__)
