# SPDX-License-Identifier: Apache-2.0
"""More losses of losses.py, of models with a structure: flows, rankings,
classes on a sphere, survival, state spaces, kernels, curved spaces, fields,
graphs."""
import math

import torch
import torch.nn.functional as F

from loss_table import BATCH, loss


@loss(64, {"n_t": (BATCH, 2, 32)}, draws=20)
def si_snr_pit(y, t):
    y = y.view(-1, 2, 32)
    def snr(y, t):
        y, t = y - y.mean(-1, keepdim=True), t - t.mean(-1, keepdim=True)
        s = (y * t).sum(-1, keepdim=True) * t / ((t * t).sum(-1, keepdim=True) + 1e-8)
        noise = (y - s).pow(2).sum(-1) + 1e-8
        return 10 * torch.log10((s * s).sum(-1) / noise + 1e-8)
    s = snr(y[:, :, None], t[:, None])
    one = s[:, 0, 0] + s[:, 1, 1]
    two = s[:, 0, 1] + s[:, 1, 0]
    return -torch.maximum(one, two).mean() / 2


@loss(4, {"n_z": (BATCH, 4)}, {"u": (3, 4), "w": (3, 4), "bias": (3,)})
def planar_flow(y, z, u, w, b):
    z, ld = z + y, 0
    for k in range(3):
        a = (z * w[k]).sum(1, keepdim=True) + b[k]
        wu = (w[k] * u[k]).sum()
        v = u[k] + (F.softplus(wu) - 1 - wu) * w[k] / (w[k] ** 2).sum()
        h = torch.tanh(a)
        ld = ld + torch.log((1 + (1 - h * h) * (w[k] * v).sum()).abs() + 1e-8)
        z = z + v * h
    return ((z * z).sum(1) / 2 - ld[:, 0]).mean()


@loss(8, {"n_z": (BATCH, 8)}, {"s": (3, 4, 4), "t": (3, 4, 4)})
def real_nvp(y, z, s, t):
    z, ld = z + y, 0
    for k in range(3):
        a, b = z[:, :4], z[:, 4:]
        ls = torch.tanh(a @ s[k])
        b = b * torch.exp(ls) + a @ t[k]
        ld = ld + ls.sum(1)
        z = torch.cat((b, a), 1)
    return ((z * z).sum(1) / 2 - ld).mean()


@loss(8, {"n_t": (BATCH, 8), "n_p": (8, 6)}, draws=20)
def sliced_wasserstein(y, t, p):
    p = p / p.norm(dim=0, keepdim=True)
    a, b = torch.sort((t + y * .3) @ p, 0).values, torch.sort(t @ p, 0).values
    return ((a - b) ** 2).mean()


@loss(64, {"n_t": (BATCH, 64)}, {"k": (6, 1, 3, 3), "k2": (8, 6, 3, 3)})
def lpips(y, t, k, k2):
    def f(x):
        a = F.relu(F.conv2d(x.view(-1, 1, 8, 8), k, padding=1))
        b = F.relu(F.conv2d(a, k2, padding=1, stride=2))
        return [v / (v.pow(2).sum(1, keepdim=True).sqrt() + 1e-10) for v in (a, b)]
    return sum(((p - q) ** 2).sum(1).mean() for p, q in zip(f(t + .3 * y), f(t)))


@loss(12, {"i10_t": (BATCH,)}, {"centre": (10, 12)})
def cosface(y, t, centre):
    c = F.normalize(y, dim=1) @ F.normalize(centre, dim=1).t()
    return F.cross_entropy(30 * (c - .35 * F.one_hot(t, 10).float()), t)


@loss(12, {"i4_t": (BATCH,)})
def circle(y, t):
    z = F.normalize(y, dim=1)
    s = z @ z.t()
    same = (t[:, None] == t[None]).float() * (1 - torch.eye(BATCH))
    other = (t[:, None] != t[None]).float()
    ap, an = (1.25 - s).clamp(min=0).detach(), (s + .25).clamp(min=0).detach()
    lp = torch.logsumexp(-16 * ap * (s - .75) - (1 - same) * 1e4, 1)
    ln = torch.logsumexp(16 * an * (s - .25) - (1 - other) * 1e4, 1)
    return F.softplus(lp + ln).mean()


