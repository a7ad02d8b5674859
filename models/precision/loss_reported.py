# SPDX-License-Identifier: Apache-2.0
"""More losses of losses.py, of kinds whose users report lost digits: ratios
of policies, nearly equal distributions, tails, events in time, boxes and angles far
from 0, positions, prices, differences of fields."""
import math

import torch
import torch.nn.functional as F

from loss_practice import log_gamma
from loss_table import BATCH, loss


# Policies and preferences.

@loss(20, {"i4_a": (BATCH, 5), "n_old": (BATCH, 5), "n_r": (BATCH,)})
def importance_weights(y, a, old, r):
    """Products of ratios over five actions, normalised over the batch."""
    logp = F.log_softmax(y.view(-1, 5, 4) * 2, 2).gather(2, a[..., None])[..., 0]
    ratio = (logp - logp.detach() - .1 * old).sum(1)
    w = torch.exp(ratio - ratio.max())
    return (w * r).sum() / w.sum() + 1 / (w / w.sum()).pow(2).sum()


@loss(40, {"i5_w": (BATCH, 4), "i5_l": (BATCH, 4), "n_ref": (2, BATCH)})
def squared_preference(y, w, l, ref):
    logp = F.log_softmax(y.view(-1, 8, 5) * 3, 2)
    a = logp[:, :4].gather(2, w[..., None]).sum((1, 2)) - 300
    b = logp[:, 4:].gather(2, l[..., None]).sum((1, 2)) - 300
    h = (a - b) - .1 * (ref[0] - ref[1])
    return ((h - 1 / (2 * .1)) ** 2).mean()


@loss(10, {"i10_t": (BATCH,), "n_ref": (BATCH,), "u_good": (BATCH,)})
def prospect(y, t, ref, good):
    logp = F.log_softmax(y * 3, 1).gather(1, t[:, None])[:, 0]
    d = logp - (logp.detach() + .05 * ref)
    kl = d.mean().clamp(min=0).detach()
    want = (good > .5).float() * 2 - 1
    return 1 - torch.sigmoid(.1 * want * (d - kl)).mean()


@loss(20, {"i4_a": (BATCH, 5), "n_r": (BATCH, 5), "n_old": (BATCH, 5)})
def retrace(y, a, r, old):
    z = y.view(-1, 5, 4)
    logp = F.log_softmax(z, 2).gather(2, a[..., None])[..., 0]
    c = torch.exp(logp - logp.detach() + .2 * old).clamp(max=1) * .95
    q = z.gather(2, a[..., None])[..., 0] * 3 + 20
    v = (F.softmax(z, 2) * (z * 3 + 20)).sum(2)
    d = r[:, :4] + .99 * v[:, 1:] - q[:, :4]
    w = torch.exp(torch.cumsum(torch.log(c[:, :4]), 1))
    return (w * d).sum(1).pow(2).mean()


@loss(12, {"n_r": (BATCH, 12)})
def returns_by_quotient(y, r):
    """Discounted returns from one cumulative sum, divided by the discount."""
    g = torch.pow(torch.tensor(.9), torch.arange(12.))
    s = torch.cumsum((r + 2) * g, 1)
    after = (s[:, -1:] - s) / g
    return ((y * 4 + 10 - after) ** 2).mean()


# Nearly equal distributions.

@loss(10, {"n_e": (BATCH, 10)})
def jensen_shannon(y, e):
    p, q = F.softmax(y * 2, 1), F.softmax(y.detach() * 2 + .05 * e, 1)
    m = (p + q) / 2
    return 500 * (p * torch.log(p / m) + q * torch.log(q / m)).sum(1).mean()


@loss(20, {"n_e": (BATCH, 10)})
def mutual_information(y, e):
    """Invariant clustering: the joint distribution of two assignments."""
    p = F.softmax(y[:, :10] * .5, 1)
    q = F.softmax(y[:, 10:] * .5 + .2 * e, 1)
    j = p.t() @ q / BATCH
    j = (j + j.t()) / 2
    i, k = j.sum(1, keepdim=True), j.sum(0, keepdim=True)
    return (j * (torch.log(j) - torch.log(i) - torch.log(k))).sum() * 100


