"""Pieces of a text are never changed after they are passed on, and join to the text that `decode` returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from continual_petl.backbones.backbone import load_backbone
from continual_petl.errors import InputError
from continual_petl.learner.generate import decode
from continual_petl.learner.streaming import Pieces
from continual_petl.streams.schema.stream_spec import GenerationSpec
from tests.chats import chat_tokenizer
from tests.learner.passes import generated
from tests.learner.test_generate import FAMILIES, SOURCES, wandering
from tests.tiny import make_tokenizer
from tests.usual import few

Folder = Callable[..., Path]
LONG = GenerationSpec(max_new_tokens=9, min_new_tokens=9)
SAMPLED = LONG.model_copy(update={"do_sample": True, "temperature": 1.5})


def _pieces(tokenizer: Any, ids: Sequence[int], stop: Sequence[str] = (), end: int | None = None) -> list[str]:
    """Return the pieces passed on after each token and at the end, after checking that they join to the decoded text."""
    found: list[str] = []
    pieces = Pieces(tokenizer, end, stop, found.append)
    pieces.put(torch.tensor([[5, 5, 5]]))  # the decoder's input, which is not part of the text
    for token in ids:
        pieces.put(torch.tensor([token]))
    pieces.end()
    (text,) = decode(tokenizer, [list(ids)], stop)
    pieces.finish(text)
    assert "".join(found) == text
    return found


@pytest.mark.parametrize(("family", "kind"), few(FAMILIES, 2))
@pytest.mark.parametrize("spec", [LONG, SAMPLED])
def test_pieces_join_to_the_generated_text(
    backbone_folder: Folder, family: str, kind: str, spec: GenerationSpec
) -> None:
    backbone, tokenizer = load_backbone(str(backbone_folder(family))), make_tokenizer(family)
    bank = wandering(backbone, kind, "houlsby")
    batch = {"input_ids": SOURCES[1:], "attention_mask": torch.ones_like(SOURCES[1:])}

    def streamed(**more: Any) -> tuple[list[str], str]:
        own = spec.model_copy(update=more)
        found: list[str] = []
        rows = generated(backbone, bank, own, batch, tokenizer, seed=3, put=found.append)
        assert rows == generated(backbone, bank, own, batch, tokenizer, seed=3)
        (text,) = decode(tokenizer, rows, own.stop)
        assert "".join(found) == text
        return found, text

    pieces, whole = streamed()
    assert sum(map(bool, pieces)) > 2
    words = whole.split(" ")
    for size in range(1, len(words[2]) + 1):  # the stop string starts inside the second word and ends inside the third
        stop = f"{words[1][-1]} {words[2][:size]}"
        _, text = streamed(stop=("nothing like it", stop))
        assert text == whole[: whole.index(stop)].strip()


WORDS = ["Ada", "slept", "n", "'", "t", "s", "ve", ".", "!", "do", "it"]


def _tokenizer(decoder: Any, vocabulary: Sequence[str], *, clean: bool = False) -> PreTrainedTokenizerFast:
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    if decoder is not None:
        backend.decoder = decoder
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, clean_up_tokenization_spaces=clean
    )


BYTES = [f"<0x{byte:02X}>" for byte in "é€ \n".encode()]
SENTENCEPIECE = ["▁a", "b", "▁", "字", *BYTES]
FALLBACK = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
TOKENIZERS: dict[str, Any] = {
    "bytes": chat_tokenizer(),
    "words": _tokenizer(None, WORDS),
    "cleaned": _tokenizer(None, WORDS, clean=True),
    "byte fallback": _tokenizer(FALLBACK, SENTENCEPIECE),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_pieces_of_any_tokens_join_to_their_text(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=14))
    text = tokenizer.decode(ids)
    cuts = st.tuples(st.integers(0, max(0, len(text) - 1)), st.integers(1, 5))
    stop = [text[start : start + size] for start, size in data.draw(st.lists(cuts, max_size=2)) if text]
    # As in `generate`, no token follows the one that completes a stop string.
    ends = (size for size in range(1, len(ids) + 1) if any(each in tokenizer.decode(ids[:size]) for each in stop))
    _pieces(tokenizer, ids[: min(ends, default=len(ids))], stop)


def test_pieces_arrive_as_soon_as_they_are_final() -> None:
    bytes_ = TOKENIZERS["bytes"]
    ids = bytes_("a €!\n b")["input_ids"]
    assert [piece for piece in _pieces(bytes_, ids) if piece] == ["a", " €", "!", "\n b"]
    words = TOKENIZERS["words"]
    assert _pieces(words, [0, 1, 9], ["slept it"]) == ["Ada", "", " slept do", ""]
    assert _pieces(words, [0, 1, 10], ["slept it"]) == ["Ada", "", "", ""]


def test_end_token_is_not_part_of_the_text() -> None:
    tokenizer = TOKENIZERS["words"]
    found: list[str] = []
    pieces = Pieces(tokenizer, 1, [], found.append)
    for value in (torch.tensor([[9]]), torch.tensor([0]), torch.tensor([1])):
        pieces.put(value)
    pieces.finish("Ada")
    assert found == ["Ada", "", ""]


def test_changed_text_is_refused() -> None:
    pieces = Pieces(TOKENIZERS["words"], None, [], lambda piece: None)
    pieces.put(torch.tensor([[9]]))
    pieces.put(torch.tensor([0]))
    with pytest.raises(
        InputError, match=r"changed text that was already passed on, from 'Ada' to 'Bob'.*predict without"
    ):
        pieces.finish("Bob slept")
