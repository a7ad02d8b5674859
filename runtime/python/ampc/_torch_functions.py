# SPDX-License-Identifier: Apache-2.0
"""What ampc.torch.export writes in other operators: autograd Functions, and
operators of torch that torch.onnx has no translation for."""
from __future__ import annotations

import contextlib
import math
import traceback
from typing import Any, Callable, Iterator, Sequence

import torch
import torch.utils._pytree as pytree

from . import _torch_forms as forms
from . import _torch_func as func
from . import _torch_grad as grad
from . import _torch_linear as linear
from . import _torch_undone as undone

# ---- autograd Functions -----------------------------------------------------
#
# torch.export follows the forward of a Function and forgets its backward B.  B
# is linear in the gradient dy, so B's own transpose, which autograd finds, maps
# x to what y has to be for B to be the gradient:
#     y = stop(f(x)) + B'(x - stop(x))
# The second part is 0.


class _Context:
    """What a Function's forward and backward call ctx."""

    def __init__(self, needs: Sequence[bool]) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad = tuple(needs)
        self.dirty = False

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *_: Any) -> None:
        self.dirty = True

    def mark_non_differentiable(self, *_: Any) -> None:
        pass

    def set_materialize_grads(self, _: bool) -> None:
        pass


def _differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _reads_context(cls: Any) -> bool:
    """Whether forward gets ctx, which a class with setup_context does not."""
    return bool(cls.setup_context is torch.autograd.Function.setup_context)


# The forwards of classes while _kept() has others in their places.
_forwards: dict[Any, Callable[..., Any]] = {}


class _Call:
    """A use of a Function: its outputs, and its backward as a function."""

    def __init__(self, cls: Any, args: Sequence[Any]) -> None:
        self.inputs = args
        self.ctx = _Context([_differentiable(a) for a in args])
        stopped = [a.detach() if isinstance(a, torch.Tensor) else a
                   for a in args]
        forward = _forwards.get(cls, cls.forward)
        if _reads_context(cls):
            out = forward(self.ctx, *stopped)
        else:
            out = forward(*stopped)
            cls.setup_context(self.ctx, tuple(stopped), out)
        self.single = not isinstance(out, tuple)
        self.out = (out,) if self.single else out
        self._cls = cls

    def backward(self, dys: Sequence[Any]) -> list[tuple[Any, Any]]:
        """(input, its gradient) where there is one; gradients of outputs that
        are integers are None."""
        grads = self._cls.backward(self.ctx, *dys)
        grads = grads if isinstance(grads, tuple) else (grads,)
        return [(x, g) for x, g in zip(self.inputs, grads)
                if g is not None and _differentiable(x)]

    def outputs(self) -> Any:
        """Forward's results, with that gradient."""
        made = [y.detach() if isinstance(y, torch.Tensor) else y
                for y in self.out]
        at = [k for k, y in enumerate(made) if _differentiable(y)]
        dys: list[Any] = [None] * len(made)
        with torch.enable_grad():
            for k in at:
                dys[k] = torch.zeros_like(made[k]).requires_grad_(True)
            pairs = [(x, g) for x, g in self.backward(dys) if g.requires_grad]
            if pairs:
                with grad.untouched():
                    parts = torch.autograd.grad(
                        [g for _, g in pairs], [dys[k] for k in at],
                        [(x - x.detach()).reshape(g.shape) for x, g in pairs],
                        allow_unused=True)
                for k, part in zip(at, parts):
                    if part is not None:
                        made[k] = made[k] + part
        return made[0] if self.single else tuple(made)


def _of_torch(cls: Any) -> bool:
    return str(cls.__module__).split(".")[0] == "torch"


def _users() -> Iterator[Any]:
    """The classes of Functions that are not torch's own."""
    todo: list[Any] = [torch.autograd.Function]
    while todo:
        cls = todo.pop()
        todo.extend(cls.__subclasses__())
        if not _of_torch(cls):
            yield cls


def _set_unseen(enabled: bool) -> None:
    """Sets grad mode, which torch's apply turns off around forward; torch.export,
    which would write that into the program, does not see it."""
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(enabled)


