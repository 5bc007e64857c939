"""The fixed sentences of the page, and how it spells numbers."""

from __future__ import annotations

from experiments.routing.result import Part

INTRODUCTION = """\
# Rows that name no task

How many rows find their task by themselves, what that costs in accuracy, and what other classifiers reach on the same frozen
states. The backbone is MiniLM; each task has a Houlsby bank. The router reads layers 1, 3 and 5 of the frozen backbone.

```bash
python -m experiments.routing --data FOLDER                # learns, measures, writes the raw results and this page
python -m experiments.routing --data FOLDER --runs RUNS    # keeps the run folders; what they have is not learned again
python -m experiments.routing pages                        # writes this page again
```

FOLDER is that of the other studies. The raw results are the files in `results`, one for each section; this page is
generated from them."""

TITLES: dict[Part, str] = {
    "classic": "Classic five tasks",
    "long": "Long stream of twelve tasks",
    "classes": "CLINC150, cut into tasks by its classes",
    "models": "One model for the classic five tasks",
}

METHODS = {
    "router": "the router: label means and task means",
    "label_means": "discriminant, label means",
    "one_mean": "discriminant, one mean per task",
    "label_means_chosen": "discriminant, label means, shrinkage chosen",
    "one_mean_chosen": "discriminant, one mean per task, shrinkage chosen",
    "ncm": "nearest class mean, cosine",
    "ranpac": "RanPAC",
    "klda": "KLDA",
    "probe": "joint linear probe",
}

NOTES = """\
Rows are sub-sampled, so scores are not comparable with published ones. All settings were chosen on validation rows: the
epoch of each bank, and for each classifier the setting that finds most validation rows. The router has no setting that is
chosen for a stream, but how it is built was: that it joins the means of labels and of tasks, and the rule for its
shrinkage, were chosen on validation rows of these tasks, after an earlier router (label means alone, shrinkage 0.003) had
been measured on their test rows, where it found the task of 96.9 % of the classic five and of 94.6 % of CLINC150. Only
the joint linear probe needs all rows at once; RanPAC and KLDA add up sums, but their setting was chosen on the validation
rows of all tasks, and states are standardised by the rows of all tasks where the setting says so. The ridge of RanPAC is
relative to the mean squared length of a row's features, KLDA's gamma to the median squared distance of two rows, every
shrinkage to the mean variance."""


def percent(share: float | None) -> str:
    """Return a share in percent.

    Example:
        >>> percent(0.98543), percent(None)
        ('98.5 %', '-')
    """
    return "-" if share is None else f"{100 * share:.1f} %"


def points(share: float | None) -> str:
    """Return a difference of two shares in points of a hundred.

    Example:
        >>> points(0.0123), points(-0.02)
        ('1.2 points', '-2.0 points')
    """
    return "-" if share is None else f"{100 * share + 0.0:.1f} points"
