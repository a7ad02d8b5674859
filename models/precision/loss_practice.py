# SPDX-License-Identifier: Apache-2.0
"""More losses of losses.py, written by hand as users write them: densities,
policies, matching, boxes, coordinates far from 0, sums of squares that cancel."""
import math

import torch
import torch.nn.functional as F

from loss_table import BATCH, loss


def log_gamma(x):
    """Stirling's series, shifted by 4."""
    z = x + 4
    return ((z - .5) * torch.log(z) - z + .9189385 + 1 / (12 * z) -
            1 / (360 * z ** 3) - torch.log(x * (x + 1) * (x + 2) * (x + 3)))


def squared(a, b):
    """Squared distances of all pairs of rows, by expansion."""
    return ((a * a).sum(-1)[..., :, None] + (b * b).sum(-1)[..., None, :] -
            2 * a @ b.transpose(-1, -2))


# Policies and returns.

@loss(4, {"n_e": (BATCH, 2)})
def squashed_by_softplus(y, e):
    m, ls = y[:, :2] * 4, y[:, 2:].clamp(-5, 2)
    u = m + ls.exp() * e
    logp = (-.5 * e * e - ls - 2 * (.6931472 - u - F.softplus(-2 * u))).sum(1)
    return (.2 * logp - torch.tanh(u).sum(1)).mean() + 4


@loss(8, {"i4_a": (BATCH, 2), "n_old": (BATCH, 2)})
def policy_kl(y, a, old):
    logp = F.log_softmax(y.view(-1, 2, 4) * 3, 2).gather(2, a[..., None])[..., 0]
    d = .02 * old
    r = torch.exp(logp - (logp.detach() + d))
    return ((r - 1) - torch.log(r)).mean() * 1000 - r.mean()


@loss(8, {"n_r": (BATCH, 8), "u_done": (BATCH, 7)})
def advantages(y, r, done):
    v, go = y * 10 + 500, (done > .1).float()
    a, out = 0, []
    for t in reversed(range(7)):
        d = r[:, t] + .99 * go[:, t] * v[:, t + 1] - v[:, t]
        a = d + .99 * .95 * go[:, t] * a
        out.append(a)
    a = torch.stack(out, 1)
    a = (a - a.mean()) / (a.std() + 1e-8)
    return (a * F.log_softmax(y[:, :7], 1)).mean() + ((v - 500 - r) ** 2).mean()


@loss(8, {"n_ref": (2, BATCH), "u_tie": (BATCH, 8)})
def preferences(y, ref, tie):
    logp = F.logsigmoid(y * 3 + tie)
    chosen, other = logp[:, :4].sum(1) - 40, logp[:, 4:].sum(1) - 40
    h = (chosen - other) - (ref[0] - ref[1]) * .1
    return -F.logsigmoid(.1 * h).mean()


@loss(9, {"n_r": (BATCH,)})
def categorical_value(y, r):
    """A distribution over returns, projected to fixed atoms."""
    atoms = torch.linspace(-10., 10., 9)
    p = F.softmax(y, 1)
    b = ((r[:, None] * 3 + .9 * atoms).clamp(-10, 10) + 10) / 2.5
    low = b.floor().clamp(0, 7)
    up = b - low
    q = F.softmax(y.detach() * 2, 1)
    m = torch.zeros(BATCH, 9).scatter_add(1, low.long(), q * (1 - up))
    m = m.scatter_add(1, low.long() + 1, q * up)
    return -(m * torch.log(p + 1e-8)).sum(1).mean() + (p * atoms).sum(1).pow(
        2).mean()


@loss(8, {"n_t": (BATCH, 4)})
def quantile_huber(y, t):
    q = y * 5 + 100
    d = (t * 2 + 100)[:, None] - q[:, :, None]
    tau = (torch.arange(8.) + .5) / 8
    h = torch.where(d.abs() < 1, .5 * d * d, d.abs() - .5)
    return ((tau[:, None] - (d.detach() < 0).float()).abs() * h).mean()


# Densities.

