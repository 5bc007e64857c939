"""A text for each text, by an encoder-decoder."""

from __future__ import annotations

from continual_petl.kinds.bases.generation import Generation


class Seq2Seq(Generation):
    """The encoder reads the source, the decoder writes the target."""

    name = "seq2seq"
    output_head = "seq2seq"
    auto_class = "AutoModelForSeq2SeqLM"
    peft_type = "SEQ_2_SEQ_LM"