@loss(8, {"n_e": (BATCH, 4)})
def total_correlation(y, e):
    """Density of samples under all posteriors of the batch."""
    mu, lv = y[:, :4], y[:, 4:] * .5 - 1
    z = mu + torch.exp(lv / 2) * e
    d = z[:, None] - mu[None]
    log = -.5 * (d * d * torch.exp(-lv)[None] + lv[None] + math.log(2 * math.pi))
    joint = torch.logsumexp(log.sum(2), 1)
    each = torch.logsumexp(log, 1).sum(1)
    return (joint - each).mean()


@loss(10, {"n_e": (BATCH, 10)})
def fisher_rao(y, e):
    p, q = F.softmax(y, 1), F.softmax(y.detach() + .1 * e, 1)
    c = torch.sqrt(p * q + 1e-12).sum(1).clamp(max=1 - 1e-7)
    return 2 * torch.acos(c).mean()


@loss(4, {"n_e": (BATCH, 4)})
def renyi(y, e):
    a = torch.exp(y * .2)
    b = torch.exp(y.detach() * .2 + .05 * e)
    s = .5 * a + .5 * b
    return 100 * (torch.log(s) - .5 * torch.log(a) - .5 * torch.log(b)).sum(1).mean()


# Tails.

@loss(6, {"n_t": (BATCH, 6)})
def log_of_survival(y, t):
    """log(1 - exp(-x)) for small and large x."""
    x = F.softplus(y * 12 + 6 * t) + 1e-4
    small = torch.log(-torch.expm1(-x.clamp(max=.7)))
    large = torch.log1p(-torch.exp(-x.clamp(min=.7)))
    return -torch.where(x < .7, small, large).mean()


@loss(6, {"u_t": (BATCH, 6)})
def focal_of_large_logits(y, t):
    t, z = (t > .7).float(), y * 30
    ce = F.relu(z) - z * t + torch.log1p(torch.exp(-z.abs()))
    p = torch.sigmoid(z)
    q = p * t + (1 - p) * (1 - t)
    return (ce * (1 - q) ** 2).mean()


@loss(12, {"i12_t": (BATCH,)})
def cold_softmax(y, t):
    z = y / .01
    return F.cross_entropy(z, t) / 50 + 1e-4 * torch.logsumexp(z, 1).pow(2).mean()


@loss(24, {"n_t": (2, 16, 8)}, draws=20)
def huge_scores(y, t):
    q, k, v = y.view(2, 16, 24).chunk(3, 2)
    s = (q * 12) @ (k * 12).transpose(1, 2)
    w = (s + (1 - torch.tril(torch.ones(16, 16))) * -10000.).softmax(-1)
    return ((w @ v - t) ** 2).mean()


@loss(6, {"i6_t": (BATCH,)})
def margin_of_probabilities(y, t):
    p = F.softmax(y * .1, 1)
    top = p.gather(1, t[:, None])
    return ((p - top).exp() - 1 + (p - top) ** 2 * 50).sum(1).mean()


# Density.

@loss(15, {"n_t": (BATCH, 3)})
def mixture_far(y, t):
    m, ls, w = y[:, :9].view(-1, 3, 3), y[:, 9:12], y[:, 12:]
    at = t[:, None] * .3 + 200
    d = ((at - (m + 200)) ** 2).sum(2) * torch.exp(-2 * ls)
    return -torch.logsumexp(F.log_softmax(w, 1) - d / 2 - 3 * ls, 1).mean()


@loss(3, {"n_t": (BATCH, 1)})
def student_with_gamma(y, t):
    v = F.softplus(y[:, :1] * 3) * 4 + 2
    m, s = y[:, 1:2], torch.exp(y[:, 2:])
    z = (t * 3 - m) / s
    return -(log_gamma((v + 1) / 2) - log_gamma(v / 2) - .5 * torch.log(
        v * math.pi) - torch.log(s) - (v + 1) / 2 * torch.log1p(z * z / v)).mean()


