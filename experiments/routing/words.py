"""The fixed sentences of the page, and how it spells numbers."""

from __future__ import annotations

from experiments.routing.result import Part

INTRODUCTION = """\
# Rows without a task name

How many rows are routed to their task, what routing costs in accuracy, and what other classifiers reach on the same frozen
states. The backbone is MiniLM; each task has a Houlsby bank. The router reads layers 2, 4 and 6 of the frozen backbone. Runs
of earlier releases have statistics in the *first format*: layers 1, 3 and 5, every value of the covariance, float64 means,
and nothing about the banks. All tables that compare formats are computed from the same learned banks.

```bash
python -m experiments.routing --data FOLDER                # learns, measures, writes the raw results and this page
python -m experiments.routing --data FOLDER --runs RUNS    # keeps the run folders; tasks in them are not learned again
python -m experiments.routing --data FOLDER --oos FILE     # also sends the texts in FILE, one per line, to CLINC150's router
python -m experiments.routing pages                        # regenerates this page
```

FOLDER is the same as for the other studies. The raw results are the files in `results`, one for each section; this page is
generated from them."""

TITLES: dict[Part, str] = {
    "classic": "Classic five tasks",
    "long": "Long stream of twelve tasks",
    "classes": "CLINC150, split into tasks by class",
    "joint": "CLINC150 as one task",
    "models": "One model for the classic five tasks",
}

STREAMS: dict[Part, str] = {"classic": "classic five", "long": "long stream", "classes": "CLINC150"}
"""Short names of the streams."""

METHODS = {
    "frozen": "the router's discriminant over label means",
    "ncm": "nearest class mean, cosine",
    "ranpac": "RanPAC",
    "klda": "KLDA",
    "probe": "joint linear probe",
}

EVIDENCE = {"states": "frozen states", "vectors": "the bank's vectors", "both": "both"}

FORMS = {"first": "first format", "full": "full", "compact": "compact"}

FORMATS = """\
`nearest`: the most probable task predicts. `reject`: rows that fewer than 1 % of the task's own rows lie as far away as get
no prediction; *unknown* is the share of such rows. *Named* is without routing, and so the same for all statistics. A run
without further settings stores compact statistics, with `protocol: class` full ones."""

READING = """\
* *Three orders*: nothing is learned again, since a bank does not depend on the order. After each task, the router is built
  from the routing statistics of the tasks so far. Accuracies are those of `nearest`.
* *What each part contributes*: compact statistics keep as many columns of the covariance's factor as fit into 100 kB, or the
  number given. *Weight* is by how much the frozen states' log-probability counts in the label, beside that of the bank; the
  library uses 0.2 with `protocol: class`, and 0 otherwise. *Log-loss* is minus the logarithm of the probability of a row's
  own task, and *probability* the mean probability of the most probable task, with the confidence of the first format (1) and
  of today (0.2): a router that is as sure as it is right has a mean probability equal to the share of routed rows.
* *Rows of no task*: *Found at 1 %* is the share of foreign rows that are farther away than 99 % of the test rows of the
  router's own tasks. The last two columns have the limits that a user gets, calibrated on validation rows: the share of own
  test rows that are rejected, and the share of foreign rows that are found."""

CLASSIFIERS_OF_TASKS = "A row is compared only with tasks that take rows of its type: a text, or a pair of texts."

CLASSIFIERS_OF_CLASSES = """\
Share of all test rows with the correct class. The first line is the run end to end. The classifiers choose among the 150
classes without any bank."""

UNKNOWN_CLASSES = "The first test rows of other data sets, sent to the router of CLINC150."

UNKNOWN_CLASSIC = """\
Test rows of the other tasks, sent to a router that knows the classic five. Rows of pairs are refused by a run without tasks
on pairs; of these, the first texts were sent."""

MODELS = """\
Joint training and sequential fine-tuning were measured with an earlier release, when routing statistics had the first
format; they use none."""

NOTES = """\
Rows are sub-sampled, so scores are not comparable with published ones. The epoch of each bank was chosen on its validation
rows, and so was the setting of each other classifier, among those that the raw results list. The router has no setting that
is chosen per stream, but its design was chosen: the combination of label means with task means and the rule for its
shrinkage on validation rows of these streams; its layers, its confidence (0.2), the weight of the frozen states in labels
(0.2) and in distances (3), and the size of its covariance on five development streams: CLINC150 and the classic five tasks
themselves, and DBpedia, Yahoo and TREC divided among tasks by class. The results on this page are therefore not independent
of these choices. Only the joint linear probe and the joint bank need all rows at once; RanPAC and KLDA accumulate sums, but
their settings were chosen on the validation rows of all tasks, and *standardised* states are standardised with the rows of
all tasks. The ridge of RanPAC is relative to the mean squared length of a row's features, KLDA's gamma to the median squared
distance between two rows, and every shrinkage to the mean variance."""


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


def share(value: float) -> str:
    """Return a share with three digits.

    Example:
        >>> share(0.97)
        '0.970'
    """
    return f"{value:.3f}"
