# SPDX-License-Identifier: Apache-2.0
"""Operators of torch that ampc.torch.export writes as nodes of domain ampc, whose
rows are in frontend/onnx/onnx_ampc.def."""
from __future__ import annotations

import itertools
import math
from typing import Any, Sequence

import torch

from . import _torch_grad as grad
from ._torch_losses import REDUCTIONS, gaussian_nll

VERSION = 1  # of the domain: OX_AMPC_OPSET


def node(name: str, inputs: Sequence[Any], shape: Sequence[Any],
         dtype: Any = None, **attributes: Any) -> Any:
    """A node of domain ampc with one result, of the first input's dtype."""
    return torch.onnx.ops.symbolic(
        f"ampc::{name}", inputs, attributes, dtype=dtype or inputs[0].dtype,
        shape=shape, version=VERSION)


def nodes(name: str, inputs: Sequence[Any], shapes: Sequence[Any],
          dtypes: Any = None, **attributes: Any) -> Any:
    """A node with several results, of the first input's dtype by default."""
    return torch.onnx.ops.symbolic_multi_out(
        f"ampc::{name}", inputs, attributes,
        dtypes=dtypes or [inputs[0].dtype] * len(shapes), shapes=shapes, version=VERSION)


def _numbers(n: Any) -> Any:
    return n.reshape(-1) if isinstance(n, torch.Tensor) else torch.tensor(n)


def ctc_loss(x: Any, target: Any, steps: Any, labels: Any, blank: int = 0,
             reduction: int = 1, zero_infinity: bool = False) -> Any:
    one = x.dim() == 2
    if one:
        x, target = x.unsqueeze(1), target.reshape(1, -1)
    y = node("CtcLoss", [x, target, _numbers(steps), _numbers(labels)],
             () if reduction else (x.shape[1],), blank=blank,
             reduction=REDUCTIONS[reduction], zero_infinity=int(zero_infinity))
    return y.squeeze(0) if one and not reduction else y


def _functional_ctc_loss(x: Any, target: Any, steps: Any, labels: Any,
                         blank: int = 0, reduction: str = "mean",
                         zero_infinity: bool = False) -> Any:
    return ctc_loss(x, target, steps, labels, blank,
                    REDUCTIONS.index(reduction), zero_infinity)


def _cross_entropy(x: Any, target: Any, weight: Any = None,
                   size_average: Any = None, ignore_index: int = -100,
                   reduce: Any = None, reduction: str = "mean",
                   label_smoothing: float = 0.0) -> Any:
    """That of probabilities has no translation."""
    if x.dim() == 1 and not target.is_floating_point():
        y = _cross_entropy(x.unsqueeze(0), target.reshape(1), weight,
                           size_average, ignore_index, reduce, reduction,
                           label_smoothing)
        return y.squeeze(0) if reduction == "none" else y
    if not target.is_floating_point():
        return torch.nn.functional.cross_entropy(
            x, target, weight, size_average, ignore_index, reduce, reduction,
            label_smoothing)
    axis = 1 if x.dim() > 1 else 0
    if label_smoothing:
        target = target * (1 - label_smoothing) + (
            label_smoothing / x.shape[axis])
    each = -torch.log_softmax(x, axis) * target
    if weight is not None:
        each = each * weight.reshape([-1] + [1] * (x.dim() - axis - 1))
    each = each.sum(axis)
    if reduction == "none":
        return each
    return each.sum() if reduction == "sum" else each.mean()


def _quantile(x: Any, q: Any, dim: Any = None, keepdim: bool = False, *,
              interpolation: str = "linear", out: Any = None,
              skip_nan: bool = False) -> Any:
    shape = x.shape
    if dim is None:
        x, dim = x.reshape(-1), 0
    one = not isinstance(q, torch.Tensor) or q.dim() == 0
    x = x.movedim(dim, -1)
    last: Any = x.shape[-1] - 1
    if skip_nan:
        nan = torch.isnan(x)
        x = torch.where(nan, math.inf, x)
        last = ((~nan).to(x.dtype).sum(-1, keepdim=True) - 1).clamp(min=0)
    x = torch.sort(x, -1)[0]
    place = torch.as_tensor(q, dtype=x.dtype).reshape(-1) * last
    if interpolation == "lower":
        place = torch.floor(place)
    if interpolation in ("higher", "nearest"):
        place = (torch.ceil if interpolation == "higher" else torch.round)(place)
    low = torch.floor(place)
    part = place - low if interpolation == "linear" else (
        torch.ceil(place) - low) * 0.5
    where = [p.to(torch.int64).expand(*x.shape[:-1], p.shape[-1])
             for p in (low, torch.ceil(place))]
    a, b = (x.gather(-1, p) for p in where)
    y = (a + part * (b - a)).movedim(-1, 0)
    if keepdim:
        y = y.unsqueeze(dim % len(shape) + 1) if y.dim() == len(shape) and \
            len(shape) else y.reshape([-1] + [1] * len(shape))
    return y.squeeze(0) if one else y


