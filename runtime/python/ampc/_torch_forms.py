# SPDX-License-Identifier: Apache-2.0
"""Operators of torch in others, where torch.onnx has no translation, or one that
fails for scalars and rare arguments.  NotImplemented leaves the operator as it
is."""
from __future__ import annotations

import math
from typing import Any, Sequence

import torch  # type: ignore[import-not-found,unused-ignore]

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


def diff(x: Any, n: int = 1, dim: int = -1, prepend: Any = None,
         append: Any = None) -> Any:
    return NotImplemented if n else x.clone()


# ---- resizing with antialiasing ---------------------------------------------

def _triangle(u: Any) -> Any:
    return (1 - u).clamp(min=0)


def _cubic(u: Any) -> Any:
    near = (1.5 * u - 2.5) * u * u + 1
    far = -0.5 * (((u - 5) * u + 8) * u - 4)
    return torch.where(u < 1, near, torch.where(u < 2, far, 0.0))


def _rows(n: int, out: int, align: bool, factor: Any, kind: Any,
          reach: float) -> Any:
    """[out, n]: the share of each element in each result."""
    if align:
        scale = (n - 1) / (out - 1) if out > 1 else 0.0
    else:
        scale = 1 / factor if factor else n / out
    wide = max(scale, 1.0)
    center = (torch.arange(out, dtype=torch.float64) + 0.5) * scale
    center = center.reshape(out, 1)
    j = torch.arange(n, dtype=torch.float64).reshape(1, n)
    low = torch.floor((center - reach * wide + 0.5).clamp(min=0))
    high = torch.floor(center + reach * wide + 0.5)
    share = kind((j + 0.5 - center).abs() / wide)
    share = torch.where((j >= low) & (j < high), share, 0.0)
    return share / share.sum(1, keepdim=True)


def _resized(kind: Any, reach: float) -> Any:
    """A matrix for each of the two axes."""
    def resize(x: Any, size: Any, align: bool, *factors: Any) -> Any:
        if len(factors) == 1:  # .vec: a list of them
            factors = tuple(factors[0] or ())
        factors = factors or (None, None)
        for k in (0, 1):
            n = x.shape[2 + k]
            if not isinstance(n, int):
                return NotImplemented
            out = size[k] if size else int(n * factors[k])
            m = _rows(n, out, align, factors[k], kind, reach).to(x.dtype)
            x = (x.transpose(2 + k, -1) @ m.transpose(0, 1)).transpose(
                2 + k, -1)
        return x
    return resize


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
    return node("LogCumSumExp", [x], x.shape, axis=dim) if x.dim() else \
        x.clone()


# ---- order, places ----------------------------------------------------------

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


def max_pool_slope(dy: Any, x: Any, kernel_size: Any, stride: Any, padding: Any,
                   dilation: Any, ceil_mode: bool, indices: Any) -> Any:
    flat = torch.zeros_like(x).flatten(-2)
    return flat.scatter_add(-1, indices.flatten(-2),
                            dy.flatten(-2)).reshape(x.shape)


