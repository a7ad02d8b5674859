# SPDX-License-Identifier: Apache-2.0
"""torch.autograd.grad in a module's forward: an operator ampc::grad while torch
captures the module.  _torch_differentiated.py replaces it."""
from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator

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
    torch.library.register_vmap("ampc::grad", _each_sample, lib=library)
    _kept.append(library)
    return torch.ops.ampc.grad.default


def _each_sample(info: Any, axes: Any, y: Any, x: Any, dy: Any, again: bool,
                 zeros: bool) -> Any:
    """Under vmap: a sample's y depends on no other sample's x."""
    n, (ys, xs, dys) = info.batch_size, (list(a or [None] * len(of)) for a, of in zip(
        axes, (y, x, dy)))
    if all(k is None for k in ys + xs):
        rows = [operator()(y, x, [v if a is None else v.select(a, k)
                                  for v, a in zip(dy, dys)], again, zeros)
                for k in range(int(n))]
        return [torch.stack(g) for g in zip(*rows)], [0] * len(x)
    if None in xs and any(k is not None for k in ys):
        raise NotImplementedError("gradients of a sample with respect to a tensor of "
                                  "all samples: take torch.func.grad of a function of it")
    y, dy = ([v.expand(n, *v.shape) if a is None else v.movedim(a, 0)
              for v, a in zip(of, at)] for of, at in ((y, ys), (dy, dys)))
    return operator()(y, x, dy, again, zeros), xs


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


def _batched(ys: Any, xs: Any, dys: Any, again: bool, unused: bool | None,
             zeros: bool) -> Any:
    """Gradients of several gradients of ys, one for each row of dys."""
    dys = _list(dys)
    none = _is_none(len(_list(xs))) if unused and not zeros else []
    rows = [called(ys, xs, [dy[k] for dy in dys], None, again, materialize_grads=zeros)
            for k in range(int(dys[0].shape[0]))]
    return tuple(None if k < len(none) and none[k] else torch.stack(g)
                 for k, g in enumerate(zip(*rows)))


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
        return _batched(outputs, inputs, grad_outputs, create_graph, allow_unused,
                        materialize_grads)
    ys, xs = _list(outputs), _list(inputs)
    given = [None] * len(ys) if grad_outputs is None else _list(grad_outputs) \
        if isinstance(grad_outputs, torch.Tensor) else list(grad_outputs)
    for k, (y, dy) in enumerate(zip(ys, given)):
        if dy is None and y.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar "
                               "outputs")
        given[k] = torch.ones_like(y) if dy is None else dy
    none = _is_none(len(xs)) if allow_unused and not materialize_grads else []
    found = operator()(ys, xs, given, create_graph, materialize_grads)
    return tuple(None if k < len(none) and none[k] else g for k, g in enumerate(found))


class Unknown(BaseException):
    """Which gradients of allow_unused=True are None; no `except` of forward's takes it."""


_nones: list[list[bool]] | None = None  # of each such call, in order
_call = 0


def restart() -> None:
    """forward begins."""
    global _call
    _call = 0


def _is_none(n: int) -> list[bool]:
    global _call
    if _nones is None:
        raise Unknown
    _call += 1
    return _nones[_call - 1] if _call <= len(_nones) else [False] * n


class _Recorded(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func is torch.autograd.grad and not _own and _nones is not None and \
                kwargs.get("allow_unused") and not kwargs.get("materialize_grads"):
            _nones.append([g is None for g in found])
        return found


@contextlib.contextmanager
def _func_untouched() -> Iterator[None]:
    """Calls that torch.func makes are its own."""
    from torch._functorch import eager_transforms as torchs
    before = torchs._autograd_grad

    def call(*args: Any, **kwargs: Any) -> Any:
        with untouched():
            return before(*args, **kwargs)

    torchs._autograd_grad = call
    try:
        yield
    finally:
        torchs._autograd_grad = before


@contextlib.contextmanager
def found_out(forward: Callable[[], Any]) -> Iterator[None]:
    """forward runs once to tell which are None."""
    global _nones
    _nones = []
    try:
        with torch.enable_grad(), _func_untouched(), _Recorded():
            forward()
        yield
    finally:
        _nones = None


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
