# SPDX-License-Identifier: Apache-2.0
"""Operators of torch in others, where torch.onnx has no translation, or one that
fails for scalars and rare arguments.  NotImplemented leaves the operator as it
is."""
from __future__ import annotations

import math
from typing import Any, Sequence

import torch

from . import _torch_bags as bags
from . import _torch_images as images
from ._torch_ops import node

# ---- scalars and axes -------------------------------------------------------


def _extreme(x: Any, dim: Sequence[int], keepdim: bool, op: Any) -> Any:
    if x.dim() == 0:
        return x.clone()
    if dim:
        return NotImplemented
    return op(x, list(range(x.dim())), keepdim)


def amax(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return _extreme(x, dim, keepdim, torch.amax)


def amin(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return _extreme(x, dim, keepdim, torch.amin)


def extreme_of_scalar(x: Any, dim: int, keepdim: bool = False) -> Any:
    """max and min along an axis: value and place."""
    if x.dim():
        return NotImplemented
    return x.clone(), torch.zeros((), dtype=torch.int64)


def topk_of_scalar(x: Any, k: int, dim: int = -1, largest: bool = True,
                   sorted: bool = True) -> Any:
    return extreme_of_scalar(x, dim)


def squeeze(x: Any, dim: Any) -> Any:
    """Axes that have other sizes than 1 stay, which ONNX refuses."""
    axes = [dim] if isinstance(dim, int) else list(dim)
    ones = [d for d in axes if x.dim() and x.shape[d] == 1]
    if len(ones) == len(axes):
        return NotImplemented
    return x.squeeze(tuple(ones)) if ones else x.clone()


def column_stack(tensors: Sequence[Any]) -> Any:
    return torch.cat([t.reshape(t.numel(), 1) if t.dim() < 2 else t
                      for t in tensors], 1)


def hstack(tensors: Sequence[Any]) -> Any:
    tensors = [t.reshape(1) if t.dim() == 0 else t for t in tensors]
    return torch.cat(list(tensors), 0 if tensors[0].dim() == 1 else 1)


def vstack(tensors: Sequence[Any]) -> Any:
    return torch.cat([t.reshape(1, t.numel()) if t.dim() < 2 else t
                      for t in tensors], 0)


def dstack(tensors: Sequence[Any]) -> Any:
    return torch.cat([t.reshape(1, t.numel(), 1) if t.dim() < 2 else
                      t.unsqueeze(2) if t.dim() == 2 else t
                      for t in tensors], 2)


def _scattered(view: Any) -> Any:
    """x with src in the elements that a view of x has."""
    def scatter(x: Any, src: Any, *args: Any, **options: Any) -> Any:
        if not all(isinstance(n, int) for n in x.shape):
            return NotImplemented
        v = view(torch.empty(x.shape, device="meta"), *args, **options)
        at = torch.full([1] * v.dim(), v.storage_offset(), dtype=torch.int64)
        for k, (n, step) in enumerate(zip(v.shape, v.stride())):
            shape = [n if i == k else 1 for i in range(v.dim())]
            at = at + (torch.arange(n) * step).reshape(shape)
        flat = x.reshape(-1).scatter(0, at.reshape(-1), src.reshape(-1))
        return flat.reshape(x.shape)
    return scatter


def _copied(most: int) -> Any:
    """An operator that returns its input if that has up to `most` axes, which
    torch.onnx cannot name."""
    return lambda x, *_: x.clone() if x.dim() <= most else NotImplemented


def repeat(x: Any, counts: Sequence[int]) -> Any:
    return NotImplemented if counts else x.clone()


def diff(x: Any, n: int = 1, dim: int = -1, prepend: Any = None,
         append: Any = None) -> Any:
    return NotImplemented if n else x.clone()


def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any,
               training: bool, momentum: float, eps: float, cudnn: bool) -> Any:
    """Without running statistics those of the batch hold in evaluation, too."""
    if mean is not None or not training:
        return NotImplemented
    over = [k for k in range(x.dim()) if k != 1]
    shape = [-1 if k == 1 else 1 for k in range(x.dim())]
    below = x - x.mean(over, keepdim=True)
    y = below * torch.rsqrt((below * below).mean(over, keepdim=True) + eps)
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


# ---- elements ---------------------------------------------------------------

def copysign(x: Any, sign: Any) -> Any:
    sign = torch.as_tensor(sign, dtype=x.dtype)
    below = (sign < 0) | ((sign == 0) & (1 / sign < 0))
    size = x.abs()
    return torch.where(below, -size, size)


def clamp_min(x: Any, low: Any) -> Any:
    return torch.where(x < low, low, x)


def clamp_max(x: Any, high: Any) -> Any:
    return torch.where(x > high, high, x)


def clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    """With bounds that train."""
    if high is not None:
        return torch.where(x > high, high, x if low is None else
                           torch.where(x < low, torch.minimum(low, high), x))
    return clamp_min(x, low)


def frexp(x: Any) -> Any:
    size = x.detach().abs()
    there = size > 0
    e = torch.floor(torch.log2(torch.where(there, size, 1.0))) + 1
    part = size * torch.exp2(-e)
    e = e + torch.where(part >= 1, 1.0, 0.0) - \
        torch.where(there & (part < 0.5), 1.0, 0.0)
    e = torch.where(there, e, 0.0)
    return x * torch.exp2(-e), e.to(torch.int32)


def segment_reduce(x: Any, reduce: str, *, lengths: Any = None,
                   indices: Any = None, offsets: Any = None, axis: int = 0,
                   unsafe: bool = False, initial: Any = None) -> Any:
    """Each segment along axis; the axes before it have segments of their own."""
    if lengths is not None:
        ends = torch.cumsum(lengths, -1)
        starts = ends - lengths
    else:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    n, after = x.shape[axis], x.dim() - axis - 1
    place = torch.arange(n).reshape([n] + [1] * after)
    starts, ends = (t.reshape(*t.shape, *[1] * (after + 1))
                    for t in (starts, ends))
    inside = (place >= starts) & (place < ends)
    neutral = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf,
               "prod": 1.0}[reduce]
    y = torch.where(inside, x.unsqueeze(axis), neutral)
    along = axis + 1
    count = inside.to(x.dtype).sum(along)
    if reduce in ("sum", "mean"):
        y = y.sum(along)
        if initial is not None:
            y = y + initial
        if reduce == "mean":
            y = torch.where(count > 0, y / count.clamp(min=1), y if initial
                            is not None else math.nan)
        return y
    if reduce == "prod":
        y = y.prod(along)
        return y if initial is None else y * initial
    y = (y.amax if reduce == "max" else y.amin)(along)
    if initial is None:
        return y
    start = torch.full_like(y, initial)
    return torch.where(y > start if reduce == "max" else y < start, y, start)


