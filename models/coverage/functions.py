#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Functions of torch and torch.nn.functional, one by one: does each exporter take
it, does ampc take the file, and is the gradient PyTorch's (maintainers).

usage: functions.py AMPC [NAME...]

Each function is of one parameter; those that `ampc check` takes train together,
twenty a module, for one step of SGD at lr 1 in fp32, from which the gradients
are read.  Right: within 2e-5 of the largest element.  Prints a table and the
names of all that is not right.  Needs what zoo.py needs.
"""

import contextlib
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
from safetensors.numpy import load_file

from zoo import EXPORTERS, export, said

LIMIT, TOGETHER = 2e-5, 20
torch.manual_seed(0)
INDEX = torch.tensor([[1, 0, 2], [3, 3, 1], [0, 2, 2], [1, 1, 0]])
ORDER = torch.tensor([[1, 0, 2], [3, 7, 1], [0, 2, 4], [1, 6, 0]])  # none twice
LABELS = torch.tensor([1, 0, 3, 2])
MASK = torch.rand(4, 8) > 0.5
ROWS = {  # of x [4, 8]
    "normalize": lambda x: F.normalize(x),
    "cosine": lambda x: F.cosine_similarity(x[:2], x[2:]),
    "cdist": lambda x: torch.cdist(x, x[:3] * 1.5 + 1),
    "pdist2": lambda x: (x[:, None] - x[None]).pow(2).sum(-1),
    "logsumexp": lambda x: x.logsumexp(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: (x * 0.5 + 1).cumprod(1),
    "roll": lambda x: x.roll(3, 1) * torch.arange(8.0),
    "flip": lambda x: x.flip(1) * torch.arange(8.0),
    "index_select": lambda x: x.index_select(1, INDEX[0]),
    "gather": lambda x: x.gather(1, INDEX),
    "scatter_add": lambda x: torch.zeros(4, 8).scatter_add(
        1, INDEX, x[:, :3] * 2
    ),
    "scatter": lambda x: torch.scatter(x * 2, 1, ORDER, x[:, :3]),
    "index_add": lambda x: torch.zeros(3, 8).index_add(
        0, torch.tensor([0, 2, 1, 0]), x
    ),
    "index_put": lambda x: torch.zeros(5, 8).index_put(
        (torch.tensor([1, 3, 0, 4]),), x
    ),
    "masked_fill": lambda x: x.masked_fill(MASK, 3.0),
    "where": lambda x: torch.where(x > 0, x * 2, x.exp()),
    "topk": lambda x: x.topk(3, 1)[0],
    "sort": lambda x: x.sort(1)[0] * torch.arange(8.0),
    "argsort": lambda x: x.gather(1, x.argsort(1)) * torch.arange(8.0),
    "max": lambda x: x.max(1)[0],
    "amax": lambda x: x.amax(1),
    "min": lambda x: x.min(0)[0],
    "aminmax": lambda x: x.max() - x.min(),
    "clamp": lambda x: x.clamp(-0.5, 0.3),
    "clamp_t": lambda x: torch.clamp(x, min=x.flip(0) * 0.5),
    "hardtanh": F.hardtanh,
    "norm": lambda x: x.norm(dim=1),
    "norm1": lambda x: x.norm(1, dim=1),
    "norm3": lambda x: x.norm(3, dim=1),
    "norminf": lambda x: x.norm(float("inf"), dim=1),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1),
    "std_mean": lambda x: torch.std_mean(x, 1)[0],
    "var_mean": lambda x: torch.var_mean(x, 1, unbiased=False)[0],
    "prod": lambda x: (x + 1.5).prod(1),
    "triu": lambda x: x.triu(1),
    "tril": lambda x: x.tril(),
    "outer": lambda x: torch.outer(x[0], x[1]),
    "bmm": lambda x: torch.bmm(
        x.view(2, 2, 8), x.view(2, 2, 8).transpose(1, 2)
    ),
    "baddbmm": lambda x: torch.baddbmm(
        x[:2, :2, None].expand(2, 2, 2), x.view(2, 2, 8), x.view(2, 8, 2)
    ),
    "addmm": lambda x: torch.addmm(x, x[:, :4], x, beta=0.5, alpha=2),
    "mv": lambda x: x @ x[0],
    "dot": lambda x: x[0] @ x[1],
    "kron": lambda x: torch.kron(x[:2, :2], x[2:, :3]),
    "linalg_norm": lambda x: torch.linalg.norm(x),
    "vecdot": lambda x: torch.linalg.vecdot(x[:2], x[2:]),
    "glu": lambda x: F.glu(x),
    "softmin": lambda x: F.softmin(x, 1),
    "logsigmoid": F.logsigmoid,
    "celu": F.celu,
    "selu": F.selu,
    "tanhshrink": F.tanhshrink,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "softsign": F.softsign,
    "mish": F.mish,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_t": lambda x: F.gelu(x, approximate="tanh"),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu6": F.relu6,
    "leaky": F.leaky_relu,
    "elu": F.elu,
    "softplus": lambda x: F.softplus(x, 2.0, 3.0),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "rms_norm": lambda x: F.rms_norm(x, (8,)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "repeat": lambda x: x.repeat(2, 3),
    "tile": lambda x: x.tile(2),
    "unfold_t": lambda x: x.unfold(1, 3, 2),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "unbind": lambda x: sum(x.unbind(1)),
    "chunk": lambda x: x.chunk(3, 1)[1],
    "split": lambda x: x.split([3, 5], 1)[1],
    "tensor_split": lambda x: x.tensor_split(3, 1)[2],
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0] * 2,
    "nan_to_num": lambda x: torch.nan_to_num(x),
    "remainder": lambda x: torch.remainder(x, 0.7),
    "fmod": lambda x: torch.fmod(x, 0.7),
    "floor_div": lambda x: x * torch.floor_divide(x.detach(), 0.3),
    "atan2": lambda x: torch.atan2(x, x.flip(0) + 3),
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "log1p": lambda x: torch.log1p(x.abs()),
    "expm1": torch.expm1,
    "sinc": torch.sinc,
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(0)),
    "log2": lambda x: (x.abs() + 1).log2(),
    "log10": lambda x: (x.abs() + 1).log10(),
    "exp2": torch.exp2,
    "rsqrt": lambda x: (x * x + 1).rsqrt(),
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sigmoid": torch.sigmoid,
    "logit": lambda x: torch.logit(torch.sigmoid(x)),
    "pow": lambda x: x.abs().pow(1.7),
    "pow_t": lambda x: (x.abs() + 1).pow(x),
    "float_power": lambda x: 2.0**x,
    "reciprocal": lambda x: (x + 4).reciprocal(),
    "sign": lambda x: x * x.sign(),
    "frac": torch.frac,
    "trunc": lambda x: x - x.trunc(),
    "round": lambda x: x - x.round(),
    "copysign": lambda x: torch.copysign(x, x.flip(0)),
    "trapz": lambda x: torch.trapezoid(x),
    "diff": lambda x: x.diff(dim=1),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.abs() + 1),
    "dist": lambda x: torch.dist(x[:2], x[2:]),
    "one_hot": lambda x: x[:, :4] * F.one_hot(LABELS, 4),
    "bucketize": lambda x: x
    * torch.bucketize(x.detach(), torch.tensor([-0.5, 0.0, 0.5])),
    "median": lambda x: x.median(1)[0],
    "quantile": lambda x: x.quantile(0.3, 1),
    "movedim": lambda x: x.view(2, 2, 8).movedim(0, 2),
    "rot90": lambda x: x.rot90(),
    "take_along": lambda x: torch.take_along_dim(x, INDEX, 1),
    "diag": lambda x: torch.diag(x[0]),
    "diagonal": lambda x: x.diagonal(),
    "diag_embed": lambda x: torch.diag_embed(x),
    "trace": lambda x: x[:, :4].trace(),
    "einsum1": lambda x: torch.einsum("bi,bj->bij", x, x),
    "einsum2": lambda x: torch.einsum(
        "bij,bkj->bik", x.view(2, 2, 8), x.view(2, 2, 8)
    ),
    "einsum3": lambda x: torch.einsum("...i,...i", x, x),
    "einsum4": lambda x: torch.einsum("ii->i", x[:, :4]),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([0], [0])),
    "matrix_power": lambda x: torch.matrix_power(x[:, :4], 3),
    "triplet": lambda x: F.triplet_margin_loss(x[:2], x[2:], x[:2].flip(1)),
    "ranking": lambda x: F.margin_ranking_loss(
        x[0], x[1], x[2].detach().sign()
    ),
    "hinge": lambda x: F.hinge_embedding_loss(x, torch.where(MASK, 1.0, -1.0)),
    "cos_emb": lambda x: F.cosine_embedding_loss(
        x[:2], x[2:], torch.tensor([1.0, -1.0])
    ),
    "poisson": lambda x: F.poisson_nll_loss(x, MASK.float()),
    "gauss_nll": lambda x: F.gaussian_nll_loss(x, MASK.float(), x.abs() + 0.5),
    "ml_soft": lambda x: F.multilabel_soft_margin_loss(x, MASK.float()),
    "multi_margin": lambda x: F.multi_margin_loss(x, LABELS),
    "kl": lambda x: F.kl_div(
        F.log_softmax(x, 1), F.softmax(x.flip(0), 1), reduction="batchmean"
    ),
    "kl_log": lambda x: F.kl_div(
        F.log_softmax(x, 1),
        F.log_softmax(x.flip(0), 1),
        log_target=True,
        reduction="batchmean",
    ),
    "bce": lambda x: F.binary_cross_entropy(torch.sigmoid(x), MASK.float()),
    "bcel": lambda x: F.binary_cross_entropy_with_logits(x, MASK.float()),
    "bcel_pw": lambda x: F.binary_cross_entropy_with_logits(
        x, MASK.float(), pos_weight=torch.arange(1.0, 9)
    ),
    "smooth": lambda x: F.smooth_l1_loss(x, x.flip(0), beta=0.5),
    "huber": lambda x: F.huber_loss(x, MASK.float()),
    "l1": lambda x: F.l1_loss(x, MASK.float()),
    "mse": lambda x: F.mse_loss(x, MASK.float()),
    "ce": lambda x: F.cross_entropy(x, LABELS),
    "ce_w": lambda x: F.cross_entropy(x, LABELS, weight=torch.arange(1.0, 9)),
    "ce_ls": lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1),
    "ce_soft": lambda x: F.cross_entropy(x, F.softmax(x.flip(0).detach(), 1)),
    "nll": lambda x: F.nll_loss(F.log_softmax(x, 1), LABELS, ignore_index=3),
    "focal": lambda x: (
        -((1 - F.softmax(x, 1)) ** 2) * F.log_softmax(x, 1)
    ).gather(1, LABELS[:, None]),
    "fft": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "rfft": lambda x: torch.fft.rfft(x).abs(),
    "fft2": lambda x: torch.fft.fft2(x).real,
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2)
    * torch.arange(8.0),
    "stop": lambda x: x * x.detach(),
    "embbag": lambda x: F.embedding_bag(INDEX, x),
    "emb": lambda x: F.embedding(INDEX, x),
    "emb_pad": lambda x: F.embedding(INDEX, x, padding_INDEX=1),
    "swapaxes": lambda x: x.view(2, 2, 8).swapaxes(0, 2),
    "squeeze": lambda x: x[:1].squeeze(0),
    "expand": lambda x: x[:, :1].expand(4, 5),
    "slice_neg": lambda x: x[:, -3:],
    "slice_step": lambda x: x[:, ::3],
    "ellipsis": lambda x: x[..., 1],
    "mask_mul": lambda x: x * (x > 0),
    "bool_index": lambda x: x[torch.tensor([True, False, True, True])],
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cummax": lambda x: x.cummax(1)[0],
    "softmax_t": lambda x: F.softmax(x / 0.5, -1),
    "gumbel": lambda x: F.softmax((x + 0.3) / 1.3, -1),
    "count_nonzero": lambda x: x * (x > 0).sum(),
    "any": lambda x: x * (x > 0).any(1, keepdim=True),
    "cov": lambda x: torch.cov(x),
    "corrcoef": lambda x: torch.corrcoef(x),
    "inner": lambda x: torch.inner(x, x),
    "cross": lambda x: torch.cross(x[:, :3], x[:, 3:6], dim=1),
    "sum_to": lambda x: x.sum_to_size(1, 8),
    "dropout0": lambda x: F.dropout(x, 0.0),
    "chain": lambda x: torch.linalg.multi_dot([x[:, :4], x[:, 4:], x[:, :4]]),
}
MAPS = {  # of c [2, 4, 6, 6]
    "unfold": lambda c: F.unfold(c, 3, padding=1),
    "fold": lambda c: F.fold(
        c.view(2, 4, 36).repeat(1, 1, 1)[:, :, :25].reshape(2, 4, 25),
        (6, 6),
        2,
    ),
    "unshuffle": lambda c: F.pixel_unshuffle(c, 2),
    "shuffle": lambda c: F.pixel_shuffle(c, 2),
    "chshuffle": lambda c: F.channel_shuffle(c, 2),
    "avg": lambda c: F.avg_pool2d(c, 3, 2, 1),
    "avg_ex": lambda c: F.avg_pool2d(c, 3, 2, 1, count_include_pad=False),
    "avg_ceil": lambda c: F.avg_pool2d(c, 2, ceil_mode=True, stride=3),
    "avg_div": lambda c: F.avg_pool2d(c, 2, divisor_override=3),
    "max_ceil": lambda c: F.max_pool2d(c, 3, 2, ceil_mode=True),
    "max_dil": lambda c: F.max_pool2d(c, 2, dilation=2),
    "adapt": lambda c: F.adaptive_avg_pool2d(c, 3),
    "adapt_odd": lambda c: F.adaptive_avg_pool2d(c, 4),
    "adapt_max": lambda c: F.adaptive_max_pool2d(c, 2),
    "lp": lambda c: F.lp_pool2d(c, 2, 2),
    "avg1": lambda c: F.avg_pool1d(c.flatten(2), 3, 2),
    "max1": lambda c: F.max_pool1d(c.flatten(2), 3, 2),
    "avg3": lambda c: F.avg_pool3d(c[:, None], 2),
    "pad_r": lambda c: F.pad(c, (1, 2, 2, 1), mode="reflect"),
    "pad_e": lambda c: F.pad(c, (1, 2, 2, 1), mode="replicate"),
    "pad_c": lambda c: F.pad(c, (1, 2, 2, 1), mode="circular"),
    "pad_n": lambda c: F.pad(c, (-1, 1)),
    "up_area": lambda c: F.interpolate(c, size=3, mode="area"),
    "up_ne": lambda c: F.interpolate(c, scale_factor=2, mode="nearest-exact"),
    "up_bl": lambda c: F.interpolate(c, size=(9, 4), mode="bilinear"),
    "up_aa": lambda c: F.interpolate(
        c, size=3, mode="bilinear", antialias=True
    ),
    "up_bic": lambda c: F.interpolate(c, scale_factor=1.5, mode="bicubic"),
    "up_1": lambda c: F.interpolate(
        c.flatten(2), scale_factor=2, mode="linear"
    ),
    "up_3": lambda c: F.interpolate(
        c[:, None], scale_factor=2, mode="trilinear"
    ),
    "grid": lambda c: F.grid_sample(
        c, torch.tanh(c[:, :2].permute(0, 2, 3, 1)), align_corners=False
    ),
    "lrn": lambda c: F.local_response_norm(c, 3),
    "inorm": lambda c: F.instance_norm(c),
    "gnorm": lambda c: F.group_norm(c, 2),
    "maxunpool": lambda c: F.max_unpool2d(
        *F.max_pool2d(c, 2, return_indices=True), 2
    ),
    "conv_t": lambda c: F.conv_transpose2d(
        c, c[0].view(4, 4, 3, 3), stride=2, padding=1, output_padding=1
    ),
    "conv_dyn": lambda c: F.conv2d(c, c[0].view(4, 4, 3, 3)),
    "conv_same": lambda c: F.conv2d(c, c[0].view(4, 4, 3, 3), padding="same"),
    "conv_g": lambda c: F.conv2d(c, c[0].view(16, 1, 3, 3), groups=4),
    "conv_dil": lambda c: F.conv2d(c, c[0].view(4, 4, 3, 3), dilation=2),
    "conv1": lambda c: F.conv1d(c.flatten(2), c[0].view(4, 4, 9)),
    "conv3": lambda c: F.conv3d(c[:, None], c[0].view(4, 1, 4, 3, 3)),
    "sdpa": lambda c: F.scaled_dot_product_attention(c, c * 2, c + 1),
    "sdpa_c": lambda c: F.scaled_dot_product_attention(
        c, c * 2, c + 1, is_causal=True
    ),
    "sdpa_m": lambda c: F.scaled_dot_product_attention(
        c, c * 2, c + 1, attn_mask=torch.ones(6, 6).tril().bool()
    ),
    "sdpa_s": lambda c: F.scaled_dot_product_attention(
        c, c * 2, c + 1, scale=0.3
    ),
    "mean_hw": lambda c: c.mean((2, 3)),
    "drop2d": lambda c: F.dropout2d(c, 0.0),
    "softmax2d": lambda c: F.softmax(c.flatten(2), -1),
    "space": lambda c: c.view(2, 4, 3, 2, 3, 2).permute(0, 1, 3, 5, 2, 4),
    "total_var": lambda c: (c[:, :, 1:] - c[:, :, :-1]).abs().mean()
    + (c[:, :, :, 1:] - c[:, :, :, :-1]).abs().mean(),
    "ssim": lambda c: F.avg_pool2d(c * c, 3, 1) - F.avg_pool2d(c, 3, 1) ** 2,
    "gram": lambda c: torch.einsum("bchw,bdhw->bcd", c, c),
    "det": lambda c: torch.linalg.det(c),
    "inv": lambda c: torch.linalg.inv(c + 5 * torch.eye(6)),
    "solve": lambda c: torch.linalg.solve(c + 5 * torch.eye(6), c),
    "chol": lambda c: torch.linalg.cholesky(c @ c.mT + torch.eye(6)),
    "svd": lambda c: torch.linalg.svdvals(c),
}


class Functions(nn.Module):
    """The mean of each and half its square, added up."""

    def __init__(self, names):
        super().__init__()
        torch.manual_seed(1)
        self.p = nn.ParameterDict(
            {
                n: nn.Parameter(
                    torch.randn((4, 8) if n in ROWS else (2, 4, 6, 6))
                )
                for n in names
            }
        )

    def forward(self, x):
        total = 0.0
        for n, p in self.p.items():
            y = (ROWS.get(n) or MAPS[n])(p * x)
            total = total + (y.float() ** 2 * 0.5).mean() + y.float().mean()
        return total


@contextlib.contextmanager
def quiet():
    """Exporters print graphs of what they cannot export."""
    out, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(out, 1)
        os.close(out)
        os.close(null)


def train(ampc, folder, names, exporter):
    """Those whose gradient is wrong, as "NAME DISTANCE"."""
    path = os.path.join(folder, "together")
    model, x = Functions(names), torch.ones(1) + 0.1
    with quiet():
        export(model, [x], path, exporter)
    model(x).backward()
    np.save(path + ".npy", x.numpy())
    for command in (
        [
            path,
            "-o",
            path + ".so",
            "--precision",
            "fp32",
            "--optimizer",
            "sgd,lr=1",
            "--target",
            "cpu:x86-64-v3",
        ],
        [
            "run",
            path + ".so",
            "--device",
            "cpu",
            "--threads",
            "1",
            "--quiet",
            "--log",
            path + ".log",
            "--steps",
            "1",
            "--feed",
            f"in0={path}.npy",
            "--save-weights",
            path + ".st",
        ],
    ):
        r = subprocess.run([ampc, *command], capture_output=True, text=True)
        if r.returncode:
            return [f"{', '.join(names)}: {said(r.stderr)}"]
    after, wrong = load_file(path + ".st"), []
    for n in names:
        if "p." + n not in after:
            wrong.append(n + " not a parameter")
            continue
        p = model.p[n]
        want = p.grad.numpy()
        got = p.detach().numpy().astype(np.float64) - after["p." + n]
        most = max(np.abs(want).max(), 1)
        if not np.abs(got - want).max() < LIMIT * most:
            wrong.append(f"{n} {np.abs(got - want).max() / most:.0e}")
    return wrong


def sweep(ampc, folder, names, exporter):
    unexported, refused, good = [], [], []
    for n in names:
        path = os.path.join(folder, n + ".onnx")
        try:
            with quiet():
                export(Functions([n]), [torch.ones(1) + 0.1], path, exporter)
        except Exception:  # what torch cannot export is not ours to train
            unexported.append(n)
            continue
        r = subprocess.run(
            [ampc, "check", path], capture_output=True, text=True
        )
        if r.returncode:
            refused.append(f"{n} ({said(r.stderr)[:90]})")
        else:
            good.append(n)
    wrong = []
    for i in range(0, len(good), TOGETHER):
        wrong += train(ampc, folder, good[i : i + TOGETHER], exporter)
    return unexported, refused, good, wrong


def main():
    ampc, chosen = os.path.abspath(sys.argv[1]), sys.argv[2:]
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    names = chosen or [*ROWS, *MAPS]
    rows, notes = [], []
    for exporter in EXPORTERS:
        with tempfile.TemporaryDirectory() as folder:
            un, refused, good, wrong = sweep(ampc, folder, names, exporter)
        rows.append(
            f"| {exporter} | {len(names)} | {len(names) - len(un)} | "
            f"{len(good)} | {len(good) - len(wrong)} |"
        )
        for what, which in (
            ("not exported", un),
            ("refused", refused),
            ("wrong", wrong),
        ):
            if which:
                notes.append(f"- {exporter}, {what}: {', '.join(which)}")
    print(
        "| exporter | functions | exported | taken | right |\n|---|---|---|---"
        "|---|"
    )
    print("\n".join(rows + [""] + notes))


if __name__ == "__main__":
    main()
