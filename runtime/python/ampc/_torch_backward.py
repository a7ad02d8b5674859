# SPDX-License-Identifier: Apache-2.0
"""Backward operators of torch, and operators that have none with a gradient of its
own, in others: torch.autograd.grad in forward becomes them (_torch_grad.py)."""
from __future__ import annotations

import functools
import math
from typing import Any, Callable, Sequence

import torch

from . import _torch_functions as functions

# ---- convolution, pooling ---------------------------------------------------


def _of_weight(x: Any, dy: Any, size: Sequence[int], stride: Sequence[int],
               padding: Sequence[int], dilation: Sequence[int], groups: int) -> Any:
    """[out, in, *size]: x and dy with samples in place of channels."""
    n, place = x.shape[0], list(x.shape[2:])
    x = x.reshape(n, groups, -1, *place).permute(
        2, 1, 0, *range(3, x.dim() + 1)).reshape(-1, groups * n, *place)
    dw = torch.ops.aten.convolution(x, dy.transpose(0, 1), None, dilation, padding,
                                    stride, False, [0] * len(place), groups)
    for k, d in enumerate(size):
        dw = dw.narrow(2 + k, 0, d)
    return dw.transpose(0, 1)


def convolution_backward(dy: Any, x: Any, w: Any, bias_sizes: Any, stride: Any,
                         padding: Any, dilation: Any, transposed: bool,
                         output_padding: Any, groups: int, mask: Any) -> Any:
    size = list(w.shape[2:])
    n = len(size)
    stride, padding, dilation = (list(v) * n if len(v) == 1 else list(v)
                                 for v in (stride, padding, dilation))
    dx = dw = db = None
    if mask[0]:
        rest = [0] * n if transposed else [
            x.shape[k + 2] - ((dy.shape[k + 2] - 1) * stride[k] - 2 * padding[k] +
                              dilation[k] * (size[k] - 1) + 1) for k in range(n)]
        dx = torch.ops.aten.convolution(dy, w, None, stride, padding, dilation,
                                        not transposed, rest, groups)
    if mask[1]:
        pair = (dy, x) if transposed else (x, dy)
        dw = _of_weight(*pair, size, stride, padding, dilation, groups)
    if mask[2]:
        db = dy.sum([0, *range(2, n + 2)])
    return dx, dw, db


def _max_pool_backward(n: int) -> Callable[..., Any]:
    """Of n axes; the last argument is where the maxima stand in their planes."""
    def backward(dy: Any, x: Any, *rest: Any) -> Any:
        lead, index = list(x.shape[:-n]), rest[-1]
        flat = torch.zeros_like(x).reshape(*lead, -1).scatter_add(
            -1, index.reshape(*lead, -1), dy.reshape(*lead, -1))
        return flat.reshape(x.shape)
    return backward


def _avg_pool(x: Any, size: Any, stride: Any = (), padding: Any = 0,
              ceil_mode: bool = False, count_include_pad: bool = True,
              divisor_override: Any = None) -> Any:
    """A convolution of each channel."""
    n = len(size)
    padding = list(padding) if isinstance(padding, (list, tuple)) else [padding] * n
    if ceil_mode or (any(padding) and not count_include_pad and
                     divisor_override is None):
        raise NotImplementedError("a pool of windows with different sizes")
    count = divisor_override or math.prod(size)
    c = x.shape[-n - 1]
    w = torch.full([c, 1, *size], 1 / count, dtype=x.dtype)
    one = x.dim() == n + 1
    y = torch.ops.aten.convolution(x.unsqueeze(0) if one else x, w, None,
                                   list(stride or size), padding, [1] * n, False,
                                   [0] * n, c)
    return y.squeeze(0) if one else y


# ---- normalisation, attention -----------------------------------------------

def _normalised(x: Any, axes: Sequence[int], eps: float) -> Any:
    d = x - x.mean(axes, keepdim=True)
    return d * torch.rsqrt((d * d).mean(axes, keepdim=True) + eps)


def _affine(y: Any, weight: Any, bias: Any, shape: Sequence[int]) -> Any:
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def _channels(x: Any) -> list[int]:
    return [-1 if k == 1 else 1 for k in range(x.dim())]


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    y = _normalised(x, list(range(x.dim() - len(shape), x.dim())), eps)
    return [_affine(y, weight, bias, list(shape))]


