# SPDX-License-Identifier: Apache-2.0
"""Traces of PyTorch for models written in the language.

usage: amp_traces.py OUTDIR
                       (maintainers; needs torch 2.11, onnx and onnxscript)

Each file holds one model of models/*.amp at small dimensions: init/NAME, the
parameters' first values; x and target, the inputs of each step; loss and
grad_norm of each step in fp32.  tests/models/models_test.c has the dimensions
and the options of the same training.

Of the WGAN-GP: z, real and u of each step, loss/NAME and grad_norm/NAME of its
objectives, critic first; critic and generator themselves are exported, by
dynamo into this script's folder, by TorchScript into OUTDIR/torchscript.
"""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.numpy import save_file

torch.set_num_threads(1)
STEPS, BATCH = 6, 2


class MLP(nn.Module):
    def __init__(self, h=8):
        super().__init__()
        self.fc1 = nn.Linear(784, h)
        self.fc2 = nn.Linear(h, h // 2)
        self.fc3 = nn.Linear(h // 2, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class CNN(nn.Module):
    def __init__(self, w=2):
        super().__init__()
        self.conv1 = nn.Conv2d(1, w, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(w)
        self.conv2 = nn.Conv2d(w, 2 * w, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * w)
        self.fc1 = nn.Linear(98 * w, 4 * w)
        self.fc2 = nn.Linear(4 * w, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(d, 3 * d)
        self.c_proj = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        cut = lambda y: y.view(b, t, self.heads, d // self.heads).transpose(1, 2)
        q, k, v = (cut(y) for y in self.c_attn(x).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d))


class Wide(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.c_fc = nn.Linear(d, 4 * d)
        self.c_proj = nn.Linear(4 * d, d)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d)
        self.attn = Attention(d, heads)
        self.ln_2 = nn.LayerNorm(d)
        self.mlp = Wide(d)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab=20, t=8, d=16, heads=2, depth=2):
        super().__init__()
        self.wte = nn.Parameter(torch.randn(vocab, d) * 0.2)
        self.wpe = nn.Parameter(torch.randn(t, d) * 0.1)
        self.h = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(d)

    def forward(self, tokens):
        x = self.wte[tokens] + self.wpe
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.T


def images(*shape):
    return torch.randn(STEPS, BATCH, *shape), torch.randint(0, 10, (STEPS, BATCH))


def adamw(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.01)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9,
                           weight_decay=5e-4)


def gpt_adamw(net):
    plain = [p for n, p in net.named_parameters()
             if n.endswith(".bias") or "ln_" in n]
    decayed = [p for n, p in net.named_parameters()
               if not (n.endswith(".bias") or "ln_" in n)]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                              {"params": plain, "weight_decay": 0.0}],
                             lr=6e-4, betas=(0.9, 0.95))


def case(out, name, net, make_opt, xs, ts, clip):
    net.train()
    save = {"init/" + k: v.detach().numpy().copy()
            for k, v in net.state_dict().items() if v.dtype == torch.float32}
    opt, losses, norms = make_opt(net), [], []
    for x, t in zip(xs, ts):
        opt.zero_grad()
        logits = net(x)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), t.reshape(-1))
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), clip)))
        losses.append(float(loss.detach()))
        opt.step()
    save |= {"x": xs.numpy(), "target": ts.numpy(),
             "loss": np.array(losses), "grad_norm": np.array(norms)}
    save_file({k: np.ascontiguousarray(v) for k, v in save.items()},
              os.path.join(out, name + ".safetensors"))
    print(name, losses[0], losses[-1])


class Generator(nn.Module):
    def __init__(self, z=16, h=32, x=64):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(z, h), nn.Linear(h, x)

    def forward(self, x):
        return torch.tanh(self.fc2(F.relu(self.fc1(x))))


class Critic(nn.Module):
    def __init__(self, x=64, h=32):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(x, h), nn.Linear(h, 1)

    def forward(self, x):
        return self.fc2(F.leaky_relu(self.fc1(x), 0.2))


def export(path, net, **how):
    import onnx
    x = torch.zeros(4, net.fc1.in_features)
    torch.onnx.export(net, (x,), path, input_names=["x"], **how)
    file = onnx.load(path)
    for n in file.graph.node:  # traces of this machine's files
        del n.metadata_props[:]
        n.doc_string = ""
    onnx.save(file, path)


def gan(out):
    g, d = Generator(), Critic()
    folder = os.path.join(out, "torchscript")
    os.makedirs(folder, exist_ok=True)
    for name, net in ("generator", g), ("critic", d):
        export(os.path.join(os.path.dirname(__file__), "..", name + ".onnx"), net,
               dynamo=True, optimize=False, verbose=False, external_data=False,
               dynamic_shapes=({0: torch.export.Dim("batch")},))
        export(os.path.join(folder, name + ".onnx"), net, dynamo=False,
               do_constant_folding=False, opset_version=17,
               training=torch.onnx.TrainingMode.TRAINING,
               dynamic_axes={"x": {0: "batch"}})
    save = {f"init/{k}.{n}": v.detach().numpy().copy()
            for k, net in (("G", g), ("D", d))
            for n, v in net.state_dict().items()}
    opts = {k: torch.optim.Adam(net.parameters(), 1e-2, (0.0, 0.9))
            for k, net in (("d", d), ("g", g))}
    zs, reals = torch.randn(STEPS, 4, 16), torch.randn(STEPS, 4, 64)
    us = torch.rand(STEPS, 4, 1)
    seen = {k: [] for k in ("loss/d", "loss/g", "grad_norm/d", "grad_norm/g")}
    for z, real, u in zip(zs, reals, us):
        for k in "d", "g":
            fake = g(z)
            if k == "d":
                mixed = u * real + (1 - u) * fake.detach()
                mixed.requires_grad_()
                slope, = torch.autograd.grad(d(mixed).sum(), mixed,
                                             create_graph=True)
                off = ((slope ** 2).sum(1) + 1e-12).sqrt() - 1
                loss = d(fake.detach()).mean() - d(real).mean() + \
                    10 * (off ** 2).mean()
            else:
                loss = -d(fake).mean()
            opts[k].zero_grad()
            loss.backward()
            net = d if k == "d" else g
            seen["grad_norm/" + k].append(
                float(nn.utils.clip_grad_norm_(net.parameters(), 1e30)))
            seen["loss/" + k].append(float(loss.detach()))
            opts[k].step()
    save |= {k: np.array(v) for k, v in seen.items()}
    save |= {"z": zs.numpy(), "real": reals.numpy(), "u": us.numpy()}
    save_file({k: np.ascontiguousarray(v) for k, v in save.items()},
              os.path.join(out, "wgan_gp.safetensors"))
    print("wgan_gp", seen["loss/d"], seen["loss/g"])


def main():
    out = sys.argv[1]
    torch.manual_seed(1)
    case(out, "mlp", MLP(), adamw, *images(784), 1e30)
    case(out, "cnn", CNN(), sgd, *images(1, 28, 28), 1e30)
    tokens = torch.randint(0, 20, (2, STEPS, BATCH, 8))
    case(out, "gpt", GPT(), gpt_adamw, tokens[0], tokens[1], 1.0)
    gan(out)


if __name__ == "__main__":
    main()
