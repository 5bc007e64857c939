"""The four streams of the study; the two later tasks of each are learned from few or many rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from continual_petl.errors import InputError
from continual_petl.streams.schema.stream_spec import StreamSpec
from experiments.studies.trial import TASKS

SEED = 13
Size = Literal["20", "200", "all", "4000"]
SIZES: tuple[Size, ...] = ("20", "all", "200", "4000")
DRAWS = (1, 2, 3)
STREAMS = {
    "reviews": ("sst2", "yelp", "amazon"),
    "topics": ("agnews", "yahoo", "dbpedia"),
    "pairs": ("mrpc", "rte", "stsb"),
    "domains": ("banking", "cards", "travel"),
}
DOMAINS = {
    "banking": "transfer transactions balance freeze_account pay_bill bill_balance bill_due interest_rate routing "
    "min_payment order_checks pin_change report_fraud account_blocked spending_history",
    "cards": "credit_score report_lost_card credit_limit rewards_balance new_card application_status card_declined "
    "international_fees apr redeem_rewards credit_limit_change damaged_card replacement_card_duration "
    "improve_credit_score expiration_date",
    "travel": "plug_type travel_notification translate flight_status international_visa timezone exchange_rate "
    "travel_suggestion travel_alert vaccines lost_luggage book_flight book_hotel carry_on car_rental",
}
"""Three domains of CLINC150, 15 labels each (Larson et al. 2019)."""
EPOCHS: dict[Size, int] = {"20": 5, "200": 5, "all": 4, "4000": 4}
FEW_LABELS = ("yelp", "amazon", "rte", "stsb")
FEW_EPOCHS = 12
"""Epochs of these tasks with 20 rows per label: they have fewer rows than the other tasks, and so fewer steps per epoch."""
MOST = {"train": 1500, "validation": 300, "test": 500}
"""Maximum rows of each split."""
FEW_VALIDATION = 100
"""Validation rows of a task with 20 rows per label."""
LEFT_OUT: dict[Size, tuple[str, ...]] = {
    "200": ("yahoo", "dbpedia", "cards", "travel"),
    "4000": ("rte", "stsb", "yahoo", "cards", "travel"),
}
"""Tasks that have too few rows for a size to make a difference: at most 200 of each label, or fewer than 3,500."""
BANKS: dict[str, dict[str, Any]] = {"pfeiffer": {"preset": "pfeiffer"}, "lora": {"preset": "lora"}}


def stream_of(stream: str, data: Path, bank: dict[str, Any], backbone: str = "minilm") -> dict[str, Any]:
    """Return the content of a stream file, without its tasks."""
    return {
        "name": f"transfer-{stream}",
        "seed": SEED,
        "data_dir": str(data.resolve()),
        "backbone": {"name": backbone, "max_length": 64},
        "bank": bank,
        "evaluate": "certified",
        "training": {"checkpoint_every": 10**9},
    }


def entry_of(task: str, data: Path, size: Size = "all", draw: int = 0) -> dict[str, Any]:
    """Return a task's entry; the draw is part of its name, so each draw has its own rows, initial values and order."""
    folder = "clinc150" if task in DOMAINS else task
    if not (data / folder).is_dir():
        raise InputError(f"--data: {data} has no folder {folder}")
    known = TASKS[folder]
    entry: dict[str, Any] = {
        "name": f"{task}-{size}-{draw}" if draw else task,
        "kind": known.kind,
        "data": folder,
        "metric": known.metric,
        "limits": dict(MOST),
        "training": {"epochs": FEW_EPOCHS if size == "20" and task in FEW_LABELS else EPOCHS[size], "select": "last"},
    }
    if known.pair:
        entry["columns"] = {"text_pair": "text_pair"}
    if task in DOMAINS:
        entry |= {"labels": sorted(DOMAINS[task].split()), "all_labels": "clinc150/labels.json"}
    if size == "20":
        entry["limits"]["validation"] = FEW_VALIDATION
    if size == "4000":
        entry["limits"]["train"] = 4000
    elif size != "all":
        one_label = known.kind == "classification"
        entry["limits"] |= {"per_label": int(size)} if one_label else {"train": 2 * int(size)}
    return entry


def spec_of(tree: dict[str, Any], tasks: list[dict[str, Any]]) -> StreamSpec:
    """Return a stream with these tasks."""
    # With these defaults, the rows are those of the committed results.
    return StreamSpec.model_validate(tree | {"defaults": 2, "tasks": tasks})
