"""Published numbers for class-incremental learning of intents: CLINC150 and Banking77, without a task name at test time."""

from __future__ import annotations

from experiments.published.table import Published, Table, arxiv

_KLDA = f"KLDA, {arxiv('2412.15571')}; secondary source"
_NANO = "[nanoLearn](https://github.com/danlex/nanolearn), README"
_RECALL = f"Learn or Recall, {arxiv('2312.07887')}; secondary source"

CLINC150 = Table(
    "CLINC150, all 150 classes, official rows, frozen backbone; accuracy",
    (
        Published("KLDA", "95.9", _KLDA, "BART"),
        Published("KLDA, ensemble", "96.6", _KLDA, "BART"),
        Published("class means, Mahalanobis", "95.56", _NANO, "the best of its encoders, up to three joined"),
        Published("linear probe, all classes at once", "80.4", _RECALL, "BERT-base"),
        Published("linear probe, all classes at once", "91.1", _RECALL, "Pythia-410m"),
    ),
)

BANKING77 = Table(
    "Banking77, all 77 classes, official rows, frozen backbone; accuracy",
    (
        Published("KLDA", "92.2", _KLDA, "BART"),
        Published("KLDA, ensemble", "93.0", _KLDA, "BART"),
        Published("class means, Mahalanobis", "90.5", _NANO, "MiniLM"),
        Published("class means, Mahalanobis", "92.8", _NANO, "mpnet"),
        Published(
            "class means, Mahalanobis", "94.22", _NANO, "three encoders joined; 93.33 in five-fold cross-validation"
        ),
    ),
)
