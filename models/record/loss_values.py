#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Values and gradients of the losses of --loss, by PyTorch in fp64, or by the
formula of the library that the loss is named after (maintainers; needs torch).

usage: loss_values.py TESTS     writes, in the tests' folder,
  losses/values.csv             name|option|outputs of the model|classes
  losses/values.safetensors     NAME.x0 .., NAME.w, NAME.target0 ..: data;
                                NAME.loss, NAME.grad; NAME.part.N: the loss of the
                                first N samples; NAME.hits.N: right ones of them

Output k of the model is x_k * w; the gradient is that of w."""
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

BATCH = 4
CASES = []


def case(name, option, dims, target, f, outputs=1, scale=2.0, axis=None):
    CASES.append((name, option, dims, target, f, outputs, scale, axis))


# ---- targets ----------------------------------------------------------------

def classes(n, shape=()):
    return lambda g: torch.randint(n, (BATCH, *shape), generator=g)


def ignoring(n, shape=(), index=-100):
    def make(g):
        t = torch.randint(n, (BATCH, *shape), generator=g)
        t.view(-1)[::3] = index
        return t
    return make


def normal(*dims):
    return lambda g: torch.randn(BATCH, *dims, generator=g)


def share(*dims):
    return lambda g: torch.rand(BATCH, *dims, generator=g)


def bits(*dims):
    return lambda g: (torch.rand(BATCH, *dims, generator=g) > .5).float()


def signs(*dims):
    return lambda g: (torch.rand(BATCH, *dims, generator=g) > .5).float() * 2 - 1


def distribution(*dims, axis=1):
    def make(g):
        t = torch.rand(BATCH, *dims, generator=g) * \
            (torch.rand(BATCH, *dims, generator=g) > .3)
        t = t + 1e-3 * (t.sum(axis, keepdim=True) == 0)
        return t / t.sum(axis, keepdim=True)
    return make


# ---- formulas ---------------------------------------------------------------

def focal(gamma=2.0, alpha=1.0, ignore=-100, last=False):
    def f(y, t):
        if last:
            y = y.movedim(-1, 1)
        ce = F.cross_entropy(y, t, reduction="none", ignore_index=ignore)
        p = torch.exp(-ce)
        return (alpha * (1 - p) ** gamma * ce).sum() / (t != ignore).sum()
    return f


def sigmoid_focal(alpha=0.25, gamma=2.0):  # torchvision/ops/focal_loss.py
    def f(y, t):
        p = torch.sigmoid(y)
        ce = F.binary_cross_entropy_with_logits(y, t, reduction="none")
        loss = ce * (1 - (p * t + (1 - p) * (1 - t))) ** gamma
        if alpha >= 0:
            loss = (alpha * t + (1 - alpha) * (1 - t)) * loss
        return loss.mean()
    return f


def dice(smooth=1e-5):  # monai/losses/dice.py, softmax and to_onehot_y
    def f(y, t):
        p = torch.softmax(y, 1)
        h = F.one_hot(t, y.shape[1]).movedim(-1, 1).to(y.dtype)
        over = list(range(2, y.dim()))
        both = (p * h).sum(over) if over else p * h
        all_ = (p + h).sum(over) if over else p + h
        return (1 - (2 * both + smooth) / (all_ + smooth)).mean()
    return f


def sigmoid_dice(smooth=1e-5):
    def f(y, t):
        p = torch.sigmoid(y)
        over = list(range(2 if y.dim() > 2 else 1, y.dim()))
        return (1 - (2 * (p * t).sum(over) + smooth) /
                ((p + t).sum(over) + smooth)).mean()
    return f


def info_nce(temperature=0.07):
    def f(x, y):
        s = F.normalize(x) @ F.normalize(y).T / temperature
        own = torch.arange(len(x))
        return (F.cross_entropy(s, own) + F.cross_entropy(s.T, own)) / 2
    return f


def hinge(margin=1.0, squared=False):
    def f(y, t):
        each = (margin - t * y).clamp(min=0)
        return (each ** 2 if squared else each).mean()
    return f


def pinball(q):
    return lambda y, t: torch.maximum(q * (t - y), (q - 1) * (t - y)).mean()


def cosine(y, t):
    y, t = y.flatten(0, -2), t.flatten(0, -2)
    return F.cosine_embedding_loss(y, t, torch.ones(len(y)))


def labels(width, most, n, blank=0):
    """Up to `most` labels of n classes, then blanks."""
    def make(g):
        t = torch.randint(n - 1, (BATCH, width), generator=g)
        t = t + (t >= blank)
        long = torch.randint(most + 1, (BATCH, 1), generator=g)
        return torch.where(torch.arange(width) < long, t, blank)
    return make


def ctc(blank=0, zero=False, axis=2):
    def f(y, t):
        logs = torch.log_softmax(y, axis).movedim(3 - axis, 0)
        n = (t != blank).sum(1)
        return F.ctc_loss(logs, t, torch.full_like(n, len(logs)), n, blank=blank,
                          zero_infinity=zero)
    return f


case("soft_cross_entropy", "soft_cross_entropy", (5,), distribution(5), F.cross_entropy, axis=1)
case("soft_cross_entropy_smoothed", "soft_cross_entropy,label_smoothing=0.2",
     (3, 2, 2), distribution(3, 2, 2),
     lambda y, t: F.cross_entropy(y, t, label_smoothing=.2), axis=1)
case("focal", "focal", (5,), classes(5), focal(), axis=1)
case("focal_keys", "focal,gamma=1.5,alpha=0.5,ignore_index=2", (6, 4),
     ignoring(4, (6,), 2), focal(1.5, .5, 2, True), axis=2)
case("focal_0", "focal,gamma=0", (5,), ignoring(5), focal(0), axis=1)
case("sigmoid_focal", "sigmoid_focal", (6,), bits(6), sigmoid_focal())
case("sigmoid_focal_plain", "sigmoid_focal,alpha=-1,gamma=3", (2, 3), bits(2, 3),
     sigmoid_focal(-1, 3))
case("dice", "dice", (3, 2, 2), classes(3, (2, 2)), dice(), axis=1)
case("dice_of_vectors", "dice,smooth=1", (4,), classes(4), dice(1), axis=1)
case("sigmoid_dice", "sigmoid_dice", (2, 3, 3), bits(2, 3, 3), sigmoid_dice())
case("sigmoid_dice_flat", "sigmoid_dice,smooth=0.5", (7,), bits(7), sigmoid_dice(.5))
case("triplet", "triplet", (6,), None, F.triplet_margin_loss, outputs=3)
case("triplet_keys", "triplet,margin=3,eps=0.01", (6,), None,
     lambda a, p, n: F.triplet_margin_loss(a, p, n, margin=3, eps=.01), outputs=3)
case("info_nce", "info_nce", (6,), None, info_nce(), outputs=2)
case("info_nce_warm", "info_nce,temperature=0.5", (6,), None, info_nce(.5), outputs=2)
case("cosine", "cosine", (6,), normal(6), cosine)
case("cosine_of_tokens", "cosine", (3, 4), normal(3, 4), cosine)
case("kl_div", "kl_div", (5,), distribution(5),
     lambda y, t: F.kl_div(y, t, reduction="batchmean"))
case("kl_div_logs", "kl_div,log_target=1", (5,), normal(5),
     lambda y, t: F.kl_div(y, t, reduction="batchmean", log_target=True))
case("hinge", "hinge", (5,), signs(5), hinge())
case("hinge_squared", "hinge,margin=2,squared=1", (5,), signs(5), hinge(2, True))
case("multi_margin", "multi_margin", (5,), classes(5), F.multi_margin_loss, axis=1)
case("multi_margin_wide", "multi_margin,margin=3", (5,), classes(5),
     lambda y, t: F.multi_margin_loss(y, t, margin=3), axis=1)
case("quantile", "quantile,q=0.9", (5,), normal(5), pinball(.9))
case("smooth_l1", "smooth_l1", (5,), normal(5), F.smooth_l1_loss)
case("smooth_l1_narrow", "smooth_l1,beta=0.25", (3, 2), normal(3, 2),
     lambda y, t: F.smooth_l1_loss(y, t, beta=.25))
case("poisson_nll", "poisson_nll", (5,), share(5), F.poisson_nll_loss)
case("ctc", "ctc", (7, 5), labels(7, 3, 5), ctc(), axis=None)
case("ctc_keys", "ctc,axis=1,blank=2,zero_infinity=1", (4, 5), labels(5, 5, 4, 2),
     ctc(2, True, 1))
case("sum_of_two", "cross_entropy:y0 + 0.5*mse:y1", (5,), [classes(5), normal(5)],
     lambda a, b, t, u: F.cross_entropy(a, t) + .5 * F.mse_loss(b, u), outputs=2, axis=1)
case("sum_of_three", "2*focal,gamma=1:y0 + 0.25*l1:y1 + quantile,q=0.1:y2", (5,),
     [classes(5), normal(5), normal(5)],
     lambda a, b, c, t, u, v: 2 * focal(1)(a, t) + .25 * F.l1_loss(b, u) +
     pinball(.1)(c, v), outputs=3, axis=1)
case("scaled", "3*cross_entropy,label_smoothing=0.1,ignore_index=1", (5,), ignoring(5, (), 1),
     lambda y, t: 3 * F.cross_entropy(y, t, label_smoothing=.1, ignore_index=1), axis=1)


def main():
    folder, data, lines = sys.argv[1], {}, []
    for name, option, dims, target, f, outputs, scale, axis in CASES:
        g = torch.Generator().manual_seed(sum(name.encode()))
        x = [torch.randn(BATCH, *dims, generator=g) * scale for _ in range(outputs)]
        w = 1 + .5 * torch.rand(dims, generator=g)
        makers = target if isinstance(target, list) else [target] if target else []
        t = [m(g) for m in makers]

        def loss(n, w):
            y = [v[:n].double() * w for v in x]
            u = [v[:n] if v.dtype == torch.int64 else v[:n].double() for v in t]
            return f(*y, *u)

        ww = w.double().requires_grad_()
        value = loss(BATCH, ww)
        value.backward()
        data[f"{name}.loss"] = value.detach().reshape(1)
        data[f"{name}.grad"] = ww.grad.clone()
        data[f"{name}.w"] = w
        for k, v in enumerate(x):
            data[f"{name}.x{k}"] = v
        for k, v in enumerate(t):
            data[f"{name}.target{k}"] = v
        for n in (1, 3):
            part = loss(n, ww).detach().reshape(1)
            if not part.isnan():  # else all of it is ignored
                data[f"{name}.part.{n}"] = part
            if axis is None or "ignore_index" in option:
                continue
            y = (x[0][:n].double() * w.double()).argmax(axis)
            hits = y == (t[0][:n] if t[0].dtype == torch.int64 else t[0][:n].argmax(axis))
            data[f"{name}.hits.{n}"] = hits.sum().double().reshape(1)
        lines.append(f"{name}|{option}|{outputs}|{'x'.join(map(str, dims))}")
    save_file({k: v.contiguous() for k, v in data.items()},
              f"{folder}/losses/values.safetensors")
    with open(f"{folder}/losses/values.csv", "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
    print(f"{len(CASES)} cases, torch {torch.__version__}")


if __name__ == "__main__":
    main()
