# SPDX-License-Identifier: Apache-2.0
"""Linear algebra of small matrices in operators that ONNX has.

A result is computed without a gradient, one column after the other.  To that is
added its differential at A - value(A), which is 0: gradients are PyTorch's, and
where the differential holds the residual instead, it refines the result, too.
Gradients of gradients are not kept."""
from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]


def _eye(n: int, like: Any) -> Any:
    return torch.eye(n, dtype=like.dtype, device=like.device)


def _flip(x: Any) -> Any:
    return x.transpose(-1, -2)


def _place(n: int, k: int, like: Any, axis: int) -> Any:
    """1 at place k of n, else 0."""
    at = (torch.arange(n, device=like.device) == k).to(like.dtype)
    return at.reshape((n, 1) if axis == -2 else (1, n))


def _eliminated(a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Gauss and Jordan with row pivots: inverse(a) b, log |det a|, its sign."""
    n = a.shape[-1]
    ab = torch.cat([a, b], -1)
    logs, sign = 0.0, 1.0
    rows = torch.arange(n, device=a.device).reshape(n, 1)
    for k in range(n):
        column = ab.narrow(-1, k, 1)
        size = torch.where(rows >= k, column.abs(), -1.0)
        best = size.argmax(-2, keepdim=True)
        chosen = (rows == best).to(ab.dtype)  # of the pivot's row
        here = _place(n, k, ab, -2)
        pivot_row = (ab * chosen).sum(-2, keepdim=True)
        own_row = (ab * here).sum(-2, keepdim=True)
        moved = ab + chosen * (own_row - pivot_row)
        moved = moved * (1 - here) + here * pivot_row
        pivot = pivot_row.narrow(-1, k, 1)
        logs = logs + torch.log(pivot.abs()).squeeze(-1).squeeze(-1)
        swapped = torch.where(best == k, 1.0, -1.0).to(ab.dtype)
        sign = sign * (torch.sign(pivot) * swapped).squeeze(-1).squeeze(-1)
        row = pivot_row / pivot
        ab = moved - (moved.narrow(-1, k, 1) - here) * row
        ab = ab * (1 - here) + here * row
    return ab.narrow(-1, n, b.shape[-1]), logs, sign


def _inverse(a: Any) -> Any:
    """Without a gradient."""
    a = a.detach()
    eye = _eye(a.shape[-1], a).expand(a.shape)
    x = _eliminated(a, eye)[0]
    return (x + x @ (eye - a @ x)).detach()


def inverse(a: Any) -> Any:
    x = _inverse(a)
    return x + x @ (_eye(a.shape[-1], a) - a @ x)


def inv_ex(a: Any, *, check_errors: bool = False) -> Any:
    return inverse(a), torch.zeros(a.shape[:-2], dtype=torch.int32)


def _solved(a: Any, x: Any, b: Any) -> Any:
    """a^-1 b, x: the inverse."""
    y = (x @ b.detach()).detach()
    return y + x @ (b - a @ y)


def solve(a: Any, b: Any, *, left: bool = True) -> Any:
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and
                              b.shape == a.shape[:-1])
    if vector:
        b = b.unsqueeze(-1)
    if left:
        y = _solved(a, _inverse(a), b)
    else:
        y = _flip(_solved(_flip(a), _flip(_inverse(a)), _flip(b)))
    return y.squeeze(-1) if vector else y


def solve_ex(a: Any, b: Any, *, left: bool = True,
             check_errors: bool = False) -> Any:
    """_linalg_solve_ex: result, LU, pivots, info."""
    info = torch.zeros(a.shape[:-2], dtype=torch.int32)
    return solve(a, b, left=left), a, info, info


def solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True,
                     unitriangular: bool = False) -> Any:
    t = a.triu(1 if unitriangular else 0) if upper else \
        a.tril(-1 if unitriangular else 0)
    if unitriangular:
        t = t + _eye(a.shape[-1], a)
    return solve(t, b, left=left)


def triangular_solve(b: Any, a: Any, upper: bool = True,
                     transpose: bool = False,
                     unitriangular: bool = False) -> Any:
    t = _flip(a) if transpose else a
    return solve_triangular(t, b, upper=upper != transpose,
                            unitriangular=unitriangular), a


def slogdet(a: Any) -> Any:
    """_linalg_slogdet: sign, log |det|, LU, pivots."""
    n, own = a.shape[-1], a.detach()
    eye = _eye(n, a).expand(a.shape)
    _, logs, sign = _eliminated(own, eye)
    slope = _flip(_inverse(a))
    logs = logs.detach() + (slope * (a - own)).sum((-2, -1))
    return sign.detach(), logs, own, torch.zeros(a.shape[:-1],
                                                 dtype=torch.int32)


def cholesky(a: Any, upper: bool = False) -> Any:
    n, low = a.shape[-1], (_flip(a) if upper else a).detach().tril()
    own = low + _flip(low.tril(-1))
    rest, columns = own, []
    for k in range(n):
        column = rest.narrow(-1, k, 1)
        column = column / torch.sqrt(column.narrow(-2, k, 1))
        column = column * (torch.arange(n) >= k).to(a.dtype).reshape(n, 1)
        columns.append(column)
        rest = rest - column @ _flip(column)
    root = torch.cat(columns, -1).detach()
    x = _inverse(root)
    even = (a + _flip(a)) * 0.5
    even = even - even.detach() + own - root @ _flip(root)
    inner = x @ even @ _flip(x)
    inner = inner.tril(-1) + inner * _eye(n, a) * 0.5
    y = root + root @ inner
    return _flip(y) if upper else y


def linalg_cholesky(a: Any, *, upper: bool = False) -> Any:
    return cholesky(a, upper)


def cholesky_ex(a: Any, *, upper: bool = False,
                check_errors: bool = False) -> Any:
    return cholesky(a, upper), torch.zeros(a.shape[:-2], dtype=torch.int32)


def _product(root: Any, upper: bool) -> Any:
    """L L^T; PyTorch's gradient is of all elements of L."""
    own = root.detach()
    root = (own.triu() if upper else own.tril()) + (root - own)
    return _flip(root) @ root if upper else root @ _flip(root)


def cholesky_inverse(root: Any, upper: bool = False) -> Any:
    a = _product(root, upper)
    return inverse(a)


def cholesky_solve(b: Any, root: Any, upper: bool = False) -> Any:
    a = _product(root, upper)
    return solve(a, b)


def qr(a: Any, mode: str = "reduced") -> Any:
    """Householder's, with LAPACK's signs; of matrices with full column rank."""
    m, n = a.shape[-2:]
    if mode != "reduced" and m > n:
        return NotImplemented
    if m < n:
        q, r = qr(a.narrow(-1, 0, m))
        return q, torch.cat([r, _flip(q) @ a.narrow(-1, m, n - m)], -1)
    r = a.detach()
    q = _eye(m, a).expand(*a.shape[:-2], m, m)
    rows = torch.arange(m).reshape(m, 1)
    for k in range(n if m > n else n - 1):
        column = r.narrow(-1, k, 1) * (rows >= k).to(a.dtype)
        head = column.narrow(-2, k, 1)
        norm = torch.sqrt((column * column).sum(-2, keepdim=True))
        v = column + torch.where(head < 0, -norm, norm) * _place(m, k, a, -2)
        v = v / torch.sqrt((v * v).sum(-2, keepdim=True))
        r = r - 2 * v @ (_flip(v) @ r)
        q = q - 2 * (q @ v) @ _flip(v)
    q, r = q.narrow(-1, 0, n).detach(), r.narrow(-2, 0, n).triu().detach()
    x = _inverse(r)
    change = a - a.detach()
    inner = _flip(q) @ change
    low = (inner @ x).tril(-1)
    skew = low - _flip(low)
    return (q + q @ skew + (change - q @ inner) @ x,
            r + (inner - skew @ r).triu())


def table() -> dict[Any, Any]:
    """{operator of torch: its formula}"""
    aten = torch.ops.aten
    old = {aten.cholesky.default: cholesky} if hasattr(aten, "cholesky") else {}
    return {**old, aten.linalg_inv.default: inverse, aten.inverse.default: inverse,
            aten.linalg_inv_ex.default: inv_ex,
            aten.linalg_solve.default: solve,
            aten.linalg_slogdet.default: lambda a: slogdet(a)[:2],
            aten.slogdet.default: lambda a: slogdet(a)[:2],
            aten.linalg_cholesky.default: linalg_cholesky,
            aten._linalg_solve_ex.default: solve_ex,
            aten.linalg_solve_triangular.default: solve_triangular,
            aten.triangular_solve.default: triangular_solve,
            aten._linalg_slogdet.default: slogdet,
            aten.linalg_cholesky_ex.default: cholesky_ex,
            aten.cholesky_inverse.default: cholesky_inverse,
            aten.cholesky_solve.default: cholesky_solve,
            aten.linalg_qr.default: qr}
