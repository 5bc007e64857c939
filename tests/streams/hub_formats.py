"""The Hub formats of the catalog's data sets, written independently of the catalog, with a few rows each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets

_STARS = ("1 star", "2 star", "3 stars", "4 stars", "5 stars")
_NLI = ("entailment", "neutral", "contradiction")
_BOOL = ("False", "True")
_TOPICS = (
    *(
        "Society & Culture",
        "Science & Mathematics",
        "Health",
        "Education & Reference",
        "Computers & Internet",
        "Sports",
    ),
    *("Business & Finance", "Entertainment & Music", "Family & Relationships", "Politics & Government"),
)
_CLASSES = (
    *("Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder", "MeanOfTransportation", "Building"),
    *("NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork"),
)
_HELD = ("train", "validation", "test")
_AMAZON = "yassiracharki/Amazon_Reviews_for_Sentiment_Analysis_fine_grained_5_classes"

Format = tuple[tuple[str, ...], str, Any, tuple[str, ...]]
FORMATS: dict[tuple[str, str | None], Format] = {
    # text columns, answer column, names of the classes (or an example of the answer), splits
    ("Yelp/yelp_review_full", None): (("text",), "label", _STARS, ("train", "test")),
    ("fancyzhx/ag_news", None): (("text",), "label", ("World", "Sports", "Business", "Sci/Tech"), ("train", "test")),
    ("fancyzhx/dbpedia_14", None): (("title", "content"), "label", _CLASSES, ("train", "test")),
    (_AMAZON, None): (("review_title", "review_text"), "class_index", range(1, 6), ("train", "test")),
    ("community-datasets/yahoo_answers_topics", None): (
        ("question_title", "question_content", "best_answer"),
        "topic",
        _TOPICS,
        ("train", "test"),
    ),
    ("stanfordnlp/imdb", None): (("text",), "label", ("neg", "pos"), ("train", "test", "unsupervised")),
    ("nyu-mll/glue", "cola"): (("sentence",), "label", ("unacceptable", "acceptable"), _HELD),
    ("nyu-mll/glue", "sst2"): (("sentence",), "label", ("negative", "positive"), _HELD),
    ("nyu-mll/glue", "mrpc"): (("sentence1", "sentence2"), "label", ("not_equivalent", "equivalent"), _HELD),
    ("nyu-mll/glue", "stsb"): (("sentence1", "sentence2"), "label", 2.5, _HELD),
    ("nyu-mll/glue", "qqp"): (("question1", "question2"), "label", ("not_duplicate", "duplicate"), _HELD),
    ("nyu-mll/glue", "mnli"): (("premise", "hypothesis"), "label", _NLI, ("train", "validation_matched")),
    ("nyu-mll/glue", "qnli"): (("question", "sentence"), "label", ("entailment", "not_entailment"), _HELD),
    ("nyu-mll/glue", "rte"): (("sentence1", "sentence2"), "label", ("entailment", "not_entailment"), _HELD),
    ("aps/super_glue", "cb"): (("premise", "hypothesis"), "label", ("entailment", "contradiction", "neutral"), _HELD),
    ("aps/super_glue", "copa"): (
        ("premise", "choice1", "choice2", "question"),
        "label",
        ("choice1", "choice2"),
        _HELD,
    ),
    ("aps/super_glue", "wic"): (("word", "sentence1", "sentence2"), "label", _BOOL, _HELD),
    ("aps/super_glue", "boolq"): (("question", "passage"), "label", _BOOL, _HELD),
    ("aps/super_glue", "multirc"): (("paragraph", "question", "answer"), "label", _BOOL, _HELD),
    ("EdinburghNLP/xsum", None): (("document", "id"), "summary", "w1 w2", _HELD),
    ("wmt/wmt16", "ro-en"): ((), "translation", {"en": "w1", "ro": "w2"}, _HELD),
    **{
        (f"Lots-of-LoRAs/task{task}", None): (("input", "id"), "output", ["w1", "w2"], ("train", "valid", "test"))
        for task in (
            *("002_quoref_answer_generation", "073_commonsenseqa_answer_generation", "1290_xsum_summarization"),
            *("1510_evalution_relation_extraction", "1572_samsum_summary", "1590_diplomacy_text_generation"),
            *("1687_sentiment140_classification", "1729_personachat_generate_next", "181_outcome_extraction"),
            *("363_sst2_polarity_classification", "511_reddit_tifu_long_text_summarization"),
            *("591_sciq_answer_generation", "639_multi_woz_user_utterance_generation"),
            *("748_glucose_reverse_cause_event_detection", "875_emotion_classification"),
        )
    },
}


def hub_rows(key: tuple[str, str | None], split: str) -> list[dict[str, Any]]:
    """Return rows in the format of the Hub's data set, with every class more than once; hidden labels are -1."""
    texts, answer, values, splits = FORMATS[key]
    classes = list(values) if isinstance(values, range) else list(range(len(values))) if _is_classes(values) else None
    rows = []
    row: dict[str, Any]
    for number in range(4 * (3 if classes is None else len(classes))):
        said = f"w{number % 40} {split.replace('_', ' ')} w{number // 40}"
        row = {text: f"{text} {said}" for text in texts}
        if classes is not None:
            row[answer] = -1 if split == "test" and splits == _HELD else classes[number % len(classes)]
        elif isinstance(values, list):
            row[answer] = [f"{value} {number}" for value in values]
        elif isinstance(values, dict):
            row[answer] = {language: f"{language} {said}" for language in values}
        else:
            row[answer] = number % 6 * 0.9 if isinstance(values, float) else f"{values} {number}"
        rows.append(row)
    return rows


def _is_classes(values: Any) -> bool:
    return isinstance(values, tuple)


def fake_load_dataset(path: str, name: str | None, *, split: str | None, **options: Any) -> Any:
    """Stand in for `datasets.load_dataset`."""
    texts, answer, values, splits = FORMATS[path, name]
    del texts, options

    def made(wanted: str) -> datasets.Dataset:
        rows = datasets.Dataset.from_list(hub_rows((path, name), wanted))
        return rows.cast_column(answer, datasets.ClassLabel(names=list(values))) if _is_classes(values) else rows

    if split is not None:
        assert split in splits
        return made(split)
    return datasets.DatasetDict({wanted: made(wanted) for wanted in splits})


def write_copy(folder: Path, splits: dict[str, list[dict[str, Any]]]) -> None:
    """Write a local copy as JSON Lines."""
    folder.mkdir(parents=True)
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