def fmax(x: Any, y: Any) -> Any:
    return torch.where((x >= y) | torch.isnan(y), x, y)


def fmin(x: Any, y: Any) -> Any:
    return torch.where((x <= y) | torch.isnan(y), x, y)


def _without_nan(x: Any) -> Any:
    return torch.where(torch.isnan(x), torch.zeros_like(x), x)


def nansum(x: Any, dim: Any = None, keepdim: bool = False, *,
           dtype: Any = None) -> Any:
    x = _without_nan(x if dtype is None else x.to(dtype))
    dims = list(range(x.dim())) if dim is None or dim == [] else dim
    return x.sum(dims, keepdim=keepdim) if x.dim() else x.clone()


def polygamma(n: int, x: Any) -> Any:
    return node("Polygamma", [x], x.shape, n=n)


def mvlgamma(x: Any, p: int) -> Any:
    y = torch.lgamma(x)
    for k in range(1, p):
        y = y + torch.lgamma(x - 0.5 * k)
    return y + p * (p - 1) / 4 * math.log(math.pi)


def _unary(name: str) -> Any:
    return lambda x: node(name, [x], x.shape)


def logcumsumexp(x: Any, dim: int) -> Any:
    return node("LogCumSumExp", [x], x.shape, axis=dim % x.dim()) if x.dim() else \
        x.clone()


def divide(x: Any, y: Any) -> Any:
    """Of two kinds of numbers."""
    if x.dtype == y.dtype:
        return NotImplemented
    dtype = torch.result_type(x, y)
    return x.to(dtype) / y.to(dtype)


def norm_of_scalar(x: Any, ord: float = 2, *_: Any, **__: Any) -> Any:
    if x.dim():
        return NotImplemented
    return x.abs() if ord else (x != 0).to(x.dtype)