@contextlib.contextmanager
def _kept(apply: Callable[..., Any]) -> Iterator[None]:
    """An `apply` that was kept before, as in spike = Spike.apply, is torch's, which
    calls the class's forward: that is `apply`, too."""
    def forward_of(cls: Any) -> Any:
        def forward(*args: Any) -> Any:
            before = torch.is_grad_enabled()
            _set_unseen(True)
            try:
                return apply(cls, *args[1 if _reads_context(cls) else 0:])
            finally:
                _set_unseen(before)
        return staticmethod(forward)

    users = list(dict.fromkeys(_users()))
    own = {cls: cls.__dict__.get("forward") for cls in users}
    _forwards.update((cls, cls.forward) for cls in users)
    for cls in users:
        cls.forward = forward_of(cls)
    try:
        yield
    finally:
        for cls in users:
            if own[cls] is None:
                del cls.forward
            else:
                cls.forward = own[cls]
        _forwards.clear()


@contextlib.contextmanager
def _patched(apply: Callable[..., Any]) -> Iterator[None]:
    """Function.apply is `apply` for classes that are not torch's own."""
    base: Any = torch.autograd.Function
    own = next(c.__dict__["apply"] for c in base.__mro__
               if "apply" in c.__dict__)
    before = base.__dict__.get("apply")

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if _of_torch(cls):
            return own.__get__(None, cls)(*args, **kwargs)
        return apply(cls, *args)

    base.apply = classmethod(call)
    try:
        with _kept(apply):
            yield
    finally:
        if before is None:
            del base.apply
        else:
            base.apply = before


def trace() -> str:
    return "".join(traceback.format_stack()[:-2])


@contextlib.contextmanager
def traced(calls: list[Any]) -> Iterator[None]:
    """Functions of the user's are exported with their backward, and listed."""
    def apply(cls: Any, *args: Any) -> Any:
        calls.append(cls)
        return _Call(cls, args).outputs()

    with _patched(apply):
        yield


def _linear(call: _Call) -> bool:
    """Whether backward is linear in the gradient, tried with random ones."""
    def random() -> list[Any]:
        return [torch.randn_like(y) if _differentiable(y) else None
                for y in call.out]
    a, b = random(), random()
    both = [None if x is None else 3 * x - 2 * y for x, y in zip(a, b)]
    with grad.untouched():
        ga, gb, gc = (call.backward(d) for d in (a, b, both))
    return all(torch.allclose(z, 3 * x - 2 * y, rtol=1e-3, atol=1e-4,
                              equal_nan=True)
               for (_, x), (_, y), (_, z) in zip(ga, gb, gc))


def _numbers(x: Any) -> list[Any]:
    return [v for v in pytree.tree_leaves(x) if isinstance(v, torch.Tensor) and
            (v.is_floating_point() or v.is_complex())]


def _defect(name: str, call: Any, again: bool) -> str | None:
    if call.ctx.dirty:
        return f"{name} changes its input"
    if any(v.is_complex() for v in _numbers([call.inputs, call.out])):
        return (f"{name} takes or gives complex numbers, whose gradient the file "
                "would not have")
    if again and _numbers([call.ctx.saved_tensors, vars(call.ctx)]):
        return (f"the backward of {name} reads what its forward saved; torch.autograd."
                "grad(create_graph=True) takes the gradient of that, which the file "
                "would not have: write it without a Function")
    if not _linear(call):
        return f"the backward of {name} is not linear in the gradient that it is given"
    return None


def defects(calls: list[Any], module: Any, args: Any, kwargs: Any,
            line: Callable[[str], str], again: bool) -> list[str]:
    """Functions whose backward the file would not have, or, if `again`, its own
    gradient; the module runs once for it."""
    found: list[str] = []
    if not calls:
        return found

    def apply(cls: Any, *values: Any) -> Any:
        call = _Call(cls, values)
        what = _defect(cls.__name__, call, again)
        found.extend([f"{line(trace())}: {what}"] if what else [])
        return call.out[0] if call.single else call.out

    with torch.no_grad(), grad.Skipped(), func.followed(), _patched(apply):
        undone.run(module, args, kwargs)
    return found


