# SPDX-License-Identifier: Apache-2.0
"""More losses and heads of losses.py: kinds of which public issue trackers
report that 16 bits broke them, and kinds that differ from those in losses.py."""
import math

import torch
import torch.nn.functional as F

from loss_table import BATCH, loss


# Selections: a rounding error can move which element is the largest or in which
# bin a number falls, in either framework; more draws say what that does on average.

@loss(12, {"i4_t": (BATCH,), "n_e": (BATCH, 12)}, draws=20)
def hard_triplet(y, t, e):
    z = y + e
    q = (z * z).sum(1)
    d = torch.sqrt((q[:, None] + q[None] - 2 * (z @ z.t())).clamp(min=1e-6))
    same = t[:, None] == t[None]
    far = torch.where(same, d, 0.).max(1).values
    near = torch.where(same, 1e4, d).min(1).values
    return F.softplus(far - near).mean()


@loss(12, {"i4_t": (BATCH,), "n_e": (BATCH, 12)}, draws=20)
def hard_pairs(y, t, e):
    z = F.normalize(y + e * .1, dim=1)
    d = ((z[:, None] - z[None]) ** 2).sum(2).clamp(min=1e-8).sqrt()
    same = t[:, None] == t[None]
    far = torch.where(same, d, 0.).max(1).values
    near = torch.where(same, 1e4, d).min(1).values
    return (far - near + .3).clamp(min=0).mean()


@loss(16, {"u_x": (BATCH,)}, draws=20)
def spline_flow(y, x):
    w = F.softmax(y[:, :5], 1) * .95 + .01
    h = F.softmax(y[:, 5:10], 1) * .95 + .01
    d = F.softplus(y[:, 10:]) + .01
    left = F.pad(torch.cumsum(w, 1), (1, 0))
    low = F.pad(torch.cumsum(h, 1), (1, 0))
    x = x[:, None] * .98 + .005
    k = (x >= left[:, 1:-1]).sum(1, keepdim=True)
    w, h = w.gather(1, k), h.gather(1, k)
    s, t = h / w, (x - left.gather(1, k)) / w
    a, b = d.gather(1, k), d.gather(1, k + 1)
    down = s + (b + a - 2 * s) * t * (1 - t)
    out = low.gather(1, k) + h * (s * t * t + a * t * (1 - t)) / down
    slope = s * s * (b * t * t + 2 * s * t * (1 - t) + a * (1 - t) ** 2)
    return (2 * torch.log(down) - torch.log(slope) + (out - .5) ** 2).mean() + 1


@loss(32, {"n_t": (BATCH, 32)}, draws=20)
def spectral(y, t):
    n = torch.arange(32.)
    angle = n[:, None] * n[None, :17] * (2 * math.pi / 32)
    c, s = torch.cos(angle), torch.sin(angle)

    def size(x):
        return torch.sqrt((x @ c) ** 2 + (x @ s) ** 2 + 1e-7)
    a, b = size(t + .3 * y), size(t)
    return ((a - b).norm() / b.norm() +
            (torch.log(a) - torch.log(b)).abs().mean())


@loss(16, {"u_t": (4, 16)}, {}, 4, draws=20)
def lovasz(y, t):
    t = (t > .7).float()
    e, at = torch.sort((1 - y * (2 * t - 1)).clamp(min=0), 1, descending=True)
    t = t.gather(1, at)
    all_ = t.sum(1, keepdim=True)
    j = 1 - (all_ - torch.cumsum(t, 1)) / (all_ + torch.cumsum(1 - t, 1))
    j = j - F.pad(j[:, :-1], (1, 0))
    return (e * j).sum(1).mean()


# Distillation and language.

@loss(10, {"n_e": (BATCH, 10)})
def near_distillation(y, e):
    """The student is nearly the teacher: probabilities cancel."""
    p = F.softmax(y.detach() + .05 * e, 1)
    q = F.softmax(y, 1)
    return (p - q).abs().sum(1).mean() / 2 + (q * (
        torch.log(q) - torch.log(p))).sum(1).mean()


@loss(12, {"i12_t": (BATCH,), "i12_not": (BATCH,)})
def odds_ratio(y, t, wrong):
    logp = F.log_softmax(y, 1)
    a, b = logp.gather(1, t[:, None]), logp.gather(1, wrong[:, None])
    odds = a - b - (torch.log1p(-torch.exp(a)) - torch.log1p(-torch.exp(b)))
    return -(F.logsigmoid(odds)).mean() - a.mean()