def _group_norm(x: Any, weight: Any, bias: Any, n: Any, c: Any, rest: Any,
                groups: int, eps: float) -> Any:
    y = _normalised(x.reshape(n, groups, -1), [2], eps).reshape(x.shape)
    return [_affine(y, weight, bias, _channels(x))]


def _of_batch(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    y = _normalised(x, [k for k in range(x.dim()) if k != 1], eps)
    return [_affine(y, weight, bias, _channels(x))]


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool,
                momentum: float, eps: float) -> Any:
    if training:
        return _of_batch(x, weight, bias, eps)
    y = (x - mean.reshape(_channels(x))) * torch.rsqrt(
        var.reshape(_channels(x)) + eps)
    return [_affine(y, weight, bias, _channels(x))]


def _attention(q: Any, k: Any, v: Any, dropout_p: float = 0.0,
               is_causal: bool = False, *, attn_mask: Any = None,
               scale: Any = None) -> Any:
    if dropout_p:
        raise NotImplementedError("attention with dropout")
    s = (q * (scale or 1 / math.sqrt(q.shape[-1]))) @ k.transpose(-1, -2)
    if is_causal:
        n, m = s.shape[-2:]
        s = s.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(1), -math.inf)
    if attn_mask is not None:
        s = s + attn_mask
    return [torch.softmax(s, -1) @ v]


def _attend(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0,
            is_causal: bool = False, *, scale: Any = None,
            enable_gqa: bool = False) -> Any:
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -math.inf)
    return _attention(q, k, v, dropout_p, is_causal, attn_mask=attn_mask,
                      scale=scale)[0]


def _instance_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any,
                   use_input_stats: bool, momentum: float, eps: float,
                   cudnn: bool) -> Any:
    if not use_input_stats:
        return _batch_norm(x, weight, bias, mean, var, False, momentum, eps)[0]
    y = _normalised(x, list(range(2, x.dim())), eps)
    return _affine(y, weight, bias, _channels(x))


@functools.cache
def _plain() -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten
    return {
        aten.layer_norm.default: lambda x, shape, w=None, b=None, eps=1e-5, *_:
            _layer_norm(x, shape, w, b, eps)[0],
        aten.group_norm.default: lambda x, groups, w=None, b=None, eps=1e-5, *_:
            _group_norm(x, w, b, x.shape[0], x.shape[1], None, groups, eps)[0],
        aten.batch_norm.default: lambda x, w, b, mean, var, training, momentum, eps, _:
            _batch_norm(x, w, b, mean, var, training, momentum, eps)[0],
        aten.instance_norm.default: _instance_norm,
        aten.scaled_dot_product_attention.default: _attend,
        aten.copy.default: lambda x, y, *_, **k: y.to(x.dtype).expand_as(x),
        aten.cumprod.default: functions.cumprod,
        aten.matmul.default: torch._decomp.decompositions.matmul,
        aten.lerp.Tensor: lambda x, y, weight: x + weight * (y - x),
        aten.native_layer_norm.default: _layer_norm,
        aten.native_group_norm.default: _group_norm,
        aten.native_batch_norm.default: _batch_norm,
        aten._native_batch_norm_legit.default: _batch_norm,
        aten._native_batch_norm_legit_functional.default: _batch_norm,
        aten._native_batch_norm_legit_no_training.default:
            lambda x, w, b, mean, var, momentum, eps:
            _batch_norm(x, w, b, mean, var, False, momentum, eps),
        aten._native_batch_norm_legit.no_stats:
            lambda x, w, b, training, momentum, eps: _of_batch(x, w, b, eps),
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
        aten.avg_pool1d.default: _avg_pool, aten.avg_pool2d.default: _avg_pool,
        aten.avg_pool3d.default: _avg_pool}


def plain(op: Any) -> Callable[..., Any] | None:
    """An operator as a formula, where torch's backward reads numbers that it saved
    and whose own gradient the file would not have."""
    return _plain().get(op)


@functools.cache
def backward_table() -> dict[Any, Callable[..., Any]]:
    """{backward operator: its formula}"""
    aten = torch.ops.aten
    return {**torch._decomp.core_aten_decompositions(),
            aten.convolution_backward.default: convolution_backward,
            aten.max_pool2d_with_indices_backward.default: _max_pool_backward(2),
            aten.max_pool3d_with_indices_backward.default: _max_pool_backward(3)}
