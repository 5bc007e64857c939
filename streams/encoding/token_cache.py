"""Disk cache of token ids for large splits, so that later runs need not tokenise them again.

The key is a digest of everything that affects the token ids: the texts, the tokenizer's rules and settings, truncation, the
arrays that are kept, and the versions of the libraries. The output of a tokenizer with custom Python code is not cached,
since its behaviour may depend on anything. Cached content is checked like untrusted input: the names, types and ranges of
all arrays are validated, and a few rows are tokenised again. (Other libraries use the pickled tokenizer as the key, which
changes with every call, so that nothing is ever found, or the tokenizer's name, so that outdated entries are found.)

Token ids reveal the texts to anyone who has the tokenizer: the files are readable by their owner only, and
``CONTINUAL_PETL_CACHE=off`` keeps everything off the disk.

Shape legend: N rows, T tokens.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import tokenizers
import transformers
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from continual_petl.streams.encoding.cache_files import CacheFiles
from continual_petl.streams.encoding.tokenizer_calls import Encoded, ToEncode, check_fast, encode, settings_kept

MIN_ROWS = 2000
"""Smaller splits are tokenised too fast for a cache to matter."""
_FORMAT = 1
_NUM_AGAIN = 8
_CHUNK = 1000
_SETTINGS = ("truncation_side", "split_special_tokens", "model_input_names", "src_lang", "tgt_lang")
_ARRAYS: dict[str, Any] = {
    "ids": np.int32,
    "offsets": np.int64,
    "types": np.int8,
    "words": np.int32,
    "cut": np.bool_,
}


def usual_cache() -> CacheFiles | None:
    """Return the user's cache of token ids; None if caching is off."""
    return CacheFiles.usual("tokens")


def encode_cached(cache: CacheFiles | None, tokenizer: PreTrainedTokenizerBase, given: ToEncode) -> Encoded:
    """Tokenise rows as `encode` does, or take them from the cache; without a cache, they are always tokenised."""
    own_code = type(tokenizer).__module__.split(".")[0] != "transformers"
    if cache is None or len(given.texts) < MIN_ROWS or own_code:
        return encode(tokenizer, given)
    check_fast(tokenizer)
    key = _key(tokenizer, given)
    content = cache.read(key)
    if content is not None:
        found = _unpacked(content, tokenizer, given)
        if found is not None and _same_again(found, tokenizer, given):
            return found
        cache.refuse(key, "it does not hold the tokens of these texts")
    encoded = encode(tokenizer, given)
    content = safetensors.numpy.save({name: array for name, array in vars(encoded).items() if array is not None})
    # Some tokenizers have ids beyond their vocabulary size; content that would be rejected on reading is not written.
    if _unpacked(content, tokenizer, given) is not None:
        cache.write(key, content)
    return encoded


def _key(tokenizer: PreTrainedTokenizerBase, given: ToEncode) -> str:
    with settings_kept(tokenizer):
        # Truncation and padding settings are left over from the last call; they are not part of the tokenizer.
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        rules = tokenizer.backend_tokenizer.to_str()
    kind = type(tokenizer)
    facts = {
        "format": _FORMAT,
        "versions": [tokenizers.__version__, transformers.__version__],
        "rules": hashlib.sha256(rules.encode()).hexdigest(),
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "settings": {name: getattr(tokenizer, name, None) for name in _SETTINGS},
        "asked": {name: value for name, value in vars(given).items() if name not in ("texts", "pairs")},
        "rows": len(given.texts),
        "pairs": given.pairs is not None,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for column in (given.texts, given.pairs or ()):
        for start in range(0, len(column), _CHUNK):
            digest.update(json.dumps(list(column[start : start + _CHUNK])).encode())
    return digest.hexdigest()


def _unpacked(content: bytes, tokenizer: PreTrainedTokenizerBase, given: ToEncode) -> Encoded | None:
    """Return the arrays of a cached file if they are plausible for these texts."""
    wanted = {"ids", "offsets", "cut"} | {name for name in ("types", "words") if getattr(given, name)}
    try:
        arrays = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError):
        return None
    if arrays.keys() != wanted or any(a.dtype != _ARRAYS[n] or a.ndim != 1 for n, a in arrays.items()):
        return None
    encoded = Encoded(
        ids=arrays["ids"],
        offsets=arrays["offsets"],
        types=arrays.get("types"),
        words=arrays.get("words"),
        cut=arrays["cut"],
    )
    num_words = np.array([len(row) for row in given.texts]) if encoded.words is not None else None
    return encoded if _sound(encoded, len(given.texts), given.max_length, len(tokenizer), num_words) else None


def _sound(found: Encoded, num_rows: int, longest: int, vocabulary: int, num_words_N: NDArray[np.int64] | None) -> bool:
    """Check every number that is used as an index later."""
    if found.offsets.shape != (num_rows + 1,) or found.cut.shape != (num_rows,) or found.offsets[0] != 0:
        return False
    lengths_N = np.diff(found.offsets)
    if lengths_N.min() < 0 or lengths_N.max() > longest or found.offsets[-1] != len(found.ids):
        return False
    each: list[tuple[NDArray[Any] | None, int, Any]] = [(found.ids, 0, vocabulary), (found.types, 0, 128)]
    if found.words is not None and num_words_N is not None:
        if found.words.shape != found.ids.shape:
            return False
        each.append((found.words, -1, np.repeat(num_words_N, lengths_N)))
    return all(
        values is None or (values.shape == found.ids.shape and bool(((values >= low) & (values < high)).all()))
        for values, low, high in each
    )


def _same_again(found: Encoded, tokenizer: PreTrainedTokenizerBase, given: ToEncode) -> bool:
    """Tokenise a few evenly spaced rows again, and compare."""
    chosen = np.linspace(0, len(given.texts) - 1, _NUM_AGAIN).astype(np.int64).tolist()
    pairs = None if given.pairs is None else [given.pairs[row] for row in chosen]
    again = encode(tokenizer, replace(given, texts=[given.texts[row] for row in chosen], pairs=pairs))
    spans = [slice(int(found.offsets[row]), int(found.offsets[row + 1])) for row in chosen]
    ours: dict[str, Any] = {"cut": found.cut[chosen], "offsets": np.cumsum([0, *(s.stop - s.start for s in spans)])}
    for name in ("ids", "types", "words"):
        flat = getattr(found, name)
        ours[name] = None if flat is None else np.concatenate([flat[span] for span in spans])
    return all(np.array_equal(ours[name], value) for name, value in vars(again).items() if value is not None)
