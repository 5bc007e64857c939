"""Pre-train a small BART on the tasks' texts, for use where no pre-trained encoder-decoder is available.

    python -m experiments.he2022.pretraining --data DATA_FOLDER BACKBONE_FOLDER

Model and tokenizer are those of `experiments.studies.random_seq2seq`. The model learns to restore texts, as BART does (Lewis
et al. 2020, section 2.2, text infilling): spans with lengths from a Poisson distribution of mean 3 are each replaced with one
mask, until about 30 % of the tokens are masked. Some texts are not masked, so that copying is learned too. The texts are all
training texts of all tasks, sources and targets separately, never as pairs, so the tasks themselves are not learned. Do not
share the weights: they are trained on texts that may not be redistributed.

The same texts, steps, seed, threads and versions give the same weights.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import BartForConditionalGeneration, PreTrainedTokenizerFast

from continual_petl.errors import InputError
from experiments.studies.random_seq2seq import make_model, make_tokenizer
from experiments.studies.trial import TASKS, backbone_digest

STEPS, SEED = 2000, 13
TOKENS = 1024
"""Tokens per batch, padding included."""
LONGEST = 64
"""Maximum tokens per text; for longer texts, a random window is used."""
WHOLE = 0.3
"""Share of the texts that are not masked at all."""
MASKED, SPAN = 0.3, 3.0
"""Share of tokens that are masked in the other texts, and the mean length of a span (Lewis et al. 2020)."""
HELD = 100
"""One text in this many is held out; the share of its tokens that are copied correctly is reported at the end."""
RATE, WARMUP = 1e-3, 0.05
BEGIN, PAD, END, MASK = 0, 1, 2, 4
"""Ids of the special tokens, see `random_seq2seq.SPECIAL`."""


def texts(data: Path) -> Iterator[str]:
    """Yield all texts of the training rows of all tasks, in order."""
    for task in TASKS:
        file = next((f for f in (data / task / "train.jsonl", data / task / "train.jsonl.gz") if f.is_file()), None)
        if file is None:
            raise InputError(f"--data: {data} has no folder {task} with train.jsonl or train.jsonl.gz")
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for line in content.decode("utf-8").split("\n"):
            row = json.loads(line) if line else {}
            yield from (row[key] for key in ("text", "text_pair", "source", "target") if row.get(key))


def infill(tokens: Sequence[int], drawn: random.Random) -> list[int]:
    """Replace spans with one mask each, about `MASKED` of the tokens in total; a span of length 0 inserts a mask."""
    left, found = round(MASKED * len(tokens)), list(tokens)
    while left > 0:
        length = min(_poisson(drawn), left)
        start = drawn.randrange(len(found) - length + 1)
        if MASK in found[start : start + length]:
            # Never mask a mask: try another place, and reduce the number left so that the loop ends.
            left -= 1
            continue
        found[start : start + length] = [MASK]
        left -= max(1, length)
    return found


def _poisson(drawn: random.Random) -> int:
    """Draw from a Poisson distribution of mean `SPAN` (Knuth)."""
    limit, product, count = math.exp(-SPAN), drawn.random(), 0
    while product > limit:
        product *= drawn.random()
        count += 1
    return count


def batches(encoded: Sequence[list[int]], drawn: random.Random) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Yield batches of (noisy, original) pairs endlessly; texts of similar length share a batch."""
    while True:
        order = drawn.sample(range(len(encoded)), len(encoded))
        for start in range(0, len(order), 2000):
            windows = sorted((_window(encoded[number], drawn) for number in order[start : start + 2000]), key=len)
            groups = list(_groups(windows))
            drawn.shuffle(groups)
            for group in groups:
                yield [(w if drawn.random() < WHOLE else infill(w, drawn), w) for w in group]


def _window(tokens: list[int], drawn: random.Random) -> list[int]:
    start = drawn.randrange(max(1, len(tokens) - LONGEST + 1))
    return tokens[start : start + LONGEST]


def _groups(windows: list[list[int]]) -> Iterator[list[list[int]]]:
    group: list[list[int]] = []
    for window in windows:
        if (len(group) + 1) * len(window) > TOKENS:
            yield group
            group = []
        group.append(window)
    yield group


def padded(rows: Sequence[list[int]]) -> Tensor:
    """Return padded rows with begin and end tokens added, ``(rows, longest)``."""
    longest = max(map(len, rows))
    return torch.tensor([[BEGIN, *row, END, *[PAD] * (longest - len(row))] for row in rows])


def loss_of(model: BartForConditionalGeneration, pairs: Sequence[tuple[list[int], list[int]]]) -> Tensor:
    """Return the mean loss per token of reconstructing texts from their noisy versions."""
    noisy, whole = (padded([pair[side] for pair in pairs]) for side in (0, 1))
    output = model(
        input_ids=noisy,
        attention_mask=(noisy != PAD).long(),
        labels=whole.masked_fill(whole == PAD, -100),
    )
    loss: Tensor = output.loss
    return loss


@torch.no_grad()
def copied(model: BartForConditionalGeneration, encoded: Sequence[list[int]]) -> float:
    """Return the share of tokens in unmasked texts that the model predicts correctly, given the tokens before them."""
    right = seen = 0
    for group in _groups(sorted((tokens[:LONGEST] for tokens in encoded), key=len)):
        rows = padded(group)
        logits = model(input_ids=rows, attention_mask=(rows != PAD).long(), labels=rows).logits
        right += int(((logits.argmax(-1) == rows) & (rows != PAD)).sum())
        seen += int((rows != PAD).sum())
    return round(right / seen, 4)


def pretrain(data: Path, folder: Path, steps: int = STEPS, seed: int = SEED, log: int = 100) -> dict[str, float | str]:
    """Create the backbone; return the content of its ``pretraining.json``.

    Args:
        data: folder with one subfolder of rows per task.
        folder: folder for the backbone.
        steps: number of optimizer steps.
        seed: seed of the order, the noise and the dropout; the initial weights are those of `make_model`.
        log: steps between two lines on standard error, each with the mean loss since the previous line.
    """
    found = list(texts(data))
    if len(found) < 2:
        raise InputError(f"--data: {data} has fewer than two texts to learn from; give the training rows of every task")
    tokenizer = make_tokenizer(iter(found))
    encoded = _encoded(tokenizer, found)
    held = encoded[::HELD]
    del encoded[::HELD]
    model = make_model().train()
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    warm = max(1, round(WARMUP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / warm, (steps - n) / steps))
    drawn, losses = batches(encoded, random.Random(seed)), list[float]()
    for step in range(1, steps + 1):
        loss = loss_of(model, next(drawn))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % log == 0:
            print(f"step {step}: loss {sum(losses[-log:]) / log:.3f}", file=sys.stderr, flush=True)
    model.train(False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    said: dict[str, float | str] = {"texts": len(encoded), "steps": steps, "seed": seed}
    said |= {"loss": round(sum(losses[-log:]) / len(losses[-log:]), 4), "copied": copied(model, held)}
    said |= {"digest": backbone_digest(folder)}
    (folder / "pretraining.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return said


def _encoded(tokenizer: PreTrainedTokenizerFast, found: list[str]) -> list[list[int]]:
    return [tokens for tokens in tokenizer(found, add_special_tokens=False, verbose=False)["input_ids"] if tokens]


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.he2022.pretraining", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the backbone")
    parser.add_argument("--data", type=Path, required=True, help="folder with one subfolder of rows per task")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args(arguments)
    try:
        print(json.dumps(pretrain(given.data, given.folder, given.steps, given.seed)))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
