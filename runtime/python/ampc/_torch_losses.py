# SPDX-License-Identifier: Apache-2.0
"""Losses in other operators of torch."""
from __future__ import annotations

import math
from typing import Any

import torch

REDUCTIONS = ("none", "mean", "sum")


def _reduced(each: Any, weight: Any, reduction: int) -> Any:
    each = each if weight is None else each * weight
    return (each, each.mean(), each.sum())[reduction]


def binary_cross_entropy(x: Any, target: Any, weight: Any = None,
                         reduction: int = 1) -> Any:
    """Logarithms are at least -100."""
    each = target * torch.log(x).clamp(min=-100) + (
        -target + 1) * torch.log(-x + 1).clamp(min=-100)
    return _reduced(-each, weight, reduction)


def binary_cross_entropy_with_logits(x: Any, target: Any, weight: Any = None,
                                     pos_weight: Any = None,
                                     reduction: int = 1) -> Any:
    soft = torch.relu(-x) + torch.log1p(torch.exp(-x.abs()))
    if pos_weight is not None:
        soft = soft * ((pos_weight - 1) * target + 1)
    return _reduced((-target + 1) * x + soft, weight, reduction)


def gaussian_nll(x: Any, target: Any, var: Any, full: bool = False,
                 eps: float = 1e-6, reduction: str = "mean") -> Any:
    """PyTorch looks at the data, whether var is below 0."""
    if isinstance(var, float):
        var = torch.full_like(x, var)
    if var.shape != x.shape and var.shape == x.shape[:-1]:
        var = var.unsqueeze(-1)
    var = var + (var.clamp(min=eps) - var).detach()
    each = 0.5 * (torch.log(var) + (x - target).square() / var)
    if full:
        each = each + 0.5 * math.log(2 * math.pi)
    return _reduced(each, None, REDUCTIONS.index(reduction))


def table() -> dict[Any, Any]:
    """{operator of torch: its formula}, where torch.onnx fails: some versions
    cannot if an operand is a parameter."""
    aten = torch.ops.aten
    return {aten.binary_cross_entropy.default: binary_cross_entropy,
            aten.binary_cross_entropy_with_logits.default:
                binary_cross_entropy_with_logits}