@loss(12, {"i4_t": (BATCH,)})
def multi_similarity(y, t):
    z = F.normalize(y, dim=1)
    s = z @ z.t()
    same = (t[:, None] == t[None]).float() * (1 - torch.eye(BATCH))
    other = (t[:, None] != t[None]).float()
    p = torch.log1p((torch.exp(-2 * (s - .5)) * same).sum(1)) / 2
    n = torch.log1p((torch.exp(40 * (s - .5)) * other).sum(1)) / 40
    return (p + n).mean()


@loss(12, {"i10_t": (BATCH,)}, {"proxy": (10, 12)})
def proxy_anchor(y, t, proxy):
    c = F.normalize(y, dim=1) @ F.normalize(proxy, dim=1).t()
    one = F.one_hot(t, 10).float()
    p = torch.log1p((torch.exp(-32 * (c - .1)) * one).sum(0)).mean()
    n = torch.log1p((torch.exp(32 * (c + .1)) * (1 - one)).sum(0)).mean()
    return p + n


@loss(8, {"n_t": (BATCH, 8)})
def lambda_rank(y, t):
    s = y + t * .2
    g = torch.floor(torch.sigmoid(t) * 4)
    gain = 2 ** g - 1
    at = torch.argsort(torch.argsort(-s, 1), 1).float() + 1
    disc = 1 / torch.log2(1 + at)
    dn = ((gain[:, :, None] - gain[:, None]) *
          (disc[:, :, None] - disc[:, None])).abs().detach()
    w = (g[:, :, None] > g[:, None]).float()
    return (w * dn * F.softplus(-(s[:, :, None] - s[:, None]))).sum((1, 2)).mean()


@loss(8, {"n_t": (BATCH, 8)})
def list_mle(y, t):
    s = (y * 3).gather(1, torch.argsort(-t, 1))
    z = s - s.max(1, keepdim=True).values
    c = torch.cumsum(torch.exp(z).flip(1), 1).flip(1)
    return (torch.log(c + 1e-10) - z).sum(1).mean()


@loss(8, {"n_t": (BATCH, 8)})
def approx_ndcg(y, t):
    s = y + t * .2
    d = s[:, :, None] - s[:, None]
    at = 1 + torch.sigmoid(-d / .1).sum(2) - .5
    gain = 2 ** (torch.sigmoid(t) * 3) - 1
    best = torch.sort(gain, 1, descending=True).values
    ideal = (best / torch.log2(torch.arange(8.) + 2)).sum(1)
    return -((gain / torch.log2(1 + at)).sum(1) / ideal).mean()


@loss(44, {"i4_a": (BATCH,), "u_r": (BATCH,), "n_p": (BATCH, 11)})
def c51(y, a, r, p):
    z = torch.linspace(-5, 5, 11)
    logp = F.log_softmax(y.view(-1, 4, 11) * 2, 2)
    logp = logp.gather(1, a[:, None, None].expand(-1, 1, 11))[:, 0]
    q = F.softmax(p, 1)
    tz = (r[:, None] * 2 - 1 + .9 * z).clamp(-5, 5)
    b = tz[:, :, None] - z
    m = (q[:, :, None] * (1 - b.abs()).clamp(min=0)).sum(1)
    return -(m * logp).sum(1).mean()


@loss(1, {"u_time": (BATCH,), "u_event": (BATCH,)})
def cox(y, time, event):
    s = (y[:, 0] * 4).gather(0, torch.argsort(-time))
    e = (event > .4).float().gather(0, torch.argsort(-time))
    m = s.max()
    risk = torch.log(torch.cumsum(torch.exp(s - m), 0)) + m
    return -((s - risk) * e).sum() / e.sum()


@loss(8, {"u_t": (BATCH,), "u_event": (BATCH,)})
def hazard(y, t, event):
    h = torch.sigmoid(y * 2 - 2)
    at = (t * 7.99).long()[:, None]
    logs = torch.cumsum(torch.log(1 - h + 1e-7), 1)
    before = F.pad(logs, (1, 0)).gather(1, at)
    e = (event > .5).float()[:, None]
    here = h.gather(1, at)
    return -(before + e * torch.log(here + 1e-7) +
             (1 - e) * torch.log(1 - here + 1e-7)).mean()


@loss(6, {"n_z": (BATCH, 6)}, {"q": (2,), "r": (1,)})
def kalman(y, z, q, r):
    m, v = torch.zeros(BATCH, 2), None
    p = torch.eye(2).expand(BATCH, 2, 2)
    f = torch.tensor([[1., .1], [0., 1.]])
    ll = 0
    for k in range(6):
        m = m @ f.t()
        p = f @ p @ f.t() + torch.diag(F.softplus(q) * .1)
        e = z[:, k] + y[:, k] - m[:, 0]
        s = p[:, 0, 0] + F.softplus(r[0]) + .1
        g = p[:, :, 0] / s[:, None]
        m = m + g * e[:, None]
        p = p - g[:, :, None] * p[:, None, 0]
        ll = ll + e * e / s + torch.log(s)
    return ll.mean() / 2