def _nanquantile(*args: Any, **options: Any) -> Any:
    return _quantile(*args, skip_nan=True, **options)


def _clamp(clamp: Any) -> Any:
    """torch.onnx fails at bounds of an int and a float."""
    def call(x: Any, min: Any = None, max: Any = None, **options: Any) -> Any:
        kinds = {type(min), type(max)}
        if float in kinds and kinds <= {int, float, bool}:
            min, max = float(min), float(max)
        return clamp(x, min, max, **options)
    return call


def _take(x: Any, index: Any) -> Any:
    at = index.reshape(-1)
    at = torch.where(at < 0, at + x.numel(), at)
    return x.reshape(-1).index_select(0, at).reshape(index.shape)


def _corrcoef(x: Any) -> Any:
    if x.dim() < 2:
        x = x.reshape(1, -1)
    d = x - x.mean(1, keepdim=True)
    c = d @ d.transpose(0, 1)
    size = torch.sqrt((d * d).sum(1))
    y = (c / size.unsqueeze(1) / size.unsqueeze(0)).clip(-1, 1)
    return y.reshape(()) if y.numel() == 1 else y


def _cov(x: Any, *, correction: int = 1, fweights: Any = None,
         aweights: Any = None) -> Any:
    x = x.reshape(1, -1) if x.dim() < 2 else x
    w = fweights if aweights is None else aweights if fweights is None \
        else fweights * aweights
    if w is None:
        n = float(x.shape[1])
        d = x - x.mean(1, keepdim=True)
        y = d @ d.transpose(0, 1) / max(n - correction, 0.0)
    else:
        w = w.to(x.dtype)
        total = w.sum()
        d = x - ((x * w).sum(1, keepdim=True) / total)
        part = (w * aweights).sum() / total if aweights is not None else 1.0
        y = (d * w) @ d.transpose(0, 1) / (
            total - correction * part).clamp(min=0)
    return y.reshape(()) if y.numel() == 1 else y


def _combinations(x: Any, r: int = 2, with_replacement: bool = False) -> Any:
    of = itertools.combinations_with_replacement if with_replacement \
        else itertools.combinations
    found = list(of(range(x.shape[0]), r))
    if not found or not r:
        return x.new_zeros(len(found) if r else 0, r)
    return x.index_select(0, torch.tensor(found).reshape(-1)).reshape(-1, r)


def _lstsq(a: Any, b: Any, rcond: Any = None, *, driver: Any = None) -> Any:
    """Of matrices with full rank."""
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and
                              b.shape == a.shape[:-1])
    b = b.unsqueeze(-1) if vector else b
    if a.shape[-2] >= a.shape[-1]:
        q, r = torch.linalg.qr(a)
        y = torch.linalg.solve_triangular(r, q.transpose(-1, -2) @ b, upper=True)
    else:
        q, r = torch.linalg.qr(a.transpose(-1, -2))
        y = q @ torch.linalg.solve_triangular(r.transpose(-1, -2), b,
                                              upper=False)
    none = rest = a.new_zeros(0)
    if a.shape[-2] > a.shape[-1] and driver not in (None, "gelsy"):
        rest = (a @ y - b).square().sum(-2)
    values = torch.linalg.svdvals(a).detach() \
        if driver in ("gelsd", "gelss") else none
    return torch.return_types.linalg_lstsq((
        y.squeeze(-1) if vector else y, rest,
        torch.zeros((), dtype=torch.int64), values))


def _instance_norm(input: Any, running_mean: Any = None, running_var: Any = None,
                   weight: Any = None, bias: Any = None,
                   use_input_stats: bool = True, momentum: float = 0.1,
                   eps: float = 1e-5) -> Any:
    """With running statistics a BatchNorm of samples and channels, as in torch's own
    body; torch.onnx drops what is done to them in training."""
    if running_mean is None or not use_input_stats:
        return torch.nn.functional.instance_norm(
            input, running_mean, running_var, weight, bias, use_input_stats,
            momentum, eps)
    x, each = input, input.shape[0]
    mean, var, weight, bias = (
        None if t is None else t.repeat(each)
        for t in (running_mean, running_var, weight, bias))
    y = torch.nn.functional.batch_norm(
        x.reshape(1, each * x.shape[1], *x.shape[2:]), mean, var, weight, bias,
        True, momentum, eps)
    return y.reshape(x.shape)


