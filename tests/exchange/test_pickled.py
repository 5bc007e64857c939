"""Files of torch.save are read as torch reads them; what they claim is bounded by their size, before memory is allocated."""

from __future__ import annotations

import collections
import io
import resource
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import whole
from continual_petl.exchange.pickled import read_pickled

FILE = Path("pytorch_adapter.bin")
ONE = torch.ones(1)


def saved(tensors: Any, *, legacy: bool = False) -> bytes:
    """Return the bytes that torch writes, in the format of today or in that of torch before 1.6."""
    save: Any = getattr(torch, "save")  # noqa: B009  # tests/house.py forbids torch.save
    buffer = io.BytesIO()
    save(tensors, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def read(content: bytes) -> dict[str, Tensor]:
    return whole(FILE, read_pickled(FILE, content))


@given(
    seed=st.integers(0, 2**20),
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    legacy=st.booleans(),
)
@settings(max_examples=10)
def test_tensors_are_those_that_torch_reads(seed: int, shape: list[int], dtype: torch.dtype, legacy: bool) -> None:
    made = torch.Generator().manual_seed(seed)
    base = torch.randn((6, 5), generator=made).to(dtype)
    tensors = collections.OrderedDict(
        base=base,
        turned=base.t(),
        part=base[1:4, ::2],
        alone=torch.randn(shape, generator=made).to(dtype),
        scalar=base[2, 3],
        parameter=torch.nn.Parameter(base[0].clone()),
    )
    vars(tensors)["_metadata"] = {"version": 1}  # as in a state dict
    content = saved(tensors, legacy=legacy)
    expected = torch.load(io.BytesIO(content), weights_only=True)
    found = read_pickled(FILE, content)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor.detach())
    assert all(torch.equal(t, expected[n].float()) for n, t in read(content).items())


CLAIMS: dict[str, tuple[Callable[[], Any], str]] = {
    "one number many times": (lambda: ONE.expand(2**34), "claims more numbers than its storage has"),
    "small sizes": (lambda: ONE.reshape(1, 1, 1).expand(4000, 4000, 4000), "claims more numbers than its storage has"),
    "a parameter": (lambda: torch.nn.Parameter(ONE.expand(2**34)), "claims more numbers than its storage has"),
    "no storage": (lambda: torch.empty(2**34, device="meta"), r"holds more than tensors \(torch._utils._rebuild_meta"),
    "sparse": (lambda: torch.zeros(3, 3).to_sparse(), r"holds more than tensors \(torch._utils._rebuild_sparse"),
    "complex": (lambda: torch.ones(2, dtype=torch.complex64), r"holds more than tensors \(torch.ComplexFloatStorage\)"),
    "float8": (
        lambda: torch.ones(2).to(torch.float8_e4m3fn),
        r"holds more than tensors \(torch._utils._rebuild_tensor_v3",
    ),
    "negative view": (
        lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
        r"holds more than tensors \(tensors with",
    ),
    "integers": (lambda: torch.arange(3), r"\(int64\) are not of a floating-point type"),
    "truth values": (lambda: torch.ones(3) > 0, r"\(bool\) are not of a floating-point type"),
    "not a number": (lambda: torch.tensor([float("nan")]), "are not finite"),
    "infinity": (lambda: torch.tensor([1.0, float("-inf")]), "are not finite"),
    "too large for float32": (lambda: torch.tensor([1e300], dtype=torch.float64), "are not finite"),
    "no tensor": (lambda: [1], "does not contain a mapping from names to tensors"),
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_are_refused_without_memory(claim: str, legacy: bool) -> None:
    make, says = CLAIMS[claim]
    content = saved({"x": make()}, legacy=legacy)
    assert len(content) < 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=says) as refused:
        read(content)
    assert "\n" not in str(refused.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def edited(content: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """Return an archive whose description of the tensors is edited."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            new.writestr(name, edit(old.read(name)) if name.endswith("data.pkl") else old.read(name))
    return made.getvalue()


def long(number: int) -> bytes:
    return b"\x8a\x08" + number.to_bytes(8, "little")


NESTED = b")q\x00" + b"h\x00h\x00\x86q\x00" * 40  # a tuple of two equal tuples of two equal tuples, and so on
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000NK\x01tQ"
VIEW = b"ctorch._utils\n_rebuild_tensor_v2\n("
PROGRAMS = {
    "bytearray": b"cbuiltins\nbytearray\n" + long(2**36) + b"\x85R",
    "torch.Tensor": b"ctorch\nTensor\n" + long(2**34) + b"\x85R",
    "doubled text": b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R",
    "os.system": b"cos\nsystem\nX\x04\x00\x00\x00true\x85R",
    "bytes of any length": b"\x8e" + (2**40).to_bytes(8, "little") + b"x",
    "memo of any length": b"N\x8cN",
    "copies of a dictionary": b"ccollections\nOrderedDict\nq\x01}q\x02("
    + b"".join(b"X\x04\x00\x00\x00%04dN" % number for number in range(10**4))
    + b"u"
    + b"h\x01h\x02\x85R" * 10**4,
    "copies of a shape": b"("
    + b"K\x01" * 10**4
    + b"tq\x01"
    + b"".join([VIEW, STORAGE, b"K\x00h\x01h\x01\x89NtR"]) * 10**3,
    "size that is too long to print": NESTED + VIEW + STORAGE + b"h\x00))\x89NtR",
    "metadata that is too long to print": NESTED + VIEW + STORAGE + b"K\x00))\x89Nh\x00tR",
    "key that takes for ever to hash": NESTED + b"}h\x00Ns",
    "key that takes the whole stack to hash": b"})" + b"\x85" * 200_000 + b"Ns",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_refused_before_they_run(program: str) -> None:
    content = edited(saved({"x": ONE}), lambda _: b"\x80\x02" + PROGRAMS[program] + b".")
    tracemalloc.start()
    with pytest.raises(InputError, match=r"holds more than tensors|it may be damaged"):
        read(content)
    assert tracemalloc.get_traced_memory()[1] < 2 * 10**7
    tracemalloc.stop()


def test_memo_numbers_take_no_memory() -> None:
    content = edited(saved({"x": ONE}), lambda old: old.replace(b"}q\x00", b"}r\xff\xff\xff\x7f", 1))
    assert torch.equal(read(content)["x"], ONE)


def test_storage_smaller_than_claimed_is_refused() -> None:
    content = edited(saved({"x": torch.ones(3)}), lambda old: old.replace(b"K\x03", b"K\x64"))
    with pytest.raises(InputError, match="storage '0' does not have the size that is claimed"):
        read(content)


def test_compressed_archives_are_refused() -> None:
    made = io.BytesIO()
    content = io.BytesIO(saved({"x": torch.zeros(2**20)}))
    with zipfile.ZipFile(content) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert len(made.getvalue()) < 2**16
    with pytest.raises(InputError, match="it is compressed, or its parts claim more bytes than it has"):
        read(made.getvalue())


@pytest.mark.parametrize("legacy", [False, True])
def test_damaged_files_are_never_a_bug(legacy: bool) -> None:
    content = saved({"x": torch.randn(40), "y": torch.randn(3)}, legacy=legacy)
    draw = torch.Generator().manual_seed(0)
    for _ in range(200):
        place = int(torch.randint(len(content), (1,), generator=draw))
        for damaged in (content[:place], content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :]):
            with suppress(InputError):  # anything else is a failure; some bytes are numbers that may change
                read(damaged)