@loss(4, {"i4_a": (BATCH,), "n_adv": (BATCH,), "n_e": (BATCH, 4)})
def sequence_ratio(y, a, adv, e):
    """Eight tokens a sequence: the ratio is of mean log-probabilities."""
    logp = F.log_softmax(y, 1).gather(1, a[:, None])[:, 0]
    old = F.log_softmax(y.detach() + .1 * e, 1).gather(1, a[:, None])[:, 0]
    r = torch.exp((logp - old).view(4, 8).mean(1))
    adv = adv.view(4, 8)[:, 0]
    kl = torch.exp(old - logp) - (old - logp) - 1
    return 1 - torch.minimum(r * adv, r.clamp(.8, 1.2) * adv).mean() + kl.mean()


@loss(8, {"n_v": (BATCH, 6)}, {"up": (8, 6, 6)}, draws=20)
def router(y, x, up):
    p = F.softmax(y * 3, 1)
    best = p.max(1, keepdim=True).values
    gate = p * (p >= best).float()
    gate = gate / (gate.sum(1, keepdim=True) + 1e-9)
    out = torch.einsum("bi,eij,be->bj", x, up, gate)
    share = (p >= best).float().mean(0)
    z = torch.logsumexp(y * 3, 1)
    return (out - x).pow(2).mean() + .1 * 8 * (share * p.mean(0)).sum() + (
        1e-2 * z * z).mean()


@loss(8, {"n_t": (BATCH, 8)})
def sigmoid_router(y, t):
    s = torch.sigmoid(y)
    w = s / (s.sum(1, keepdim=True) + 1e-20) * 2.5
    return ((w * t).sum(1) - 1).pow(2).mean()


@loss(24, {"n_t": (2, 16, 8)}, {"sink": (1, 1, 1)})
def capped_attention(y, t, sink):
    q, k, v = y.view(2, 16, 24).split(8, 2)
    q, k = F.normalize(q, dim=2) * 8, F.normalize(k, dim=2)
    s = torch.tanh(q @ k.transpose(1, 2) / 5) * 5
    e = torch.exp(s - s.amax(2, keepdim=True))
    p = e / (e.sum(2, keepdim=True) + torch.exp(sink - s.amax(2, keepdim=True)))
    return (p @ v - t).pow(2).mean()


@loss(24, {"n_t": (2, 16, 8)})
def sharp_attention(y, t):
    q, k, v = (y * 4).view(2, 16, 24).split(8, 2)
    return (F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])
            - t[:, None]).pow(2).mean()


@loss(12, {"n_t": (4, 8, 4)})
def decayed_keys(y, t):
    """A recurrence of weighted means whose weights are kept as logarithms."""
    k, v, w = y.view(4, 8, 12).split(4, 2)
    w = -torch.exp(w - 1)
    a = b = torch.zeros(4, 4)
    top = torch.full((4, 4), -1e4)
    out = []
    for i in range(8):
        new = torch.maximum(top + w[:, i], k[:, i])
        f, g = torch.exp(top + w[:, i] - new), torch.exp(k[:, i] - new)
        a, b, top = f * a + g * v[:, i], f * b + g, new
        out.append(a / b)
    return (torch.stack(out, 1) - t).pow(2).mean()


@loss(12, {"n_t": (4, 8, 4)})
def selective_scan(y, t):
    d, b, x = y.view(4, 8, 12).split(4, 2)
    d = F.softplus(d - 1)
    h, out = torch.zeros(4, 4), []
    for i in range(8):
        h = h * torch.exp(-d[:, i]) + d[:, i] * b[:, i] * x[:, i]
        out.append(h)
    return (torch.stack(out, 1) - t).pow(2).mean()


# Vision, depth, rendering.

@loss(16, {"u_t": (BATCH, 16)})
def scale_invariant_depth(y, t):
    d = torch.log(F.softplus(y) + 1e-3) - torch.log(t * 10 + .5)
    return torch.sqrt((d ** 2).mean() - .85 * d.mean() ** 2) * 10


@loss(16, {"u_t": (BATCH, 16)}, draws=20)
def affine_invariant_depth(y, t):
    def unit(x):
        x = x - torch.sort(x, 1).values[:, 7:8]
        return x / (x.abs().mean(1, keepdim=True) + 1e-6)
    d = unit(y) - unit(t)
    return d.abs().mean() + (d[:, 1:] - d[:, :-1]).abs().mean() / 2


@loss(32, {"u_c": (BATCH, 16)})
def rendering(y, c):
    sigma, colour = F.softplus(y[:, :16]), torch.sigmoid(y[:, 16:])
    before = torch.cumsum(sigma * .3, 1) - sigma * .3
    w = torch.exp(-before) * (1 - torch.exp(-sigma * .3))
    at = (torch.arange(16.) + .5) / 16
    pairs = (at[:, None] - at[None]).abs()
    spread = ((w @ pairs) * w).sum(1) + (w ** 2).sum(1) / 48
    return ((w * colour).sum(1) - c.mean(1)).pow(2).mean() + .1 * spread.mean()


