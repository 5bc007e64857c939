"""Which choices of the four dimensions go together, and which options each combination has a use for.

The rows are those of He et al. 2022, Table 1, with what Houlsby et al. 2019, section 3.6, tried; each form says its own in
`continual_petl.banks.config`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from continual_petl.banks.config.forms import FORMS
from continual_petl.banks.config.forms.base import Combination

if TYPE_CHECKING:
    Form = str
else:
    Form = Literal[tuple(FORMS)]

LEGAL: tuple[Combination, ...] = tuple(row for form in FORMS.values() for row in form.rows)


def nearest(form: str, modifies: str, insertion: str | None, composition: str) -> list[Combination]:
    """Return the legal rows that agree with a choice in most dimensions, and those of its form that do."""
    choice = (form, modifies, insertion, composition)
    most = max(row.agrees(*choice) for row in LEGAL)
    most_of_form = max(row.agrees(*choice) for row in LEGAL if row.form == form)
    return [row for row in LEGAL if row.agrees(*choice) == (most_of_form if row.form == form else most)]


def options_of(form: str, modifies: str, insertion: str | None, composition: str) -> frozenset[str]:
    """Return which options change what a combination computes."""
    return FORMS[form].options_of(modifies, insertion, composition)


def idle_options(form: str, reparametrise: str, init: str) -> frozenset[str]:
    """Return which options have no effect because of what others say."""
    return FORMS[form].idle(reparametrise, init)


NEEDS = {
    "hidden": "reparametrise: mlp or lstm",
    "depth": "reparametrise: mlp or lstm",
    "mlp_width": "reparametrise: lstm",
    "init_scale": "init: houlsby",
    "init": "reparametrise: none",
}
"""Without which other option an option has no effect."""
