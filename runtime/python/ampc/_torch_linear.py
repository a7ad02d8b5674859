# SPDX-License-Identifier: Apache-2.0
"""Linear algebra of small matrices: nodes of domain ampc, whose functions and
gradients are in ir/fn/linalg.amp, and what torch composes of them."""
from __future__ import annotations

from typing import Any

import torch

from ._torch_ops import node, nodes


def _eye(n: int, like: Any) -> Any:
    return torch.eye(n, dtype=like.dtype, device=like.device)


def _flip(x: Any) -> Any:
    return x.transpose(-1, -2)


def _info(a: Any) -> Any:
    return torch.zeros(a.shape[:-2], dtype=torch.int32)


# ---- solves -----------------------------------------------------------------

def inverse(a: Any) -> Any:
    return node("Inverse", [a], a.shape)


def inv_ex(a: Any, *, check_errors: bool = False) -> Any:
    return inverse(a), _info(a)


def _solved(name: str, a: Any, b: Any, **attributes: Any) -> Any:
    """Batches are broadcast to each other."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (x.expand(*batch, *x.shape[-2:]) for x in (a, b))
    return node(name, [a, b], b.shape, **attributes)


def solve(a: Any, b: Any, *, left: bool = True) -> Any:
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and
                              b.shape == a.shape[:-1])
    if vector:
        b = b.unsqueeze(-1)
    y = _solved("Solve", a, b) if left else \
        _flip(_solved("Solve", _flip(a), _flip(b)))
    return y.squeeze(-1) if vector else y


def solve_ex(a: Any, b: Any, *, left: bool = True,
             check_errors: bool = False) -> Any:
    """_linalg_solve_ex: result, LU, pivots, info."""
    return solve(a, b, left=left), a, _info(a), _info(a)


def solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True,
                     unitriangular: bool = False) -> Any:
    if not left:
        return _flip(solve_triangular(_flip(a), _flip(b), upper=not upper,
                                      unitriangular=unitriangular))
    return _solved("SolveTriangular", a, b, upper=int(upper),
                   unit=int(unitriangular))


def triangular_solve(b: Any, a: Any, upper: bool = True,
                     transpose: bool = False,
                     unitriangular: bool = False) -> Any:
    t = _flip(a) if transpose else a
    return solve_triangular(t, b, upper=upper != transpose,
                            unitriangular=unitriangular), a


def slogdet(a: Any) -> Any:
    """_linalg_slogdet: sign, log |det|, LU, pivots."""
    sign, logs = nodes("Slogdet", [a], [a.shape[:-2]] * 2)
    return sign, logs, a.detach(), _info(a)


# ---- decompositions ---------------------------------------------------------

def cholesky(a: Any, upper: bool = False) -> Any:
    y = node("Cholesky", [_flip(a) if upper else a], a.shape)
    return _flip(y) if upper else y


def linalg_cholesky(a: Any, *, upper: bool = False) -> Any:
    return cholesky(a, upper)


def cholesky_ex(a: Any, *, upper: bool = False,
                check_errors: bool = False) -> Any:
    return cholesky(a, upper), _info(a)


def _product(root: Any, upper: bool) -> Any:
    """L L^T; PyTorch's gradient is of all elements of L."""
    own = root.detach()
    root = (own.triu() if upper else own.tril()) + (root - own)
    return _flip(root) @ root if upper else root @ _flip(root)


def cholesky_inverse(root: Any, upper: bool = False) -> Any:
    return inverse(_product(root, upper))


def cholesky_solve(b: Any, root: Any, upper: bool = False) -> Any:
    return solve(_product(root, upper), b)


def qr(a: Any, mode: str = "reduced") -> Any:
    m, n = a.shape[-2:]
    if mode != "reduced" and m > n:
        return NotImplemented
    if m < n:
        q, r = qr(a.narrow(-1, 0, m))
        return q, torch.cat([r, _flip(q) @ a.narrow(-1, m, n - m)], -1)
    return tuple(nodes("Qr", [a], [a.shape, [*a.shape[:-2], n, n]]))


def _reflected(a: Any, tau: Any) -> Any:
    """The product [.., m, m] of the reflections in a's columns."""
    m = a.shape[-2]
    y = _eye(m, a).expand(*a.shape[:-1], m)
    rows = torch.arange(m).reshape(m, 1)
    for k in reversed(range(tau.shape[-1])):
        v = torch.where(rows > k, a.narrow(-1, k, 1), 0.0) + \
            (rows == k).to(a.dtype)
        y = y - tau.narrow(-1, k, 1).unsqueeze(-1) * v @ (_flip(v) @ y)
    return y


def householder_product(a: Any, tau: Any) -> Any:
    return _reflected(a, tau).narrow(-1, 0, a.shape[-1])


def ormqr(a: Any, tau: Any, other: Any, left: bool = True,
          transpose: bool = False) -> Any:
    q = _reflected(a, tau)
    q = _flip(q) if transpose else q
    return q @ other if left else other @ q


