# SPDX-License-Identifier: Apache-2.0
"""torch.autograd.grad in a module's forward: an operator ampc::grad while torch
captures the module.  _torch_differentiated.py replaces it."""
from __future__ import annotations

import contextlib
import functools
from typing import Any, Iterator

import torch


@functools.cache
def operator() -> Any:
    """ampc::grad(y, x, dy, again, zeros): gradients of the x; again: with a gradient of
    their own; zeros: of an x on which no y depends."""
    library = torch.library.Library("ampc", "FRAGMENT")
    library.define("grad(Tensor[] y, Tensor[] x, Tensor[] dy, bool again, bool zeros) "
                   "-> Tensor[]")
    library.impl("grad", lambda y, x, dy, again, zeros: [torch.empty_like(v) for v in x],
                 "CompositeExplicitAutograd")
    _kept.append(library)
    return torch.ops.ampc.grad.default


_kept: list[Any] = []  # a library ends with its object

_own = 0  # depth of calls that are torch's own


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """torch.autograd.grad is torch's."""
    global _own
    _own += 1
    try:
        yield
    finally:
        _own -= 1


def _list(x: Any) -> list[Any]:
    return [x] if isinstance(x, torch.Tensor) else list(x)


def called(outputs: Any, inputs: Any, grad_outputs: Any = None,
           retain_graph: bool | None = None, create_graph: bool = False,
           only_inputs: bool = True, allow_unused: bool | None = None,
           is_grads_batched: bool = False, materialize_grads: bool = False) -> Any:
    """In place of torch.autograd.grad."""
    if _own:
        return torch.autograd.grad(
            outputs, inputs, grad_outputs, retain_graph, create_graph, only_inputs,
            allow_unused, is_grads_batched, materialize_grads)
    if is_grads_batched:
        raise NotImplementedError("torch.autograd.grad(is_grads_batched=True) is "
                                  "not exported: call it once for each gradient")
    ys, xs = _list(outputs), _list(inputs)
    given = [None] * len(ys) if grad_outputs is None else _list(grad_outputs) \
        if isinstance(grad_outputs, torch.Tensor) else list(grad_outputs)
    for k, (y, dy) in enumerate(zip(ys, given)):
        if dy is None and y.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar "
                               "outputs")
        given[k] = torch.ones_like(y) if dy is None else dy
    return tuple(operator()(ys, xs, given, create_graph, materialize_grads))


def again(program: Any) -> bool:
    """Whether it has a call with a gradient of its own."""
    return any(n.target is operator() and n.args[3] for m in program.modules()
               if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes)


class Skipped(torch.overrides.TorchFunctionMode):
    """Gradients are zeros: for a run of a module that only looks at its calls."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.autograd.grad or _own:
            return func(*args, **kwargs)
        xs = kwargs["inputs"] if "inputs" in kwargs else args[1]
        return tuple(torch.zeros_like(x) for x in _list(xs))
