"""Common column names; if several columns match, the one whose name is listed first is used."""

from __future__ import annotations

# fmt: off
TEXT = (
    "text", "sentence", "content", "body", "review", "question", "title", "utterance", "document", "comment", "tweet",
    "message", "query", "input", "premise",
)
LABEL = (
    "label", "labels", "class", "category", "intent", "sentiment", "topic", "stars", "rating", "score", "similarity",
    "target", "y", "is_duplicate",
)
LABELS = ("labels", "tags", "categories", "classes", "topics", "genres", "keywords", "emotions")
SOURCE = ("source", "src", "document", "article", "dialogue", "input", "question", "text", "prompt", "en")
TARGET = ("target", "tgt", "summary", "highlights", "output", "answer", "completion", "response", "translation", "chosen")
TOKENS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "ner", "pos_tags", "labels", "upos")
IMAGE = ("image", "img", "picture", "file", "path")
# fmt: on
MESSAGES = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat")
ROW_NAMES = ("id", "idx", "index", "guid", "uid", "row_id", "uuid", "sent_id", "unnamed: 0")
"""Columns that only identify a row."""
PAIRS = (
    ("text", "text_pair"),
    ("text1", "text2"),
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "context"),
    ("question", "passage"),
    ("question", "answer"),
    ("query", "passage"),
    ("query", "document"),
    ("query", "text"),
    ("query", "answer"),
    ("anchor", "candidate"),
    ("anchor", "positive"),
    ("reference", "candidate"),
    ("reference", "hypothesis"),
    ("claim", "evidence"),
    ("prompt", "response"),
    ("context", "response"),
    ("instruction", "input"),
    ("title", "body"),
    ("title", "content"),
    ("title", "text"),
    ("title", "description"),
    ("headline", "body"),
    ("subject", "body"),
)
NUMBERED = (("1", "2"), ("0", "1"), ("a", "b"), ("left", "right"), ("first", "second"))
"""The parts in which the names of a pair may differ, as in sent_a and sent_b, or left_text and right_text."""
SOURCES = (("instruction", "input"), ("instruction", "context"), ("question", "context"), ("prompt", "input"))
"""Columns that together form the source of a generated text; the second may be empty."""