def native_layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any,
                      eps: float) -> Any:
    """PyTorch's gradient does not pass the mean and the factor."""
    axes = list(range(x.dim() - len(shape), x.dim()))
    mean = x.mean(axes, keepdim=True)
    d = x - mean
    factor = torch.rsqrt((d * d).mean(axes, keepdim=True) + eps)
    y = d * factor
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, mean.detach(), factor.detach()


def attention_of_rank(q: Any, k: Any, v: Any, attn_mask: Any = None,
                      *rest: Any, enable_gqa: bool = False, **options: Any) -> Any:
    """Of other ranks than 4: [length, width] is one head. With enable_gqa the axis
    before is that of heads, whose number k and v divide."""
    if all(t.dim() == 4 for t in (q, k, v)):
        return NotImplemented
    own = 3 if enable_gqa else 2  # axes that are not broadcast
    batch = torch.broadcast_shapes(*(t.shape[:-own] for t in (q, k, v)))

    def flat(t: Any, shape: Sequence[Any]) -> Any:
        heads = t.shape[-3:-2] if enable_gqa else (1,)
        return t.expand(*shape).reshape(-1, *heads, *t.shape[-2:])

    if attn_mask is not None and attn_mask.dim() != 2:
        heads = q.shape[-own:-2]
        attn_mask = attn_mask.expand(*batch, *heads, q.shape[-2], k.shape[-2])
        attn_mask = attn_mask.reshape(-1, *(heads or (1,)), *attn_mask.shape[-2:])
    y = torch.nn.functional.scaled_dot_product_attention(
        *(flat(t, (*batch, *t.shape[-own:])) for t in (q, k, v)), attn_mask, *rest,
        enable_gqa=enable_gqa, **options)
    return y.reshape(*batch, *q.shape[-own:-2], *y.shape[-2:])


# ---- order, places ----------------------------------------------------------

def stable_sort(x: Any, *, stable: Any = None, dim: int = -1,
                descending: bool = False) -> Any:
    return torch.sort(x, dim, descending)


