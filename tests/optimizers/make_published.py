#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what published optimizers compute, for optimizers_test: those that
models/optimizers has as texts.

    pip install torch==2.11.0 pytorch-optimizer==4.1.0 numpy
    python3 tests/optimizers/make_published.py > tests/optimizers/published.txt

The numbers are those of pytorch-optimizer, in doubles (SOAP's QR in floats, as its
authors have it).  Each optimizer is written down a second time below, in NumPy
after its paper; the script fails if the two differ.  Cases are those of make.py.
"""
import contextlib
import glob
import io
import os

import numpy as np
import pytorch_optimizer as po
import torch

from make import PLAIN, case, four

FOLDER = os.path.join(os.path.dirname(__file__), "../../models/optimizers")


class Formula:
    """An optimizer whose update(p, g, state, t, **options) gives p's new value."""

    options = {}

    def __init__(self, groups, **kw):
        self.groups = [{**self.options, **kw, **g} for g in groups]
        self.states, self.t = {}, 0

    def step(self):
        self.t += 1
        for group in self.groups:
            options = {k: v for k, v in group.items() if k not in ("params", "foreach")}
            for p in group["params"]:
                new = self.update(p.detach().numpy(), p.grad.numpy(),
                                  self.states.setdefault(id(p), {}), self.t, **options)
                p.data.copy_(torch.tensor(new))


def mean(state, name, x, decay):
    state[name] = state.get(name, np.zeros_like(x)) * decay + x * (1 - decay)
    return state[name]


class Tiger(Formula):
    """Su 2023: m = b m + (1 - b) g, p = p - lr (sign(m) + decay p)"""

    def update(self, p, g, s, t, lr, weight_decay=0.01, beta=0.965):
        return p - lr * (np.sign(mean(s, "m", g, beta)) + weight_decay * p)


class SignSGD(Formula):
    """Bernstein et al. 2018, algorithm 3 (Signum), with decoupled decay"""

    def update(self, p, g, s, t, lr, weight_decay=0.0, momentum=0.9):
        return p - lr * (np.sign(mean(s, "m", g, momentum)) + weight_decay * p)


class SM3(Formula):
    """Anil et al. 2019, SM3-II: one accumulator for each slice of each axis"""

    def update(self, p, g, s, t, lr, momentum=0.0):
        axes = range(g.ndim)
        old = [s.get(i, np.zeros([n if i == k else 1 for k, n in enumerate(g.shape)]))
               for i in axes]
        least = np.broadcast_to(old[0], g.shape)
        for o in old[1:]:
            least = np.minimum(least, o)
        nu = least + g * g
        for i in axes:
            s[i] = nu.max(axis=tuple(k for k in axes if k != i), keepdims=True)
        step = g / np.sqrt(nu + 1e-30)
        return p - lr * (mean(s, "m", step, momentum) if momentum else step)


class CAME(Formula):
    """Luo et al. 2023, algorithm 2: factors of squares, and of what steps differ
    from their mean by"""

    def factored(self, s, name, x, decay):
        r = mean(s, name + "r", x.mean(-1, keepdims=True), decay)
        c = mean(s, name + "c", x.mean(-2, keepdims=True), decay)
        return r * c / r.mean(-2, keepdims=True)

    def update(self, p, g, s, t, lr, weight_decay=0.0, betas=(0.9, 0.999, 0.9999)):
        b1, b2, b3 = betas
        square = g * g + 1e-30
        v = self.factored(s, "v", square, b2) if g.ndim > 1 else mean(s, "v", square, b2)
        u = g / np.sqrt(v)
        u = u / max(1, np.sqrt((u * u).mean()))
        m = mean(s, "m", u, b1)
        if g.ndim > 1:
            step = m / np.sqrt(self.factored(s, "s", (u - m)**2 + 1e-16, b3))
        else:
            step = m
        return p - lr * (step + weight_decay * p)


class MARS(Formula):
    """Yuan et al. 2024, algorithm 2 (MARS-AdamW), AdamW for vectors"""

    def update(self, p, g, s, t, lr, weight_decay=0.0, betas=(0.95, 0.99), lr_1d=None):
        b1, b2 = betas
        c = g
        if g.ndim > 1:
            c = g + 0.025 * b1 / (1 - b1) * (g - s.get("last", 0 * g))
            c = c / max(1, np.linalg.norm(c))
            s["last"] = g.copy()
        else:
            b1, b2, weight_decay = 0.9, 0.95, 0.1
        m = mean(s, "m", c, b1) / (1 - b1**t)
        root = np.sqrt(mean(s, "v", c * c, b2) + 1e-15) + 1e-8
        return p - lr * (m * np.sqrt(1 - b2**t) / root + weight_decay * p)


def combined(x, a, axis):
    """x with its slices along the axis combined by the rows of a."""
    return np.moveaxis(np.tensordot(a, x, (1, axis)), 0, axis)


