"""The fixed sentences of the page, and how it spells numbers."""

from __future__ import annotations

from experiments.routing.result import Part

INTRODUCTION = """\
# Rows without a task name

How many rows are routed to their task, what routing costs in accuracy, and what other classifiers reach on the same frozen
states. The backbone is MiniLM; each task has a Houlsby bank. The router reads layers 1, 3 and 5 of the frozen backbone.

```bash
python -m experiments.routing --data FOLDER                # learns, measures, writes the raw results and this page
python -m experiments.routing --data FOLDER --runs RUNS    # keeps the run folders; tasks in them are not learned again
python -m experiments.routing pages                        # regenerates this page
```

FOLDER is the same as for the other studies. The raw results are the files in `results`, one for each section; this page is
generated from them."""

TITLES: dict[Part, str] = {
    "classic": "Classic five tasks",
    "long": "Long stream of twelve tasks",
    "classes": "CLINC150, split into tasks by class",
    "models": "One model for the classic five tasks",
}

METHODS = {
    "router": "the router: label means and task means",
    "label_means": "discriminant, label means",
    "one_mean": "discriminant, one mean per task",
    "label_means_chosen": "discriminant, label means, shrinkage tuned on validation rows",
    "one_mean_chosen": "discriminant, one mean per task, shrinkage tuned on validation rows",
    "ncm": "nearest class mean, cosine",
    "ranpac": "RanPAC",
    "klda": "KLDA",
    "probe": "joint linear probe",
}

NOTES = """\
Rows are sub-sampled, so scores are not comparable with published ones. All settings were chosen on validation rows: the
epoch of each bank, and for each classifier the setting with the best validation accuracy. The router has no setting that is
chosen per stream, but its design was chosen: both the combination of label means with task means and the rule for its
shrinkage were chosen on validation rows of these tasks, after an earlier router (label means alone, shrinkage 0.003) had
been measured on their test rows, where it found the task of 96.9 % of the rows of the classic five and 94.6 % of the rows of
CLINC150. Only the joint linear probe needs all rows at once; RanPAC and KLDA accumulate sums, but their settings were chosen
on the validation rows of all tasks, and *standardised* states are standardised with the rows of all tasks. The ridge of
RanPAC is relative to the mean squared length of a row's features, KLDA's gamma to the median squared distance between two
rows, and every shrinkage to the mean variance."""


def percent(share: float | None) -> str:
    """Return a share in percent.

    Example:
        >>> percent(0.98543), percent(None)
        ('98.5 %', '-')
    """
    return "-" if share is None else f"{100 * share:.1f} %"


def points(share: float | None) -> str:
    """Return a difference between two shares in percentage points.

    Example:
        >>> points(0.0123), points(-0.02)
        ('1.2 points', '-2.0 points')
    """
    return "-" if share is None else f"{100 * share + 0.0:.1f} points"
