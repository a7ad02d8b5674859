# SPDX-License-Identifier: Apache-2.0
"""The models of placement.py, small, and their data."""
import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS, VOCABULARY, TOKENS, BATCH = 12, 96, 64, 8


class MLP(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 128),
                         nn.ReLU(), nn.Linear(128, 10))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        return self.fc(self.body(x).flatten(1))


class Residual(nn.Module):
    def __init__(self, c, k, stride):
        super().__init__()
        self.a = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.an, self.bn = nn.BatchNorm2d(k), nn.BatchNorm2d(k)
        self.down = None if (c, stride) == (k, 1) else nn.Sequential(
            nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))

    def forward(self, x):
        y = self.bn(self.b(F.relu(self.an(self.a(x)))))
        return F.relu(y + (self.down(x) if self.down else x))


class ResNet18(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 3, padding=1, bias=False),
                                  nn.BatchNorm2d(c), nn.ReLU())
        sizes = [(c, c, 1), (c, c, 1), (c, 2 * c, 2), (2 * c, 2 * c, 1),
                 (2 * c, 4 * c, 2), (4 * c, 4 * c, 1), (4 * c, 8 * c, 2),
                 (8 * c, 8 * c, 1)]
        self.body = nn.Sequential(*(Residual(*s) for s in sizes))
        self.fc = nn.Linear(8 * c, 10)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


class RMSNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(c))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-5) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    """kind: gpt (causal, one product for q, k, v), llama (causal, rotary),
    bert (a mask, scores written out), vit (all see all)."""

    def __init__(self, c, heads, kind):
        super().__init__()
        self.heads, self.kind = heads, kind
        bias = kind != "llama"
        if kind == "gpt":
            self.qkv = nn.Linear(c, 3 * c)
        else:
            self.q, self.k, self.v = (nn.Linear(c, c, bias=bias)
                                      for _ in range(3))
        self.proj = nn.Linear(c, c, bias=bias)
        angles = torch.outer(torch.arange(TOKENS).float(),
                             1e4 ** (-torch.arange(0, 1, 2 * heads / c)))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x, mask=None):
        b, t, c = x.shape
        qkv = (self.qkv(x).split(c, 2) if self.kind == "gpt" else
               (self.q(x), self.k(x), self.v(x)))
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in qkv)
        if self.kind == "llama":
            q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        if self.kind == "bert":
            s = q @ k.transpose(-1, -2) / (c // self.heads) ** .5 + mask
            y = F.softmax(s, -1) @ v
        else:
            y = F.scaled_dot_product_attention(
                q, k, v, is_causal=self.kind in ("gpt", "llama"))
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """gain: of what it adds to the residual stream."""

    def __init__(self, c, heads, kind, gain=1):
        super().__init__()
        self.kind, self.gain = kind, gain
        norm = RMSNorm if kind == "llama" else nn.LayerNorm
        self.n1, self.n2 = norm(c), norm(c)
        self.attention = Attention(c, heads, kind)
        bias = kind != "llama"
        self.up = nn.Linear(c, 4 * c, bias=bias)
        self.gate = nn.Linear(c, 4 * c, bias=False) if not bias else None
        self.down = nn.Linear(4 * c, c, bias=bias)

    def feed(self, x):
        y = (F.silu(self.gate(x)) * self.up(x) if self.gate else
             F.gelu(self.up(x)))
        return self.down(y)

    def forward(self, x, mask=None):
        if self.kind == "bert":
            x = self.n1(x + self.attention(x, mask))
            return self.n2(x + self.feed(x))
        x = x + self.gain * self.attention(self.n1(x))
        return x + self.gain * self.feed(self.n2(x))


class Language(nn.Module):
    def __init__(self, kind, c=128, heads=4, layers=4, init=.02, gain=1):
        super().__init__()
        self.kind = kind
        self.words = nn.Embedding(VOCABULARY, c)
        self.places = nn.Embedding(TOKENS, c) if kind != "llama" else None
        self.blocks = nn.ModuleList(Block(c, heads, kind, gain)
                                    for _ in range(layers))
        self.norm = RMSNorm(c) if kind == "llama" else nn.LayerNorm(c)
        self.head = nn.Linear(c, VOCABULARY, bias=False)
        nn.init.normal_(self.words.weight, 0, init)
        if self.places:
            nn.init.normal_(self.places.weight, 0, init)

    def forward(self, ids):
        x, mask = self.words(ids), None
        if self.places:
            x = x + self.places(torch.arange(TOKENS))
        if self.kind == "bert":  # token 0 is padding
            mask = torch.where(ids == 0, torch.finfo(torch.float32).min, 0.)
            mask = mask[:, None, None, :]
        for b in self.blocks:
            x = b(x, mask)
        return self.head(self.norm(x))


class ViT(nn.Module):
    def __init__(self, c=96, layers=4):
        super().__init__()
        self.patch = nn.Conv2d(3, c, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, c))
        self.places = nn.Parameter(.02 * torch.randn(1, 17, c))
        self.blocks = nn.Sequential(*(Block(c, 3, "vit")
                                      for _ in range(layers)))
        self.norm, self.fc = nn.LayerNorm(c), nn.Linear(c, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1)
        return self.fc(self.norm(self.blocks(x + self.places))[:, 0])


class UNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        def twice(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(),
                                 nn.Conv2d(o, o, 3, padding=1), nn.ReLU())
        self.down, self.bottom = twice(3, c), twice(c, 2 * c)
        self.grow, self.up = nn.ConvTranspose2d(2 * c, c, 2, 2), twice(2 * c, c)
        self.head = nn.Conv2d(c, 10, 1)

    def forward(self, x):
        d = self.down(x)
        y = self.grow(self.bottom(F.max_pool2d(d, 2)))
        return self.head(self.up(torch.cat((y, d), 1))).movedim(1, -1)


def pixels(g):
    x = torch.randn(STEPS, BATCH, 3, 16, 16, generator=g)
    return x, (x.sum(2) * 2).long().clamp(-5, 4) + 5


def images(g, *shape):
    x = torch.randn(STEPS, 4 * BATCH, *shape, generator=g)
    return x, (x.flatten(2)[..., :10] + x.flatten(2)[..., 10:20]).argmax(-1)


def text(g):
    ids = torch.randint(0, VOCABULARY, (STEPS, BATCH, TOKENS + 1), generator=g)
    ids[..., 1:] = torch.where(ids[..., 1:] % 3 > 0,
                               (ids[..., :-1] + 1) % VOCABULARY, ids[..., 1:])
    return ids[..., :-1].contiguous(), ids[..., 1:].contiguous()


MODELS = {  # name: model, data, learning rate
    "mlp": (MLP, lambda g: images(g, 192), 1e-3),
    "cnn": (CNN, lambda g: images(g, 3, 16, 16), 1e-4),
    "resnet18": (ResNet18, lambda g: images(g, 3, 16, 16), 1e-4),
    "vit": (ViT, lambda g: images(g, 3, 16, 16), 1e-3),
    "gpt": (lambda: Language("gpt"), text, 1e-3),
    "llama": (lambda: Language("llama"), text, 1e-3),
    "bert": (lambda: Language("bert"), text, 1e-3),
    # residual streams of 1e5 to 1e6, and of 1e-3
    "loud": (lambda: Language("gpt", init=1e5, gain=1e5), text, 1e-3),
    "quiet": (lambda: Language("gpt", init=1e-3, gain=1e-3), text, 1e-3),
    "unet": (UNet, pixels, 1e-3),
}
FORCED = ("cnn", "resnet18")