@loss(3, {"u_dt": (BATCH, 10)})
def hawkes(y, dt):
    """Self-exciting events: intensities by recursion, and their integral."""
    mu, a, b = [F.softplus(y[:, k]) + .1 for k in range(3)]
    t = torch.cumsum(dt, 1)
    e, f = torch.zeros(BATCH), torch.log(mu)
    for k in range(1, 10):
        e = (e + 1) * torch.exp(-b * dt[:, k])
        f = f + torch.log(mu + a * e)
    end = t[:, -1:]
    integral = mu * end[:, 0] + (a / b) * (
        1 - torch.exp(-b[:, None] * (end - t))).sum(1)
    return (integral - f).mean() + 5


@loss(12, {"i10_at": (BATCH,), "u_event": (BATCH,)})
def competing_risks(y, at, event):
    p = F.softmax(y * 3, 1)
    before = torch.cumsum(p, 1).gather(1, at[:, None])[:, 0]
    e = (event > .4).float()
    here = p.gather(1, at[:, None])[:, 0]
    return -(e * torch.log(here + 1e-8) +
             (1 - e) * torch.log(1 - before + 1e-6)).mean()


@loss(2, {"u_t": (BATCH, 1), "u_event": (BATCH, 1)})
def failure_times(y, t, event):
    m, ls = y[:, :1] + 5, y[:, 1:] * .3 - 1
    z = (torch.log(t * 300 + 1) - m) * torch.exp(-ls)
    e = (event > .3).float()
    return -(e * (z - ls) - torch.exp(z.clamp(max=8))).mean()


@loss(9, {"n_t": (BATCH, 3)})
def lu_flow(y, t):
    l = torch.stack((y[:, 0], y[:, 1], y[:, 2]), 1)
    u, d = y[:, 3:6], y[:, 6:] * .2
    a0 = t[:, 0] * torch.exp(d[:, 0]) + u[:, 0] * t[:, 1] + u[:, 1] * t[:, 2]
    a1 = t[:, 1] * torch.exp(d[:, 1]) + u[:, 2] * t[:, 2]
    a2 = t[:, 2] * torch.exp(d[:, 2])
    b1, b2 = a1 + l[:, 0] * a0, a2 + l[:, 1] * a0 + l[:, 2] * a1
    return ((a0 ** 2 + b1 ** 2 + b2 ** 2) / 2 - d.sum(1)).mean()


@loss(10, {"u_g": (BATCH, 10), "n_v": (10, 4), "n_t": (BATCH, 4)})
def straight_through(y, g, v, t):
    n = -torch.log(-torch.log(g * .998 + .001))
    p = F.softmax((y + n) / .1, 1)
    hard = (p >= p.max(1, keepdim=True).values).to(p.dtype)
    return (((hard - p.detach() + p) @ v - t) ** 2).mean()


# Boxes, polygons, images.

@loss(4, {"u_t": (BATCH, 4)}, draws=20)
def efficient_iou(y, t):
    """Boxes near 5,000 pixels; rounding changes which edge is outside."""
    tl = t[:, :2] * 100 + 5000
    th = tl + t[:, 2:] * 8 + 4
    lo, hi = tl + y[:, :2], th + y[:, 2:]
    both = (torch.minimum(hi, th) - torch.maximum(lo, tl)).clamp(min=0).prod(1)
    s, ts = hi - lo, th - tl
    iou = both / (s.prod(1) + ts.prod(1) - both + 1e-7)
    hull = torch.maximum(hi, th) - torch.minimum(lo, tl)
    far = ((lo + hi - tl - th) ** 2).sum(1) / 4 / (hull ** 2).sum(1)
    side = ((s - ts) ** 2 / hull ** 2).sum(1)
    return (1 - iou + far + side).mean()


@loss(8, {"u_at": (BATCH, 2)})
def shoelace(y, at):
    """The area of quadrilaterals far from 0."""
    base = torch.tensor([[0., 0.], [9., 0.], [9., 7.], [0., 7.]])
    p = y.view(-1, 4, 2) + base + (at * 400)[:, None]
    q = torch.cat((p[:, 1:], p[:, :1]), 1)
    area = (p[..., 0] * q[..., 1] - q[..., 0] * p[..., 1]).sum(1) / 2
    return ((area - 63) ** 2).mean() + torch.log(area.clamp(min=1)).mean()