def lu(a: Any) -> Any:
    """Both factors in one matrix, pivots, and P of P a = L U."""
    m, n = a.shape[-2:]
    batch = list(a.shape[:-2])
    y, at, p = nodes("Lu", [a], [a.shape, batch + [min(m, n)], batch + [m, m]],
                     dtypes=[a.dtype, torch.int64, a.dtype])
    return y, at.to(torch.int32), p.detach()


def lu_factor_ex(a: Any, *, pivot: bool = True,
                 check_errors: bool = False) -> Any:
    if not pivot:
        return NotImplemented
    y, at, _ = lu(a)
    return y, at, _info(a)


def _parts(y: Any) -> Any:
    """L and U of both in one matrix."""
    m, n = y.shape[-2:]
    k = min(m, n)
    return (y.narrow(-1, 0, k).tril(-1) + _eye(m, y).narrow(-1, 0, k),
            y.narrow(-2, 0, k).triu())


def linalg_lu(a: Any, *, pivot: bool = True) -> Any:
    if not pivot:
        return NotImplemented
    y, _, p = lu(a)
    return (_flip(p), *_parts(y))


def _permutation(at: Any, m: int, like: Any) -> Any:
    """P of P a = L U from pivots."""
    rows = torch.arange(m).reshape(m, 1)
    p = _eye(m, like).expand(*at.shape[:-1], m, m)
    for k in range(at.shape[-1]):
        other = rows == (at.narrow(-1, k, 1).unsqueeze(-1) - 1)
        here = rows == k
        own = p.narrow(-2, k, 1)
        best = torch.where(other, p, 0.0).sum(-2, keepdim=True)
        p = torch.where(here, best, torch.where(other, own, p))
    return p


def lu_unpack(y: Any, at: Any, unpack_data: bool = True,
              unpack_pivots: bool = True) -> Any:
    none = y.new_zeros(0)
    p = _flip(_permutation(at, y.shape[-2], y)) if unpack_pivots else none
    return (p, *(_parts(y) if unpack_data else (none, none)))


def linalg_lu_solve(y: Any, at: Any, b: Any, *, left: bool = True,
                    adjoint: bool = False) -> Any:
    if not left:
        return _flip(linalg_lu_solve(y, at, _flip(b), adjoint=not adjoint))
    low, high = _parts(y)
    p = _permutation(at, y.shape[-2], y)
    if adjoint:
        b = solve_triangular(_flip(high), b, upper=False)
        b = solve_triangular(_flip(low), b, upper=True, unitriangular=True)
        return _flip(p) @ b
    b = solve_triangular(low, p @ b, upper=False, unitriangular=True)
    return solve_triangular(high, b, upper=True)


def lu_solve(b: Any, y: Any, at: Any) -> Any:
    return linalg_lu_solve(y, at, b)


def eigh(a: Any, uplo: str = "L", compute_v: bool = True) -> Any:
    return tuple(nodes("Eigh", [_flip(a) if uplo.upper() == "U" else a],
                       [a.shape[:-1], a.shape]))


def svd(a: Any, full_matrices: bool = False, compute_uv: bool = True, *,
        driver: Any = None) -> Any:
    m, n = a.shape[-2:]
    if full_matrices and compute_uv and m != n:
        return NotImplemented
    k, batch = min(m, n), list(a.shape[:-2])
    u, s, v = nodes("Svd", [a], [batch + [m, k], batch + [k], batch + [n, k]])
    return u, s, _flip(v)


def pinv(a: Any, *, atol: Any = None, rtol: Any = None,
         hermitian: bool = False) -> Any:
    if isinstance(atol, torch.Tensor) or isinstance(rtol, torch.Tensor):
        return NotImplemented
    if rtol is None:
        rtol = 0.0 if atol else max(a.shape[-2:]) * torch.finfo(a.dtype).eps
    return node("Pinv", [a], [*a.shape[:-2], a.shape[-1], a.shape[-2]],
                absolute=float(atol or 0), relative=float(rtol),
                hermitian=int(hermitian))


def matrix_exp(a: Any) -> Any:
    return node("MatrixExp", [a], a.shape)


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
            aten.linalg_qr.default: qr,
            aten.linalg_householder_product.default: householder_product,
            aten.ormqr.default: ormqr,
            aten.linalg_lu.default: linalg_lu,
            aten.linalg_lu_factor_ex.default: lu_factor_ex,
            aten.linalg_lu_factor.default: lambda a, pivot=True:
                lu_factor_ex(a)[:2] if pivot else NotImplemented,
            aten.lu_unpack.default: lu_unpack,
            aten.linalg_lu_solve.default: linalg_lu_solve,
            aten.lu_solve.default: lu_solve,
            aten._linalg_eigh.default: eigh, aten.linalg_eigh.default: eigh,
            aten.linalg_eigvalsh.default: lambda a, uplo="L": eigh(a, uplo)[0],
            aten._linalg_svd.default: svd, aten.linalg_svd.default: svd,
            aten.linalg_svdvals.default: lambda a, *, driver=None: svd(a)[1],
            aten.linalg_pinv.atol_rtol_tensor: pinv,
            aten.linalg_pinv.atol_rtol_float: pinv,
            aten.linalg_matrix_exp.default: matrix_exp}
