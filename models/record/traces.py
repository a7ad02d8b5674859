# SPDX-License-Identifier: Apache-2.0
"""Reference traces: PyTorch's loss, gradient norm, parameters and gradients.

usage: traces.py OUTDIR        (maintainers; needs torch 2.11 and onnx)

Each case is a folder: model.onnx (initial weights inside), options.txt (the
ampc options that describe the same training) and trace.safetensors:
  x [S,B,...], target [S,B,...]   batch of each step
  loss [S], grad_norm [S]         fp32, free-running; norm before clipping
  forced: p/NAME [S,...]          parameters and buffers before each step
          g/NAME [S,...]          gradients of each step
  bf16_dist [S]                   largest |loss - fp32 loss| of six bf16
                                  autocast runs with 1e-6 weight noise
"""
import copy
import os
import sys
import warnings

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.numpy import save_file

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(20, 32)
        self.fc2 = nn.Linear(32, 24)
        self.fc3 = nn.Linear(24, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(torch.tanh(self.fc1(x)))))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(72, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.flatten(1))


class Block(nn.Module):
    def __init__(self, c, k, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(k)
        self.conv2 = nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(k)
        self.down = None
        if stride != 1 or c != k:
            self.down = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False),
                                      nn.BatchNorm2d(k))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.layer1 = Block(8, 8, 1)
        self.layer2 = Block(8, 12, 2)
        self.fc = nn.Linear(12, 10)

    def forward(self, x):
        x = self.layer2(self.layer1(F.relu(self.bn(self.stem(x)))))
        return self.fc(x.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(c, 3 * c)
        self.proj = nn.Linear(c, c)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(c)
        self.attn = Attention(c, heads)
        self.ln2 = nn.LayerNorm(c)
        self.fc = nn.Linear(c, 4 * c)
        self.out = nn.Linear(4 * c, c)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocab=40, t=12, c=16, heads=2, layers=2):
        super().__init__()
        self.wte = nn.Embedding(vocab, c)
        self.wpe = nn.Embedding(t, c)
        self.h = nn.ModuleList(Layer(c, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(c)
        self.head = nn.Linear(c, vocab, bias=False)

    def forward(self, ids):
        pos = torch.arange(ids.shape[1])
        x = self.wte(ids) + self.wpe(pos)
        for layer in self.h:
            x = layer(x)
        return self.head(self.ln_f(x))


class Spectral(nn.Module):
    """spectral_norm of both kinds; a layer that is used twice."""

    def __init__(self):
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.fc1 = norm(nn.Linear(20, 24))
        self.fc2 = norm(nn.Linear(24, 24))
        self.fc3 = nn.utils.spectral_norm(nn.Linear(24, 10),
                                          n_power_iterations=2)

    def forward(self, x):
        x = torch.tanh(self.fc2(F.relu(self.fc1(x))))
        return self.fc3(torch.tanh(self.fc2(x)))


class WithLoss(nn.Module):
    """The model and its loss in one graph."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, target):
        y = self.net(x)
        return F.cross_entropy(y.flatten(0, -2), target.flatten())


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-3, foreach=False)


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, foreach=False)


def slow_adamw(params):
    return torch.optim.AdamW(params, lr=1e-4, foreach=False)


OPTIMIZERS = {
    "adamw": (adamw, 0.5, "--optimizer adamw,lr=1e-3 --clip-norm 0.5"),
    "sgd": (sgd, None, "--optimizer sgd,lr=0.05,momentum=0.9"),
    "slow": (slow_adamw, None, "--optimizer adamw,lr=1e-4"),
}


def batches(kind, steps):
    g = torch.Generator().manual_seed(7)
    if kind in ("mlp", "spectral"):
        x = torch.randn(steps, 16, 20, generator=g)
        return x, (x[..., :10] + x[..., 10:]).argmax(-1)
    if kind == "gpt":
        ids = torch.randint(0, 40, (steps, 4, 13), generator=g)
        ids[..., 1:] = torch.where(ids[..., 1:] % 3 > 0,
                                   (ids[..., :-1] + 1) % 40, ids[..., 1:])
        return ids[..., :-1].contiguous(), ids[..., 1:].contiguous()
    shape = (steps, 16, 1, 16, 16) if kind == "cnn" else (steps, 8, 3, 12, 12)
    x = torch.randn(shape, generator=g)
    return x, torch.randint(0, 10, shape[:2], generator=g)


def loss_of(net, x, t):
    y = net(x)
    return F.cross_entropy(y.flatten(0, -2).float(), t.flatten())


def train(net, make_opt, clip, xs, ts, forced=None, autocast=False):
    opt = make_opt(net.parameters())
    losses, norms = [], []
    for x, t in zip(xs, ts):
        if forced is not None:
            for k, v in net.state_dict().items():
                if v.is_floating_point():
                    forced.setdefault("p/" + k, []).append(v.numpy().copy())
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(net, x, t)
        loss.backward()
        if forced is not None:
            for k, p in net.named_parameters():
                forced.setdefault("g/" + k, []).append(p.grad.numpy().copy())
        norms.append(float(nn.utils.clip_grad_norm_(net.parameters(),
                                                    clip or 1e30)))
        losses.append(float(loss.detach()))
        opt.step()
    return losses, norms


def export(net, kind, exporter, with_loss, x, t, path):
    net = copy.deepcopy(net).train()
    module = WithLoss(net) if with_loss else net
    args = (x, t) if with_loss else (x,)
    names = ["x", "target"] if with_loss else ["x"]
    if exporter == "dynamo":
        batch = torch.export.Dim("batch")
        dyn = tuple({0: batch} for _ in args)
        prog = torch.onnx.export(module, args, dynamo=True, optimize=False,
                                 input_names=names, dynamic_shapes=dyn,
                                 verbose=False)
        prog.save(path, external_data=False)
    else:
        torch.onnx.export(module, args, path, dynamo=False, opset_version=17,
                          training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=False, input_names=names,
                          dynamic_axes={n: {0: "batch"} for n in names})


def bf16_distance(net, make_opt, clip, xs, ts, losses):
    worst = np.zeros(len(losses))
    for seed in range(6):
        noisy = copy.deepcopy(net)
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in noisy.parameters():
                p.mul_(1 + 1e-6 * torch.randn(p.shape, generator=g))
        got, _ = train(noisy, make_opt, clip, xs, ts, autocast=True)
        worst = np.maximum(worst, np.abs(np.array(got) - np.array(losses)))
    return worst


def case(out, kind, make_net, exporter, optimizer, with_loss, steps, forced):
    name = f"{kind}_{exporter}_{optimizer}" + ("_forced" if forced else "")
    torch.manual_seed(1)
    net = make_net().train()
    start = copy.deepcopy(net)
    make_opt, clip, options = OPTIMIZERS[optimizer]
    xs, ts = batches(kind, steps)
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    export(net, kind, exporter, with_loss, xs[0], ts[0],
           os.path.join(folder, "model.onnx"))
    more = {} if forced else None
    losses, norms = train(net, make_opt, clip, xs, ts, forced=more)
    save = {"x": xs.numpy(), "target": ts.numpy(),
            "loss": np.array(losses), "grad_norm": np.array(norms),
            "bf16_dist": bf16_distance(start, make_opt, clip, xs, ts, losses)}
    prefix = "net." if with_loss else ""
    for k, v in (more or {}).items():
        save[k[:2] + prefix + k[2:]] = np.stack(v)
    save_file({k: np.ascontiguousarray(v) for k, v in save.items()},
              os.path.join(folder, "trace.safetensors"))
    options += f" --dim batch={xs.shape[1]}"
    if not with_loss:
        options += " --loss cross_entropy"
    with open(os.path.join(folder, "options.txt"), "w") as f:
        f.write(options + "\n")
    print(name, losses[0], losses[-1])


def wgan_gp(out):
    """The graph of wgan_gp/model.amp: a critic with a gradient penalty, and its
    generator.  Inputs, parameters p/NAME, both losses, gradients g/NAME of
    each parameter's own loss."""
    g = torch.Generator().manual_seed(1)
    p = {n: .3 * torch.randn(s, generator=g) for n, s in (
        ("G.w1", (8, 24)), ("G.b1", 24), ("G.w2", (24, 32)), ("G.b2", 32),
        ("D.w1", (32, 24)), ("D.b1", 24), ("D.w2", (24, 1)), ("D.b2", 1))}
    p = {n: v.requires_grad_() for n, v in p.items()}
    z, real = (torch.randn(16, n, generator=g) for n in (8, 32))
    u = torch.rand(16, 1, generator=g)
    critic = lambda x: F.leaky_relu(x @ p["D.w1"] + p["D.b1"],
                                    .2) @ p["D.w2"] + p["D.b2"]
    hidden = F.relu(z @ p["G.w1"] + p["G.b1"])
    fake = torch.tanh(hidden @ p["G.w2"] + p["G.b2"])
    mixed = u * real + (1 - u) * fake
    slope, = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    penalty = (((slope * slope).sum(1) + 1e-12).sqrt() - 1).square().mean()
    losses = {"D": critic(fake).mean() - critic(real).mean() + 10 * penalty,
              "G": -critic(fake).mean()}
    save = {"z": z, "real": real, "u": u}
    for net, loss in losses.items():
        save[f"loss/{net}"] = loss.detach().double()
        own = [n for n in p if n.startswith(net)]
        grads = torch.autograd.grad(loss, [p[n] for n in own],
                                    retain_graph=True)
        save.update((f"g/{n}", v) for n, v in zip(own, grads))
    save.update((f"p/{n}", v.detach()) for n, v in p.items())
    save_file({k: np.ascontiguousarray(v.numpy()[None])
               for k, v in save.items()},
              os.path.join(out, "wgan_gp", "trace.safetensors"))


def main():
    out = sys.argv[1]
    wgan_gp(out)
    for exporter, with_loss in (("dynamo", True), ("torchscript", False)):
        for opt in ("adamw", "sgd"):
            case(out, "mlp", MLP, exporter, opt, with_loss, 20, False)
            case(out, "gpt", GPT, exporter, opt, with_loss, 20, False)
        case(out, "cnn", CNN, exporter, "slow", with_loss, 6, False)
        case(out, "cnn", CNN, exporter, "sgd", with_loss, 12, True)
        case(out, "resnet", ResNet, exporter, "sgd", with_loss, 12, True)
    case(out, "spectral", Spectral, "dynamo", "sgd", True, 20, False)


if __name__ == "__main__":
    main()