@loss(17, {"u_c": (BATCH, 1)})
def surface_rendering(y, c):
    d = torch.cumsum(y, 1) * .3 + .5
    s = torch.sigmoid(d * 8)
    alpha = ((s[:, :-1] - s[:, 1:]) / (s[:, :-1] + 1e-5)).clamp(min=0)
    w = alpha * torch.exp(torch.cumsum(torch.log(1 - alpha + 1e-7), 1))
    return (w.sum(1, keepdim=True) - c).pow(2).mean()


@loss(8, {"n_flow": (BATCH, 8)})
def end_point_error(y, flow):
    d = (flow * 30 + y - flow * 30).view(-1, 4, 2)
    return torch.sqrt((d ** 2).sum(2) + 1e-6).mean() + (
        d.abs().sum(2) + .01).pow(.4).mean()


@loss(17, {"u_t": (BATCH, 1)})
def distribution_focal(y, t):
    t = t * 15.99
    low = t.floor().long()
    logp = F.log_softmax(y, 1)
    part = t - low.float()
    loss_ = -(logp.gather(1, low) * (1 - part) + logp.gather(1, low + 1) * part)
    at = (F.softmax(y, 1) * torch.arange(17.)).sum(1, keepdim=True)
    return loss_.mean() + .1 * (at - t).abs().mean()


@loss(10, {"u_t": (BATCH, 10)})
def key_points(y, t):
    p = t * 640
    d = (p + y * 8 - p).view(-1, 5, 2)
    return (1 - torch.exp(-(d ** 2).sum(2) / (2 * 12. ** 2))).mean()


@loss(5, {"u_t": (BATCH, 5)})
def rotated_boxes(y, t):
    def gauss(b):
        c, s = torch.cos(b[:, 4] * 3), torch.sin(b[:, 4] * 3)
        w, h = (b[:, 2] * 40 + 20) ** 2 / 4, (b[:, 3] * 40 + 20) ** 2 / 4
        return (b[:, :2] * 600, c * c * w + s * s * h, (w - h) * c * s,
                s * s * w + c * c * h)
    (m, a, b, c), (n, d, e, f) = gauss(t + .02 * y), gauss(t)
    det = d * f - e * e
    x = m - n
    far = (f * x[:, 0] ** 2 - 2 * e * x[:, 0] * x[:, 1] + d * x[:, 1] ** 2) / det
    kl = (far + (f * a - 2 * e * b + d * c) / det - 2 +
          torch.log(det / (a * c - b * b))) / 2
    return (1 - 1 / (1 + torch.log1p(kl.clamp(min=0)))).mean()


@loss(16, {"u_t": (BATCH, 16)})
def soft_skeleton(y, t):
    x, t = torch.sigmoid(y * 2).view(-1, 1, 4, 4), (t > .5).float().view(
        -1, 1, 4, 4)

    def lines(x):
        less = -F.max_pool2d(-x, 3, 1, 1)
        return F.relu(x - F.max_pool2d(less, 3, 1, 1))
    a, b = lines(x), lines(t)
    p = ((a * t).sum() + 1) / (a.sum() + 1)
    r = ((b * x).sum() + 1) / (b.sum() + 1)
    return 1 - 2 * p * r / (p + r)


# Science.

@loss(9, {"n_p": (BATCH, 9)})
def lennard_jones(y, p):
    x = (torch.arange(3.)[:, None] * torch.tensor([[1.1, .3, 0.]]) +
         (y * .1 + p * .05).view(-1, 3, 3))
    d2 = torch.stack([((x[:, i] - x[:, j]) ** 2).sum(1)
                      for i, j in ((0, 1), (0, 2), (1, 2))], 1)
    s6 = 1 / d2 ** 3
    return (4 * (s6 * s6 - s6)).mean()


@loss(12, {"n_p": (BATCH, 4, 3)}, draws=20)
def distances_in_a_fold(y, p):
    x = p * 8 + y.view(-1, 4, 3)
    a = torch.sqrt(((x[:, :, None] - x[:, None]) ** 2).sum(3) + 1e-8)
    b = torch.sqrt(((p[:, :, None] * 8 - p[:, None] * 8) ** 2).sum(3) + 1e-8)
    d = (a - b).abs()
    score = sum(torch.sigmoid(c - d) for c in (.5, 1., 2., 4.)) / 4
    return 1 - score.mean() + .1 * torch.sqrt(d ** 2 + 1e-4).clamp(max=10).mean()


@loss(16, {"n_t": (BATCH, 16)})
def burgers(y, t):
    u = t + .1 * y
    h = 2 / 15
    mid = u[:, 1:-1]
    du = (u[:, 2:] - u[:, :-2]) / (2 * h)
    ddu = (u[:, 2:] - 2 * mid + u[:, :-2]) / (h * h)
    return (mid * du - .01 * ddu).pow(2).mean()


