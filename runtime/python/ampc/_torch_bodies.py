# SPDX-License-Identifier: Apache-2.0
"""Functions in a file of ampc.torch.export, for other runtimes: what nodes of domain
ampc compute, in ONNX's operators; here the element-wise ones.  ampc has rows of its
own for these nodes and does not read the bodies."""
from __future__ import annotations

import math
from typing import Any, Iterable, Mapping

from ._torch_bodies_ctc import CTC
from ._torch_bodies_linear import LINEAR
from ._torch_body import Body, Formula, Value, formula, write


def _right_erfcx(b: Formula, x: Value) -> Value:
    """exp(x^2) erfc(x) for x >= 0, to 1.2e-7: Numerical Recipes, erfcc."""
    t = b.put("Reciprocal", x * 0.5 + 1)
    return t * b.put("Exp", b.polynomial(t, [
        0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806,
        0.09678418, 0.37409196, 1.00002368, -1.26551223]))


def _erfcx(b: Formula) -> Value:
    right = _right_erfcx(b, b.put("Abs", b.x))
    low = b.where(b.x < 0, b.x, 0)
    return b.where(b.x < 0, b.put("Exp", low * low) * 2 - right, right)


def _log_ndtr(b: Formula) -> Value:
    size = b.put("Abs", b.x) * math.sqrt(0.5)
    scaled = _right_erfcx(b, size) * 0.5
    tail = b.put("Log", scaled) - size * size
    part = scaled * b.put("Exp", -(size * size))  # above x > 0
    near = b.put("Log", -part + 1)
    small = -(part * (part * (part * (1 / 3) + 0.5) + 1))
    return b.where(b.x < 0, tail, b.where(part < 1e-2, small, near))


# Cephes, ndtri: numerators and denominators in 1 / z, z = sqrt(-2 log q), below z = 8 and above.
_TAILS = ([4.05544892305962, 31.5251094599894, 57.1628192246421, 44.0805073893201,
           14.6849561928858, 2.1866330685079, -0.140256079171354,
           -0.0350424626827848, -8.57456785154685e-4],
          [1, 15.7799883256467, 45.3907635128879, 41.317203825467, 15.0425385692908,
           2.50464946208309, -0.142182922854788, -0.0380806407691578,
           -9.33259480895457e-4],
          [3.23774891776946, 6.91522889068984, 3.93881025292474, 1.33303460815808,
           0.201485389549179, 0.012371663481782, 3.01581553508235e-4,
           2.65806974686738e-6, 6.23974539184983e-9],
          [1, 6.02427039364742, 3.67983563856161, 1.37702099489081,
           0.216236993594497, 0.0134204006088543, 3.28014464682128e-4,
           2.89247864745381e-6, 6.79019408009981e-9])


def _ndtri(b: Formula) -> Value:
    """In the middle M. Giles, Approximating the erfinv function, at w < 5."""
    p, one = b.x, -b.x + 1
    least = b.put("Min", p, one)
    inside, tail = -least < 0, least < 0.1
    w = -b.put("Log", b.where(tail, 1, p * one * 4))
    middle = b.polynomial(w - 2.5, [
        2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06,
        0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941])
    low = b.where(b.put("And", inside, tail), least, 0.1)
    z = b.put("Sqrt", b.put("Log", low) * -2)
    i = b.put("Reciprocal", z)
    top, below, far_top, far_below = (b.polynomial(i, f) for f in _TAILS)
    far = z - b.put("Log", z) * i - \
        i * b.where(z < 8, top / below, far_top / far_below)
    y = b.where(tail, b.where(p < 0.5, -far, far),
                middle * (p - one) * math.sqrt(2))
    outside = b.put("Log", least)  # -inf at 0 and 1, NaN beyond
    return b.where(inside, y, b.where(p < 0.5, outside, -outside))


def _polygamma(b: Formula) -> Value:
    """Of order n >= 1: Euler and Maclaurin behind a sum of 30; x above -20."""
    n = b.raw("Constant <value_int: int = @n> ()")
    order = b.put("CastLike", n, b.x) + 1
    sum_: Any = b.x ** -order
    for k in range(1, 30):
        sum_ = sum_ + (b.x + k) ** -order
    a = b.x + 30
    last = a ** -order
    term = last * order / a
    sum_ = sum_ + last * a / (order - 1) + last * 0.5 + term * (1 / 12)
    for k, c in ((1, -1 / 720), (3, 1 / 30240)):
        term = term * (order + k) * (order + (k + 1)) / (a * a)
        sum_ = sum_ + term * c
    table = ", ".join(str(float(math.factorial(k)) * (-1) ** (k + 1))
                      for k in range(17))
    factors = b.raw(f"Constant <value = float[17] {{{table}}}> ()")
    factor = b.put("CastLike", b.put("Gather", factors, n), b.x)
    return b.where(b.x < -20, b.put("Log", b.where(b.x < -20, b.x, 1)),
                   sum_ * factor)


def _logcumsumexp(b: Formula) -> Value:
    """A mask [n, n] over the axis and one before it."""
    zero, one = (b.raw(f"Constant <value_int = {k}> ()") for k in (0, 1))
    ones, empty = (b.raw(f"Constant <value_ints = [{k}]> ()") for k in (1, 0))
    axis = b.put("Unsqueeze", b.raw("Constant <value_int: int = @axis> ()"), empty)
    shape = b.raw("Shape (x)")
    n = b.put("Gather", shape, axis)
    i = b.put("Range", zero, b.put("Squeeze", n), one)
    lower = b.put("GreaterOrEqual", b.put("Unsqueeze", i, ones),
                  b.put("Unsqueeze", i, empty))
    behind = b.put("Sub", b.put("Sub", b.put("Size", shape), axis), one)
    fill = b.raw(f"ConstantOfShape <value = int64[1] {{1}}> ({behind.name})")
    mask = b.put("Reshape", lower, b.raw(
        f"Concat <axis = 0> ({n.name}, {n.name}, {fill.name})"))
    nothing = b.put("Log", 0)
    each = b.where(mask, b.put("Unsqueeze", b.x, axis), nothing)
    after = b.put("Add", axis, one)
    top = b.put("ReduceMax", each, after)
    base = b.where(b.put("IsInf", top), 0, top)
    sum_ = b.put("ReduceSum", b.put("Exp", each - base), after)
    return b.put("Squeeze", b.put("Log", sum_) + base, after)


BODIES: Mapping[str, Body] = {
    "Erfcx": formula(_erfcx), "LogNdtr": formula(_log_ndtr), "Ndtri": formula(_ndtri),
    "Polygamma": formula(_polygamma, "<n>"),
    "LogCumSumExp": formula(_logcumsumexp, "<axis>"), **LINEAR, "CtcLoss": CTC}


def texts(nodes: Iterable[str], opset: int) -> dict[str, str]:
    """The functions of these nodes of domain ampc, and what they call."""
    wanted, found = sorted(nodes), dict[str, str]()
    while wanted:
        name = wanted.pop()
        if name in found or name not in BODIES or opset < BODIES[name].opset:
            continue
        found[name] = write(name, BODIES[name], opset)
        wanted += BODIES[name].calls
    return dict(sorted(found.items()))


def add_bodies(model: Any) -> None:
    """Gives an onnx_ir model the functions of the nodes that it has."""
    import onnx.parser
    import onnx_ir
    nodes = {n.op_type for n in model.graph.all_nodes() if n.domain == "ampc"}
    for text in texts(nodes, model.graph.opset_imports[""]).values():
        made = onnx_ir.serde.deserialize_function(onnx.parser.parse_function(text))
        model.functions[made.identifier()] = made
