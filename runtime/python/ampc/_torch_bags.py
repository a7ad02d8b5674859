# SPDX-License-Identifier: Apache-2.0
"""Embeddings in other operators where torch.onnx loses how often a row is read, and
bags of them, where it writes a loop in which sizes depend on data."""
from __future__ import annotations

from typing import Any

import torch

_SUM, _MEAN, _MAX = range(3)  # torch's modes


def _bags(starts: Any, n: int) -> Any:
    """The bag of each of n indices: how many bags start there or before, less one."""
    started = starts.new_zeros(n + 1, dtype=torch.int64).index_add(
        0, starts, torch.ones_like(starts, dtype=torch.int64))
    return started.narrow(0, 0, n).cumsum(0) - 1


def _by_frequency(rows: Any, indices: Any, vocabulary: int) -> Any:
    """The rows, whose gradients are divided by how often the indices have them."""
    counts = rows.new_zeros(vocabulary).index_add(
        0, indices, torch.ones_like(indices, dtype=rows.dtype))
    fixed = rows.detach()
    return fixed + (rows - fixed) / counts[indices].unsqueeze(1)


def embedding(weight: Any, indices: Any, padding_idx: int = -1,
              scale_grad_by_freq: bool = False, sparse: bool = False) -> Any:
    if not scale_grad_by_freq:
        return NotImplemented
    flat = indices.reshape(-1)
    rows = _by_frequency(weight[flat], flat, weight.shape[0])
    if padding_idx >= 0:
        rows = torch.where((flat == padding_idx).unsqueeze(1), rows.detach(), rows)
    return rows.reshape(*indices.shape, weight.shape[1])


def _greatest(kept: Any, rows: Any, bag: Any, empty: Any) -> Any:
    """Of equal numbers the first one has the gradient."""
    n = bag.shape[0]
    least = torch.finfo(kept.dtype).min
    top = torch.full_like(empty, least).index_reduce(0, bag, kept.detach(), "amax")
    place = torch.arange(n, device=bag.device).unsqueeze(1)
    at = torch.where(kept == top[bag], place, n - 1).to(torch.float32)
    first = torch.full_like(empty, n - 1, dtype=torch.float32).index_reduce(
        0, bag, at, "amin")
    return rows.gather(0, first.to(torch.int64))


def embedding_bag(weight: Any, indices: Any, offsets: Any,
                  scale_grad_by_freq: bool = False, mode: int = _SUM,
                  sparse: bool = False, per_sample_weights: Any = None,
                  include_last_offset: bool = False,
                  padding_idx: Any = None) -> Any:
    """weight[v, d], indices[n], offsets[b] -> [b, d], bag of each index, number of
    indices of each bag, and zeros for the places of the greatest."""
    starts = offsets.narrow(0, 0, offsets.shape[0] - 1) if include_last_offset \
        else offsets
    bag = _bags(starts, indices.shape[0])
    rows = weight[indices]
    if scale_grad_by_freq:
        rows = _by_frequency(rows, indices, weight.shape[0])
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    counted = torch.ones_like(bag)
    if padding_idx is not None and padding_idx >= 0:
        counted = (indices != padding_idx).to(torch.int64)
    is_counted = counted.unsqueeze(1) > 0
    size = torch.zeros_like(starts).index_add(0, bag, counted)
    empty = rows.new_zeros(starts.shape[0], weight.shape[1])
    if mode == _MAX:
        y = _greatest(torch.where(is_counted, rows, torch.finfo(rows.dtype).min), rows,
                      bag, empty)
        y = torch.where(size.unsqueeze(1) > 0, y, 0)
    else:
        y = empty.index_add(0, bag, torch.where(is_counted, rows, 0))
    if mode == _MEAN:
        y = y / size.clamp(min=1).unsqueeze(1)
    return y, bag, size, torch.zeros_like(size)


def embedding_bag_padded(weight: Any, indices: Any, offsets: Any,
                         scale_grad_by_freq: bool = False, mode: int = _SUM,
                         sparse: bool = False, per_sample_weights: Any = None,
                         include_last_offset: bool = False,
                         padding_idx: Any = None) -> Any:
    """A negative padding_idx counts from the end; -1 of the other form means none."""
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    return embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse,
                         per_sample_weights, include_last_offset, padding_idx)
