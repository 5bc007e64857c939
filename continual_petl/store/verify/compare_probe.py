"""Replay a certificate's probe: bit for bit in the same environment, otherwise within a tolerance."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from continual_petl.backbones.attention_switch import attending
from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.digests import same_bits
from continual_petl.errors import StoreError
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_bank import TaskBank, head_of
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.finding import UNCHANGED, Damaged, Finding, first_difference
from continual_petl.store.certificate.values import as_tensors
from continual_petl.store.dependencies import read_banks
from continual_petl.store.store import Store
from continual_petl.store.strict_load import check_fits, filled_bank
from continual_petl.store.verify.probe_file import DECODED, OUTPUTS, certified_probe
from continual_petl.store.verify.probe_inputs import check_probe
from continual_petl.store.verify.replay import decode_probe, replay, tolerance


def compare_probe(store: Store, task: str, backbone: Backbone) -> tuple[float, str, list[Finding]]:
    """Replay a task's probe.

    Returns:
        The largest difference from the certified outputs, the basis of the verdict, and the findings.

    Raises:
        StoreError: if bank, probe and backbone do not belong together, or one of them is damaged.
    """
    inputs, certified = certified_probe(store, task)
    certificate = store.certificate(task)
    bank = store.load_bank(task, backbone).to(backbone.model.device)
    with attending(backbone, certificate.environment.attention) as as_learned:
        return _compare(certificate, as_learned, bank, inputs, certified)


def _compare(
    certificate: Certificate, backbone: Backbone, bank: Bank, inputs: dict[str, Tensor], certified: Mapping[str, Tensor]
) -> tuple[float, str, list[Finding]]:
    check_probe(certificate, backbone, inputs, certified[OUTPUTS])
    try:
        own = TaskBank(backbone, certificate, bank)
        replayed, decoded = replay(own, inputs), decode_probe(own, inputs).get(DECODED)
    except _REFUSED as error:
        raise StoreError(
            f"task {certificate.task!r}: its probe cannot be replayed ({error}); bank.json, bank.safetensors and "
            "probe.safetensors do not belong together"
        ) from error
    same_texts = decoded is None or DECODED not in certified or same_bits(decoded, certified[DECODED])
    outputs = certified[OUTPUTS]
    if same_bits(replayed, outputs) and same_texts:
        return 0.0, UNCHANGED, []
    # Equal infinities, for options that a row does not have, do not differ.
    same_form = replayed.shape == outputs.shape
    difference = (
        float((replayed - outputs).masked_fill(replayed == outputs, 0.0).abs().max()) if same_form else float("nan")
    )
    differs = certificate.environment.differences(
        current_environment(backbone.model.device, backbone.precision, backbone.attention)
    )
    allowed = tolerance(certificate.kind, backbone.precision)
    kind = kind_of(certificate)
    same_answers = not (kind.has_labels or kind.chooses) or torch.equal(
        head_of(bank).predictions(replayed), head_of(bank).predictions(outputs)
    )
    if differs and difference <= allowed and same_answers:
        # Generation may take a different path where two tokens are nearly tied, so only the log-probabilities are compared.
        ways = "" if same_texts else "; the search took a different path in some rows"
        return difference, f"digests, and probe within {allowed:g} ({'; '.join(differs)}{ways})", []
    cause = f"the differences in the environment: {'; '.join(differs)}" if differs else _LIKELY
    name, actual, expected = (
        (OUTPUTS, replayed, outputs) if not same_bits(replayed, outputs) else (DECODED, decoded, certified[DECODED])
    )
    assert actual is not None
    return difference, "digests and probe", [_different(certificate.task, name, actual, expected, difference, cause)]


def _different(task: str, name: str, found: Tensor, certified: Tensor, difference: float, cause: str) -> Finding:
    first = first_difference(found, certified) if _form(found) == _form(certified) else None
    if first is None:
        message = f"task {task!r}: the probe's {name} are {_form(found)}, not {_form(certified)}"
        return Finding(message=f"{message}. Look at {cause}.", tensor=name, cause=cause)
    row, at = first.position[0], ", ".join(map(str, first.position[1:]))
    unit = "output" if name == OUTPUTS else "decoded token"
    return Finding(
        message=f"task {task!r}: probe row {row}, {unit} {at} is {first.found!r}, but {first.certified!r} was certified "
        f"(largest difference {difference:.3g}). Every digest of the bank matches, so look at {cause}.",
        tensor=name,
        position=first.position,
        found=first.found,
        certified=first.certified,
        cause=cause,
    )


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def with_effect(store: Store, task: str, backbone: Backbone, damage: Damaged) -> Finding:
    """Return the finding about a bank's file, extended by the changed bank's probe outputs if they can still be computed."""
    finding, certificate = damage.finding, store.certificate(task)
    try:
        inputs, certified = certified_probe(store, task)
        check_probe(certificate, backbone, inputs, certified[OUTPUTS])
        check_fits(certificate, backbone, certificate.tensors)
        bank = filled_bank(certificate, backbone, as_tensors(damage.tensors))
        bank.read(read_banks(store, certificate, certificate.reads))
        with attending(backbone, certificate.environment.attention) as as_learned:
            outputs = replay(TaskBank(as_learned, certificate, bank.to(backbone.model.device)), inputs)
    except (StoreError, *_REFUSED):
        return finding
    if _form(outputs) != _form(certified[OUTPUTS]):
        return finding
    difference = first_difference(outputs, certified[OUTPUTS])
    if difference is None:
        return finding.also("The probe's outputs are still the certified ones")
    return finding.also(
        f"With it, probe row {difference.position[0]}, output {', '.join(map(str, difference.position[1:]))} is "
        f"{difference.found!r}, but {difference.certified!r} was certified"
    )


_REFUSED = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)
"""Exceptions that torch and transformers raise for tensors that do not match."""

_LIKELY = (
    "the backbone, which now computes different outputs: dropout or training mode is on, a hook was left behind, it keeps "
    "state outside its parameters and buffers, or it was changed"
)
