# SPDX-License-Identifier: Apache-2.0
"""Pools, pads, grids and resizing of images in other operators of torch.
NotImplemented leaves the operator as it is."""
from __future__ import annotations

import math
from typing import Any, Sequence

import torch

# ---- pools and pads ---------------------------------------------------------


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


def adaptive_avg_pool(x: Any, size: Sequence[int]) -> Any:
    """Axis after axis."""
    for k, out in enumerate(size):
        axis = x.dim() - len(size) + k
        length = x.shape[axis]
        spans = [(i * length // out, -(-(i + 1) * length // out))
                 for i in range(out)]
        x = torch.cat([x.narrow(axis, a, b - a).mean(axis, keepdim=True)
                       for a, b in spans], axis)
    return x


def max_unpool(x: Any, indices: Any, size: Sequence[int], *_: Any) -> Any:
    """Of places that are there twice the last one counts; each has the gradient."""
    lead = x.shape[:x.dim() - len(size)]
    flat = [*lead, -1]
    zeros = x.new_zeros([*lead, math.prod(size)])
    own, at = x.reshape(flat), indices.reshape(flat)
    y = zeros.scatter(-1, at, own.detach())
    y = y + zeros.scatter_add(-1, at, own - own.detach())
    return y.reshape([*lead, *size])


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
        axis, (first, last) = x.dim() - 1 - k // 2, padding[k:k + 2]
        n = x.shape[axis]
        at = torch.arange(n + first + last).clamp(first, n + first - 1) - first
        x = x.index_select(axis, at)
    return x


def pad(x: Any, padding: Sequence[int], mode: str = "constant",
        value: Any = None) -> Any:
    return edge_pad(x, padding) if mode == "replicate" else NotImplemented


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
    flat: Any = x.reshape(n, c, -1)
    out: Any = 0.0
    low = [torch.round(a) if mode == 1 else torch.floor(a) for a in at]
    for corner in range(1 if mode == 1 else 8):
        weight: Any = 1.0
        index: Any = 0
        inside: Any = True
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


def table() -> dict[Any, Any]:
    """{operator of torch: its formula}"""
    aten = torch.ops.aten
    return {
        **{getattr(getattr(aten, name), kind): _resized(*how)
           for name, how in (("_upsample_bilinear2d_aa", (_triangle, 1.0)),
                             ("_upsample_bicubic2d_aa", (_cubic, 2.0)))
           for kind in ("default", "vec")},
        aten.max_pool2d_with_indices_backward.default: max_pool_slope,
        aten.adaptive_max_pool2d.default: adaptive_max_pool,
        aten.adaptive_max_pool3d.default: adaptive_max_pool,
        aten.fractional_max_pool2d.default: fractional_max_pool,
        aten.fractional_max_pool3d.default: fractional_max_pool,
        aten.avg_pool2d.default: avg_pool, aten.avg_pool3d.default: avg_pool,
        aten.replication_pad1d.default: edge_pad,
        aten.replication_pad2d.default: edge_pad,
        aten.replication_pad3d.default: edge_pad,
        aten.grid_sampler_3d.default: grid_sample_3d,
        aten._adaptive_avg_pool3d.default: adaptive_avg_pool,
        aten.adaptive_avg_pool3d.default: adaptive_avg_pool,
        aten.max_unpool2d.default: max_unpool,
        aten.max_unpool3d.default: max_unpool,
        aten.pad.default: pad}