@loss(4, {"n_t": (BATCH, 4)}, {"w": (4, 4)})
def neural_ode(y, t, w):
    def f(x):
        return torch.tanh(x @ w) - .1 * x
    for _ in range(3):
        a = f(y)
        b = f(y + .05 * a)
        c = f(y + .05 * b)
        d = f(y + .1 * c)
        y = y + .1 / 6 * (a + 2 * b + 2 * c + d)
    return (y - t).pow(2).mean()


@loss(8, {"n_e": (BATCH, 8), "u_s": (BATCH, 1)})
def denoising_score(y, e, s):
    s = torch.exp(-4 + 4 * s)
    return ((y / s + e / s) ** 2 * s ** 2).mean() / 8


# Counts, money, recommendation.

@loss(2, {"u_t": (BATCH, 1)})
def tweedie(y, t):
    m = torch.exp(y[:, :1] * 2)
    t = (t - .4).clamp(min=0) * 20
    return (-t * m ** -.5 / -.5 + m ** .5 / .5).mean()


@loss(3, {"u_t": (BATCH, 1)})
def zero_inflated(y, t):
    pi, m, k = torch.sigmoid(y[:, :1]), torch.exp(y[:, 1:2]), torch.exp(y[:, 2:])
    n = ((t - .5).clamp(min=0) * 8).floor()
    zero = torch.exp(k * (torch.log(k) - torch.log(k + m)))
    some = k * torch.log(k / (k + m)) + n * torch.log(m / (k + m))
    return -torch.where(n == 0, torch.log(pi + (1 - pi) * zero + 1e-8),
                        torch.log(1 - pi + 1e-8) + some).mean()


@loss(16, {"i20_u": (BATCH, 6), "u_t": (BATCH,)}, {"rows": (20, 4), "w": (20,)})
def factorisation_machine(y, u, t, rows, w):
    v = torch.cat((rows[u], y.view(-1, 4, 4)), 1)
    pairs = (v.sum(1) ** 2 - (v ** 2).sum(1)).sum(1) / 2
    return F.binary_cross_entropy_with_logits(pairs + w[u].sum(1),
                                              (t > .5).float())


@loss(8, {"n_p": (BATCH, 8)}, {"scale": (1,), "bias": (1,)})
def sigmoid_pairs(y, p, scale, bias):
    z = F.normalize(y, dim=1) @ F.normalize(p, dim=1).t()
    z = z * torch.exp(scale + 2.3) + bias - 5
    same = 2 * torch.eye(BATCH) - 1
    return -F.logsigmoid(z * same).sum(1).mean()


@loss(8, {"n_p": (BATCH, 8)}, {"centre": (8,)})
def centred_teacher(y, p, centre):
    q = F.softmax((p - centre.detach()) / .1, 1)
    return -(q * F.log_softmax(y / .1, 1)).sum(1).mean() + (
        centre ** 2).sum()


# Graphs and norms.

@loss(8, {"i32_to": (96,), "i32_from": (96,), "n_t": (BATCH, 8)}, {"to_all": (8,)})
def edge_attention(y, to, source, t, to_all):
    s = F.leaky_relu((y * to_all).sum(1)[to] + y.sum(1)[source], .2) * 3
    e = torch.exp(s - s.max())
    all_ = torch.zeros(BATCH).index_add(0, to, e) + 1e-16
    out = torch.zeros(BATCH, 8).index_add(0, to, y[source] * (
        e / all_[to])[:, None])
    return (out - t).pow(2).mean()


@loss(8, {"n_v": (8, 12, 8), "n_t": (8, 8)}, {}, 8)
def spread_of_neighbours(y, x, t):
    v = x * .1 + 2 + y[:, None]
    m = v.mean(1)
    sd = torch.sqrt(F.relu((v * v).mean(1) - m * m) + 1e-5)
    return (torch.log(sd) + .1 * m - t).pow(2).mean()


@loss(16, {"n_t": (BATCH, 16)}, {"g": (16,), "w": (16, 16)})
def weight_norm(y, t, g, w):
    unit = w / torch.sqrt((w * w).sum(1, keepdim=True) + 1e-12)
    z = y @ (unit * torch.exp(g)[:, None]).t()
    size = torch.sqrt((z * z).sum(0, keepdim=True) + 1e-6)
    z = z * size / (size.mean() + 1e-6) + z
    return (z - t).pow(2).mean()


@loss(6, {"n_t": (BATCH, 6)})
def rounded_levels(y, t):
    z = torch.tanh(y) * 2.5
    q = z + (torch.round(z) - z).detach()
    return (q - t).pow(2).mean() + .25 * (z - torch.round(z).detach()).pow(
        2).mean()
