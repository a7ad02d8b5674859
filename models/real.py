#!/usr/bin/env python3
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

from bench import Layer, conv_norm
from networks import Loss


def init_small(model):
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
    return model


class Transformer(nn.Module):
    """GPT-2 ("gpt") and BERT ("bert"): the head is tied to the table."""

    def __init__(self, kind, layers, width, heads, length, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.Sequential(*(Layer(width, heads, kind)
                                      for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        init_small(self)
        for m in self.layers:
            m.feed[1] = nn.GELU("tanh" if kind == "gpt" else "none")

    def forward(self, ids):
        x = self.layers(self.tokens(ids) + self.places)
        return F.linear(self.norm(x), self.tokens.weight)


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
        def two(a, b):
            return nn.Sequential(*conv_norm(a, b, 1), nn.ReLU(),
                                 *conv_norm(b, b, 1), nn.ReLU())
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


def gpt2(layers, vocabulary=50257):
    return lambda: Transformer("gpt", layers, 768, 12, 1024, vocabulary)


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
             lambda: Transformer("bert", 12, 768, 12, 512, 30522),
             tokens(30522, 32, 512), ADAMW),
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
