"""An untrusted specification is limited in size, and the limits are reported."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.spec import BankSpec, select_layers
from continual_petl.errors import InputError, StreamFileError
from continual_petl.streams.stream_file.yaml_file import load_stream

BIASES = {"form": "additive", "modifies": "bias"}
HEAD = "name: s\nbackbone: minilm\ntasks:\n  - {name: a, kind: regression, data: a.csv}\n"


@pytest.mark.parametrize(
    ("bank", "key", "says"),
    [
        ({"preset": "houlsby", "bottleneck": 2**20 + 1}, "bank.bottleneck", "1048576"),
        ({"preset": "lora", "rank": 10**30}, "bank.rank", "1048576"),
        ({"preset": "prompt", "length": 2**40}, "bank.length", "1048576"),
        ({"preset": "prefix", "hidden": 2**21}, "bank.hidden", "1048576"),
        ({"preset": "houlsby", "depth": 101}, "bank.depth", "100"),
        ({"modifications": [BIASES] * 65}, "bank.modifications", "64"),
        ({"preset": "lora", "layers": "0," * 501 + "0"}, "bank.layers", "at most 1000 characters"),
        ({"preset": "lora", "layers": "0-99999999999"}, "bank.layers", "is not a layer range"),
        ({"preset": "lora", "layers": "top-99999999999"}, "bank.layers", "is not a layer range"),
        ({"preset": "lora", "layers": 10**12}, "bank.layers", "at most 9 digits"),
        ({"preset": "lora", "layers": "\u0663"}, "bank.layers", "is not a layer range"),
    ],
)
def test_value_above_the_bound_is_refused_by_name(bank: dict[str, Any], key: str, says: str, tmp_path: Any) -> None:
    with pytest.raises(InputError):
        BankChoice.model_validate(bank)
    (tmp_path / "s.yaml").write_text(f"{HEAD}bank: {bank}\n", encoding="utf-8")
    with pytest.raises(StreamFileError) as caught:
        load_stream(tmp_path / "s.yaml")
    (problem,) = caught.value.problems
    assert f"key {key}" in problem
    assert says in problem


def test_certificate_values_have_the_same_bounds() -> None:
    BankSpec.model_validate({"modifications": [BIASES] * 64})
    with pytest.raises(InputError, match="at most 64"):
        BankSpec.model_validate({"modifications": [BIASES] * 65})
    wide = {"form": "lowrank", "modifies": "query", "insertion": "parallel", "rank": 2**20}
    BankSpec.model_validate({"modifications": [wide]})
    with pytest.raises(InputError, match="of at most 1048576"):
        BankSpec.model_validate({"modifications": [wide | {"rank": 2**20 + 1}]})


@pytest.mark.parametrize(
    ("layers", "says"),
    [("0-9999999", "names layer 9999999"), ("top-9999999", "names the 9999999 highest layers")],
)
def test_layer_range_is_checked_before_it_is_expanded(layers: str, says: str) -> None:
    BankSpec(layers=layers, layernorms="own")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"{says}, but this backbone has 2 layers, 0 to 1"):
            select_layers(layers, 2)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