@loss(6, {"i6_o": (8, 4)}, {"move": (6, 6), "emit": (6, 6)})
def hmm(y, o, move, emit):
    e = F.log_softmax(emit * 2, 1)
    lm = F.log_softmax(move * 2, 1)
    s = F.log_softmax(y.view(8, 4, 6), 2)
    a = s[0] + e[:, o[0]].t()
    for k in range(1, 8):
        a = torch.logsumexp(a[:, :, None] + lm, 1) + e[:, o[k]].t() + s[k]
    return -torch.logsumexp(a, 1).mean()


@loss(12, {"n_p": (BATCH, 12)})
def coding_rate(y, p):
    z = F.normalize(y + p, dim=1)
    m = z.t() @ z * (12 / BATCH / .5) + torch.eye(12)
    ld = 0
    for k in range(11):
        ld = ld + torch.log(m[0, 0])
        m = m[1:, 1:] - m[1:, :1] * m[:1, 1:] / m[0, 0]
    return -(ld + torch.log(m[0, 0])) / 2


@loss(24, {"n_t": (2, 16, 8)})
def gated_scan(y, t):
    a, b, c = y.view(2, 16, 24).chunk(3, 2)
    la = -F.softplus(a)
    s = torch.cumsum(la, 1)
    h = torch.exp(s) * torch.cumsum(torch.exp(-s) * b * torch.sigmoid(c), 1)
    return ((h - t) ** 2).mean()


@loss(8, {"n_e": (5, BATCH, 4), "n_t": (BATCH, 4)}, {"w": (4, 4)})
def iwae(y, e, t, w):
    mu, ls = y[:, :4], y[:, 4:]
    z = mu + torch.exp(ls) * e
    lw = (-((z @ w - t) ** 2) / 2 - z * z / 2 + e * e / 2 + ls).sum(2)
    return -(torch.logsumexp(lw, 0) - math.log(5)).mean()


@loss(4, {"i20_v": (BATCH,)}, {"rows": (20, 4)})
def poincare(y, v, rows):
    a = torch.tanh(y * .5) * .4
    b = torch.tanh(rows[v]) * .45
    d = ((a - b) ** 2).sum(1)
    x = 1 + 2 * d / ((1 - (a * a).sum(1)) * (1 - (b * b).sum(1)))
    return torch.log(x + torch.sqrt(x * x - 1 + 1e-7)).mean()


@loss(9, {"n_p": (BATCH, 3)})
def geodesic(y, p):
    m = y.view(-1, 3, 3) * .1 + torch.eye(3)
    x = F.normalize(m[:, 0], dim=1)
    z = F.normalize(torch.cross(x, m[:, 1], dim=1), dim=1)
    w = torch.cross(z, x, dim=1)
    c = (x[:, 0] + w[:, 1] + z[:, 2] - 1) / 2
    turned = (torch.stack((x, w, z), 1) * p[:, None]).sum(2)
    return torch.acos(c.clamp(-1 + 1e-7, 1 - 1e-7)).mean() + (turned - p).pow(
        2).mean()


@loss(6, {"n_p": (BATCH, 6)})
def hsic(y, p):
    def k(a):
        return torch.exp(-((a[:, None] - a[None]) ** 2).sum(2) / 6)
    a, b = k(y + p * .3), k(p)
    a = a - a.mean(0) - a.mean(1, keepdim=True) + a.mean()
    b = b - b.mean(0) - b.mean(1, keepdim=True) + b.mean()
    return (a * b).sum() / (BATCH - 1) ** 2


@loss(3, {"n_p": (BATCH, 3)})
def sinkhorn_divergence(y, p):
    def ot(a, b):
        c = ((a[:, None] - b[None]) ** 2).sum(2)
        f = torch.zeros(BATCH)
        for _ in range(5):
            g = -.5 * torch.logsumexp((f[:, None] - c) / .5 - math.log(BATCH), 0)
            f = -.5 * torch.logsumexp((g[None] - c) / .5 - math.log(BATCH), 1)
        return f.mean() + g.mean()
    z = p + y
    return ot(z, p + 1) - .5 * ot(z, z) - .5 * ot(p + 1, p + 1)


