"""Passes on the text of one row while it is generated, in pieces that join to exactly the text that `decode` returns.

transformers' `TextStreamer` passes on complete words of one text without stop strings or stripping. Here a piece is passed on
once no later token can change it, so the following are held back:

* spaces at the end, which `decode` strips if nothing follows;
* the end of the text, if it may be the beginning of a stop string;
* the first bytes of a character whose other bytes are in later tokens, which are decoded as U+FFFD until then; and with
  byte fallback (SentencePiece), whole runs of bytes, which are decoded together;
* the last characters, if the tokenizer removes spaces before punctuation after decoding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from continual_petl.errors import InputError
from continual_petl.learner.sampling import before_stop

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_CLEANED = 8
"""A number of characters above the length of any text from which transformers' clean-up removes spaces, such as ``n ' t``."""
Put = Callable[[str], None]


class Pieces(BaseStreamer):
    """Receives tokens from ``model.generate`` and passes on the text that no later token can change.

    Args:
        tokenizer: converts tokens to text.
        end: the end token.
        stop: stop strings.
        put: called after every token, with an empty string if no further text is final yet; an exception that it raises ends
            the generation.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end: int | None, stop: Sequence[str], put: Put) -> None:
        self._tokenizer, self._end, self._stop, self._put = tokenizer, end, stop, put
        self._ids: list[int] = []
        self._given = ""
        self._started = False

    def put(self, value: Tensor) -> None:
        """Receive the decoder's input, then one token at a time."""
        if not self._started:
            self._started = True
            return
        token = int(value)
        if token != self._end:
            self._ids.append(token)
        final = self._final_text()
        self._put(self._next(final) if final.startswith(self._given) else "")

    def end(self) -> None:
        """Do nothing: `finish` gets the text."""

    def finish(self, text: str) -> None:
        """Pass on the rest of the complete text.

        Raises:
            InputError: if it does not begin with the pieces already passed on.
        """
        if not text.startswith(self._given):
            raise InputError(
                f"stream: the tokenizer ({type(self._tokenizer).__name__}) changed text that was already passed on, from "
                f"{self._given[-40:]!r} to {text[: len(self._given)][-40:]!r}: such texts cannot be streamed; predict "
                "without streaming"
            )
        self._put(self._next(text))

    def _next(self, text: str) -> str:
        piece = text[len(self._given) :]
        self._given = text
        return piece

    def _final_text(self) -> str:
        """Return the beginning of the text that later tokens cannot change."""
        tokenizer = self._tokenizer
        if not self._ids or _BYTE.fullmatch(str(tokenizer.convert_ids_to_tokens(self._ids[-1]))):
            return self._given
        text = str(tokenizer.decode(self._ids, skip_special_tokens=True))
        if tokenizer.clean_up_tokenization_spaces:
            text = text[:-_CLEANED]
        text = before_stop(text.rstrip("\ufffd"), self._stop)
        begun = (size for string in self._stop for size in range(1, len(string)) if text.endswith(string[:size]))
        return text[: len(text) - max(begun, default=0)].strip()
