"""Lists which choices of the four dimensions are legal together, and which options each combination uses.

The combinations are the rows of He et al. 2022, Table 1, and the variants that Houlsby et al. 2019 tried in section 3.6; each
form lists its own in `continual_petl.banks.config.forms`.
"""

from __future__ import annotations

from continual_petl.banks.config.forms import FORMS, find_form
from continual_petl.banks.config.forms.base import Combination

MERGEABLE = tuple(name for name, form in FORMS.items() if form.mergeable)
"""Forms of this package that can be merged into weights."""
LEGAL: tuple[Combination, ...] = tuple(row for form in FORMS.values() for row in form.rows)
"""The legal combinations of the forms of this package."""


def nearest(form: str, modifies: str, insertion: str | None, composition: str) -> list[Combination]:
    """Return the legal combinations closest to a choice: the best matches of any form, and the best of the same form."""
    choice = (form, modifies, insertion, composition)
    rows = LEGAL if form in FORMS else (*LEGAL, *find_form(form).rows)
    best = max(row.agrees(*choice) for row in rows)
    best_of_form = max(row.agrees(*choice) for row in rows if row.form == form)
    return [row for row in rows if row.agrees(*choice) == (best_of_form if row.form == form else best)]


def options_of(form: str, modifies: str, insertion: str | None, composition: str) -> frozenset[str]:
    """Return the options that change the result of a combination."""
    return find_form(form).options_of(modifies, insertion, composition)


NEEDS = {
    "hidden": "reparametrise: mlp or lstm",
    "depth": "reparametrise: mlp or lstm",
    "mlp_width": "reparametrise: lstm",
    "init_scale": "init: houlsby",
    "init": "reparametrise: none",
}
"""For each option, the setting without which it has no effect."""