@loss(2, {"n_image": (BATCH, 12, 12), "u_at": (BATCH, 2)}, draws=20)
def bilinear_by_hand(y, image, at):
    """Flow added to pixel positions, four neighbours gathered."""
    p = (at * 8 + 1 + y).clamp(0, 10.99)
    low = p.floor()
    f, i = p - low, low.long()
    flat = image.reshape(BATCH, 144)
    def pick(dx, dy):
        return flat.gather(1, ((i[:, 1] + dy) * 12 + i[:, 0] + dx)[:, None])[:, 0]
    top = pick(0, 0) * (1 - f[:, 0]) + pick(1, 0) * f[:, 0]
    low = pick(0, 1) * (1 - f[:, 0]) + pick(1, 1) * f[:, 0]
    return ((top * (1 - f[:, 1]) + low * f[:, 1]) ** 2).mean()


@loss(64, {"u_t": (BATCH, 64)})
def gradient_magnitude(y, t):
    """Similarity of the gradients' magnitudes by Prewitt filters."""
    w = torch.tensor([[1., 0, -1]] * 3) / 3
    k = torch.stack((w, w.t()))[:, None]
    def size(v):
        return torch.sqrt(F.conv2d(v, k).pow(2).sum(1) + 1e-8)
    b = (t * .1 + .5).view(-1, 1, 8, 8)
    a, b = size(b + .02 * y.view(-1, 1, 8, 8)), size(b)
    g = (2 * a * b + 1e-4) / (a * a + b * b + 1e-4)
    return torch.sqrt(((g - g.mean((1, 2), keepdim=True)) ** 2).mean((1, 2)) +
                      1e-8).mean()


@loss(64, {"u_t": (BATCH, 64)})
def normalised_correlation(y, t):
    b = (t * 40 + 100).view(-1, 1, 8, 8)
    a = b + 6 * y.view(-1, 1, 8, 8)
    def mean(v):
        return F.avg_pool2d(v, 3, 1)
    m, n = mean(a), mean(b)
    c = mean(a * b) - m * n
    v, w = mean(a * a) - m * m, mean(b * b) - n * n
    return 1 - (c * c / (v * w + 1e-3)).mean()


# Angles and rotations.

@loss(4, {"n_p": (BATCH, 2)})
def wrapped_angles(y, p):
    a = torch.atan2(y[:, :2] + p, y[:, 2:] * .5 + 2)
    d = a - a.detach() - .01 * p
    d = torch.atan2(torch.sin(d), torch.cos(d))
    return (d ** 2).mean() * 1e4 + (1 - torch.cos(d)).mean() * 1e4


@loss(8, {"n_p": (BATCH, 4)})
def slerp(y, p):
    a = F.normalize(p + .1 * y[:, :4], dim=1)
    b = F.normalize(p + .1 * y[:, 4:], dim=1)
    d = (a * b).sum(1, keepdim=True).clamp(max=1 - 1e-6)
    th = torch.acos(d)
    m = (torch.sin(.3 * th) * a + torch.sin(.7 * th) * b) / torch.sin(th)
    return th.mean() + ((m - F.normalize(p, dim=1)) ** 2).sum(1).mean() * 10


@loss(3, {"n_p": (BATCH, 3)})
def euler_composition(y, p):
    """Rotations from Euler angles, composed, their distance by the trace."""
    def rotation(a):
        c, s = torch.cos(a), torch.sin(a)
        one, no = torch.ones(BATCH), torch.zeros(BATCH)
        def m(*rows):
            return torch.stack(rows, 1).view(-1, 3, 3)
        x = m(one, no, no, no, c[:, 0], -s[:, 0], no, s[:, 0], c[:, 0])
        z = m(c[:, 1], -s[:, 1], no, s[:, 1], c[:, 1], no, no, no, one)
        w = m(c[:, 2], no, s[:, 2], no, one, no, -s[:, 2], no, c[:, 2])
        return x @ z @ w
    r = rotation(p + .05 * y) @ rotation(p).transpose(1, 2)
    c = (r.diagonal(dim1=1, dim2=2).sum(1) - 1) / 2
    return torch.acos(c.clamp(-1 + 1e-6, 1 - 1e-6)).mean()


