# SPDX-License-Identifier: Apache-2.0
"""torch.func.grad, vjp, jvp and what torch makes of them, while it captures a module:
their tensors are copies, of which ampc::grad takes gradients (_torch_grad.py)."""
from __future__ import annotations

import contextlib
from typing import Any, Iterator, Sequence

import torch
import torch.utils._pytree as pytree

from . import _torch_grad as grad
from . import _torch_undone as undone


def _split(x: Any) -> bool:
    """Whether vmap, if it is the innermost of torch.func's, has split x."""
    functorch = torch._C._functorch
    top = functorch.peek_interpreter_stack()
    return top is None or top.key() != functorch.TransformType.Vmap or (
        functorch.is_batchedtensor(x) and functorch.maybe_get_level(x) == top.level())


def _for_each(x: Any) -> Any:
    """A tensor that vmap has not split, as one for each sample: gradients are those
    of a sample, not their sum."""
    if _split(x):
        return x
    functorch = torch._C._functorch
    top = functorch.peek_interpreter_stack()
    size = functorch.CVmapInterpreterPtr(top).batchSize()
    from torch._functorch.predispatch import _add_batch_dim as split
    return split(x.expand(size, *x.shape), 0, top.level())


def _copies(tree: Any, _: Any = None, each: bool = True) -> Any:
    """Only what reads the copies depends on them."""
    return pytree.tree_map(
        lambda x: (_for_each(x) if each else x).clone()
        if isinstance(x, torch.Tensor) and x.is_floating_point() else x, tree)


def _gradients(ys: Sequence[Any], xs: Sequence[Any], dys: Any = None,
               retain_graph: Any = None, create_graph: bool = True) -> Any:
    """In place of torch's _autograd_grad."""
    dys = [torch.ones_like(y) for y in ys] if dys is None else list(dys)
    return tuple(grad.operator()(list(ys), list(xs), dys, create_graph, True))


def _jvp(func: Any, primals: Any, tangents: Any, argnums: Any, *, strict: bool = False,
         has_aux: bool = False) -> Any:
    """The gradient with respect to u of a gradient that is linear in u."""
    from torch._functorch import eager_transforms as torchs
    with _at_level_0(), torch.enable_grad():
        for each in False, True:
            copies = _copies(primals, None, each)
            out = func(*copies)
            out, *aux = out if has_aux else (out,)
            ys, spec = pytree.tree_flatten(out)
            xs = pytree.tree_leaves(copies if argnums is None else
                                    torchs._slice_argnums(copies, argnums))
            if all(map(_split, xs)) or not any(map(_split, ys)):
                break
        us = [torch.zeros_like(y) for y in ys]
        found = _gradients(ys, xs, us)
        done = _gradients(found, us, pytree.tree_leaves(tangents))
        return _results((out, pytree.tree_unflatten(list(done), spec), *aux))


_graph: list[bool] = []  # whether gradients pass through the results of the calls


@contextlib.contextmanager
def _at_level_0() -> Iterator[int]:
    _graph.append(torch.is_grad_enabled())
    try:
        yield 0
    finally:
        _graph.pop()


def _results(tree: Any, *_: Any, **__: Any) -> Any:
    return tree if _graph[-1] else pytree.tree_map(
        lambda x: x.detach() if isinstance(x, torch.Tensor) else x, tree)


def _same(tree: Any, *_: Any, **__: Any) -> Any:
    return tree


def _basis(tensors: Sequence[Any], numels: Sequence[int],
           chunk_size: int | None = None) -> Iterator[Any]:
    """In place of torch's, which writes ones into zeros."""
    every = torch.eye(sum(numels))
    for rows in every.split(chunk_size or len(every)):
        yield tuple(c.to(t.dtype).reshape(len(rows), *t.shape)
                    for c, t in zip(rows.split(list(numels), 1), tensors))


_OURS = {
    "grad_increment_nesting": _at_level_0, "_wrap_all_tensors": _copies,
    "_create_differentiable": _same, "_undo_create_differentiable": _results,
    "_autograd_grad": _gradients, "_chunked_standard_basis_for_": _basis,
    "_jvp_with_argnums": _jvp}


@contextlib.contextmanager
def followed() -> Iterator[None]:
    """torch.func takes gradients by ampc::grad, of whose results only the shapes are
    right: a run that reads their numbers needs torch's own."""
    from torch._functorch import eager_transforms as torchs
    with undone.replaced(*((torchs, name, value) for name, value in _OURS.items())):
        yield
