# SPDX-License-Identifier: Apache-2.0
"""Functions in a file of ampc.torch.export, for other runtimes: linear algebra of
small matrices, as ir/fn/linalg.amp computes it, in ONNX's operators.  A Loop takes a
step for each column; batches and sizes are free."""
from __future__ import annotations

import re
from typing import Mapping, NamedTuple


class Body(NamedTuple):
    """Lines of ONNX's text.  An operand may be a number: 1 is an integer, [1] a list,
    1.0 has the type of the first input.  calls: other functions of domain ampc."""
    inputs: str
    outputs: str
    lines: str
    attributes: str = ""
    calls: tuple[str, ...] = ()


_OPERANDS = re.compile(r"\([^()]*\)")
_NUMBER = re.compile(r"(?<=[(,]) ?(\[?-?\d[\d.e-]*\]?)(?=[,)])")


def text(name: str, body: Body, opset: int) -> str:
    """The function in ONNX's text: a Constant for each number."""
    names: dict[str, str] = {}
    like = body.inputs.split(",")[0]

    def named(found: re.Match[str]) -> str:
        return " " + names.setdefault(found[1], f"number_{len(names)}")

    lines = _OPERANDS.sub(lambda found: _NUMBER.sub(named, found[0]),
                          body.lines.strip())
    constants = []
    for number, own in names.items():
        if "." in number:
            constants += [f"{own}_f = Constant <value_float = {number}> ()",
                          f"{own} = CastLike ({own}_f, {like})"]
        else:
            kind = "ints" if number[0] == "[" else "int"
            constants += [f"{own} = Constant <value_{kind} = {number}> ()"]
    start = "\n".join(constants)
    return (f'<domain: "ampc", opset_import: ["" : {opset}, "ampc" : 1]>\n'
            f"{name} {body.attributes} ({body.inputs}) => ({body.outputs}) "
            f"{{\n{start}\n{lines}\n}}")


# n, the size of the last axis, and the numbers below it as a column and as a row.
_SIZE = """
last = Shape <start = -1> (a)
n = Squeeze (last)
range = Range (0, n, 1)
rows = Unsqueeze (range, [1])
row = Unsqueeze (range, [0])
always = Constant <value = bool {1}> ()
"""

_EYE = """
diagonal = Equal (rows, row)
eye = CastLike (diagonal, a)
"""

# a as one batch [b, m, n], and behind it the shape of the batch.
_FLAT = """
shape = Shape (given)
outer = Shape <end = -2> (given)
inner = Shape <start = -2> (given)
flat = Concat <axis = 0> ([-1], inner)
a = Reshape (given, flat)
"""

# ---- solves -----------------------------------------------------------------

# Gauss and Jordan with row pivots.
_SOLVE = Body("a, b", "y", _SIZE + """
both = Concat <axis = -1> (a, b)
done = Loop (n, always, both) <body = step (int64 k, bool go, ab) => (bool on, next) {
  on = Identity (go)
  at = Unsqueeze (k, [0])
  column = Gather <axis = -1> (ab, at)
  sizes = Abs (column)
  open = GreaterOrEqual (rows, k)
  found = Where (open, sizes, -1.0)
  best = ArgMax <axis = -2, keepdims = 1> (found)
  chosen = Equal (rows, best)
  here = Equal (rows, k)
  parts = Where (chosen, ab, 0.0)
  pivots = ReduceSum (parts, [-2])
  own = Gather <axis = -2> (ab, at)
  put = Where (chosen, own, ab)
  moved = Where (here, pivots, put)
  pivot = Gather <axis = -1> (pivots, at)
  unit = Div (pivots, pivot)
  factors = Gather <axis = -1> (moved, at)
  less = Mul (factors, unit)
  rest = Sub (moved, less)
  next = Where (here, unit, rest)
}>
end = Shape <start = -1> (done)
y = Slice (done, last, end, [-1])
""")

_INVERSE = Body("a", "y", _SIZE + _EYE + """
shape = Shape (a)
ones = Expand (eye, shape)
y = ampc.Solve (a, ones)
""", calls=("Solve",))

_SOLVE_TRIANGULAR = Body("a, b", "y", _SIZE + _EYE + """
upper = Constant <value_int: int = @upper> ()
unit = Constant <value_int: int = @unit> ()
is_upper = Cast <to = 9> (upper)
is_unit = Cast <to = 9> (unit)
up = Sub (row, rows)
down = Sub (rows, row)
distance = Where (is_upper, up, down)
side = GreaterOrEqual (distance, 0)
part = Where (side, a, 0.0)
units = And (is_unit, diagonal)
whole = Where (units, 1.0, part)
y = ampc.Solve (whole, b)
""", "<upper, unit>", ("Solve",))