@loss(6, {"n_t": (BATCH, 3)})
def near_gaussians(y, t):
    """KL of two Gaussians that are nearly equal."""
    m, ls = y[:, :3] + t, y[:, 3:] * .1
    s2, q2 = torch.exp(2 * ls), torch.exp(2 * ls.detach() + .02 * t)
    n = t + y[:, :3].detach() + .05
    kl = .5 * (torch.log(q2 / s2) + (s2 + (m - n) ** 2) / q2 - 1)
    return kl.sum(1).mean() * 100


@loss(4, {"n_t": (BATCH, 2)})
def wasserstein_gaussians(y, t):
    s, q = torch.exp(y[:, 2:]), torch.exp(y[:, 2:].detach() + .1 * t)
    return (((y[:, :2] - t) * .1) ** 2 + s + q - 2 * torch.sqrt(s * q)).sum(
        1).mean()


@loss(2, {"u_t": (BATCH, 1)})
def beta_density(y, t):
    a, b = F.softplus(y[:, :1] * 3) + .3, F.softplus(y[:, 1:] * 3) + .3
    t = t * .98 + .01
    return -(log_gamma(a + b) - log_gamma(a) - log_gamma(b) +
             (a - 1) * torch.log(t) + (b - 1) * torch.log(1 - t)).mean() + 3


@loss(2, {"u_t": (BATCH, 1)})
def gamma_density(y, t):
    k, rate = torch.exp(y[:, :1]) * 8, torch.exp(y[:, 1:])
    t = t * 9 + .5
    return -(k * torch.log(rate) + (k - 1) * torch.log(t) - rate * t -
             log_gamma(k)).mean()


@loss(2, {"i40_n": (BATCH, 1)})
def negative_binomial(y, n):
    n, r, p = n.float(), F.softplus(y[:, :1]) * 5 + .1, torch.sigmoid(y[:, 1:])
    return -(log_gamma(n + r) - log_gamma(r) - log_gamma(n + 1) +
             r * torch.log(p) + n * torch.log(1 - p)).mean()


@loss(1, {"u_n": (BATCH, 1)})
def large_counts(y, n):
    n = torch.floor(n * 900) + 600
    rate = torch.exp(y * .1 + 6.9)
    stirling = n * torch.log(n) - n + .5 * torch.log(6.2831853 * n)
    return (rate - n * torch.log(rate) + stirling).mean()


@loss(4, {"n_t": (BATCH, 1)})
def evidential(y, t):
    m, v = y[:, :1], F.softplus(y[:, 1:2]) + .1
    a, b = F.softplus(y[:, 2:3]) + 1, F.softplus(y[:, 3:]) + .1
    w = 2 * b * (1 + v)
    return (.5 * torch.log(3.1415927 / v) - a * torch.log(w) + (a + .5) *
            torch.log(v * (t - m) ** 2 + w) + log_gamma(a) -
            log_gamma(a + .5)).mean()


@loss(12, {"u_t": (BATCH, 3)})
def mixture_of_logistics(y, t):
    """Bins of 1/255 with open ends."""
    t = torch.floor(t * 256) / 127.5 - 1
    pi, m, ls = y[:, :4], y[:, 4:8], y[:, 8:].clamp(min=-7) - 1.5
    c = t[:, :, None] - m[:, None]
    inv = torch.exp(-ls)[:, None]
    up, down = inv * (c + 1 / 255), inv * (c - 1 / 255)
    inside = torch.sigmoid(up) - torch.sigmoid(down)
    mid = inv * c - ls[:, None] - 2 * F.softplus(inv * c)
    logp = torch.where(t[:, :, None] < -.999, up - F.softplus(up), torch.where(
        t[:, :, None] > .999, -F.softplus(down), torch.where(
            inside > 1e-5, torch.log(inside.clamp(min=1e-12)), mid - 4.848)))
    return -torch.logsumexp(logp.sum(1) + F.log_softmax(pi, 1), 1).mean()


