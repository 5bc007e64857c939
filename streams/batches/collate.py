"""Collate the rows of a batch into tensors, one layout per kind of task.

Shape legend: B rows, W tokens in the longest row, V tokens in the longest target, C labels, K options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from continual_petl.kind_registry import find_kind
from continual_petl.streams.encoding.options import one_per_option
from continual_petl.streams.encoding.rows import IGNORED, Sequences, TokenisedRows, offsets_of, spans_of


def collate(
    rows: TokenisedRows,
    indices: Sequence[int] | NDArray[np.int64],
    pad_token_id: int,
    kind: str = "classification",
    train: bool = True,
) -> dict[str, Tensor]:
    """Collate one batch, padded to its longest row.

    Rows are padded on the right, except causal-lm rows in evaluation (``train=False``): those are padded on the left, so
    that all generated texts start at the same position.

    Args:
        rows: a split.
        indices: the B row indices.
        pad_token_id: pads ``input_ids``; ``attention_mask`` and ``token_type_ids`` are padded with 0,
            ``labels`` with -100.
        kind: name of the kind of the task.
        train: whether this is a training batch; only causal-lm treats it differently.

    Shape:
        ``index`` ``(B,)`` int64; for texts ``input_ids``, ``attention_mask`` and, if the tokenizer returns them,
        ``token_type_ids`` ``(B, W)`` int64; for images ``pixel_values`` ``(B, 3, H, W)`` float32. ``labels``, omitted
        if the rows have none: ``(B,)`` int64 (classification, image-classification) or float64 (regression),
        ``(B, C)`` float32 (multilabel), ``(B, W)`` int64 (token-classification; causal-lm in training, where
        ``input_ids`` are source and target and the source has labels of -100, except earlier answers of a conversation;
        nothing is shifted), ``(B, V)`` int64 (targets of seq2seq, and of causal-lm in evaluation).

        In evaluation, rows with options are collated once per option, as in training: all rows with the first option, and so
        on, ``(K * B, ...)``, with the options as ``targets``; ``labels`` are the indices of the correct options ``(B,)``.
        If each row has its own options, ``option_characters`` is the length of each, 0 where a row has fewer, ``(K, B)``.

        For kinds that read a row as several sequences, the inputs are ``(B, K, W)``, with an ``attention_mask`` of 0 where a
        row has fewer sequences; beside them are ``places`` ``(B, K, W)``, -1 where there is none, and the ``labels`` of
        sequences ``(B, K, ...)``, -100 where there is none.
    """
    index_B = np.asarray(indices, dtype=np.int64)
    continues = find_kind(kind).continues
    if rows.option_ids is not None and find_kind(kind).generates and not train:
        return _with_options(rows, index_B, pad_token_id, kind)
    if rows.sequences is not None and find_kind(kind).several is not None:
        batch = _several(rows.sequences, index_B, pad_token_id)
    elif rows.pixels is not None:
        batch = {"pixel_values": torch.from_numpy(rows.pixels[index_B])}
    elif continues and train and rows.target_ids is not None:
        batch = _continued(rows, index_B, pad_token_id)
    else:
        batch = _texts(rows, index_B, pad_token_id, left=continues and not train)
    if rows.labels is not None and "labels" not in batch:
        batch["labels"] = torch.from_numpy(rows.labels[index_B])
    batch["index"] = torch.from_numpy(index_B.copy())
    return batch


def _texts(rows: TokenisedRows, index_B: NDArray[np.int64], pad_token_id: int, *, left: bool) -> dict[str, Tensor]:
    """Collate texts, with labels if they are tags or targets."""
    spans = _spans(rows.offsets, index_B)
    mask_BW = _mask(spans, left=left)
    batch = {
        "input_ids": _padded(rows.ids, spans, mask_BW, pad_token_id),
        "attention_mask": torch.from_numpy(mask_BW.astype(np.int64)),
    }
    if rows.token_types is not None:
        batch["token_type_ids"] = _padded(rows.token_types, spans, mask_BW, 0)
    if rows.first_piece is not None and rows.labels is not None:
        batch["labels"] = _padded(rows.labels, spans, mask_BW, IGNORED)
    if rows.target_ids is not None and rows.target_offsets is not None:
        targets = _spans(rows.target_offsets, index_B)
        batch["labels"] = _padded(rows.target_ids, targets, _mask(targets), IGNORED)
    return batch


def _with_options(rows: TokenisedRows, index_B: NDArray[np.int64], pad_token_id: int, kind: str) -> dict[str, Tensor]:
    """Collate rows once per option, with the option as target; see `collate`."""
    each = one_per_option(rows, index_B)
    batch = collate(each, range(len(each)), pad_token_id, kind)
    batch["targets"] = batch.pop("labels")
    if rows.option_texts is not None:
        lengths = [torch.tensor([len(option) for option in rows.option_texts[row]]) for row in index_B]
        batch["option_characters"] = pad_sequence(lengths)
    if rows.labels is not None:
        batch["labels"] = torch.from_numpy(rows.labels[index_B])
    return batch | {"index": torch.from_numpy(index_B.copy())}


def _several(sequences: Sequences, index_B: NDArray[np.int64], pad_token_id: int) -> dict[str, Tensor]:
    """Collate rows that are read as several sequences; see `collate`."""
    own, starts_B = spans_of(sequences.starts, index_B)
    spans = _spans(sequences.offsets, own)
    mask_SW, counts_B = _mask(spans), np.diff(starts_B)
    there_BK = torch.from_numpy(np.arange(counts_B.max()) < counts_B[:, None])

    def laid_out(of_sequences: Tensor, fill: int) -> Tensor:
        out = torch.full((*there_BK.shape, *of_sequences.shape[1:]), fill)
        out[there_BK] = of_sequences
        return out

    batch = {
        "input_ids": laid_out(_padded(sequences.ids, spans, mask_SW, pad_token_id), pad_token_id),
        "attention_mask": laid_out(torch.from_numpy(mask_SW.astype(np.int64)), 0),
    }
    for name, flat, fill in (("token_type_ids", sequences.types, 0), ("places", sequences.places, -1)):
        if flat is not None:
            batch[name] = laid_out(_padded(flat, spans, mask_SW, fill), fill)
    if sequences.labels is not None:
        batch["labels"] = laid_out(torch.from_numpy(sequences.labels[own]), IGNORED)
    return batch


def collate_packed(rows: TokenisedRows, windows: Sequence[NDArray[np.int64]], pad_token_id: int) -> dict[str, Tensor]:
    """Collate one batch of windows with several causal-lm rows each, padded on the right to the longest window.

    Positions restart with every row and at every padding token. Without a mask, `transformers` recognises this format and
    lets no token see another row (``find_packed_sequence_indices`` in masking_utils.py). The first token of a row, which no
    token of that row predicts, has no label.

    Args:
        rows: a training split with targets.
        windows: the row indices of the B windows.
        pad_token_id: see `collate`.

    Shape:
        ``index`` ``(N,)`` int64, the N rows of all windows in order; ``input_ids``, ``position_ids`` and ``labels``
        ``(B, W)`` int64; ``num_tokens`` ``()`` int64, padding not counted.
    """
    index_N = np.concatenate(windows)
    ids, labels, lengths_N = _joined(rows, index_N)
    positions = np.concatenate([np.arange(length) for length in lengths_N])
    labels = np.where(positions == 0, IGNORED, labels)
    filled_B = np.add.reduceat(lengths_N, np.cumsum([0, *map(len, windows[:-1])]))
    spans = _spans(offsets_of(filled_B), np.arange(len(windows)))
    mask_BW = _mask(spans)
    return {
        "input_ids": _padded(ids, spans, mask_BW, pad_token_id),
        "position_ids": _padded(positions, spans, mask_BW, 0),
        "labels": _padded(labels, spans, mask_BW, IGNORED),
        "index": torch.from_numpy(index_N),
        "num_tokens": torch.tensor(len(ids)),
    }


def _continued(rows: TokenisedRows, index_B: NDArray[np.int64], pad_token_id: int) -> dict[str, Tensor]:
    """Collate sources, each followed by its target."""
    flat, labels, lengths_B = _joined(rows, index_B)
    spans = _spans(offsets_of(lengths_B), np.arange(len(lengths_B)))
    mask_BW = _mask(spans)
    return {
        "input_ids": _padded(flat, spans, mask_BW, pad_token_id),
        "attention_mask": torch.from_numpy(mask_BW.astype(np.int64)),
        "labels": _padded(labels, spans, mask_BW, IGNORED),
    }


def _source_labels(rows: TokenisedRows, span: slice) -> NDArray[np.int64]:
    if rows.learned is None:
        return np.full(span.stop - span.start, IGNORED)
    return np.where(rows.learned[span], rows.ids[span], IGNORED)


def _joined(
    rows: TokenisedRows, index_B: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return sources, each followed by its target, one row after the other: ids, labels, and the length of each row."""
    assert rows.target_ids is not None
    assert rows.target_offsets is not None
    sources, targets = _spans(rows.offsets, index_B), _spans(rows.target_offsets, index_B)
    parts = [(rows.ids[source], rows.target_ids[target]) for source, target in zip(sources, targets, strict=True)]
    flat = np.concatenate([np.concatenate(part) for part in parts])
    labels = np.concatenate(
        [part for s, (_, target) in zip(sources, parts, strict=True) for part in (_source_labels(rows, s), target)]
    )
    return flat, labels, np.array([len(source) + len(target) for source, target in parts], dtype=np.int64)


def _spans(offsets: NDArray[np.int64], index_B: NDArray[np.int64]) -> list[slice]:
    starts_B, ends_B = offsets[index_B].tolist(), offsets[index_B + 1].tolist()
    return [slice(start, end) for start, end in zip(starts_B, ends_B, strict=True)]


def _mask(spans: Sequence[slice], *, left: bool = False) -> NDArray[np.bool_]:
    lengths_B = np.array([span.stop - span.start for span in spans])
    mask_BW: NDArray[np.bool_] = np.arange(lengths_B.max()) < lengths_B[:, None]
    return mask_BW[:, ::-1] if left else mask_BW


def _padded(flat: NDArray[Any], spans: Sequence[slice], mask_BW: NDArray[np.bool_], fill: int) -> Tensor:
    out_BW = np.full(mask_BW.shape, fill, dtype=np.int64)
    out_BW[mask_BW] = np.concatenate([flat[span] for span in spans])
    return torch.from_numpy(out_BW)