@loss(16, {"n_d": (BATCH, 3)})
def harmonics(y, d):
    """Real spherical harmonics to degree 3."""
    x, z, w = F.normalize(d, dim=1).unbind(1)
    b = torch.stack((torch.ones_like(x), z, w, x, x * z, z * w, 3 * w * w - 1,
                     x * w, x * x - z * z, z * (3 * x * x - z * z), x * z * w,
                     z * (5 * w * w - 1), w * (5 * w * w - 3),
                     x * (5 * w * w - 1), w * (x * x - z * z),
                     x * (x * x - 3 * z * z)), 1)
    return ((torch.sigmoid((y * b).sum(1)) - .3) ** 2).mean()


@loss(5, {"n_p": (BATCH, 3)})
def lens(y, p):
    """A camera with radial distortion, in pixels."""
    at = p * .5 + torch.tensor([0., 0, 6]) + .02 * y[:, :3]
    u = at[:, :2] / at[:, 2:]
    r = (u * u).sum(1, keepdim=True)
    u = u * (1 + .1 * y[:, 3:4] * r + .05 * y[:, 4:] * r * r)
    was = p[:, :2] * .5 / (p[:, 2:] * .5 + 6)
    return F.smooth_l1_loss(u * 1200 + 960, was * 1200 + 960)


@loss(8, {"u_p": (BATCH, 2)})
def homography(y, p):
    at = torch.cat((p * 640, torch.ones(BATCH, 1)), 1)
    h = torch.cat((y * torch.tensor([.01, .01, 3, .01, .01, 3, 1e-5, 1e-5]),
                   torch.zeros(BATCH, 1)), 1).view(-1, 3, 3) + torch.eye(3)
    q = (h @ at[:, :, None])[:, :, 0]
    return ((q[:, :2] / q[:, 2:] - at[:, :2]) ** 2).mean()


@loss(6, {"n_p": (BATCH, 6)})
def circular_mean(y, p):
    a = y + p * .1
    m = torch.atan2(torch.sin(a).mean(0), torch.cos(a).mean(0))
    r = torch.sqrt(torch.sin(a).mean(0) ** 2 + torch.cos(a).mean(0) ** 2)
    return (-2 * torch.log(r)).mean() + (1 - torch.cos(a - m)).mean()


# Distances.

@loss(12, {"n_p": (BATCH, 12)})
def chord(y, p):
    """Distances of unit vectors from their products: 2 - 2 cos."""
    a, b = F.normalize(p + .1 * y, dim=1), F.normalize(p, dim=1)
    d = (2 - 2 * a @ b.t()).clamp(min=1e-6)
    return torch.sqrt(d.diagonal()).mean() + torch.exp(-d).mean()


@loss(12, {"n_p": (BATCH, 12)})
def hyperboloid(y, p):
    """Lorentz distances of all pairs."""
    def lift(v):
        return torch.cat((torch.sqrt(1 + (v * v).sum(1, keepdim=True)), v), 1)
    a, b = lift(p * .3 + .1 * y), lift(p * .3)
    sign = torch.cat((torch.ones(1), -torch.ones(12)))
    x = ((a * sign) @ b.t()).clamp(min=1 + 1e-5)
    d = torch.log(x + torch.sqrt(x * x - 1))
    return d.mean() + d.diagonal().mean()


@loss(12, {"i4_t": (BATCH,)})
def cold_contrast(y, t):
    z = F.normalize(y, dim=1)
    s = z @ z.t() / .01
    s = torch.where(torch.eye(BATCH) > .5, torch.tensor(-1e9), s.float())
    same = (t[:, None] == t[None]).float() * (1 - torch.eye(BATCH))
    log = s - torch.logsumexp(s, 1, keepdim=True)
    return -((log * same).sum(1) / same.sum(1).clamp(min=1)).mean() / 20