def _is_mask(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype == torch.bool and x.dim() > 0


def _keys(x: Any, key: Any) -> tuple[Any, ...]:
    """The parts of an index, whole slices in place of an Ellipsis."""
    keys = key if isinstance(key, tuple) else (key,)
    at = [k for k, y in enumerate(keys) if y is Ellipsis]
    if len(at) != 1:
        return keys
    used = sum(y.dim() if _is_mask(y) else y is not None for y in keys) - 1
    return (*keys[:at[0]], *[slice(None)] * (x.dim() - used), *keys[at[0] + 1:])


class Captured(torch.overrides.TorchFunctionMode):
    """Replaces operators that torch.export cannot follow, because it takes the
    shapes of their results to depend on data, while it captures a module."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[int, tuple[Any, Any]] = {}  # by a mask's id
        self._calls = {
            torch.ctc_loss: ctc_loss,
            torch.nn.functional.ctc_loss: _functional_ctc_loss,
            torch.nn.functional.cross_entropy: _cross_entropy,
            torch.nn.functional.instance_norm: _instance_norm,
            torch.quantile: _quantile, torch.Tensor.quantile: _quantile,
            torch.nanquantile: _nanquantile,
            torch.Tensor.nanquantile: _nanquantile,
            torch.nn.functional.gaussian_nll_loss: gaussian_nll,
            torch.take: _take, torch.Tensor.take: _take,
            torch.corrcoef: _corrcoef, torch.Tensor.corrcoef: _corrcoef,
            torch.linalg.lstsq: _lstsq,
            torch.cov: _cov, torch.Tensor.cov: _cov,
            torch.combinations: _combinations,
            **{f: _clamp(f) for of in (torch, torch.Tensor)
               for f in (of.clamp, of.clamp_, of.clip, of.clip_)},
            torch.masked_select: self._masked_select,
            torch.Tensor.masked_select: self._masked_select,
            torch.autograd.grad: grad.called,
            torch.Tensor.data.__get__: torch.Tensor.detach,
            torch.Tensor.data.__set__: lambda x, y: x.detach().copy_(y),
            torch.Tensor.detach_: lambda x: x.copy_(x.detach()),
            torch.Tensor.__getitem__: self._item,
            torch.Tensor.__setitem__: self._set_item}

    def __enter__(self) -> Any:
        grad.restart()
        return super().__enter__()

    def _selected(self, mask: Any) -> Any:
        """The rows that a mask selects; the same for every use of the mask."""
        if id(mask) not in self._rows:
            rows = torch.nonzero(mask.reshape(-1)).squeeze(1)
            torch._check(rows.shape[0] >= 2)  # no rule for sizes asks for less
            self._rows[id(mask)] = (mask, rows)
        return self._rows[id(mask)][1]

    def _masked_select(self, x: Any, mask: Any) -> Any:
        shape = torch.broadcast_shapes(x.shape, mask.shape)
        if mask.shape != shape:
            mask = mask.expand(shape)
        return x.expand(shape).reshape(-1).index_select(0, self._selected(mask))

    def _item(self, x: Any, key: Any) -> Any:
        """x[mask], and x[:, mask] where the other axes are whole."""
        keys = _keys(x, key)
        masks = [k for k, y in enumerate(keys) if _is_mask(y)]
        whole = slice(None)
        if len(masks) != 1 or any(y != whole for k, y in enumerate(keys)
                                  if k != masks[0]):
            return x[key]
        axis, mask = masks[0], keys[masks[0]]
        flat = x if mask.dim() == 1 else x.flatten(axis, axis + mask.dim() - 1)
        return flat.index_select(axis, self._selected(mask))

    def _set_item(self, x: Any, key: Any, value: Any) -> None:
        """x[:, mask] = value: torch.onnx knows x[mask] = value."""
        keys = _keys(x, key)
        masks = [k for k, y in enumerate(keys) if _is_mask(y)]
        whole = slice(None)
        if len(masks) != 1 or not masks[0] or any(
                y != whole for k, y in enumerate(keys) if k != masks[0]):
            x[key] = value
            return
        first, mask = masks[0], keys[masks[0]]
        axes = list(range(first, first + mask.dim()))
        if isinstance(value, torch.Tensor) and value.dim() > x.dim() - mask.dim() - first:
            lead = x.dim() - mask.dim() + 1 - value.dim()
            value = value[(None,) * lead].movedim(first, 0)
        x.movedim(axes, list(range(mask.dim())))[mask] = value

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        return self._calls.get(func, func)(*args, **(kwargs or {}))