@loss(8, {"u_t": (BATCH, 4)})
def bits_of_bins(y, t):
    """Rate of rounded latents under a Gaussian, in bits."""
    m, s = y[:, :4] * 3, torch.exp(y[:, 4:]) + .11
    z = (y[:, :4] * 3 + t - .5) - m.detach()
    def cdf(x):
        return .5 * torch.erfc(-x * .70710678)
    p = cdf((.5 - z.abs()) / s) - cdf((-.5 - z.abs()) / s)
    return -torch.log2(p.clamp(min=1e-9)).sum(1).mean()


@loss(6, {"n_z": (BATCH, 6)}, {"mix": (6, 6), "scale": (6,)})
def glow_step(y, z, mix, scale):
    z = (z + y) * torch.exp(scale)
    w = torch.eye(6) + mix * .2
    low = torch.tril(w, -1) + torch.eye(6)
    d = torch.diagonal(w)
    z = z @ (low @ (torch.triu(w, 1) + torch.diag(d)))
    a, b = z[:, :3], z[:, 3:]
    s = torch.sigmoid(a + 2)
    b = (b + a * .5) * s
    logdet = torch.log(d.abs()).sum() + scale.sum() + torch.log(s).sum(1)
    return ((a * a + b * b).sum(1) / 2 - logdet).mean()


@loss(4, {"n_z": (BATCH, 4)}, {"centre": (3, 4), "ab": (3, 2)})
def radial_flow(y, z, centre, ab):
    z, logdet = z + y, 0
    for k in range(3):
        a, d = F.softplus(ab[k, 0]), z - centre[k]
        b = F.softplus(ab[k, 1]) - a
        h = 1 / (a + d.norm(dim=1, keepdim=True))
        bh = b * h
        z = z + bh * d
        r = 1 / h - a
        logdet = logdet + 3 * torch.log(1 + bh) + torch.log(
            1 + bh - b * h * h * r)
    return ((z * z).sum(1) / 2 - logdet[:, 0]).mean()


@loss(9, {"n_t": (BATCH, 3)})
def cholesky_gaussian(y, t):
    d = torch.exp(y[:, 3:6] * .5)
    a, b, c = y[:, 6], y[:, 7], y[:, 8]
    r = t - y[:, :3]
    z0 = r[:, 0] / d[:, 0]
    z1 = (r[:, 1] - a * z0) / d[:, 1]
    z2 = (r[:, 2] - b * z0 - c * z1) / d[:, 2]
    return (.5 * (z0 * z0 + z1 * z1 + z2 * z2) + torch.log(d).sum(1)).mean()


# Sequences.

@loss(30, {"i4_l": (4, 2)}, {}, 4 * 4)
def transducer(y, l):
    """Four frames, two labels, blank 4: the forward recursion of RNN-T."""
    logp = F.log_softmax(y.view(4, 4, 3, 10)[..., :5] * 2, 3)
    blank = logp[..., 4]
    emit = logp[:, :, :2].gather(3, l[:, None, :, None].expand(4, 4, 2, 1))[..., 0]
    a = {(0, 0): torch.zeros(4)}
    for t in range(4):
        for u in range(3):
            ways = []
            if t:
                ways.append(a[t - 1, u] + blank[:, t - 1, u])
            if u:
                ways.append(a[t, u - 1] + emit[:, t, u - 1])
            if ways:
                a[t, u] = torch.logsumexp(torch.stack(ways), 0)
    return -(a[3, 2] + blank[:, 3, 2]).mean()


@loss(5, {"u_start": (4, 5)}, {"move": (5, 5)})
def scaled_forward(y, start, move):
    """A hidden Markov model with probabilities, each step scaled to 1."""
    e = torch.sigmoid(y.view(4, 8, 5) * 3)
    p = F.softmax(move * 3, 1)
    a, ll = start / start.sum(1, keepdim=True), 0
    for t in range(8):
        a = (a @ p) * e[:, t]
        c = a.sum(1, keepdim=True)
        a, ll = a / c, ll + torch.log(c)
    return -ll.mean()


