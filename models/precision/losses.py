#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far loss and first gradient of many losses and heads are from fp64, of
ampc and of torch.autocast (maintainers; needs torch 2.11, onnx, onnxscript).

usage: losses.py AMPC [NAME...]             prints the table
       losses.py --record TESTS AMPC [NAME...]    and writes, in the tests' folder,
  losses/NAME.amp              the model as the compiler reads it from ONNX
  losses/losses.csv            name, draw, loss and distances: see HEADER
  losses/gradients.safetensors NAME.DRAW.PARAMETER: the gradient in fp64, as f32
                                           and keeps what is there of other names

A body of two linear layers gives y; each loss is a function of y and of data.
Weights and data of a draw come from drawn.py.

Distance: |loss - loss in fp64| / |loss in fp64|, and the same of the gradient of
all parameters by its 2-norm.  Ratio: ampc's distance to autocast's, or to four
roundings of the loss (2^-7 in bf16, 2^-10 in fp16) where that is more; geometric
mean and largest of five draws, or of 20 where a rounding error can move which
element a model selects.  Both scale losses in fp16."""
import argparse
import contextlib
import io
import logging
import os
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../runtime/python"))
import ampc  # noqa: E402
import drawn  # noqa: E402
from loss_table import BATCH, LOSSES, loss  # noqa: E402
import loss_heads  # noqa: E402, F401
import loss_practice  # noqa: E402, F401
import loss_reported  # noqa: E402, F401
import loss_structured  # noqa: E402, F401

FEATURES, HIDDEN = 8, 16
RATE = 2**16  # so large that a step shows small gradients beside weights
LOW = {"bf16": (torch.bfloat16, 2.0**-7), "fp16": (torch.float16, 2.0**-10)}
HEADER = ("name,draw,loss,bf16_loss,bf16_gradient,fp16_loss,fp16_gradient"
          " (autocast's distances)")


def numbers(name, draw, shape):
    return torch.tensor(drawn.numbers(name, draw, shape))


# ---- models -----------------------------------------------------------------

class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        outs, self.inputs, params, self.batch, _, self.f = LOSSES[name]
        self.a, self.b = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, outs)
        self.names = list(params)
        for n, shape in params.items():
            self.register_parameter(n, nn.Parameter(torch.zeros(shape)))

    def forward(self, x, *data):
        y = self.b(F.relu(self.a(x)))
        return self.f(y, *data, *(getattr(self, n) for n in self.names))

    def shapes(self):
        return {"n_x": (self.batch, FEATURES), **self.inputs}


# Classification.

@loss(10, {"i10_t": (BATCH,)})
def cross_entropy(y, t):
    return F.cross_entropy(y, t)


@loss(10, {"u_t": (BATCH, 10)})
def focal(y, t):
    t = (t > .8).float()
    p = torch.sigmoid(y)
    q = p * t + (1 - p) * (1 - t)
    return (-(1 - q) ** 2 * torch.log(q + 1e-8)).mean()


@loss(6, {"i6_t": (BATCH,)})
def multi_margin(y, t):
    right = y.gather(1, t[:, None])
    return ((1 + y * 8 - right * 8).clamp(min=0).sum(1) - 1).mean()


@loss(8, {"u_t": (BATCH, 8)})
def hinge(y, t):
    return (1 - y * (2 * (t > .5).float() - 1)).clamp(min=0).mean()


@loss(8, {"u_t": (BATCH, 8)})
def dice(y, t):
    p, t = torch.sigmoid(y * 4), (t > .7).float()
    return (1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean()


@loss(1, {"u_t": (BATCH, 1)}, {"cuts": (5,)})
def ordinal(y, t, cuts):
    level = torch.cumsum(F.softplus(cuts * 4), 0) - 2
    p = torch.sigmoid(level - y * 2)
    zero, one = torch.zeros_like(p[:, :1]), torch.ones_like(p[:, :1])
    p = torch.cat((p, one), 1) - torch.cat((zero, p), 1)
    return -torch.log(p.gather(1, (t * 6).long()) + 1e-8).mean()


@loss(10, {"n_teacher": (BATCH, 10)})
def distillation(y, teacher):
    p = F.softmax(teacher / 2, 1)
    return (p * (torch.log(p) - F.log_softmax(y / 2, 1))).sum(1).mean() * 4


@loss(10, {"i10_t": (BATCH,)})
def label_smoothing_by_hand(y, t):
    z = y * 5
    z = z - z.max(1, keepdim=True).values
    logp = z - torch.log(torch.exp(z).sum(1, keepdim=True))
    return -(.9 * logp.gather(1, t[:, None])[:, 0] + .1 * logp.mean(1)).mean()


@loss(6, {"u_t": (BATCH, 6)})
def asymmetric(y, t):
    t, p = (t > .7).float(), torch.sigmoid(y)
    q = (1 - p + .05).clamp(max=1)
    return -(t * torch.log(p.clamp(min=1e-8)) * (1 - p) +
             (1 - t) * torch.log(q.clamp(min=1e-8)) * (1 - q) ** 4).mean()


# Detection.

def boxes(y, u):
    """Centre and size of predicted boxes, from anchors in pixels; the true."""
    at, size = u[:, :2] * 1000 + 100, u[:, 2:4] * 20 + 8
    c, s = at + y[:, :2] * size, size * torch.exp(y[:, 2:])
    t = at + (u[:, 4:6] - .5) * 4
    return c, s, t - size * .55, t + size * .5


@loss(4, {"u_a": (BATCH, 6)})
def giou(y, u):
    c, s, tl, th = boxes(y, u)
    lo, hi = c - s / 2, c + s / 2
    both = (torch.minimum(hi, th) - torch.maximum(lo, tl)).clamp(min=0).prod(1)
    any_ = (hi - lo).prod(1) + (th - tl).prod(1) - both
    hull = (torch.maximum(hi, th) - torch.minimum(lo, tl)).prod(1)
    return (1 - both / any_ + (hull - any_) / hull).mean()


@loss(4, {"u_a": (BATCH, 6)})
def ciou(y, u):
    c, s, tl, th = boxes(y, u)
    lo, hi = c - s / 2, c + s / 2
    both = (torch.minimum(hi, th) - torch.maximum(lo, tl)).clamp(min=0).prod(1)
    iou = both / ((hi - lo).prod(1) + (th - tl).prod(1) - both)
    far = ((c - (tl + th) / 2) ** 2).sum(1)
    hull = ((torch.maximum(hi, th) - torch.minimum(lo, tl)) ** 2).sum(1)
    t = th - tl
    v = .4053 * (torch.atan(t[:, 0] / t[:, 1]) - torch.atan(s[:, 0] / s[:, 1]))**2
    return (1 - iou + far / hull + v * v / (1 - iou + v + 1e-7)).mean()


@loss(4, {"u_a": (BATCH, 6)})
def corners_l1(y, u):
    c, s, tl, th = boxes(y, u)
    return (F.smooth_l1_loss(c - s / 2, tl) + F.smooth_l1_loss(c + s / 2, th))


@loss(5, {"i40_cell": (BATCH, 2), "u_t": (BATCH, 4)})
def yolo(y, cell, t):
    at = (torch.sigmoid(y[:, :2]) * 2 - .5 + cell.float()) * 16
    size = (torch.sigmoid(y[:, 2:4]) * 2) ** 2 * 24
    true, ts = (cell.float() + t[:, :2]) * 16, t[:, 2:] * 30 + 10
    both = (torch.minimum(at + size / 2, true + ts / 2) -
            torch.maximum(at - size / 2, true - ts / 2)).clamp(min=0).prod(1)
    iou = both / (size.prod(1) + ts.prod(1) - both + 1e-9)
    return (1 - iou).mean() + F.binary_cross_entropy_with_logits(
        y[:, 4], iou.detach().clamp(0, 1))


@loss(64, {"u_t": (BATCH, 2)})
def soft_argmax(y, t):
    p = F.softmax(y * 6, 1).view(-1, 8, 8)
    at = torch.arange(8.) * 32 + 16
    x, z = (p.sum(1) * at).sum(1), (p.sum(2) * at).sum(1)
    return ((torch.stack((x, z), 1) - t * 20 - 118) ** 2).mean()


@loss(64, {"u_t": (BATCH, 64)})
def ssim(y, t):
    a, b = torch.sigmoid(y).view(-1, 1, 8, 8), t.view(-1, 1, 8, 8)
    b = b * .2 + .4
    def mean(x):
        return F.avg_pool2d(x, 3, 1)
    m, n = mean(a), mean(b)
    va, vb, c = mean(a * a) - m * m, mean(b * b) - n * n, mean(a * b) - m * n
    return 1 - ((2 * m * n + 1e-4) * (2 * c + 9e-4) /
                ((m * m + n * n + 1e-4) * (va + vb + 9e-4))).mean()


@loss(16, {"u_t": (BATCH, 16)})
def image_gradients(y, t):
    a, b = (y + t * 255).view(-1, 4, 4), (t * 255).view(-1, 4, 4)
    return ((a[:, 1:] - a[:, :-1] - b[:, 1:] + b[:, :-1]).abs().mean() +
            (a[:, :, 1:] - a[:, :, :-1] - b[:, :, 1:] + b[:, :, :-1]).abs().mean())


# Density.

@loss(2, {"n_t": (BATCH, 1)})
def gaussian_nll(y, t):
    return (y[:, 1:] + (t - y[:, :1]) ** 2 * torch.exp(-2 * y[:, 1:])).mean()


@loss(15, {"n_t": (BATCH, 1)})
def mixture_density(y, t):
    pi, mu, ls = y.chunk(3, 1)
    z = (t - mu * 3) * torch.exp(-ls)
    return -torch.logsumexp(F.log_softmax(pi, 1) - ls - z * z / 2, 1).mean()


@loss(2, {"u_t": (BATCH, 1)})
def discretised_logistic(y, t):
    t = torch.floor(t * 256) / 127.5 - 1
    inv, c = torch.exp(1 - y[:, 1:]), t - y[:, :1]
    p = torch.sigmoid(inv * (c + 1 / 255)) - torch.sigmoid(inv * (c - 1 / 255))
    return -torch.log(p.clamp(min=1e-12)).mean()


@loss(2, {"u_t": (BATCH, 1)})
def kumaraswamy(y, t):
    a, b = F.softplus(y[:, :1]) + .2, F.softplus(y[:, 1:]) + .2
    t = t * .98 + .01
    return -(torch.log(a) + torch.log(b) + (a - 1) * torch.log(t) +
             (b - 1) * torch.log1p(-t ** a)).mean()


@loss(2, {"u_t": (BATCH, 1)})
def weibull(y, t):
    k, s = F.softplus(y[:, :1]) + .5, F.softplus(y[:, 1:]) + .5
    t = t * 3 + .05
    return -(torch.log(k / s) + (k - 1) * torch.log(t / s) - (t / s) ** k).mean()


@loss(3, {"n_t": (BATCH, 1)})
def student_t(y, t):
    nu = F.softplus(y[:, :1]) + 2
    z = (t - y[:, 1:2]) / (F.softplus(y[:, 2:]) + .1)
    return ((nu + 1) / 2 * torch.log(1 + z * z / nu) +
            torch.log(F.softplus(y[:, 2:]) + .1)).mean()


@loss(1, {"u_t": (BATCH, 1)})
def poisson(y, t):
    t = torch.floor(t * 20)
    return (torch.exp(y * 3) - t * y * 3).mean() + 20


@loss(2, {"n_t": (BATCH, 1)})
def von_mises(y, t):
    d = torch.atan2(y[:, :1], y[:, 1:]) - t * 3
    return (1 - torch.cos(d)).mean() + (torch.fmod(d + 31.4159, 6.28318)).mean() * 0


@loss(2, {"n_t": (BATCH, 1)})
def crps(y, t):
    s = F.softplus(y[:, 1:]) + .05
    z = (t - y[:, :1]) / s
    pdf = torch.exp(-z * z / 2) * .3989423
    return (s * (z * torch.erf(z * .7071068) + 2 * pdf - .5641896)).mean()


@loss(8, {"n_t": (BATCH, 4)}, {"mix": (4, 4)})
def affine_flow(y, t, mix):
    z = t
    for k in range(3):
        ls = torch.tanh(y[:, 4:])
        z = (z - y[:, :4]) * torch.exp(ls)
        z = z + z @ mix * .5
    return (z * z / 2).sum(1).mean() - ls.sum(1).mean()


@loss(3, {"n_t": (BATCH, 1)})
def quantiles(y, t):
    q = torch.tensor([.1, .5, .9])
    d = t * 10 - y
    return torch.maximum(q * d, (q - 1) * d).mean()


@loss(4, {"n_t": (BATCH, 1)})
def bounded_log(y, t):
    u = torch.tanh(y[:, :2] + t)
    return -(torch.log1p(-u * u + 1e-6) + torch.log(1 - u + 1e-6)).mean() + y.mean()


# Reinforcement learning.

@loss(4, {"n_e": (BATCH, 2)})
def squashed_gaussian(y, e):
    ls = y[:, 2:].clamp(-20, 2)
    a = torch.tanh(y[:, :2] * 3 + ls.exp() * e)
    logp = (-.5 * e ** 2 - ls).sum(1) - torch.log(1 - a.pow(2) + 1e-6).sum(1)
    return (.2 * logp - a.sum(1)).mean()


@loss(5, {"i4_a": (BATCH,), "n_old": (BATCH,), "n_adv": (BATCH,)})
def ppo(y, a, old, adv):
    logp = F.log_softmax(y[:, :4], 1)
    r = torch.exp(logp.gather(1, a[:, None])[:, 0] + 1.4 + .1 * old)
    clipped = torch.minimum(r * adv, r.clamp(.8, 1.2) * adv)
    value = (y[:, 4] - adv * 3) ** 2
    return -clipped.mean() + .5 * value.mean() + .01 * (
        logp.exp() * logp).sum(1).mean()


@loss(4, {"i4_a": (BATCH,), "n_r": (BATCH,), "n_next": (BATCH, 4)})
def q_learning(y, a, r, after):
    q = (y * 50 + 200).gather(1, a[:, None])[:, 0]
    target = r * 10 + .99 * (after * 20 + 200).max(1).values
    return F.smooth_l1_loss(q, target)


@loss(6, {"n_r": (BATCH, 6), "n_rho": (BATCH, 6)})
def v_trace(y, r, rho):
    rho = torch.exp(rho * .2).clamp(max=1)
    d = rho[:, :5] * (r[:, :5] + .99 * y[:, 1:] - y[:, :5])
    w = torch.exp(torch.cumsum(torch.log(rho[:, :5] * .99), 1))
    v = torch.cumsum((w * d).flip(1), 1).flip(1) + y[:, :5]
    return ((v - y[:, :5] - r[:, :5] * 2) ** 2).mean()


@loss(8, {"n_r": (BATCH, 8)})
def returns(y, r):
    total = torch.cumsum((r * 10 + y).flip(1), 1).flip(1)
    return ((total - total.mean(0)) ** 2).mean() / 100


# Metric learning.

@loss(12, {"n_p": (BATCH, 12), "n_q": (BATCH, 12)})
def triplet(y, p, q):
    a = y + p
    return (((a - p) ** 2).sum(1) - ((a - q) ** 2).sum(1) * .02 + 1).clamp(
        min=0).mean()


@loss(12, {"n_p": (BATCH, 12)})
def info_nce(y, p):
    a, b = F.normalize(y, dim=1), F.normalize(y + .3 * p, dim=1)
    s = a @ b.t() / .07
    return F.cross_entropy(s, torch.arange(BATCH))


@loss(12, {"i10_t": (BATCH,)}, {"centre": (10, 12)})
def arcface(y, t, centre):
    c = F.normalize(y, dim=1) @ F.normalize(centre, dim=1).t()
    c = c.clamp(-.999, .999)
    one = F.one_hot(t, 10).float()
    return F.cross_entropy(16 * torch.cos(torch.acos(c) + .3 * one), t)


@loss(8, {"i20_h": (BATCH,), "i20_t": (BATCH,), "n_e": (BATCH, 8)},
      {"rows": (20, 8)})
def trans_e(y, h, t, e, rows):
    d = rows[h] + y * .05 - rows[t] + 1e-3 * e
    return (d.abs().sum(1) - .1).clamp(min=0).mean() + (rows[h] - rows[h].mean(
        1, keepdim=True)).sum(1).mean() + 1


@loss(8, {"i20_h": (BATCH,), "i20_t": (BATCH,)}, {"rows": (20, 16)})
def rotat_e(y, h, t, rows):
    a, b = rows[h] * 4, rows[t] * 4
    c, s = torch.cos(y * 9), torch.sin(y * 9)
    re = a[:, :8] * c - a[:, 8:] * s - b[:, :8]
    im = a[:, :8] * s + a[:, 8:] * c - b[:, 8:]
    return F.softplus(torch.sqrt(re ** 2 + im ** 2 + 1e-9).sum(1) - 9).mean()


@loss(6, {"n_p": (BATCH, 6)})
def cosine_pairs(y, p):
    a, b = p + .05 * y, p
    return (1 - F.cosine_similarity(a, b, dim=1)).mean() * 100


@loss(6, {"n_p": (BATCH, 6)})
def kernel_mmd(y, p):
    def k(a, b):
        d = ((a[:, None] - b[None]) ** 2).sum(2)
        return torch.exp(-d / 4).mean()
    z = y + p
    return k(z, z) + k(p, p) - 2 * k(z, p) + .1


@loss(8, {"u_t": (BATCH,)})
def pearson(y, t):
    z = y.sum(1) + 100 + t
    a, b = z - z.mean(), t - t.mean()
    return 1 - (a * b).sum() / (a.norm() * b.norm() + 1e-8)


# Language.

@loss(20, {"i4_l": (4,)}, {}, 8)
def ctc_by_hand(y, l):
    """-1e30 as log 0; eight steps, labels of two, blank 4."""
    logp = F.log_softmax(y.view(8, 4, 5), 2)
    none = torch.full((4, 1), -1e30)
    blank, first, second = (logp[..., 4], logp.gather(
        2, l[None, :, None].expand(8, 4, 1))[..., 0], logp[..., 3])
    emit = torch.stack((blank, first, blank, second, blank), 2)
    a = torch.cat((emit[0, :, :2], none.expand(4, 3)), 1)
    skip = torch.tensor([-1e30, -1e30, -1e30, 0., -1e30])
    for t in range(1, 8):
        one = torch.cat((none, a[:, :-1]), 1)
        two = torch.cat((none, none, a[:, :-2]), 1) + skip
        a = torch.logsumexp(torch.stack((a, one, two)), 0) + emit[t]
    return -torch.logsumexp(a[:, 3:], 1).mean()


@loss(6, {"i6_t": (8, 4)}, {"move": (6, 6)})
def crf(y, t, move):
    e = y.view(8, 4, 6) * 3
    a, score = e[0], e[0].gather(1, t[0][:, None])[:, 0]
    for k in range(1, 8):
        a = torch.logsumexp(a[:, :, None] + move + e[k][:, None], 1)
        score = score + e[k].gather(1, t[k][:, None])[:, 0] + move[t[k - 1], t[k]]
    return (torch.logsumexp(a, 1) - score).mean()


@loss(24, {"u_mask": (2, 1, 16, 16), "n_t": (2, 16, 8)})
def masked_attention(y, mask, t):
    """Whole rows of the additive mask are -1e9."""
    q, k, v = y.view(2, 16, 24).chunk(3, 2)
    mask = torch.where(mask > .6, -1e9, 0.) + torch.where(
        torch.arange(16)[:, None] < 2, -1e9, 0.)
    s = (q @ k.transpose(1, 2))[:, None] + mask
    return ((s.softmax(-1)[:, 0] @ v - t) ** 2).mean()


@loss(24, {"n_t": (2, 16, 8)}, {"near": (31,)})
def relative_attention(y, t, near):
    q, k, v = y.view(2, 16, 24).chunk(3, 2)
    at = torch.arange(16)[:, None] - torch.arange(16)[None] + 15
    s = q @ k.transpose(1, 2) + near[at] * 40
    return ((s.softmax(-1) @ v - t) ** 2).mean()


@loss(10, {"i10_t": (BATCH,), "i10_not": (BATCH,)})
def unlikelihood(y, t, wrong):
    p = F.softmax(y * 4, 1)
    return -(torch.log(p.gather(1, t[:, None])) +
             torch.log(1 - p.gather(1, wrong[:, None]) + 1e-6)).mean()


@loss(8, {"i30_t": (BATCH,), "i30_not": (BATCH, 5)}, {"rows": (30, 8)})
def sampled_softmax(y, t, wrong, rows):
    s = (rows[t] * y).sum(1) * 4
    n = (rows[wrong] * y[:, None]).sum(2) * 4
    return -(F.logsigmoid(s) + F.logsigmoid(-n).sum(1)).mean()


# Matching.

@loss(32, {"n_p": (8, 32)}, {}, 8)
def sinkhorn(y, p):
    z = (y * 3 + p).view(-1, 1, 32)[:, :, :25].view(-1, 5, 5) / .1
    for _ in range(8):
        z = z - torch.logsumexp(z, 2, keepdim=True)
        z = z - torch.logsumexp(z, 1, keepdim=True)
    return -(z.diagonal(dim1=1, dim2=2)).mean()


@loss(25, {"n_p": (8, 25), "n_v": (8, 5, 4)}, {}, 8)
def transport(y, p, v):
    z = (y * 2 + p).view(-1, 5, 5) / .2
    for _ in range(5):
        z = z - torch.logsumexp(z, 2, keepdim=True)
        z = z - torch.logsumexp(z, 1, keepdim=True)
    return ((torch.exp(z) @ v - v.flip(1)) ** 2).mean()


@loss(4, {"n_t": (8, 4)}, {}, 8)
def soft_dtw(y, t):
    d = (y[:, :, None] * 4 - t[:, None] * 2) ** 2
    big = torch.full((8,), 1e8)
    r = {(0, 0): torch.zeros(8)}
    for i in range(1, 5):
        r[i, 0] = r[0, i] = big
    for i in range(1, 5):
        for j in range(1, 5):
            last = torch.stack((r[i-1, j-1], r[i-1, j], r[i, j-1]), 1)
            r[i, j] = d[:, i-1, j-1] - .2 * torch.logsumexp(-last / .2, 1)
    return r[4, 4].mean()


@loss(6, {"n_t": (BATCH, 6)})
def soft_rank(y, t):
    z = y + t
    d = z[:, :, None] - z[:, None]
    rank = torch.sigmoid(d * 20).sum(2) + .5
    return ((rank - torch.sigmoid((t[:, :, None] - t[:, None]) * 9).sum(2)) ** 2
            ).mean()


@loss(8, {"n_t": (BATCH, 8)})
def list_net(y, t):
    z = y * 3 + t
    return (F.softmax(t * 2, 1) * (torch.logsumexp(z, 1, keepdim=True) - z)
            ).sum(1).mean()


# Geometry.

@loss(4, {"n_p": (BATCH, 3)})
def quaternion(y, p):
    q = F.normalize(y + torch.tensor([3., 0, 0, 0]), dim=1)
    w, v = q[:, :1], q[:, 1:]
    t = 2 * torch.cross(v, p * 50, dim=1)
    moved = p * 50 + w * t + torch.cross(v, t, dim=1)
    return ((moved - p * 50) ** 2).mean()


@loss(6, {"n_p": (BATCH, 3)})
def six_d(y, p):
    a, b = y[:, :3] + p, y[:, 3:] - p
    x = a / a.norm(dim=1, keepdim=True)
    z = b - (x * b).sum(1, keepdim=True) * x
    z = z / (z.norm(dim=1, keepdim=True) + 1e-6)
    return ((x - z) ** 2).mean() + ((x + z) * p).sum(1).abs().mean()


@loss(6, {"n_p": (BATCH, 3)})
def reprojection(y, p):
    at = p + torch.tensor([0., 0, 8]) + y[:, :3] * .1
    px = 900 * at[:, :2] / at[:, 2:] + 512
    was = 900 * p[:, :2] / (p[:, 2:] + 8) + 512
    return (px - was).abs().mean()


@loss(2, {"u_t": (BATCH, 2)})
def haversine(y, t):
    a = t * 1.5
    b = a + y * .02
    h = torch.sin((b[:, 0] - a[:, 0]) / 2) ** 2 + torch.cos(a[:, 0]) * torch.cos(
        b[:, 0]) * torch.sin((b[:, 1] - a[:, 1]) / 2) ** 2
    return (2 * 6371 * torch.asin(torch.sqrt(h + 1e-12))).mean()


@loss(3, {"n_p": (BATCH, 3)})
def chamfer(y, p):
    d = (((p + y * .3) * 9)[:, None] - (p * 9)[None]).pow(2).sum(2)
    return d.min(1).values.mean() + d.min(0).values.mean()


@loss(2, {"u_image": (BATCH, 1, 16, 16), "u_at": (BATCH, 4, 4, 2)})
def warp(y, image, at):
    grid = at * 1.6 - .8 + y[:, None, None] * .1
    moved = F.grid_sample(image, grid, align_corners=False)
    return ((moved - .5) ** 2).mean()


@loss(4, {"u_t": (BATCH, 4)})
def log_ratio(y, t):
    z = t * 100 + y
    return ((torch.log(z + 1) - torch.log(t * 100 + 1)) ** 2).mean() * 1000


@loss(8, {"n_p": (BATCH, 8)}, {"w": (8, 8), "v": (8, 8)})
def backcast(y, p, w, v):
    x, out = y + p, 0
    for m in (w, v, w):
        h = F.relu(x @ m * 3)
        x = x - h @ v
        out = out + h @ w
    return ((out - p) ** 2).mean() + (x - x.mean(1, keepdim=True)).pow(2).mean()


@loss(9, {"n_p": (BATCH, 3)})
def determinant(y, p):
    m = y.view(-1, 3, 3) * .2 + torch.eye(3) + p[:, None] * .5
    d = (m[:, 0] * torch.cross(m[:, 1], m[:, 2], dim=1)).sum(1)
    return torch.log(d * d + 1e-4).mean()


@loss(12, {"n_p": (BATCH, 12)})
def barlow(y, p):
    z = y * 2 + p
    a = (z - z.mean(0)) / (z.std(0) + 1e-5)
    b = (p - p.mean(0)) / (p.std(0) + 1e-5)
    c = a.t() @ b / BATCH
    return ((c - torch.eye(12)) ** 2).sum()


@loss(8, {"n_p": (BATCH, 8)})
def vicreg(y, p):
    z = y + 20 + p * .1
    s = torch.sqrt(z.var(0) + 1e-4)
    c = z - z.mean(0)
    cov = c.t() @ c / (BATCH - 1)
    return F.relu(1 - s).mean() + (cov - torch.diag(torch.diag(cov))).pow(2).sum()


# Copies, vectors and sums of products: in fp32 in autocast, or by promotion.

@loss(4, {"n_p": (8, 4, 4, 4)})
def copies(y, p):
    """What moves numbers near 1000 keeps all of their digits."""
    z = 1000 + p * 2 + y.view(8, 4, 4)[..., None]
    at = torch.tensor([2, 0, 3, 1])
    big = F.interpolate(z, scale_factor=2, mode="nearest")
    return sum((a - z).pow(2).mean() for a in (
        torch.roll(z, 1, 3), z[:, at], z.flip(2), F.channel_shuffle(z, 2),
        big[..., 1::2, 1::2] * .5 + big[..., ::2, ::2] * .5 + 1,
        z.gather(2, at.view(1, 1, 4, 1).expand(8, 4, 4, 4))))


@loss(8, {"n_p": (8,)}, {"m": (8, 8), "w": (8,)})
def vectors(y, p, m, w):
    v = y.mean(0) + p
    at = torch.arange(1., 9.)
    return ((torch.mv(m + 3, v) - 3 * v.sum()).pow(2).mean() +
            (torch.dot(v + 30, w + 1) - 30 * w.sum() - 240) ** 2 +
            (torch.outer(v + 9, w) - 9 * w).pow(2).mean() +
            (torch.cumsum(v + 100, 0) - 100 * at).pow(2).mean())


@loss(24, {"u_mask": (2, 1, 16, 16), "n_t": (2, 16, 8)})
def least_mask(y, mask, t):
    """A mask of the least number that bf16 has; whole rows of it."""
    q, k, v = y.view(2, 16, 24).chunk(3, 2)
    least = torch.finfo(torch.bfloat16).min
    mask = torch.where((mask > .6) | (torch.arange(16)[:, None] < 2), least, 0.)
    s = (q @ k.transpose(1, 2))[:, None] + mask
    return ((s.softmax(-1)[:, 0] @ v - t) ** 2).mean()


@loss(16, {"n_t": (8, 4, 4)}, {"more": (8, 4, 4), "kernel": (4, 2, 3, 3)})
def products_and_sums(y, t, more, kernel):
    z = y.view(8, 4, 16)
    q, r = z[..., :8], z[..., 8:].transpose(1, 2)
    one = torch.baddbmm(more * 9, q, r, beta=.5, alpha=2)
    all_ = torch.baddbmm(more[:1], q, r, beta=2).sum(0)
    up = F.conv_transpose2d(z.view(8, 4, 4, 4), kernel, stride=2, padding=1)
    return ((one - t) ** 2).mean() + (all_ - t[0]).abs().mean() + (
        (up - up.mean()) ** 2).mean()


# ---- autocast ---------------------------------------------------------------

def draw_of(net, draw):
    state = {n: numbers(n, draw, tuple(p.shape))
             for n, p in net.named_parameters()}
    net.load_state_dict(state)
    return [numbers(n, draw, s) for n, s in net.shapes().items()]


def gradient(net):
    return {n: (torch.zeros_like(p) if p.grad is None else p.grad).double().numpy()
            for n, p in net.named_parameters()}


def in_fp64(name, draw):
    net = Net(name)
    data = draw_of(net, draw)
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        net = net.double()
        f = net(*(d.double() if d.is_floating_point() else d for d in data))
    finally:
        torch.set_default_dtype(old)
    f.backward()
    return f.item(), gradient(net)


def autocast(name, draw, low):
    scale = 65536. if low == torch.float16 else 1.
    while True:
        net = Net(name)
        data = draw_of(net, draw)
        with torch.autocast("cpu", low):
            f = net(*data)
        (f.float() * scale).backward()
        g = gradient(net)
        if scale <= 1 or all(np.isfinite(v).all() for v in g.values()):
            return f.item(), {n: v / scale for n, v in g.items()}
        scale /= 2


# ---- ampc -------------------------------------------------------------------

def export(name, folder):
    net = Net(name)
    path = f"{folder}/{name}.onnx"
    data, names = tuple(draw_of(net, 0)), list(net.shapes())
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(
            io.StringIO()):
        try:
            torch.onnx.export(net, data, path, dynamo=True, optimize=False,
                              input_names=names, output_names=["loss"],
                              external_data=False, verbose=False)
        except Exception:  # the new exporter fails on some parameters
            torch.onnx.export(net, data, path, dynamo=False,
                              training=torch.onnx.TrainingMode.TRAINING,
                              do_constant_folding=False, opset_version=18,
                              input_names=names, output_names=["loss"])
    return path


def run(command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"{' '.join(command)}: {r.stderr}")
    return r.stdout


def module(program, path, precision, *more):
    so = f"{path}.{precision}.so"
    run([program, path, "-o", so, "--precision", precision, "--optimizer",
         f"sgd,lr={RATE}", "--target", "cpu:x86-64-v3", *more])
    return ampc.Module(so)


def stepped(m, name, draw):
    net = Net(name)
    data = draw_of(net, draw)
    s = m.session(device="cpu", threads=1)
    before = {}
    for n, p in net.named_parameters():
        s[n] = p.detach().numpy()
        before[n] = s[n].astype("f8")
    feed = {n: d.numpy() for n, d in zip(net.shapes(), data)}
    for _ in range(30):
        r = s.step(**feed)
        if r["applied"]:
            break
    g = {n: (before[n] - s[n].astype("f8")) / RATE for n in before}
    return r["loss"], g


# ---- table ------------------------------------------------------------------

def distances(got, want):
    (a, g), (b, h) = got, want
    names = sorted(h)
    flat = [np.concatenate([v[n].ravel() for n in names]) for v in (g, h)]
    far = np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1])
    return np.array([abs(a - b) / abs(b), far])


def row(program, name, folder, more):
    path = export(name, folder)
    draws = range(LOSSES[name][4])
    want = [in_fp64(name, d) for d in draws]
    out = {}
    for p, (low, floor) in LOW.items():
        m = module(program, path, p, *more)
        theirs = np.array([distances(autocast(name, d, low), want[d])
                           for d in draws])
        ours = np.array([distances(stepped(m, name, d), want[d])
                         for d in draws])
        out[p] = theirs, ours, ours / np.maximum(theirs, floor)
    return path, want, out


def mean(x):
    return np.exp(np.log(np.maximum(x, 1e-12)).mean(0))


def print_row(name, out):
    for p, (theirs, ours, ratio) in out.items():
        cells = []
        for k in range(2):
            cells += [f"{theirs[:, k].mean():.1e}", f"{ours[:, k].mean():.1e}",
                      f"{mean(ratio[:, k]):.2f}", f"{ratio[:, k].max():.2f}"]
        print(f"| {name} | {p} | " + " | ".join(cells) + " |", flush=True)


def record(tests, rows, program):
    from safetensors.numpy import load_file, save_file
    path = f"{tests}/losses"
    with open(f"{path}/losses.csv") as f:
        lines = [x for x in f.read().splitlines()[1:]
                 if x.split(",")[0] in LOSSES and x.split(",")[0] not in rows]
    kept = {x.split(",")[0] for x in lines}
    tensors = {k: v for k, v in load_file(f"{path}/gradients.safetensors").items()
               if k.split(".")[0] in kept}
    for name, (source, want, out) in rows.items():
        text = run([program, "inspect", source, "--ir", "import"])
        with open(f"{path}/{name}.amp", "w") as f:
            f.write(text)
        for d, (value, g) in enumerate(want):
            # not a number: autocast has no distance
            far = [np.nan_to_num(out[p][0][d, k], nan=np.inf)
                   for p in LOW for k in range(2)]
            lines.append(f"{name},{d},{value:.9g}," +
                         ",".join(f"{v:.3e}" for v in far))
            for n, v in g.items():
                tensors[f"{name}.{d}.{n}"] = v.astype(np.float32)
    save_file(tensors, f"{path}/gradients.safetensors")
    with open(f"{path}/losses.csv", "w") as f:
        f.write("\n".join([HEADER] + lines) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--record", metavar="TESTS")
    p.add_argument("--placement", default="exact")
    p.add_argument("ampc")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print("| loss | precision | loss: autocast | ampc | ratio | largest "
          "| gradient: autocast | ampc | ratio | largest |\n|" + "---|" * 10)
    rows, over = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for name in a.names or LOSSES:
            try:
                rows[name] = row(a.ampc, name, folder,
                                 ["--placement", a.placement])
            except Exception as e:
                print(f"{name}: {type(e).__name__}: {str(e)[:300]}", flush=True)
                continue
            print_row(name, rows[name][2])
            over += sum((r > 1).any(0).sum() for _, _, r in
                        rows[name][2].values())
        if a.record:
            record(a.record, rows, a.ampc)
    print(f"{len(rows)} losses, {over} cells with a draw above 1", flush=True)


if __name__ == "__main__":
    sys.exit(main())