@loss(12, {"n_p": (2, BATCH, 12)}, draws=20)
def nearly_equal_views(y, p):
    """The loss is 1e-8 to 1e-4."""
    a = p[0] + y * .3
    z = F.normalize(torch.cat((a, a + .1 * p[1])), dim=1)
    s = z @ z.t() / .02 - torch.eye(2 * BATCH) * 1e9
    return F.cross_entropy(s, torch.arange(2 * BATCH).roll(BATCH))


@loss(4, {"n_p": (BATCH, 4)})
def bures(y, p):
    """Distance of covariance matrices of two rows, in closed form."""
    def spd(v):
        a, b, c = torch.exp(.3 * v[:, 0]), v[:, 1] * .3, torch.exp(.3 * v[:, 2])
        return a * a + b * b, b * c, c * c
    a, b, c = spd(p + .2 * y)
    d, e, f = spd(p)
    det = torch.sqrt((a * c - b * b) * (d * f - e * e) + 1e-9)
    cross = torch.sqrt(a * d + 2 * b * e + c * f + 2 * det)
    return (a + c + d + f - 2 * cross).mean() * 10


@loss(2, {"n_p": (BATCH, 2)})
def small_transport(y, p):
    """Optimal transport with little entropy, dual potentials in log space."""
    c = ((p + .3 * y)[:, None] - p[None]).pow(2).sum(2)
    f, g = torch.zeros(BATCH), torch.zeros(BATCH)
    for _ in range(6):
        g = -.05 * torch.logsumexp((f[:, None] - c) / .05, 0)
        f = -.05 * torch.logsumexp((g[None] - c) / .05, 1)
    w = torch.exp((f[:, None] + g[None] - c) / .05)
    return (w * c).sum() / BATCH


# Sequences.

@loss(6, {"u_ok": (8, 4, 6)}, {"move": (6, 6)})
def masked_forward(y, ok, move):
    """States that are not allowed have -inf."""
    e = torch.where(ok + .3 * (torch.arange(6) == 0) > .3, F.log_softmax(
        y.view(8, 4, 6), 2), torch.tensor(-math.inf))
    m = F.log_softmax(move * 2, 1)
    a = e[0]
    for k in range(1, 8):
        a = torch.logsumexp(a[:, :, None] + m, 1) + e[k]
    return -torch.logsumexp(a, 1).mean()


@loss(8, {"n_v": (8, 4), "n_t": (BATCH, 24, 4)})
def gaussian_upsampling(y, v, t):
    """Durations, their prefix sums as positions, frames by distance."""
    d = F.softplus(y) * 3
    end = torch.cumsum(d, 1)
    mid = end - d / 2
    at = torch.arange(24.) + .5
    w = F.softmax(-.5 * (at[None, :, None] - mid[:, None]) ** 2, 2)
    return ((w @ v - t) ** 2).mean() + ((end[:, -1] - 24) ** 2).mean() * .01


@loss(24, {"n_t": (2, 16, 8)})
def far_positions(y, t):
    """Sines of positions near 60,000 added before attention."""
    at = (torch.arange(16.) + 60000)[:, None] * torch.exp(
        -torch.arange(4.) * math.log(10000.) / 4)
    at = torch.cat((torch.sin(at), torch.cos(at)), 1)
    q, k, v = y.view(2, 16, 24).chunk(3, 2)
    w = ((q + at) @ (k + at).transpose(1, 2)).softmax(-1)
    return ((w @ v - t) ** 2).mean()


@loss(8, {"u_t": (BATCH,), "n_v": (BATCH, 8)})
def decay_by_time(y, t, v):
    """Seconds of some days: differences decay."""
    s = t * 3e5 + 1e6
    dt = (s[:, None] - s[None]).abs() / 3600
    w = torch.exp(-dt * F.softplus(y.mean(1))[:, None])
    return (((w / w.sum(1, keepdim=True)) @ v - y) ** 2).mean()


@loss(6, {"u_x": (BATCH, 6)}, {"rows": (40, 5)})
def rows_by_equality(y, x, rows):
    """Bins by comparison of floats, then a product with their one-hots."""
    bin_ = torch.floor(x * 40)
    hot = (bin_[..., None] == torch.arange(40.)).to(rows.dtype)
    return ((hot @ rows).sum(2) * 3 - y).pow(2).mean()