@loss(1, {"u_event": (BATCH,)})
def partial_likelihood(y, event):
    h = y[:, 0] * 4
    risk = torch.log(torch.cumsum(torch.exp(h - h.max()), 0)) + h.max()
    e = (event > .4).float()
    return ((risk - h) * e).sum() / e.sum()


@loss(8, {"n_v": (BATCH, 8)})
def running_spread(y, v):
    z = v + y + 30
    n = torch.arange(1., 9.)
    m = torch.cumsum(z, 1) / n
    var = torch.cumsum(z * z, 1) / n - m * m
    return torch.log(var[:, 2:].clamp(min=1e-4)).mean() + ((z - m) ** 2).mean()


@loss(24, {"n_t": (2, 16, 8)})
def rotary_far(y, t):
    """Positions from 30,000 on."""
    q, k, v = y.view(2, 16, 24).chunk(3, 2)
    at = torch.arange(30000., 30016.)[:, None] * 500. ** (-torch.arange(4.) / 4)
    c, s = torch.cos(at), torch.sin(at)
    def turned(x):
        a, b = x[..., :4], x[..., 4:]
        return torch.cat((a * c - b * s, a * s + b * c), 2)
    scores = turned(q) @ turned(k).transpose(1, 2) * 3
    return ((scores.softmax(-1) @ v - t) ** 2).mean()


@loss(24, {"n_t": (2, 16, 8)})
def linear_bias(y, t):
    q, k, v = y.view(2, 16, 24).chunk(3, 2)
    at = torch.arange(16.)
    bias = -(at[:, None] - at[None]).abs() * .5
    causal = torch.triu(torch.full((16, 16), float("-inf")), 1)
    s = q @ k.transpose(1, 2) + bias * 4 + causal
    return ((s.softmax(-1) @ v - t) ** 2).mean()


# Metric learning.

@loss(12, {"n_p": (2, BATCH, 12)})
def two_views(y, p):
    z = F.normalize(torch.cat((p[0] + y * 4, p[0] * .6 + p[1] + y)), dim=1)
    s = z @ z.t() / .05 - torch.eye(2 * BATCH) * 1e9
    to = torch.arange(2 * BATCH).roll(BATCH)
    return F.cross_entropy(s, to)


@loss(12, {"i4_t": (BATCH,)})
def supervised_contrast(y, t):
    z = F.normalize(y, dim=1)
    s = z @ z.t() / .1
    s = s - s.max(1, keepdim=True).values.detach()
    own = 1 - torch.eye(BATCH)
    same = (t[:, None] == t[None]).float() * own
    logp = s - torch.log((torch.exp(s) * own).sum(1, keepdim=True))
    return -((same * logp).sum(1) / (same.sum(1) + 1e-6)).mean()


@loss(8, {"n_p": (BATCH, 8), "n_q": (BATCH, 8)})
def expanded_triplet(y, p, q):
    a, p, q = p + y * .5 + 5, p + 5, q + 5
    def far(u, v):
        return (u * u).sum(1) + (v * v).sum(1) - 2 * (u * v).sum(1)
    return F.relu(far(a, p) - far(a, q) + 8).mean()


@loss(8, {"n_p": (BATCH, 8)})
def kernel_alignment(y, p):
    h = torch.eye(BATCH) - 1 / BATCH
    k, l = torch.exp(-squared(y + p, y + p) / 20), (p + 2) @ (p + 2).t()
    k, l = h @ k @ h, h @ l @ h
    return 1 - (k * l).sum() / torch.sqrt((k * k).sum() * (l * l).sum())


@loss(6, {"n_p": (BATCH, 6)})
def small_angles(y, p):
    a, b = F.normalize(p + .1 * y, dim=1), F.normalize(p, dim=1)
    return torch.acos((a * b).sum(1).clamp(-1 + 1e-7, 1 - 1e-7)).mean()


