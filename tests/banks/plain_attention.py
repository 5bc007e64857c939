"""Prefix tuning written twice, as concatenation and as gated addition, with loops over rows, heads and positions.

He et al. 2022 (https://arxiv.org/abs/2110.04366), equations 7 to 10. For one head and one query q, with s = 1 / sqrt(d_h):

    concatenated   Attn(q, [P_k; K], [P_v; V])
    gated          (1 - lambda) Attn(q, K, V) + lambda Attn(q, P_k, P_v)
    lambda         sum_i exp(s q.P_k,i) / (sum_i exp(s q.P_k,i) + sum_j exp(s q.k_j))

The paper leaves s out of its notation. Computed as in the paper, lambda is infinity / infinity in float32 if a logit
exceeds 88. It equals the sigmoid of the difference of two logsumexps, which is finite for all logits. This code is slow, and
uses nothing from the library: it is the reference for faster code.

Shapes: B rows, N heads, Q queries, K keys, H width of a head, L length of the prefix.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MINUS_INFINITY = -math.inf


def heads_of(matrix_LD: Tensor, num_heads: int) -> Tensor:
    """Return ``(L, D)`` as ``(N, L, H)``: head n owns columns n H to (n + 1) H - 1."""
    width = matrix_LD.shape[1] // num_heads
    return torch.stack([matrix_LD[:, n * width : (n + 1) * width] for n in range(num_heads)])


def softmax_sum(logits_K: Tensor, values_KH: Tensor) -> Tensor:
    """Return ``sum_k softmax(logits)_k values_k``, computed key by key."""
    highest = logits_K.max()
    weights = [torch.exp(logit - highest) for logit in logits_K]
    total = torch.stack(weights).sum()
    mixed = torch.zeros_like(values_KH[0])
    for weight, value in zip(weights, values_KH, strict=True):
        mixed = mixed + weight / total * value
    return mixed


def logits(q_H: Tensor, keys_KH: Tensor, scale: float, bias_K: Tensor | None = None) -> Tensor:
    """Return ``scale q.k + bias`` for every key."""
    dots_K = torch.stack([scale * (q_H * key_H).sum() for key_H in keys_KH])
    return dots_K if bias_K is None else dots_K + bias_K


def logsumexp(logits_K: Tensor) -> Tensor:
    """Return ``log sum_k exp(logits_k)``, computed after subtracting the largest logit."""
    highest = logits_K.max()
    return highest + torch.log(torch.exp(logits_K - highest).sum())


def gate(prefix_logits_L: Tensor, logits_K: Tensor) -> Tensor:
    """Return lambda, in a form that is finite for any finite logits."""
    return torch.sigmoid(logsumexp(prefix_logits_L) - logsumexp(logits_K))


def naive_gate(prefix_logits_L: Tensor, logits_K: Tensor) -> Tensor:
    """Return lambda as the paper writes it."""
    prefix = torch.exp(prefix_logits_L).sum()
    return prefix / (prefix + torch.exp(logits_K).sum())


def plain_prefix(
    form: str,
    q_BNQH: Tensor,
    k_BNKH: Tensor,
    v_BNKH: Tensor,
    key_NLH: Tensor,
    value_NLH: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output of the heads with a prefix, and lambda.

    Args:
        form: concatenated or gated.
        q_BNQH: queries.
        k_BNKH: keys.
        v_BNKH: values.
        key_NLH: the prefix's keys, which are the same for every row.
        value_NLH: the prefix's values.
        bias: added to the scaled logits of the model's own keys, broadcastable to ``(B, N, Q, K)``: mask (minus infinity
            or the dtype's lowest number where a key is hidden) and position bias. A prefix has neither.
        scale: s; None is 1 / sqrt(H).

    Shape:
        heads ``(B, N, Q, H)``, lambda ``(B, N, Q)``.
    """
    rows, heads, queries, width = q_BNQH.shape
    s = 1 / math.sqrt(width) if scale is None else scale
    biases = None if bias is None else bias.expand(rows, heads, queries, k_BNKH.shape[2])
    output, gates = torch.empty_like(q_BNQH), torch.empty_like(q_BNQH[..., 0])
    for b in range(rows):
        for n in range(heads):
            for i in range(queries):
                q = q_BNQH[b, n, i]
                of_prefix = logits(q, key_NLH[n], s)
                of_model = logits(q, k_BNKH[b, n], s, None if biases is None else biases[b, n, i])
                gates[b, n, i] = share = gate(of_prefix, of_model)
                if form == "concatenated":
                    values = torch.cat([value_NLH[n], v_BNKH[b, n]])
                    output[b, n, i] = softmax_sum(torch.cat([of_prefix, of_model]), values)
                else:
                    assert form == "gated"
                    own = softmax_sum(of_model, v_BNKH[b, n])
                    output[b, n, i] = (1 - share) * own + share * softmax_sum(of_prefix, value_NLH[n])
    return output, gates