@loss(8, {"n_p": (BATCH, 8)})
def welford(y, p):
    z = y * 2 + p + 10
    m, s = z[:, 0], torch.zeros(BATCH)
    for k in range(1, 8):
        d = z[:, k] - m
        m = m + d / (k + 1)
        s = s + d * (z[:, k] - m)
    return torch.log(s / 7 + 1e-5).mean() + (m - 10).pow(2).mean()


@loss(16, {"n_f": (BATCH, 16)})
def second_difference(y, f):
    z = y + torch.arange(16.) * 4
    d2 = z[:, 2:] - 2 * z[:, 1:-1] + z[:, :-2]
    return ((d2 - f[:, 1:-1] * .1) ** 2).mean()


# Physics and graphs.

@loss(16, {"n_t": (BATCH, 16)})
def third_difference(y, t):
    u = 50 + torch.sin(torch.arange(16.) / 3) * 4 + .05 * y
    d1 = (u[:, 3:-1] - u[:, 1:-3]) / 2
    d3 = (u[:, 4:] - 2 * u[:, 3:-1] + 2 * u[:, 1:-3] - u[:, :-4]) / 2
    return ((.1 * t[:, 2:-2] + (u[:, 2:-2] - 50) * d1 + d3) ** 2).mean()


@loss(4, {"n_p": (BATCH, 4)})
def hamiltonian(y, p):
    """Energy before and after steps of a leapfrog."""
    q, m = p[:, :2] + .1 * y[:, :2], p[:, 2:] + .1 * y[:, 2:]
    def energy(q, m):
        return (m * m / 2 + 30 * (1 - torch.cos(q))).sum(1)
    start = energy(q, m)
    for _ in range(4):
        m = m - .05 * 30 * torch.sin(q)
        q = q + .1 * m
        m = m - .05 * 30 * torch.sin(q)
    return ((energy(q, m) - start) ** 2).mean()


@loss(4, {"u_adj": (BATCH, BATCH)})
def normalised_laplacian(y, adj):
    a = ((adj + adj.t()) > 1.2).to(adj.dtype)
    d = torch.rsqrt(a.sum(1).clamp(min=1))
    s = a * d[:, None] * d[None]
    z = y + 4
    return ((z - s @ z) * z).sum() / BATCH


@loss(4, {"u_adj": (BATCH, BATCH), "n_t": (BATCH,)}, draws=20)
def personal_rank(y, adj, t):
    a = (adj > .8).float() + torch.eye(BATCH)
    w = a * torch.exp(y @ y.t() * .5)
    p = w / w.sum(1, keepdim=True)
    r = torch.full((BATCH,), 1 / BATCH)
    for _ in range(8):
        r = .15 / BATCH + .85 * (r[None] @ p)[0]
    return -(F.softmax(t, 0) * torch.log(r)).sum()


@loss(3, {"n_p": (BATCH, 3)})
def coulomb(y, p):
    """Energies with a background that cancels most of them."""
    at = p * 3 + .1 * y
    d = torch.sqrt(((at[:, None] - at[None]) ** 2).sum(2) + .04)
    q = torch.where(torch.arange(BATCH) % 2 == 0, 1., -1.)
    e = (q[:, None] * q[None] / d * (1 - torch.eye(BATCH))).sum() / 2
    return e / BATCH


@loss(6, {"u_x": (BATCH, 1)})
def polynomial(y, x):
    """A power basis with terms that alternate in sign."""
    x = x * 2 + 4
    c = torch.tensor([-720., 1764., -1624., 735., -175., 21.])
    f = ((y * .01 + c) * torch.cat([x ** k for k in range(6)], 1)).sum(1)
    return ((f - x[:, 0] ** 6 * .99) ** 2).mean().sqrt()


@loss(64, {"u_t": (BATCH, 1, 8, 8)})
def ssim_by_pools(y, t):
    """Pictures with little contrast, their moments by average pools."""
    def pool(v):
        return F.avg_pool2d(v, 3, 1)
    a, t = torch.sigmoid(y.view(-1, 1, 8, 8) * .2 + 1), .7 + .1 * t
    m, n = pool(a), pool(t)
    va, vt, both = pool(a ** 2) - m ** 2, pool(t ** 2) - n ** 2, pool(a * t) - m * n
    up = (2 * m * n + 1e-4) * (2 * both + 9e-4)
    return (1 - up / ((m ** 2 + n ** 2 + 1e-4) * (va + vt + 9e-4))).mean() / 2
