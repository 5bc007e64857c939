"""The router's files as fuzz targets, with digests that match: the routing statistics of a task, and their totals."""

from __future__ import annotations

import hashlib
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from continual_petl.router.discriminant import Router
from continual_petl.router.sums import TaskSums, sums_of
from continual_petl.router.totals import Totals
from tests.fuzz.dictionary import json_tokens
from tests.fuzz.target import Target

COUNT = 8


def _sums(seed: int) -> TaskSums:
    states_NF = np.random.default_rng(seed).normal(size=(40, 4))
    states_NF /= np.linalg.norm(states_NF, axis=1, keepdims=True)
    return sums_of(states_NF, (1, 2), states_NF, np.arange(40) % 2)


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
    count, content = data[:COUNT], data[COUNT:]
    totals = Totals.from_bytes(count + hashlib.sha256(count + content).digest() + content)
    if totals.means:
        width = next(iter(totals.means.values()))[1].shape[1]
        try:
            Router(totals, _sums_of).scores(np.zeros((1, width)))
        except np.linalg.LinAlgError:  # a covariance of no rows, which certified statistics never have
            return


def _check_sums(data: bytes) -> None:
    """Read the routing statistics of one task, as if its certificate matched them."""
    try:
        arrays: dict[str, Any] = load(data)
    except Exception as error:  # the reader of safetensors files has a target of its own
        raise ValueError(str(error)) from error
    sums = TaskSums.from_arrays(arrays)
    sums.distances(np.zeros((1, sums.means_CF.shape[1])), np.eye(sums.means_CF.shape[1]))


def _totals_seeds() -> list[bytes]:
    whole = _totals().to_bytes()
    return [whole[:COUNT] + whole[COUNT + 32 :]]


def _changed(draw: Random) -> bytes:
    """Return totals with one array changed."""
    arrays = dict(load(_totals_seeds()[0][COUNT:]))
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
    return (3).to_bytes(COUNT, "big") + save({key: np.ascontiguousarray(value) for key, value in arrays.items()})


ROUTER_TARGETS = (
    Target("router-totals", _check_totals, (ValueError,), _totals_seeds, json_tokens, _changed),
    Target("router-sums", _check_sums, (ValueError,), lambda: [save(_sums(0).to_arrays())], json_tokens),
)
