#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of real size, exported and their training steps predicted.

usage: real.py AMPC FOLDER [NAME...]     names by their beginning

FOLDER keeps the exported models (0.1 to 0.5 GB each).  Prints what `ampc
inspect --roofline` says of a training step of each: precision bf16, AdamW (SGD
for ResNet-50).  No GPU is needed and no kernel is compiled; registers are
estimates then.  bench_torch_gpu.py times the same networks in PyTorch."""
import os
import subprocess
import sys
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

from bench_models import Layer
from networks import Loss


def init_small(model):
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
    return model


class GPT(nn.Module):
    """The head is tied to the table."""

    def __init__(self, layers, width, heads, length, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.Sequential(*(Layer(width, heads, "gpt")
                                      for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        init_small(self)
        for m in self.layers:
            m.feed[1] = nn.GELU("tanh")

    def forward(self, ids):
        x = self.layers(self.tokens(ids) + self.places)
        return F.linear(self.norm(x), self.tokens.weight)


class BertLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width)
                                          for _ in range(4))
        self.up, self.down = (nn.Linear(width, 4 * width),
                              nn.Linear(4 * width, width))
        self.a, self.b = (nn.LayerNorm(width, 1e-12) for _ in range(2))

    def forward(self, x, seen):
        q, k, v = (m(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, seen)
        x = self.a(x + self.o(y.transpose(1, 2).flatten(2)))
        return self.b(x + self.down(F.gelu(self.up(x))))


class BERT(nn.Module):
    """Words, their kinds and a mask, in one tensor [batch, 3, words]; dropout
    is off.  The head is tied to the table."""

    def __init__(self, layers, width, heads, length, vocabulary):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.kinds = nn.Embedding(2, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(BertLayer(width, heads)
                                    for _ in range(layers))
        self.dense = nn.Linear(width, width)
        self.first, self.last = (nn.LayerNorm(width, 1e-12) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        init_small(self)

    def forward(self, x):
        words, kinds, mask = x.unbind(1)
        seen = mask[:, None, None] > 0
        x = self.first(self.words(words) + self.places + self.kinds(kinds))
        for m in self.layers:
            x = m(x, seen)
        x = self.last(F.gelu(self.dense(x)))
        return F.linear(x, self.words.weight, self.bias)


class ViT(nn.Module):
    def __init__(self, layers, width, heads, size, patch):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        places = (size // patch) ** 2 + 1
        self.places = nn.Parameter(0.02 * torch.randn(places, width))
        self.layers = nn.Sequential(*(Layer(width, heads, "vit")
                                      for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1)
        return self.head(self.norm(self.layers(x + self.places))[:, 0])


class Bottleneck(nn.Module):
    def __init__(self, cin, c, stride):
        super().__init__()
        def one(a, b, k, s):
            return [nn.Conv2d(a, b, k, s, k // 2, bias=False),
                    nn.BatchNorm2d(b)]
        self.body = nn.Sequential(*one(cin, c, 1, 1), nn.ReLU(),
                                  *one(c, c, 3, stride), nn.ReLU(),
                                  *one(c, 4 * c, 1, 1))
        self.skip = nn.Sequential()
        if cin != 4 * c:
            self.skip = nn.Sequential(*one(cin, 4 * c, 1, stride))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def resnet50():
    blocks, cin = [], 64
    for i, (c, n) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for k in range(n):
            blocks.append(Bottleneck(cin, c, 2 if i and not k else 1))
            cin = 4 * c
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False),
                         nn.BatchNorm2d(64), nn.ReLU(),
                         nn.MaxPool2d(3, 2, 1), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(2048, 1000))


class UNet(nn.Module):
    def __init__(self, width=64, depth=4, classes=21):
        super().__init__()
        def one(a, b):
            return nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(8, b), nn.ReLU()
        def two(a, b):
            return nn.Sequential(*one(a, b), *one(b, b))
        sizes = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(two(a, b) for a, b in
                                  zip([3] + sizes, sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2)
                                for c in sizes[:-1])
        self.join = nn.ModuleList(two(2 * c, c) for c in sizes[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        kept = []
        for i, m in enumerate(self.down):
            x = m(x if i == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for i in reversed(range(len(self.up))):
            x = self.join[i](torch.cat([kept[i], self.up[i](x)], 1))
        return self.head(x)


def images(*shape):
    return lambda: (torch.rand(shape), torch.randint(0, 1000, shape[:1]))


def pixels(*shape):
    return lambda: (torch.rand(shape),
                    torch.randint(0, 21, shape[:1] + shape[2:]))


def tokens(vocabulary, *shape):
    return lambda: tuple(torch.randint(0, vocabulary, shape) for _ in range(2))


def words(vocabulary, batch, length):
    """For BERT."""
    return lambda: (torch.stack([torch.randint(0, n, (batch, length))
                                 for n in (vocabulary, 2, 2)], 1),
                    torch.randint(0, vocabulary, (batch, length)))


def gpt2(layers, vocabulary=50257):
    return lambda: GPT(layers, 768, 12, 1024, vocabulary)


ADAMW, SGD = "adamw,lr=3e-4", "sgd,lr=0.1,momentum=0.9"
MODELS = {
    "gpt2": ("GPT-2 124M, B=64 T=1024", gpt2(12), tokens(50257, 64, 1024),
             ADAMW),
    "vocabulary50304": ("GPT-2 124M, vocabulary 50304, B=64 T=1024",
                        gpt2(12, 50304), tokens(50304, 64, 1024), ADAMW),
    "gpt2_4_layers": ("GPT-2, 4 layers, B=8 T=1024", gpt2(4),
                      tokens(50257, 8, 1024), ADAMW),
    "resnet50": ("ResNet-50, B=256", resnet50, images(256, 3, 224, 224), SGD),
    "vit": ("ViT-B/16, B=64", lambda: ViT(12, 768, 12, 224, 16),
            images(64, 3, 224, 224), ADAMW),
    "bert": ("BERT-base, B=32 T=512",
             lambda: BERT(12, 768, 12, 512, 30522), words(30522, 32, 512),
             ADAMW),
    "unet": ("U-Net 64..1024, B=8, 256x256", UNet, pixels(8, 3, 256, 256),
             ADAMW),
}


def export(name, path):
    """By PyTorch's default exporter, without what cannot be undone."""
    from torch.onnx import export as to_onnx
    torch.manual_seed(0)
    _, make, batch, _ = MODELS[name]
    with warnings.catch_warnings(), open(os.devnull, "w") as null:
        warnings.simplefilter("ignore")
        out, sys.stdout = sys.stdout, null
        try:
            to_onnx(Loss(make()).train(), batch(), path, dynamo=True,
                    optimize=False, external_data=False, verbose=False,
                    input_names=["x", "target"], output_names=["loss"])
        finally:
            sys.stdout = out


def main():
    ampc, folder = sys.argv[1:3]
    wanted = sys.argv[3:] or list(MODELS)
    os.makedirs(folder, exist_ok=True)
    for name, (title, _, _, optimizer) in MODELS.items():
        if not any(name.startswith(w) for w in wanted):
            continue
        path = os.path.join(folder, name + ".onnx")
        if not os.path.exists(path):
            export(name, path + ".new")
            os.rename(path + ".new", path)
        print(f"== {title}, bf16, {optimizer.split(',')[0]}", flush=True)
        subprocess.run([ampc, "inspect", path, "--roofline", "--optimizer",
                        optimizer, "--target", "cuda:sm_90"], check=True)


if __name__ == "__main__":
    main()
