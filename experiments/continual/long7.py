"""Nine methods on seven of the fifteen tasks of the long stream, ordered as in its orders O4, O5 and O6.

The stream of Razdaibiedina et al. 2023 (Progressive Prompts, https://arxiv.org/abs/2301.12314), as far as the data is
available. Each order has its own seed, so three runs vary the order and the seed together; fewer rows than in
`experiments.continual.classic5`.
"""

from __future__ import annotations

from functools import partial

from experiments.continual.comparison import body, figures, reproduces
from experiments.continual.methods import Stream
from experiments.published.streams import FIFTEEN
from experiments.studies.study import Study

STREAM = Stream(
    orders=(
        ("rte", "yelp", "amazon", "sst2", "dbpedia", "agnews", "yahoo"),
        ("rte", "sst2", "dbpedia", "agnews", "yelp", "amazon", "yahoo"),
        ("yelp", "amazon", "rte", "sst2", "dbpedia", "agnews", "yahoo"),
    ),
    quick=("rte", "yelp", "sst2"),
    limits={"train": 300, "validation": 100, "test": 300},
    crossed=False,
)

STUDY = Study(
    name="continual/long7",
    title="Seven tasks of the long stream in three orders",
    plan=STREAM.plan,
    body=partial(body, STREAM, FIFTEEN),
    figures=partial(figures, STREAM),
    reproduces=partial(reproduces, STREAM),
)
