"""Nine methods on the classic five-task stream: accuracy, forgetting and cost.

Tasks of Zhang et al. 2015 in the orders (1) to (3) of de Masson d'Autume et al. 2019 (https://arxiv.org/abs/1906.01076), on
MiniLM, with few rows: not comparable with published numbers.
"""

from __future__ import annotations

from functools import partial

from experiments.continual import lower_rates
from experiments.continual.comparison import body, figures, reproduces
from experiments.continual.headline import headline
from experiments.continual.methods import Stream
from experiments.published.streams import FIVE
from experiments.studies.study import Study

STREAM = Stream(
    orders=(
        ("yelp", "agnews", "dbpedia", "amazon", "yahoo"),
        ("dbpedia", "yahoo", "agnews", "amazon", "yelp"),
        ("yelp", "yahoo", "amazon", "dbpedia", "agnews"),
    ),
    quick=("yelp", "agnews"),
    limits={"train": 500, "validation": 150, "test": 500},
    crossed=True,
    further=lower_rates.trials,
)

STUDY = Study(
    name="continual/classic5",
    title="Five tasks in three orders: banks compared with one sequentially trained model",
    plan=STREAM.plan,
    body=partial(body, STREAM, FIVE),
    figures=partial(figures, STREAM),
    reproduces=partial(reproduces, STREAM),
    headline=partial(headline, STREAM),
)