def nanmedian_dim(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return extreme_of_scalar(x, dim)
    nan = torch.isnan(x)
    order = torch.where(nan, torch.full_like(x, math.inf), x)
    values, places = torch.sort(order, dim)
    there = (~nan).to(torch.int64).sum(dim, keepdim=True)
    at = (there - 1).clamp(min=0) // 2
    place = places.gather(dim, at)
    y = x.gather(dim, place)
    return (y, place) if keepdim else (y.squeeze(dim), place.squeeze(dim))


def nanmedian(x: Any) -> Any:
    return nanmedian_dim(x.reshape(-1), 0)[0]


def mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The least of the most frequent elements, of equals the last, as torch has it
    among up to 16; among more torch takes any."""
    if x.dim() == 0:
        return extreme_of_scalar(x, dim)
    dim = dim % x.dim()
    other = x.movedim(dim, -1)
    same = other.unsqueeze(-1) == other.unsqueeze(-2)
    often = same.to(torch.int64).sum(-1).movedim(-1, dim)
    chosen = torch.where(often == often.amax(dim, keepdim=True), x, math.inf)
    place = torch.arange(x.shape[dim]).reshape(
        [-1 if k == dim else 1 for k in range(x.dim())])
    at = torch.where(chosen == chosen.amin(dim, keepdim=True), place,
                     0).amax(dim, keepdim=True)
    y = x.gather(dim, at)
    return (y, at) if keepdim else (y.squeeze(dim), at.squeeze(dim))


def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat, at = x.reshape(-1), index.reshape(-1)
    at = torch.where(at < 0, at + x.numel(), at)
    fill = flat.scatter_add if accumulate else flat.scatter
    return fill(0, at, source.reshape(-1)).reshape(x.shape)


def index_add(x: Any, dim: int, index: Any, src: Any, *,
              alpha: float = 1) -> Any:
    if alpha == 1:
        return NotImplemented
    return torch.index_add(x, dim, index, src * torch.full_like(src, alpha))


def scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *,
                   include_self: bool = True) -> Any:
    if reduce != "mean":
        return NotImplemented
    hits = torch.zeros_like(x).scatter_add(dim, index, torch.ones_like(src))
    if include_self:
        return x.scatter_add(dim, index, src) / (hits + 1)
    sums = torch.zeros_like(x).scatter_add(dim, index, src)
    return torch.where(hits > 0, sums / hits.clamp(min=1), x)


def index_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *,
                 include_self: bool = True) -> Any:
    if x.dim() == 0:
        x, src = x.reshape(1), src.reshape(1)
        return index_reduce(x, 0, index.reshape(1), src, reduce,
                            include_self=include_self).reshape(())
    shape = [1] * x.dim()
    shape[dim] = index.numel()
    at = index.reshape(shape).expand(src.shape)
    op = scatter_reduce if reduce == "mean" else torch.scatter_reduce
    return op(x, dim, at, src, reduce, include_self=include_self)


def rrelu(x: Any, lower: float = 1 / 8, upper: float = 1 / 3,
          training: bool = False, generator: Any = None) -> Any:
    """ONNX has no such op; random slopes are those of a RandomUniformLike."""
    slope = torch.rand_like(x) * (upper - lower) + lower if training \
        else (lower + upper) / 2
    return torch.where(x > 0, x, x * slope)


def table() -> dict[Any, Any]:
    """{operator of torch: its formula}"""
    aten = torch.ops.aten
    found = {name: _unary(op) for name, op in (
        (aten.special_ndtri.default, "Ndtri"),
        (aten.special_log_ndtr.default, "LogNdtr"),
        (aten.special_erfcx.default, "Erfcx"))}
    found.update({
        aten.amax.default: amax, aten.amin.default: amin,
        aten.max.dim: extreme_of_scalar, aten.min.dim: extreme_of_scalar,
        aten.topk.default: lambda x, *a, **k: topk_of_scalar(x, *a, **k)
        if x.dim() == 0 else NotImplemented,
        aten.squeeze.dim: squeeze, aten.squeeze.dims: squeeze,
        aten.squeeze_copy.dim: squeeze, aten.squeeze_copy.dims: squeeze,
        aten.column_stack.default: column_stack,
        aten.hstack.default: hstack, aten.vstack.default: vstack,
        aten.dstack.default: dstack,
        aten.diagonal_scatter.default: _scattered(torch.diagonal),
        aten.as_strided_scatter.default: _scattered(torch.as_strided),
        aten.t.default: _copied(1), aten.t_copy.default: _copied(1),
        aten.transpose.int: _copied(0), aten.transpose_copy.int: _copied(0),
        aten.diff.default: diff, aten.repeat.default: repeat,
        aten.rrelu.default: rrelu,
        aten.rrelu_with_noise.default:
            lambda x, noise, *a, **k: rrelu(x, *a, **k),
        aten.clamp.Tensor: clamp, aten.clamp_min.Tensor: clamp_min,
        aten.clamp_max.Tensor: clamp_max,
        aten.frexp.Tensor: frexp,
        aten.segment_reduce.default: segment_reduce,
        aten.copysign.Tensor: copysign, aten.copysign.Scalar: copysign,
        aten.fmax.default: fmax, aten.fmin.default: fmin,
        aten.nansum.default: nansum, aten.polygamma.default: polygamma,
        aten.special_polygamma.default: polygamma,
        aten.mvlgamma.default: mvlgamma, aten.sort.stable: stable_sort,
        aten.logcumsumexp.default: logcumsumexp,
        aten.nanmedian.dim: nanmedian_dim, aten.nanmedian.default: nanmedian,
        aten.index_add.default: index_add,
        aten.index_reduce.default: index_reduce,
        aten.scatter_reduce.two: scatter_reduce,
        aten.logsumexp.default: lambda x, *_: x.clone()
        if x.dim() == 0 else NotImplemented,
        aten.linalg_vector_norm.default: norm_of_scalar,
        aten.divide.Tensor: divide, aten.mode.default: mode,
        aten.put.default: put,
        aten.scaled_dot_product_attention.default: attention_of_rank,
        aten._is_all_true.default: torch.all, aten._is_any_true.default: torch.any,
        aten.embedding.default: bags.embedding,
        aten.embedding_bag.default: bags.embedding_bag,
        aten.embedding_bag.padding_idx: bags.embedding_bag_padded,
        aten._embedding_bag.default: bags.embedding_bag,
        aten._embedding_bag_forward_only.default: bags.embedding_bag,
        aten.native_layer_norm.default: native_layer_norm,
        aten.batch_norm.default: batch_norm})
    if hasattr(aten, "rrelu_with_noise_functional"):
        found[aten.rrelu_with_noise_functional.default] = \
            lambda x, noise, *a, **k: (rrelu(x, *a, **k), noise)
    found.update(images.table())
    return found