def gram(x, axis):
    rows = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    return rows @ rows.T


class Shampoo(Formula):
    """Gupta et al. 2018, algorithm 2: each axis has (eps 1 + sum G G^T)^(-1 / 2k)"""

    def update(self, p, g, s, t, lr, weight_decay=0.0, matrix_eps=1e-6):
        g = step = g + weight_decay * p
        for i in range(g.ndim):
            s[i] = s.get(i, matrix_eps * np.eye(g.shape[i])) + gram(g, i)
            w, v = np.linalg.eigh(s[i])
            step = combined(step, (v * w**(-0.5 / g.ndim)) @ v.T, i)
        return p - lr * step


class SOAP(Formula):
    """Vyas et al. 2024, algorithms 3 and 4: Adam in the eigenvectors of Shampoo's
    matrices, which the first step finds alone; vectors have Adam itself"""

    def update(self, p, g, s, t, lr, weight_decay=0.01, betas=(0.95, 0.95)):
        b1, b2 = betas
        axes = range(g.ndim) if g.ndim > 1 else ()
        n = t - 1
        if n:
            m = mean(s, "m", g, b1)
            up = g
            for i in axes:
                up, m = combined(up, s["q"][i].T, i), combined(m, s["q"][i].T, i)
            step = m / (np.sqrt(mean(s, "v", up * up, b2)) + 1e-8)
            for i in axes:
                step = combined(step, s["q"][i], i)
            p = p - lr * np.sqrt(1 - b2**n) / (1 - b1**n) * step
            p = p * (1 - lr * weight_decay)
        for i in axes:
            mean(s, i, gram(g, i), b2)
        if not n:
            s["q"] = [np.linalg.eigh(s[i])[1][:, ::-1] for i in axes]
        elif n % 10 == 0:
            for i in axes:
                product = s[i] @ s["q"][i]
                order = np.argsort(-(s["q"][i] * product).sum(0))
                s["v"] = np.take(s["v"], order, i)
                s["q"][i] = np.linalg.qr(product[:, order])[0]
        return p


def cases_of(name, cls, **fixed):
    """The cases of one optimizer, by pytorch-optimizer or by NumPy."""
    if name == "sm3":
        lr = {"lr": 0.1, **fixed}
        case("sm3", "sm3,lr=0.1", lambda g: cls(g, **lr), extra=" --precision fp32")
        case("sm3_momentum_clip", "sm3,lr=0.1,momentum=0.9",
             lambda g: cls(g, momentum=0.9, **lr), clip=0.8, extra=" --precision fp32")
        case("sm3_fp16", "sm3,lr=0.1,momentum=0.5", lambda g: cls(g, momentum=0.5, **lr),
             "...o......o.........", extra=" --precision fp16")
    elif name == "shampoo":
        four(name, "lr=0.02", cls, **fixed)
        case("shampoo_eps", "shampoo,lr=0.02,eps=0.1", lambda g: cls(
            g, lr=0.02, matrix_eps=0.1, **fixed), PLAIN, extra=" --precision fp32")
    elif name == "mars":
        class Whole(cls):  # pytorch-optimizer's rate of vectors is a number of its own
            def __init__(self, groups, lr, **kw):
                super().__init__(groups, lr=lr, lr_1d=lr, **kw)
        four(name, "lr=0.02", Whole, **fixed)
    else:
        four(name, "lr=0.02", cls, **fixed)


def text_of(*what, **kw):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cases_of(*what, **kw)
    return out.getvalue()


def numbers(text):
    return np.array([float(w) for line in text.splitlines() if line.startswith("at ")
                     for w in line.split()[3:]])


def main():
    print(f"# tests/optimizers/make_published.py: torch {torch.__version__}, "
          "pytorch-optimizer 4.1.0")
    fast = {"foreach": False}
    known = {"came": (po.CAME, CAME, fast), "mars": (po.MARS, MARS, fast),
             "shampoo": (po.Shampoo, Shampoo, {}), "signsgd": (po.SignSGD, SignSGD, fast),
             "sm3": (po.SM3, SM3, fast), "soap": (po.SOAP, SOAP, {}),
             "tiger": (po.Tiger, Tiger, fast)}
    for path in sorted(glob.glob(FOLDER + "/*.amp")):
        name = os.path.basename(path)[:-4]
        published, formula, fixed = known[name]
        text, again = text_of(name, published, **fixed), text_of(name, formula, **fixed)
        far = np.abs(numbers(text) - numbers(again)).max()
        assert far < (1e-6 if name == "soap" else 1e-9), f"{name}: {far}"
        print(text.replace(f"--optimizer {name},",
                           f"--optimizer models/optimizers/{name}.amp,"), end="")


if __name__ == "__main__":
    main()