def adaptive_max_pool(x: Any, size: Sequence[int]) -> Any:
    """Axis after axis; values and places in the plane."""
    n = len(size)
    plane = x.shape[-n:]
    at = torch.arange(math.prod(plane)).reshape(plane).expand(x.shape)
    for k, out in enumerate(size):
        axis, length = x.dim() - n + k, plane[k]
        parts, places = [], []
        for i in range(out):
            first = i * length // out
            span = -(-(i + 1) * length // out) - first
            y, place = x.narrow(axis, first, span).max(axis, keepdim=True)
            parts.append(y)
            places.append(at.narrow(axis, first, span).gather(axis, place))
        x, at = torch.cat(parts, axis), torch.cat(places, axis)
    return x, at


def fractional_max_pool(x: Any, kernel: Sequence[int], size: Sequence[int],
                        samples: Any) -> Any:
    """Windows of each plane begin where its random samples say."""
    n = len(size)
    if x.dim() == n + 1:
        return tuple(y.squeeze(0) for y in fractional_max_pool(
            x.unsqueeze(0), kernel, size, samples))
    plane = x.shape[2:]
    at = torch.arange(math.prod(plane)).reshape(plane).expand(x.shape)
    for k, (span, out) in enumerate(zip(kernel, size)):
        axis, length = 2 + k, plane[k]
        u = samples[:, :, n - 1 - k if n == 2 else k].unsqueeze(-1)
        step = (length - span) / max(out - 1, 1)
        i = torch.arange(out)
        first = torch.floor((i + u) * step) - torch.floor(u * step)
        first = torch.where(i == out - 1, float(length - span), first)
        index = first.to(torch.int64).unsqueeze(-1) + torch.arange(span)
        shape = [1] * x.dim()
        shape[axis] = out * span
        index = index.reshape(*x.shape[:2], *shape[2:])
        full = list(x.shape)
        full[axis] = out * span
        index = index.expand(full)
        window = full[:axis] + [out, span] + full[axis + 1:]
        x, place = x.gather(axis, index).reshape(window).max(axis + 1)
        at = at.gather(axis, index).reshape(window).gather(
            axis + 1, place.unsqueeze(axis + 1)).squeeze(axis + 1)
    return x, at


def avg_pool(x: Any, kernel: Sequence[int], stride: Sequence[int] = (),
             padding: Sequence[int] = (0,), ceil_mode: bool = False,
             count_include_pad: bool = True, divisor: Any = None) -> Any:
    """With a divisor of its own."""
    if not divisor:
        return NotImplemented
    kernel, n = list(kernel), len(kernel)
    stride = list(stride) or kernel
    padding = list(padding) * (n if len(padding) == 1 else 1)
    pads = []
    for length, k, s, p in zip(x.shape[-n:], kernel, stride, padding):
        room = length + 2 * p - k
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (count - 1) * s >= length + p:
            count -= 1
        pads.append((p, max((count - 1) * s + k - length - p, -length)))
    flat = [v for pair in reversed(pads) for v in pair]
    pool = torch.nn.functional.avg_pool2d if n == 2 else \
        torch.nn.functional.avg_pool3d
    y = pool(torch.nn.functional.pad(x, flat), kernel, stride)
    return y * (math.prod(kernel) / divisor)


def edge_pad(x: Any, padding: Sequence[int]) -> Any:
    """Pads below 0 cut, which ONNX has no mode for."""
    if min(padding) >= 0:
        return NotImplemented
    for k in range(0, len(padding), 2):
        axis, cut = x.dim() - 1 - k // 2, [max(-p, 0) for p in padding[k:k + 2]]
        x = x.narrow(axis, cut[0], x.shape[axis] - sum(cut))
    rest = [max(p, 0) for p in padding]
    return torch.nn.functional.pad(x, rest, mode="replicate") if any(rest) \
        else x.clone()


def _grid_place(g: Any, size: int, padding: int, align: bool) -> Any:
    x = (g + 1) / 2 * (size - 1) if align else ((g + 1) * size - 1) / 2
    if padding == 2:
        low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(x)
        far = (x - low).abs()
        turns = torch.floor(far / span)
        rest = far - turns * span
        odd = turns - 2 * torch.floor(turns / 2)
        x = torch.where(odd == 0, rest, span - rest) + low
    return x.clamp(0, size - 1) if padding else x


def grid_sample_3d(x: Any, grid: Any, mode: int, padding: int,
                   align: bool) -> Any:
    n, c = x.shape[:2]
    sizes = list(x.shape[2:])
    at = [_grid_place(grid[..., 2 - k], sizes[k], padding, align)
          for k in range(3)]
    flat, out = x.reshape(n, c, -1), 0.0
    low = [torch.round(a) if mode == 1 else torch.floor(a) for a in at]
    for corner in range(1 if mode == 1 else 8):
        weight, index, inside = 1.0, 0, True
        for k in range(3):
            up = corner >> k & 1
            i = low[k] + up
            if mode == 0:
                share = at[k] - low[k]
                weight = weight * (share if up else 1 - share)
            inside = (i >= 0) & (i < sizes[k]) & inside
            index = index * sizes[k] + i.clamp(0, sizes[k] - 1).to(torch.int64)
        y = flat.gather(2, index.reshape(n, 1, -1).expand(n, c, -1))
        y = torch.where(inside.reshape(n, 1, -1), y, torch.zeros_like(y))
        out = out + (y if mode == 1 else y * weight.reshape(n, 1, -1))
    return out.reshape(n, c, *grid.shape[1:4])


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
        aten.column_stack.default: column_stack,
        aten.hstack.default: hstack, aten.vstack.default: vstack,
        aten.dstack.default: dstack,
        aten.diagonal_scatter.default: _scattered(torch.diagonal),
        aten.as_strided_scatter.default: _scattered(torch.as_strided),
        **{getattr(getattr(aten, name), kind): _resized(*how)
           for name, how in (("_upsample_bilinear2d_aa", (_triangle, 1.0)),
                             ("_upsample_bicubic2d_aa", (_cubic, 2.0)))
           for kind in ("default", "vec")},
        aten.t.default: _copied(1), aten.t_copy.default: _copied(1),
        aten.transpose.int: _copied(0), aten.transpose_copy.int: _copied(0),
        aten.diff.default: diff,
        aten.clamp.Tensor: clamp, aten.clamp_min.Tensor: clamp_min,
        aten.clamp_max.Tensor: clamp_max,
        aten.frexp.Tensor: frexp,
        aten.segment_reduce.default: segment_reduce,
        aten.copysign.Tensor: copysign, aten.copysign.Scalar: copysign,
        aten.fmax.default: fmax, aten.fmin.default: fmin,
        aten.nansum.default: nansum, aten.polygamma.default: polygamma,
        aten.special_polygamma.default: polygamma,
        aten.mvlgamma.default: mvlgamma,
        aten.logcumsumexp.default: logcumsumexp,
        aten.nanmedian.dim: nanmedian_dim, aten.nanmedian.default: nanmedian,
        aten.index_add.default: index_add,
        aten.index_reduce.default: index_reduce,
        aten.scatter_reduce.two: scatter_reduce,
        aten.max_pool2d_with_indices_backward.default: max_pool_slope,
        aten.adaptive_max_pool2d.default: adaptive_max_pool,
        aten.adaptive_max_pool3d.default: adaptive_max_pool,
        aten.fractional_max_pool2d.default: fractional_max_pool,
        aten.fractional_max_pool3d.default: fractional_max_pool,
        aten.avg_pool2d.default: avg_pool, aten.avg_pool3d.default: avg_pool,
        aten.replication_pad1d.default: edge_pad,
        aten.replication_pad2d.default: edge_pad,
        aten.replication_pad3d.default: edge_pad,
        aten.grid_sampler_3d.default: grid_sample_3d})
    return found
