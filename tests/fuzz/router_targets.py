"""The router's files as fuzz targets, with digests that match: the routing statistics of a task, and their totals."""

from __future__ import annotations

import hashlib
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from continual_petl.router.discriminant import Router
from continual_petl.router.sums import RowsRead, TaskSums, VectorsRead, first_sums_of, sums_of
from continual_petl.router.totals import _HEAD_BYTES as HEAD
from continual_petl.router.totals import Totals
from tests.fuzz.dictionary import json_tokens
from tests.fuzz.target import Target


def _rows(seed: int) -> RowsRead:
    states_NF = np.random.default_rng(seed).normal(size=(40, 4))
    states_NF /= np.linalg.norm(states_NF, axis=1, keepdims=True)
    return RowsRead(layers=(1, 2), train_NF=states_NF, validation_NF=states_NF, labels_N=np.arange(40) % 2)


def _sums(seed: int) -> TaskSums:
    vectors_ND = np.random.default_rng(seed + 9).normal(size=(40, 3))
    return sums_of(_rows(seed), vectors=VectorsRead(train=np.arange(40), train_ND=vectors_ND, validation_ND=vectors_ND))


def _totals() -> Totals:
    totals = Totals()
    for seed, name in enumerate(("one", "two")):
        totals.add(name, "seal", _sums(seed))
    totals.add("off", "seal", None)
    return totals


def _sums_of(task: str) -> TaskSums:
    raise AssertionError(f"scores must not need the routing statistics of {task}")


def _check_totals(data: bytes) -> None:
    """Read totals with a matching digest; check that accepted totals can score a row."""
    head, content = data[:HEAD], data[HEAD:]
    totals = Totals.from_bytes(head + hashlib.sha256(head + content).digest() + content)
    if totals.means:
        try:
            Router(totals, _sums_of).scores(np.zeros((1, totals.width)))
        except np.linalg.LinAlgError:  # a covariance of no rows, which certified statistics never have
            return


def _check_sums(data: bytes) -> None:
    """Read the routing statistics of one task, as if its certificate matched them."""
    try:
        arrays: dict[str, Any] = load(data)
    except Exception as error:  # the reader of safetensors files has a target of its own
        raise ValueError(str(error)) from error
    sums = TaskSums.from_arrays(arrays)
    vectors_ND = None if sums.features is None else np.zeros((1, sums.features.covariance.width))
    shares = np.concatenate(sums.shares(np.zeros((1, sums.width)), vectors_ND, (1e-5, 1e-4)))
    assert ((shares >= 0) & (shares <= 1)).all(), shares


def _totals_seeds() -> list[bytes]:
    whole = _totals().to_bytes()
    return [whole[:HEAD] + whole[HEAD + 32 :]]


def _sums_seeds() -> list[bytes]:
    forms = (_sums(0), sums_of(_rows(0), "full"), first_sums_of(_rows(0)))
    return [save({name: np.ascontiguousarray(value) for name, value in sums.to_arrays().items()}) for sums in forms]


def _changed(draw: Random) -> bytes:
    """Return totals with one array changed."""
    arrays = dict(load(_totals_seeds()[0][HEAD:]))
    name = draw.choice(sorted(arrays))
    own = arrays[name]
    change = draw.randrange(4)
    if change == 0:
        arrays[name] = own[:-1] if own.ndim else own
    elif change == 1:
        arrays[name] = np.concatenate([own, own])
    elif change == 2:
        arrays[name] = own.reshape(-1, 1)
    else:
        arrays[name] = np.where(np.arange(own.size).reshape(own.shape) == 0, draw.choice([-1, 0, 2**40]), own).astype(
            own.dtype
        )
    return (3).to_bytes(HEAD, "big") + save({key: np.ascontiguousarray(value) for key, value in arrays.items()})


ROUTER_TARGETS = (
    Target("router-totals", _check_totals, (ValueError,), _totals_seeds, json_tokens, _changed),
    Target("router-sums", _check_sums, (ValueError,), _sums_seeds, json_tokens),
)