# ---- operators --------------------------------------------------------------

def _lgamma_right(x: Any) -> Any:
    """For x > 0: Stirling's series behind a step of 7."""
    near = x < 8
    low = torch.where(near, x, 1.0)
    product = low
    for k in range(1, 7):
        product = product * (low + k)
    z = torch.where(near, x + 7, x)
    i = 1 / z
    q = i * i
    series = i * (1 / 12 - q * (1 / 360 - q * (1 / 1260 - q / 1680)))
    y = (z - 0.5) * torch.log(z) - z + 0.5 * math.log(2 * math.pi) + series
    return y - torch.where(near, torch.log(product), 0.0)


def _digamma_right(x: Any) -> Any:
    near = x < 8
    low = torch.where(near, x, 1.0)
    steps = sum(1 / (low + k) for k in range(7))
    z = torch.where(near, x + 7, x)
    i = 1 / z
    q = i * i
    y = torch.log(z) - 0.5 * i - q * (1 / 12 - q * (1 / 120 - q * (
        1 / 252 - q / 240)))
    return y - torch.where(near, steps, 0.0)


def lgamma(x: Any) -> Any:
    left = x < 0.5
    y = _lgamma_right(torch.where(left, -x + 1, x))
    turn = torch.where(left, x - torch.round(x), 0.5)
    sine = torch.abs(torch.sin(math.pi * turn))
    return torch.where(left, math.log(math.pi) - torch.log(sine) - y, y)


def digamma(x: Any) -> Any:
    left = x < 0.5
    y = _digamma_right(torch.where(left, -x + 1, x))
    turn = torch.where(left, x - torch.round(x), 0.25)
    return torch.where(left, y - math.pi / torch.tan(math.pi * turn), y)


def erfinv(x: Any) -> Any:
    """M. Giles, Approximating the erfinv function: rational in log(1 - x^2)."""
    w = -torch.log((-x + 1) * (x + 1))
    middle = [2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06,
              0.00021858087, -0.00125372503, -0.00417768164, 0.246640727,
              1.50140941]
    tail = [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844,
            0.00573950773, -0.0076224613, 0.00943887047, 1.00167406,
            2.83297682]
    inner = w < 5
    a, b = torch.where(inner, w - 2.5, 0.0), torch.sqrt(
        torch.where(inner, 5.0, w)) - 3
    p, q = torch.full_like(x, middle[0]), torch.full_like(x, tail[0])
    for m, t in zip(middle[1:], tail[1:]):
        p, q = p * a + m, q * b + t
    y = torch.where(inner, p, q) * x
    return torch.where(torch.abs(x) == 1, x * math.inf, y)


def cumprod(x: Any, dim: int, *, dtype: Any = None) -> Any:
    y = x if dtype is None else x.to(dtype)
    n, reach = y.shape[dim] if y.dim() else 1, 1
    while reach < n:
        ones = torch.ones_like(y.narrow(dim, 0, reach))
        y = y * torch.cat([ones, y.narrow(dim, 0, n - reach)], dim)
        reach *= 2
    return y


def _bessel(x: Any, order: int) -> Any:
    """I(|x|) exp(-|x|) / x^order of order 0 or 1: the power series below 12, the
    asymptotic one above."""
    size = x.abs()
    near = size < 12
    low, high = torch.where(near, size, 1.0), torch.where(near, 12.0, size)
    square = low * low * 0.25
    sum_ = term = torch.full_like(square, 0.5 ** order)
    for k in range(1, 34):
        term = term * square * (1 / (k * (k + order)))
        sum_ = sum_ + term
    far = part = torch.ones_like(high)
    for k in range(1, 10):
        part = part * (((2 * k - 1) ** 2 - 4 * order) / (8 * k)) / high
        far = far + part
    far = far / torch.sqrt(2 * math.pi * high)
    far = far / high if order else far
    return torch.where(near, sum_ * torch.exp(-low), far)