@loss(8, {"n_p": (BATCH, 8)})
def ball_distance(y, p):
    """Poincare ball: points near the border."""
    def inside(x):
        n = x.norm(dim=1, keepdim=True)
        return torch.tanh(n) * x / (n + 1e-7)
    u, v = inside(y + p), inside(p)
    d = ((u - v) ** 2).sum(1)
    x = 1 + 2 * d / ((1 - (u * u).sum(1)) * (1 - (v * v).sum(1)) + 1e-6)
    return torch.log(x + torch.sqrt(x * x - 1 + 1e-7)).mean()


@loss(12, {"n_p": (BATCH, 12)})
def raw_covariance(y, p):
    z = y + p * .5 + 3
    m = z.mean(0)
    c = z.t() @ z / BATCH - m[:, None] * m[None]
    return (c - torch.eye(12)).pow(2).sum() + F.relu(
        1 - torch.sqrt(torch.diagonal(c).clamp(min=1e-4))).mean()


@loss(6, {"n_p": (BATCH, 6)})
def whitened(y, p):
    """Newton's iteration for the inverse root of the covariance."""
    z = y + p
    z = z - z.mean(0)
    c = z.t() @ z / BATCH + torch.eye(6) * 1e-3
    size = torch.diagonal(c).sum()
    c, w = c / size, torch.eye(6)
    for _ in range(5):
        w = 1.5 * w - .5 * w @ w @ w @ c
    return ((z @ (w / torch.sqrt(size)) - p) ** 2).mean()


# Probabilities by hand.

@loss(10, {"i10_t": (BATCH,)})
def sum_of_exponentials(y, t):
    z = y * 6 + 20
    return (torch.log(torch.exp(z).sum(1)) - z.gather(1, t[:, None])[:, 0]).mean()


@loss(6, {"u_t": (BATCH, 6)})
def log_of_one_plus(y, t):
    z = y * 8
    return (torch.log(1 + torch.exp(z)) - z * (t > .5).float()).mean()


@loss(10, {"n_t": (BATCH, 10)})
def logs_of_probabilities(y, t):
    p, q = F.softmax(y * 3 + .1 * t, 1), F.softmax(y * 3, 1).detach()
    m = (p + q) / 2
    return ((p * (p.log() - m.log())).sum(1) + (q * (q.log() - m.log())).sum(
        1)).mean() * 1000


@loss(10, {"i10_t": (BATCH,)})
def focal_of_ce(y, t):
    ce = F.cross_entropy(y * 6, t, reduction="none")
    return ((1 - torch.exp(-ce)) ** 2 * ce).mean()


@loss(16, {"u_t": (BATCH, 16)})
def tversky(y, t):
    p, t = torch.sigmoid(y * 4), (t > .8).float()
    hit, more, less = (p * t).sum(), (p * (1 - t)).sum(), ((1 - p) * t).sum()
    return (1 - (hit + 1) / (hit + .3 * more + .7 * less + 1)) ** .75


# Images and fields.

@loss(32, {"n_t": (8, 8, 16)}, {}, 8 * 4)
def style(y, t):
    z = y.view(8, 8, 16)
    g, h = z @ z.transpose(1, 2) / 16, (t * .3) @ (t * .3).transpose(1, 2) / 16
    return ((g - h) ** 2).mean() * 100 + (z[..., 1:] - z[..., :-1]).abs().mean()


@loss(32, {"n_t": (8, 8, 16)}, {"w": (8,)}, 8 * 4)
def unit_features(y, t, w):
    z = t + y.view(8, 8, 16) * .3
    a = z / (torch.sqrt((z * z).sum(1, keepdim=True)) + 1e-10)
    b = t / (torch.sqrt((t * t).sum(1, keepdim=True)) + 1e-10)
    return (((a - b) ** 2) * torch.exp(w)[:, None]).sum(1).mean()


@loss(64, {"u_t": (BATCH, 64)})
def similarity_of_bytes(y, t):
    b = (t * 40 + 150).view(-1, 1, 8, 8)
    a = b + y.view(-1, 1, 8, 8) * 12
    def mean(x):
        return F.conv2d(x, torch.full((1, 1, 3, 3), 1 / 9))
    m, n = mean(a), mean(b)
    va, vb, c = mean(a * a) - m * m, mean(b * b) - n * n, mean(a * b) - m * n
    return 1 - ((2 * m * n + 6.5) * (2 * c + 58.5) / (
        (m * m + n * n + 6.5) * (va + vb + 58.5))).mean()