@loss(16, {"n_t": (BATCH, 16)})
def soft_histogram(y, t):
    def cdf(v):
        at = torch.linspace(-3, 3, 24)
        h = torch.exp(-((v[..., None] - at) / .25) ** 2 / 2).sum(1)
        return torch.cumsum(h / h.sum(1, keepdim=True), 1)
    return (cdf(t + .2 * y) - cdf(t)).abs().sum(1).mean()


@loss(16, {"n_t": (BATCH, 16)})
def interpolated_quantile(y, t):
    z = torch.sort(y + t, 1).values
    at = .9 * 15
    q = z[:, 13] + (at - 13) * (z[:, 14] - z[:, 13])
    tail = F.relu(z - q[:, None]).sum(1) / 1.6
    return (q + tail).mean()


@loss(8, {"n_r": (BATCH, 8)})
def sharpe(y, r):
    """Log returns of prices near 100, their mean by their deviation."""
    w = torch.tanh(y)
    price = 100 * torch.exp(torch.cumsum(r * .01, 1))
    back = torch.log(price[:, 1:] / price[:, :-1])
    p = (w[:, :-1] * back).sum(1)
    return -p.mean() / (p.std() + 1e-6) + 1


@loss(8, {"n_r": (BATCH, 8)})
def drawdown(y, r):
    p = torch.cumsum(torch.log1p(.05 * torch.tanh(y + r)), 1)
    top, worst = p[:, 0], torch.zeros(BATCH)
    for k in range(1, 8):
        top = torch.maximum(top, p[:, k])
        worst = torch.maximum(worst, 1 - torch.exp(p[:, k] - top))
    return worst.mean() - p[:, -1].mean() + .5


@loss(1, {"u_s": (BATCH, 1), "u_t": (BATCH, 1)})
def option_price(y, s, t):
    vol, s, t = F.softplus(y) * .3 + .05, s * 40 + 80, t + .05
    d = (torch.log(s / 100) + vol * vol / 2 * t) / (vol * torch.sqrt(t))
    def normal(v):
        return .5 * (1 + torch.erf(v / math.sqrt(2)))
    c = s * normal(d) - 100 * normal(d - vol * torch.sqrt(t))
    intrinsic = F.relu(s - 100)
    return ((c - intrinsic) / 10).pow(2).mean()


# Moments and weights.

@loss(12, {"n_t": (BATCH, 12)})
def norm_by_moments(y, t):
    """A layer's norm with its variance as a difference of moments."""
    z = y * 2 + 20 + t
    m = z.mean(1, keepdim=True)
    v = (z * z).mean(1, keepdim=True) - m * m
    n = (z - m) * torch.rsqrt(v.clamp(min=0) + 1e-5)
    return ((n - t) ** 2).mean() + (n ** 3).mean().abs()


@loss(12, {"n_e": (BATCH, 12)})
def slow_teacher(y, e):
    """Student and teacher differ by a thousandth."""
    teacher = (y.detach() + 1e-3 * e)
    a, b = F.normalize(y, dim=1), F.normalize(teacher, dim=1)
    return (2 - 2 * (a * b).sum(1)).mean() * 1e5 + ((y - teacher) ** 2).mean() * 1e5


@loss(3, {"u_x": (BATCH, 9)})
def damped_waves(y, x):
    a, w, d = y[:, :1] + 2, y[:, 1:2] * .1 + 40, F.softplus(y[:, 2:])
    at = torch.arange(9.) * 3
    return ((a * torch.exp(-d * at / 9) * torch.sin(w * at) - x) ** 2).mean()


@loss(8, {"i8_t": (BATCH,), "u_w": (BATCH,)})
def weighted_tokens(y, t, w):
    ce = -F.log_softmax(y * 4, 1).gather(1, t[:, None])[:, 0]
    w = torch.floor(w * 3000)
    nll = (ce * w).sum() / w.sum()
    return torch.exp(nll) + nll / math.log(2)