def i0e(x: Any) -> Any:
    return _bessel(x, 0)


def i0(x: Any) -> Any:
    return _bessel(x, 0) * torch.exp(x.abs())


def i1e(x: Any) -> Any:
    return _bessel(x, 1) * x


def i1(x: Any) -> Any:
    return _bessel(x, 1) * x * torch.exp(x.abs())


def hypot(x: Any, y: Any) -> Any:
    return torch.sqrt(x * x + y * y)


def _running(x: Any, dim: int, greatest: bool) -> Any:
    """The greatest or least so far, of equals the last, and where it stands."""
    if x.dim() == 0:
        return x, torch.zeros((), dtype=torch.int64)
    best, n, reach = x.detach(), x.shape[dim], 1
    shape = [n if k == dim % x.dim() else 1 for k in range(x.dim())]
    at = torch.arange(n).reshape(shape).expand(x.shape)
    while reach < n:
        old, new = best.narrow(dim, 0, n - reach), best.narrow(dim, reach,
                                                               n - reach)
        newer = new >= old if greatest else new <= old
        place = torch.where(newer, at.narrow(dim, reach, n - reach),
                            at.narrow(dim, 0, n - reach))
        best = torch.cat([best.narrow(dim, 0, reach),
                          torch.where(newer, new, old)], dim)
        at = torch.cat([at.narrow(dim, 0, reach), place], dim)
        reach *= 2
    return x.gather(dim, at), at


def cummax(x: Any, dim: int) -> Any:
    return _running(x, dim, True)


def cummin(x: Any, dim: int) -> Any:
    return _running(x, dim, False)


def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    values, index = torch.topk(x, k, dim, largest=False)
    values, index = (t.narrow(dim, k - 1, 1) for t in (values, index))
    return (values, index) if keepdim else (values.squeeze(dim),
                                            index.squeeze(dim))


def median_dim(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    return kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)


def median(x: Any) -> Any:
    return median_dim(x.reshape(-1), 0)[0]


def _distance(d: Any, p: float) -> Any:
    if p == 0:
        return (d != 0).to(d.dtype).sum(-1)
    if p == 2:
        return torch.linalg.vector_norm(d, 2, -1)
    if p == math.inf:
        return d.abs().amax(-1)
    return d.abs().sum(-1) if p == 1 else torch.linalg.vector_norm(d, p, -1)


def cdist(a: Any, b: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    return _distance(a.unsqueeze(-2) - b.unsqueeze(-3), p)


def pdist(x: Any, p: float = 2.0) -> Any:
    n = x.shape[0]
    at, k = torch.arange(n * (n - 1) // 2), torch.arange(1, n)

    def half(v: Any) -> Any:
        return torch.div(v * (v + 1), 2, rounding_mode="floor")

    i = (at.unsqueeze(1) >= k * n - half(k)).to(torch.int64).sum(1)
    j = at - (i * n - half(i)) + i + 1
    return _distance(x.index_select(0, i) - x.index_select(0, j), p)


def renorm(x: Any, p: float, dim: int, maxnorm: float) -> Any:
    over = [k for k in range(x.dim()) if k != dim % x.dim()]
    norm = torch.linalg.vector_norm(x, p, over, keepdim=True)
    return x * torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)


def table() -> dict[Any, Callable[..., Any]]:
    """{operator of torch: its formula}"""
    aten = torch.ops.aten
    return {aten.lgamma.default: lgamma, aten.digamma.default: digamma,
            aten.erfinv.default: erfinv, aten.cumprod.default: cumprod,
            aten.kthvalue.default: kthvalue, aten.median.dim: median_dim,
            aten.median.default: median, aten.cdist.default: cdist,
            aten._cdist_forward.default: cdist, aten.pdist.default: pdist,
            aten.renorm.default: renorm,
            aten.i0.default: i0, aten.special_i0e.default: i0e,
            aten.special_i1.default: i1, aten.special_i1e.default: i1e,
            aten.cummax.default: cummax, aten.cummin.default: cummin,
            aten.hypot.default: hypot, **linear.table(),
            **forms.table()}