@loss(4, {"u_x": (BATCH, 1)}, {"w": (4, 16), "v": (16,)}, draws=20)
def residual_by_differences(y, x, w, v):
    """u'' + u = f with second differences of a small network."""
    def u(x):
        return (torch.tanh(torch.cat((x, x * x, x ** 3, y[:, :1]), 1) @ w) * v
                ).sum(1)
    d2 = (u(x + .05) - 2 * u(x) + u(x - .05)) / .0025
    return ((d2 + u(x) - torch.sin(x[:, 0])) ** 2).mean()


@loss(6, {"n_p": (BATCH, 6)})
def energy_difference(y, p):
    def energy(x):
        return 400 + 3 * (x * x).sum(1) + torch.cos(2 * x).sum(1)
    d = energy(p + y * .05) - energy(p)
    return ((d - .1 * p[:, 0]) ** 2).mean() * 100


@loss(2, {"u_at": (BATCH, 8, 2)}, {"grid": (17, 17)})
def grid_features(y, at, grid):
    """Cells and weights of a bilinear table, computed from positions."""
    x = (at * 14 + 1 + y[:, None] * .3).clamp(0, 15.999)
    low = x.floor()
    f, i = x - low, low.detach().long()
    def get(dx, dy):
        return grid.reshape(-1)[(i[..., 0] + dx) * 17 + i[..., 1] + dy]
    one = get(0, 0) * (1 - f[..., 1]) + get(0, 1) * f[..., 1]
    two = get(1, 0) * (1 - f[..., 1]) + get(1, 1) * f[..., 1]
    return ((one * (1 - f[..., 0]) + two * f[..., 0] - .2) ** 2).mean()


@loss(5, {"u_c": (BATCH, 2)})
def splats(y, c):
    at = torch.arange(0., 128., 16.)
    x = torch.stack(torch.meshgrid(at, at, indexing="ij"), -1).view(-1, 2)
    d = x[None] - (c * 100 + 14 + y[:, None, :2].mean(1) * 4)[:, None]
    l = torch.exp(y[:, 2:4] * .3 - 2.5)[:, None]
    z = torch.stack((d[..., 0] * l[..., 0], (d[..., 1] + y[:, None, 4] *
                                             d[..., 0] * .3) * l[..., 1]), 2)
    alpha = (.9 * torch.exp(-.5 * (z * z).sum(2))).clamp(max=.99)
    left = torch.exp(torch.cumsum(torch.log(1 - alpha), 0))
    return ((alpha * left).sum(0) - .3).pow(2).mean()


# Coordinates.

@loss(4, {"u_a": (BATCH, 4)})
def distance_iou(y, u):
    at, size = u[:, :2] * 800 + 50, u[:, 2:] * 30 + 10
    lo, hi = at - size / 2, at + size / 2
    l, h = lo + y[:, :2] * 6, hi + y[:, 2:] * 6
    both = (torch.minimum(h, hi) - torch.maximum(l, lo)).clamp(min=0).prod(1)
    any_ = (h - l).prod(1) + (hi - lo).prod(1) - both + 1e-7
    c = (((l + h) / 2 - at) ** 2).sum(1)
    hull = ((torch.maximum(h, hi) - torch.minimum(l, lo)) ** 2).sum(1)
    return (1 - both / any_ + c / hull).mean()


@loss(3, {"n_p": (BATCH, 3)})
def expanded_chamfer(y, p):
    a = p * 4 + 30
    d = squared(a + y * 2, a)
    return d.min(1).values.clamp(min=0).mean() + torch.sqrt(
        d.min(0).values.clamp(min=1e-4)).mean()


