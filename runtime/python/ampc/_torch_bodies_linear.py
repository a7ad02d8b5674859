# SPDX-License-Identifier: Apache-2.0
"""Functions in a file of ampc.torch.export, for other runtimes: linear algebra of
small matrices, as ir/fn/linalg.amp computes it, in ONNX's operators.  A Loop takes a
step for each column; batches and sizes are free."""
from __future__ import annotations

from typing import Mapping

from ._torch_body import Body

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

# Of [b, m, n]: m and n, the numbers below m as a column and as a row, a batch of
# identities [b, m, m].
_TALL = """
m = Gather (inner, 0)
n = Gather (inner, 1)
range = Range (0, m, 1)
rows = Unsqueeze (range, [1])
row = Unsqueeze (range, [0])
always = Constant <value = bool {1}> ()
""" + _EYE + """
batch = Shape <end = 1> (a)
tall = Shape <start = 1, end = 2> (a)
sides = Concat <axis = 0> (batch, tall, tall)
ones = Expand (eye, sides)
"""

# The symmetric matrix whose lower triangle is that of a.
_MIRRORED = """
below = Trilu <upper = 0> (a, -1)
above = Transpose <perm = [0, 2, 1]> (below)
low = Trilu <upper = 0> (a)
whole = Add (low, above)
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

_CHOLESKY = Body("given", "y", _FLAT + _SIZE + _MIRRORED + """
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

