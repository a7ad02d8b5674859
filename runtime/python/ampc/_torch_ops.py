# SPDX-License-Identifier: Apache-2.0
"""Operators of torch that ampc.torch.export writes as nodes of domain ampc, whose
rows are in frontend/onnx/onnx_ampc.def."""
from __future__ import annotations

from typing import Any, Sequence

import torch  # type: ignore[import-not-found,unused-ignore]

VERSION = 1  # of the domain: OX_AMPC_OPSET

_REDUCTIONS = ("none", "mean", "sum")


def node(name: str, inputs: Sequence[Any], shape: Sequence[Any],
         dtype: Any = None, **attributes: Any) -> Any:
    """A node of domain ampc with one result, of the first input's dtype."""
    return torch.onnx.ops.symbolic(
        f"ampc::{name}", inputs, attributes, dtype=dtype or inputs[0].dtype,
        shape=shape, version=VERSION)


def _numbers(n: Any) -> Any:
    return n.reshape(-1) if isinstance(n, torch.Tensor) else torch.tensor(n)


def ctc_loss(x: Any, target: Any, steps: Any, labels: Any, blank: int = 0,
             reduction: int = 1, zero_infinity: bool = False) -> Any:
    one = x.dim() == 2
    if one:
        x, target = x.unsqueeze(1), target.reshape(1, -1)
    y = node("CtcLoss", [x, target, _numbers(steps), _numbers(labels)],
             () if reduction else (x.shape[1],), blank=blank,
             reduction=_REDUCTIONS[reduction], zero_infinity=int(zero_infinity))
    return y.squeeze(0) if one and not reduction else y


def _functional_ctc_loss(x: Any, target: Any, steps: Any, labels: Any,
                         blank: int = 0, reduction: str = "mean",
                         zero_infinity: bool = False) -> Any:
    return ctc_loss(x, target, steps, labels, blank,
                    _REDUCTIONS.index(reduction), zero_infinity)


class Captured(torch.overrides.TorchFunctionMode):
    """Replaces operators that torch.export cannot follow, because it takes the
    shapes of their results to depend on data, while it captures a module."""

    _calls = {torch.ctc_loss: ctc_loss,
              torch.nn.functional.ctc_loss: _functional_ctc_loss}

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        return self._calls.get(func, func)(*args, **(kwargs or {}))