@loss(3, {"n_p": (BATCH, 3)})
def rotation_angle(y, p):
    """From the trace of a product of two rotations."""
    def matrix(v):
        a = torch.sqrt((v * v).sum(1, keepdim=True) + 1e-12)
        x, y, z = (v / a).unbind(1)
        o = torch.zeros_like(x)
        k = torch.stack((o, -z, y, z, o, -x, -y, x, o), 1).view(-1, 3, 3)
        a = a[..., None]
        return torch.eye(3) + torch.sin(a) * k + (1 - torch.cos(a)) * (k @ k)
    r = matrix(p + y * .2).transpose(1, 2) @ matrix(p)
    c = (torch.diagonal(r, dim1=1, dim2=2).sum(1) - 1) / 2
    return torch.acos(c.clamp(-1 + 1e-4, 1 - 1e-4)).mean()


@loss(4, {"n_p": (BATCH, 4)})
def quaternion_angle(y, p):
    a, b = F.normalize(p + y * .3, dim=1), F.normalize(p, dim=1)
    return (2 * torch.acos((a * b).sum(1).abs().clamp(max=1 - 1e-6))).mean()


@loss(2, {"u_t": (BATCH, 2)})
def latitude(y, t):
    def point(a):
        la, lo = a[:, 0] * .0174533, a[:, 1] * .0174533
        return torch.stack((torch.cos(la) * torch.cos(lo), torch.cos(la) *
                            torch.sin(lo), torch.sin(la)), 1) * 6371
    a = t * torch.tensor([80., 170.])
    return (point(a + y * .1) - point(a)).norm(dim=1).mean()


@loss(1, {"u_t": (BATCH, 1)}, {"w": (16, 4), "v": (4,)})
def time_features(y, t, w, v):
    """Seconds of a week, shifted by what the model predicts."""
    s = t * 604800 + y * 900
    f = 6.2831853 / torch.tensor([604800., 86400., 43200., 3600.])
    a = s * f
    z = torch.cat((torch.sin(a), torch.cos(a), a / 50, a * a / 4e5), 1)
    return ((torch.tanh(z @ w) * v).sum(1) - .5).pow(2).mean()


@loss(2, {"u_x": (BATCH, 2)}, {"waves": (2, 8), "v": (16, 3)})
def fourier_features(y, x, waves, v):
    a = (x * 256 + y) @ waves * 2
    z = torch.cat((torch.sin(a), torch.cos(a)), 1)
    return (torch.sigmoid(z @ v) - .4).pow(2).mean()


@loss(2, {"n_t": (BATCH, 2)})
def large_targets(y, t):
    z = y * 20 + 20000
    return F.huber_loss(z, t * 10 + 20000, delta=5.) + (
        ((z - 20000) - t) / 20).abs().mean()


@loss(8, {"n_t": (BATCH, 8)}, {"shift": (8,), "gain": (8,)})
def target_scaler(y, t, shift, gain):
    """Normalised forecasts, scaled back to targets with a large mean."""
    t = t * 3 + 1000
    m, s = t[:, :4].mean(1, keepdim=True), t[:, :4].std(1, keepdim=True) + 1e-5
    z = (y * torch.exp(gain) + shift) * s + m
    return ((z - t) ** 2).mean() + ((z - t).abs() / t.abs()).mean() * 100


# Transport.

@loss(25, {"n_p": (8, 25)}, {}, 8)
def scaled_transport(y, p):
    c = (y + p).view(-1, 5, 5) ** 2
    k = torch.exp(-c / .3) + 1e-9
    u = torch.ones(8, 5, 1) / 5
    for _ in range(6):
        v = .2 / (k.transpose(1, 2) @ u)
        u = .2 / (k @ v)
    return (u * k * v.transpose(1, 2) * c).sum((1, 2)).mean()


@loss(10, {"n_p": (BATCH, 10)})
def sorted_distance(y, p):
    a, b = torch.sort(y + p + 4, 1).values, torch.sort(p + 4, 1).values
    return (a - b).abs().mean() + (torch.cumsum(F.softmax(y, 1), 1) -
                                   torch.cumsum(F.softmax(p * .1, 1), 1)
                                   ).pow(2).sum(1).mean()