_LU = Body("given", "y, pivots, p", _FLAT + _TALL + """
least = Min (m, n)
columns = Range (0, n, 1)
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

# Householder's reflections, with LAPACK's signs.
_QR = Body("given", "q, r", _FLAT + _TALL + """
last = Shape <start = 2> (a)
fewer = Sub (m, 1)
count = Min (n, fewer)
r0, q0 = Loop (count, always, a, ones) <body = step (int64 k, bool go, r1, q1) => (bool on, r2, q2) {
  on = Identity (go)
  at = Unsqueeze (k, [0])
  whole = Gather <axis = -1> (r1, at)
  open = GreaterOrEqual (rows, k)
  column = Where (open, whole, 0.0)
  head = Gather <axis = -2> (column, at)
  squares = Mul (column, column)
  sum = ReduceSum (squares, [-2])
  norm = Sqrt (sum)
  minus = Neg (norm)
  negative = Less (head, 0.0)
  signed = Where (negative, minus, norm)
  added = Add (column, signed)
  here = Equal (rows, k)
  v = Where (here, added, column)
  v_squares = Mul (v, v)
  length = ReduceSum (v_squares, [-2])
  none = Equal (length, 0.0)
  divisor = Where (none, 1.0, length)
  factor = Div (2.0, divisor)
  v_row = Transpose <perm = [0, 2, 1]> (v)
  r_parts = MatMul (v_row, r1)
  r_scaled = Mul (r_parts, factor)
  r_less = Mul (v, r_scaled)
  r2 = Sub (r1, r_less)
  q_parts = MatMul (q1, v)
  q_scaled = Mul (q_parts, factor)
  q_less = Mul (q_scaled, v_row)
  q2 = Sub (q1, q_less)
}>
q_first = Slice (q0, [0], last, [2])
q = Reshape (q_first, shape)
r_first = Slice (r0, [0], last, [1])
r_upper = Trilu <upper = 1> (r_first)
r_shape = Concat <axis = 0> (outer, last, last)
r = Reshape (r_upper, r_shape)
""")

# Taylor's series of a / 2^s and s squarings, s at most 10.
_MATRIX_EXP = Body("a", "y", _SIZE + _EYE + """
sizes = Abs (a)
sums = ReduceSum (sizes, [-2])
norm = ReduceMax (sums, [-1])
none = Mul (norm, 0.0)
small, power, rounds = Loop (10, always, a, 1.0, none) <body = step (int64 k, bool go, s1, p1, n1) => (bool on, s2, p2, n2) {
  on = Identity (go)
  over = Greater (norm, p1)
  half = Mul (s1, 0.5)
  s2 = Where (over, half, s1)
  p2 = Mul (p1, 2.0)
  more = CastLike (over, a)
  n2 = Add (n1, more)
}>
linear = Add (small, eye)
term, series = Loop (14, always, small, linear) <body = step (int64 k, bool go, t1, y1) => (bool on, t2, y2) {
  on = Identity (go)
  place = Add (k, 2)
  divisor = CastLike (place, a)
  product = MatMul (t1, small)
  t2 = Div (product, divisor)
  y2 = Add (y1, t2)
}>
y = Loop (10, always, series) <body = step (int64 k, bool go, y3) => (bool on, y4) {
  on = Identity (go)
  square = MatMul (y3, y3)
  round = CastLike (k, a)
  more = Less (round, rounds)
  y4 = Where (more, square, y3)
}>
""")

# ---- Jacobi's rotations -----------------------------------------------------

# In round k of a sweep columns i and j with i + j = k modulo n turn.
_PARTNER = """
  on = Identity (go)
  round = Mod (k, n)
  ahead = Sub (round, own)
  around = Add (ahead, n)
  within = GreaterOrEqual (ahead, 0)
  partner = Where (within, ahead, around)
"""

# c and s of each column, from its square, its partner's and their product.
_ROTATION = """
  flat_product = Equal (product, 0.0)
  alone = Equal (partner, own)
  still = Or (flat_product, alone)
  difference = Sub (other, square)
  doubled = Mul (product, 2.0)
  divisor = Where (still, 1.0, doubled)
  tau = Div (difference, divisor)
  positive = Greater (tau, 0.0)
  zero = Equal (tau, 0.0)
  before = Less (own, partner)
  first = And (zero, before)
  up = Or (positive, first)
  tau_square = Mul (tau, tau)
  tau_more = Add (tau_square, 1.0)
  tau_root = Sqrt (tau_more)
  tau_size = Abs (tau)
  tau_sum = Add (tau_size, tau_root)
  t_up = Reciprocal (tau_sum)
  t_down = Neg (t_up)
  t_turned = Where (up, t_up, t_down)
  t = Where (still, 0.0, t_turned)
  t_square = Mul (t, t)
  t_more = Add (t_square, 1.0)
  t_root = Sqrt (t_more)
  c = Reciprocal (t_root)
  s = Mul (t, c)
"""

# A step of Newton's brings the product of rotations nearer to an orthogonal matrix.
_EIGH = Body("given", "w, v", _FLAT + _SIZE + _EYE + _MIRRORED + """
flat_shape = Shape (a)
ones = Expand (eye, flat_shape)
own = Identity (rows)
places = Add (rows, row)
count = Mul (n, 10)
d0, v0 = Loop (count, always, whole, ones) <body = step (int64 k, bool go, d1, v1) => (bool on, d2, v2) {
""" + _PARTNER + """
  round_n = Add (round, n)
  near = Equal (places, round)
  far = Equal (places, round_n)
  both = Or (near, far)
  pairs = CastLike (both, a)
  own_parts = Mul (d1, eye)
  square = ReduceSum (own_parts, [-1])
  other = MatMul (pairs, square)
  products = Mul (d1, pairs)
  product = ReduceSum (products, [-1])
""" + _ROTATION + """
  c_part = Mul (eye, c)
  s_part = Mul (pairs, s)
  turn = Add (c_part, s_part)
  back = Transpose <perm = [0, 2, 1]> (turn)
  left = MatMul (back, d1)
  d2 = MatMul (left, turn)
  v2 = MatMul (v1, turn)
}>
values = Mul (d0, eye)
all = ReduceSum <keepdims = 0> (values, [-1])
sorted, order = TopK <axis = -1, largest = 0> (all, last)
order_row = Unsqueeze (order, [1])
found = Equal (rows, order_row)
chosen = CastLike (found, a)
v0_row = Transpose <perm = [0, 2, 1]> (v0)
lengths = MatMul (v0_row, v0)
half = Mul (lengths, 0.5)
most = Mul (eye, 1.5)
mended = Sub (most, half)
v_near = MatMul (v0, mended)
v_sorted = MatMul (v_near, chosen)
v = Reshape (v_sorted, shape)
w_shape = Shape <end = -1> (given)
w = Reshape (sorted, w_shape)
""")

# Of the matrix or, if it is wide, of its transpose.
_SVD = Body("given", "u, s, v", _FLAT + """
m_list = Shape <start = 1, end = 2> (a)
n_list = Shape <start = 2> (a)
is_wide = Less (m_list, n_list)
wide = Squeeze (is_wide)
work = If (wide) <then_branch = turned () => (t1) {
  t1 = Transpose <perm = [0, 2, 1]> (a)
}, else_branch = straight () => (t2) {
  t2 = Identity (a)
}>
last = Min (m_list, n_list)
n = Squeeze (last)
range = Range (0, n, 1)
rows = Unsqueeze (range, [1])
row = Unsqueeze (range, [0])
own = Identity (row)
always = Constant <value = bool {1}> ()
""" + _EYE + """
batch = Shape <end = 1> (a)
sides = Concat <axis = 0> (batch, last, last)
ones = Expand (eye, sides)
count = Mul (n, 10)
u0, v0 = Loop (count, always, work, ones) <body = step (int64 k, bool go, u1, v1) => (bool on, u2, v2) {
""" + _PARTNER + """
  at = Reshape (partner, [-1])
  u_other = Gather <axis = -1> (u1, at)
  squares = Mul (u1, u1)
  square = ReduceSum (squares, [-2])
  other = Gather <axis = -1> (square, at)
  products = Mul (u1, u_other)
  product = ReduceSum (products, [-2])
""" + _ROTATION + """
  u_c = Mul (u1, c)
  u_s = Mul (u_other, s)
  u2 = Sub (u_c, u_s)
  v_other = Gather <axis = -1> (v1, at)
  v_c = Mul (v1, c)
  v_s = Mul (v_other, s)
  v2 = Sub (v_c, v_s)
}>
u_squares = Mul (u0, u0)
sums = ReduceSum <keepdims = 0> (u_squares, [1])
lengths = Sqrt (sums)
sorted, order = TopK <axis = -1> (lengths, last)
order_row = Unsqueeze (order, [1])
found = Equal (rows, order_row)
chosen = CastLike (found, a)
u_sorted = MatMul (u0, chosen)
long = Greater (sorted, 0.0)
divisor = Where (long, sorted, 1.0)
divisor_row = Unsqueeze (divisor, [1])
p = Div (u_sorted, divisor_row)
q = MatMul (v0, chosen)
left, right = If (wide) <then_branch = exchanged () => (l1, r1) {
  l1 = Identity (q)
  r1 = Identity (p)
}, else_branch = kept () => (l2, r2) {
  l2 = Identity (p)
  r2 = Identity (q)
}>
s_shape = Concat <axis = 0> (outer, last)
s = Reshape (sorted, s_shape)
u_shape = Concat <axis = 0> (outer, m_list, last)
u = Reshape (left, u_shape)
v_shape = Concat <axis = 0> (outer, n_list, last)
v = Reshape (right, v_shape)
""")

# If hermitian, it reads element (i, j) at (max(i, j), min(i, j)): no branch, since ONNX
# Runtime 1.32 refuses an If on the attribute that reads the function's values.
_PINV = Body("given", "y", _FLAT + """
hermitian = Constant <value_int: int = @hermitian> ()
relative_f = Constant <value_float: float = @relative> ()
absolute_f = Constant <value_float: float = @absolute> ()
relative = CastLike (relative_f, a)
absolute = CastLike (absolute_f, a)
is_hermitian = Cast <to = 9> (hermitian)
m_list = Shape <start = 1, end = 2> (a)
n_list = Shape <start = 2> (a)
m = Squeeze (m_list)
n = Squeeze (n_list)
row_range = Range (0, m, 1)
rows = Unsqueeze (row_range, [1])
range = Range (0, n, 1)
row = Unsqueeze (range, [0])
most = Max (rows, row)
least = Min (rows, row)
lower_start = Mul (most, n)
lower = Add (lower_start, least)
own_start = Mul (rows, n)
own = Add (own_start, row)
places = Where (is_hermitian, lower, own)
elements = Flatten (a)
read = Gather <axis = 1> (elements, places)
u, s, v = ampc.Svd (read)
top = ReduceMax (s, [-1])
part = Mul (top, relative)
bound = Max (part, absolute)
kept = Greater (s, bound)
divisor = Where (kept, s, 1.0)
parts = Reciprocal (divisor)
inverted = Where (kept, parts, 0.0)
factors = Unsqueeze (inverted, [1])
scaled = Mul (v, factors)
turned = Transpose <perm = [0, 2, 1]> (u)
flat_y = MatMul (scaled, turned)
y_shape = Concat <axis = 0> (outer, n_list, m_list)
y = Reshape (flat_y, y_shape)
""", "<absolute, relative, hermitian>", ("Svd",))

LINEAR: Mapping[str, Body] = {
    "Inverse": _INVERSE, "Solve": _SOLVE, "SolveTriangular": _SOLVE_TRIANGULAR,
    "Cholesky": _CHOLESKY, "Slogdet": _SLOGDET, "Qr": _QR, "MatrixExp": _MATRIX_EXP,
    "Lu": _LU, "Pinv": _PINV, "Eigh": _EIGH, "Svd": _SVD}