# ---- decompositions ---------------------------------------------------------

_CHOLESKY = Body("given", "y", _FLAT + _SIZE + """
below = Trilu <upper = 0> (a, -1)
above = Transpose <perm = [0, 2, 1]> (below)
low = Trilu <upper = 0> (a)
whole = Add (low, above)
none = Mul (whole, 0.0)
left, done = Loop (n, always, whole, none) <body = step (int64 k, bool go, rest, y0) => (bool on, next, y1) {
  on = Identity (go)
  at = Unsqueeze (k, [0])
  column = Gather <axis = -1> (rest, at)
  pivot = Gather <axis = -2> (column, at)
  root = Sqrt (pivot)
  scaled = Div (column, root)
  open = GreaterOrEqual (rows, k)
  new = Where (open, scaled, 0.0)
  turned = Transpose <perm = [0, 2, 1]> (new)
  less = Mul (new, turned)
  next = Sub (rest, less)
  here = Equal (row, k)
  y1 = Where (here, new, y0)
}>
y = Reshape (done, shape)
""")

_LU = Body("given", "y, pivots, p", _FLAT + """
m = Gather (inner, 0)
n = Gather (inner, 1)
least = Min (m, n)
range = Range (0, m, 1)
rows = Unsqueeze (range, [1])
row = Unsqueeze (range, [0])
columns = Range (0, n, 1)
diagonal = Equal (rows, row)
eye = CastLike (diagonal, a)
batch = Shape <end = 1> (a)
tall = Shape <start = 1, end = 2> (a)
sides = Concat <axis = 0> (batch, tall, tall)
ones = Expand (eye, sides)
always = Constant <value = bool {1}> ()
y0, p0, at0 = Loop (least, always, a, ones) <body = step (int64 k, bool go, y1, p1) => (bool on, y2, p2, at2) {
  on = Identity (go)
  at = Unsqueeze (k, [0])
  column = Gather <axis = -1> (y1, at)
  sizes = Abs (column)
  open = GreaterOrEqual (rows, k)
  found = Where (open, sizes, -1.0)
  best = ArgMax <axis = -2, keepdims = 1> (found)
  counted = Add (best, 1)
  at2 = Reshape (counted, [-1])
  chosen = Equal (rows, best)
  here = Equal (rows, k)
  y_parts = Where (chosen, y1, 0.0)
  y_best = ReduceSum (y_parts, [-2])
  y_own = Gather <axis = -2> (y1, at)
  y_put = Where (chosen, y_own, y1)
  y_moved = Where (here, y_best, y_put)
  p_parts = Where (chosen, p1, 0.0)
  p_best = ReduceSum (p_parts, [-2])
  p_own = Gather <axis = -2> (p1, at)
  p_put = Where (chosen, p_own, p1)
  p2 = Where (here, p_best, p_put)
  pivot = Gather <axis = -1> (y_best, at)
  zero = Equal (pivot, 0.0)
  divisor = Where (zero, 1.0, pivot)
  heads = Gather <axis = -1> (y_moved, at)
  factors = Div (heads, divisor)
  less = Mul (factors, y_best)
  rest = Sub (y_moved, less)
  right = Greater (columns, k)
  same = Equal (columns, k)
  lower = Where (same, factors, y_moved)
  changed = Where (right, rest, lower)
  under = Greater (rows, k)
  y2 = Where (under, changed, y_moved)
}>
y = Reshape (y0, shape)
whole = Concat <axis = 0> (outer, tall, tall)
p = Reshape (p0, whole)
steps = Unsqueeze (least, [0])
list = Concat <axis = 0> (outer, steps)
turned = Transpose <perm = [1, 0]> (at0)
pivots = Reshape (turned, list)
""")

_SLOGDET = Body("a", "sign, logs", _SIZE + _EYE + """
lu, pivots, p = ampc.Lu (a)
parts = Where (diagonal, lu, 0.0)
own = ReduceSum <keepdims = 0> (parts, [-1])
sizes = Abs (own)
each = Log (sizes)
logs = ReduceSum <keepdims = 0> (each, [-1])
place = Add (range, 1)
still = Equal (pivots, place)
turns = Where (still, 1.0, -1.0)
signs = Sign (own)
product = Mul (turns, signs)
sign = ReduceProd <keepdims = 0> (product, [-1])
""", calls=("Lu",))

LINEAR: Mapping[str, Body] = {
    "Inverse": _INVERSE, "Solve": _SOLVE, "SolveTriangular": _SOLVE_TRIANGULAR,
    "Cholesky": _CHOLESKY, "Lu": _LU, "Slogdet": _SLOGDET}
