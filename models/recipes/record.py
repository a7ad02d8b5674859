#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the losses of models/recipes in PyTorch, for recipes_test.

    pip install torch==2.15.0 torchvision==0.26.0   # no other package
    python3 models/recipes/record.py > tests/models/recipes.txt

Each recipe is written again with PyTorch's own functions and optimizers, in
doubles, and trains for five steps.  Parameters are numbers of their names,
inputs numbers of their names and the step; random numbers are those of ampc's
generator, which is Philox 4x32-10.
"""
import math

import torch
import torch.nn.functional as F

STEPS = 5
torch.set_default_dtype(torch.float64)
M32, M64 = 2**32 - 1, 2**64 - 1


def drawn(state, shape, below=0):
    """Numbers in [-1, 1), or integers below a bound."""
    values = []
    for _ in range(math.prod(shape)):
        for _ in range(3):
            state = (state * 6364136223846793005 + 1442695040888963407) & M64
        values.append((state >> 40) % below if below else
                      (state >> 40) / 2**23 - 1)
    return torch.tensor(values).reshape(shape)


class Given(dict):
    """Parameters, made when first asked for; and what stays as it is."""

    def __init__(self):
        super().__init__()
        self.step, self.salts, self.ints, self.part = 0, 0, {}, ""

    def p(self, name, *shape, trains=True):
        if name not in self:
            t = drawn(7 + sum(name.encode()), shape) / 4
            self[name] = t.requires_grad_(trains)
        return self[name]

    def linear(self, x, name, n, bias=True, trains=True):
        w = self.p(name + ".weight", n, x.shape[-1], trains=trains)
        b = self.p(name + ".bias", n, trains=trains) if bias else None
        return F.linear(x, w, b)

    def conv(self, x, name, n, size, **how):
        w = self.p(name + ".weight", n, x.shape[1], size, size)
        return F.conv2d(x, w, self.p(name + ".bias", n), **how)

    def norm(self, x, name, trains=True):
        n = x.shape[-1]
        return F.layer_norm(x, (n,), self.p(name + ".weight", n, trains=trains),
                            self.p(name + ".bias", n, trains=trains))

    def attention(self, x, name, heads, causal=False):
        n, parts = x.shape[-1], []
        for part in "qkv":
            y = self.linear(x, f"{name}.{part}", n)
            parts.append(y.unflatten(-1, (heads, n // heads)).transpose(1, 2))
        y = F.scaled_dot_product_attention(*parts, is_causal=causal)
        return self.linear(y.transpose(1, 2).flatten(2), name + ".out", n)

    def lora(self, x, name, n, rank, alpha):
        """A frozen Linear with a low-rank adapter."""
        a = self.p(name + ".lora_A.weight", rank, x.shape[-1])
        b = self.p(name + ".lora_B.weight", n, rank)
        return (self.linear(x, name, n, trains=False) +
                alpha / rank * F.linear(F.linear(x, a), b))

    def input(self, name, *shape, below=0):
        if below:
            self.ints[name] = below
        return drawn(77 + 131 * self.step + sum(name.encode()), shape, below)

    def uniform(self, *shape, salt=None):
        """In [0, 1), of the next place that draws."""
        if salt is None:
            salt, self.salts = self.salts, self.salts + 1
        values = []
        for block in range((math.prod(shape) + 3) // 4):
            key, c = [0, 0], [block, 0, self.step, salt]
            for _ in range(10):
                a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
                c = [(b >> 32) ^ c[1] ^ key[0], b & M32,
                     (a >> 32) ^ c[3] ^ key[1], a & M32]
                key = [(key[0] + 0x9E3779B9) & M32, (key[1] + 0xBB67AE85) & M32]
            values += [(w >> 8) * 2**-24 for w in c]
        return torch.tensor(values[:math.prod(shape)]).reshape(shape)

    def normal(self, *shape):
        a, b = self.uniform(2, *shape)
        return torch.sqrt(-2 * torch.log(1 - a)) * torch.cos(2 * math.pi * b)


def vae(g):
    x = g.input("x", 4, 12)
    h = F.relu(g.linear(x, "encoder", 8))
    mu, logvar = g.linear(h, "mu", 3), g.linear(h, "logvar", 3)
    z = mu + torch.exp(0.5 * logvar) * g.normal(4, 3)
    y = g.linear(F.relu(g.linear(z, "decoder", 8)), "image", 12)
    q = torch.distributions.Normal(mu, torch.exp(0.5 * logvar))
    apart = torch.distributions.kl_divergence(
        q, torch.distributions.Normal(torch.zeros(()), torch.ones(())))
    made = F.binary_cross_entropy_with_logits(y, x, reduction="sum")
    return (made + apart.sum()) / 4


def gan(g):
    z, x = g.input("z", 4, 5), g.input("x", 4, 12)
    fake = torch.tanh(g.linear(F.relu(g.linear(z, "G.fc1", 8)), "G.fc2", 12))

    def loss(images, real):
        h = F.leaky_relu(g.linear(images, "D.fc1", 8), 0.2)
        logit = g.linear(h, "D.fc2", 1)
        return F.binary_cross_entropy_with_logits(
            logit, torch.full_like(logit, real))

    if g.part == "d":
        return loss(x, 1) + loss(fake.detach(), 0)
    return loss(fake, 1)


def ddpm(g):
    x = g.input("x", 4, 12)
    t = torch.floor(g.uniform(4, 1) * 1000)
    noise = g.normal(4, 12)
    kept = torch.cos((t / 1000 + 0.008) / 1.008 * math.pi / 2) ** 2
    f = torch.exp(-math.log(10000) * torch.arange(4) / 4)
    e = torch.cat([torch.sin(t * f), torch.cos(t * f)], 1)

    def block(h, name):
        return F.silu(g.linear(h, name + ".x", 8) + g.linear(e, name + ".t", 8))

    h = block(kept.sqrt() * x + (1 - kept).sqrt() * noise, "b1")
    h = h + block(h, "b2")
    return F.mse_loss(g.linear(h, "out", 12), noise)


def flow(g):
    x = g.input("x", 4, 12)
    t, noise = g.uniform(4, 1), g.normal(4, 12)
    h = torch.lerp(noise, x, t.expand_as(x))
    h = F.silu(g.linear(torch.cat([h, t], 1), "b1.Linear", 8))
    h = h + F.silu(g.linear(torch.cat([h, t], 1), "b2.Linear", 8))
    return F.mse_loss(g.linear(h, "velocity", 12), x - noise)


def distill(g):
    x, label = g.input("x", 4, 12), g.input("label", 4, below=5)
    taught = g.linear(F.relu(g.linear(x, "teacher.fc1", 10, trains=False)),
                      "teacher.fc2", 5, trains=False)
    y = g.linear(F.relu(g.linear(x, "fc1", 6)), "fc2", 5)
    soft = F.kl_div(F.log_softmax(y / 4, 1), F.softmax(taught / 4, 1),
                    reduction="batchmean")
    return 0.9 * 16 * soft + 0.1 * F.cross_entropy(y, label)


def dpo(g):
    def logp(ids):
        x = F.embedding(ids[:, :-1], g.p("lm.wte.weight", 11, 8))
        for i in range(1):
            x = x + g.attention(g.norm(x, f"lm.ln1.{i}"), f"lm.attn.{i}", 2, True)
            h = F.gelu(g.linear(g.norm(x, f"lm.ln2.{i}"), f"lm.up.{i}", 32))
            x = x + g.linear(h, f"lm.down.{i}", 8)
        y = g.linear(g.norm(x, "lm.ln"), "lm.head", 11, bias=False)
        y = F.log_softmax(y, -1)
        return y.gather(2, ids[:, 1:, None]).squeeze(2).sum(1)

    good = logp(g.input("chosen", 3, 6, below=11)) - g.input("ref_chosen", 3)
    bad = logp(g.input("rejected", 3, 6, below=11)) - g.input("ref_rejected", 3)
    return -F.logsigmoid(0.1 * (good - bad)).mean()


def ppo(g):
    h = torch.tanh(g.linear(g.input("state", 8, 5), "fc1", 6))
    h = torch.tanh(g.linear(h, "fc2", 6))
    d = torch.distributions.Categorical(logits=g.linear(h, "actor", 3))
    value = g.linear(h, "critic", 1).squeeze(1)
    ratio = torch.exp(d.log_prob(g.input("action", 8, below=3)) -
                      g.input("old_logp", 8))
    advantage = g.input("advantage", 8)
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return (0.5 * F.mse_loss(value, g.input("returns", 8)) - gain.mean() -
            0.01 * d.entropy().mean())


def contrastive(g):
    def tower(x, name):
        h = F.gelu(g.linear(x, name + ".fc1", 8))
        return F.normalize(g.linear(h, name + ".fc2", 6), dim=1)

    y = tower(g.input("a", 4, 7), "a") @ tower(g.input("b", 4, 5), "b").T
    y = y * g.p("log_scale").exp()
    own = torch.arange(4)
    return (F.cross_entropy(y, own) + F.cross_entropy(y.T, own)) / 2


def byol(g):
    names = {"w1": (8, 12), "b1": (8,), "w2": (6, 8)}
    live = {n: g.p(n, *s) for n, s in names.items()}
    if not g.step:
        g.teacher = {n: p.detach().clone() for n, p in live.items()}

    def net(x, p):
        return F.relu(F.linear(x, p["w1"], p["b1"])) @ p["w2"].T

    views, loss = [g.input("one", 4, 12), g.input("two", 4, 12)], 0
    for a, b in (views, views[::-1]):
        h = F.relu(g.linear(net(a, live), "predictor.fc1", 8))
        p = g.linear(h, "predictor.fc2", 6)
        loss = loss + 2 - 2 * F.cosine_similarity(p, net(b, g.teacher)).mean()
    g.teacher = {n: torch.lerp(g.teacher[n], live[n].detach(), 0.01)
                 for n in names}
    return loss


def segment(g):
    def pair(x, name, n):
        x = F.relu(g.conv(x, name + ".c1", n, 3, padding=1))
        return F.relu(g.conv(x, name + ".c2", n, 3, padding=1))

    x, mask = g.input("x", 2, 3, 8, 8), g.input("mask", 2, 1, 8, 8)
    skip = pair(x, "down", 4)
    h = pair(F.max_pool2d(skip, 2), "deep", 8)
    h = F.conv_transpose2d(h, g.p("up.weight", 8, 4, 2, 2), g.p("up.bias", 4),
                           stride=2)
    y = g.conv(pair(torch.cat([h, skip], 1), "merge", 4), "head", 1, 1)
    p = y.sigmoid().flatten(1)
    m = mask.flatten(1)
    dice = 1 - (2 * (p * m).sum(1) + 1) / (p.sum(1) + m.sum(1) + 1)
    return F.binary_cross_entropy_with_logits(y, mask) + dice.mean()


def detect(g):
    from torchvision.ops import generalized_box_iou_loss, sigmoid_focal_loss
    h = F.relu(g.conv(g.input("x", 2, 3, 8, 8), "c1", 4, 3, stride=2, padding=1))
    h = F.relu(g.conv(h, "c2", 4, 3, stride=2, padding=1))

    def corners(box):
        box = box.permute(0, 2, 3, 1).reshape(-1, 4)
        centre, size = box[:, :2], box[:, 2:].exp()
        return torch.cat([centre - size / 2, centre + size / 2], 1)

    found = g.input("found", 2, 1, 2, 2, below=2).double()
    objects = found.sum() + 1
    focal = sigmoid_focal_loss(g.conv(h, "classes", 3, 1),
                               g.input("labels", 2, 3, 2, 2), reduction="sum")
    giou = generalized_box_iou_loss(corners(g.conv(h, "boxes", 4, 1)),
                                    corners(g.input("boxes", 2, 4, 2, 2)), eps=0)
    return (focal + (found.flatten() * giou).sum()) / objects


def crnn(g):
    h = F.relu(g.conv(g.input("x", 2, 1, 8, 32), "c1", 2, 3, padding=1))
    h = F.relu(g.conv(F.max_pool2d(h, 2), "c2", 4, 3, padding=1))
    h = F.max_pool2d(h, 2).permute(0, 3, 1, 2).flatten(2)
    weights = []
    for end in ("", "_reverse"):
        for name, *shape in (("weight_ih", 24, 8), ("weight_hh", 24, 6),
                             ("bias_ih", 24), ("bias_hh", 24)):
            weights.append(g.p(f"lstm.{name}_l0{end}", *shape))
    zero = torch.zeros(2, 2, 6)
    h = torch.lstm(h, (zero, zero), weights, True, 1, 0.0, True, True, True)[0]
    logits = g.linear(h, "letters", 5)
    label = g.input("label", 2, 3, below=5)
    lengths = [next((i for i, v in enumerate(row) if v == 0), 3) for row in label]
    return F.ctc_loss(logits.log_softmax(2).transpose(0, 1), label,
                      torch.tensor([8, 8]), torch.tensor(lengths))


def lora(g):
    x = F.embedding(g.input("ids", 2, 6, below=11), g.p("wte.weight", 11, 8, trains=False))
    for i in range(1):
        h, parts = g.norm(x, f"ln1.{i}", trains=False), []
        for part in "qkv":
            name = f"attn.{i}.{part}"
            y = (g.linear(h, name, 8, trains=False) if part == "k" else
                 g.lora(h, name, 8, 4, 8))
            parts.append(y.unflatten(-1, (2, 4)).transpose(1, 2))
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + g.linear(y.transpose(1, 2).flatten(2), f"attn.{i}.out", 8, trains=False)
        h = g.norm(x, f"ln2.{i}", trains=False)
        h = F.gelu(g.linear(h, f"up.{i}", 32, trains=False))
        x = x + g.linear(h, f"down.{i}", 8, trains=False)
    y = g.linear(g.norm(x, "ln", trains=False), "head", 11, bias=False, trains=False)
    return F.cross_entropy(y.flatten(0, 1), g.input("next", 2, 6, below=11).flatten())


def prefix(g):
    x = F.embedding(g.input("ids", 2, 6, below=11), g.p("wte.weight", 11, 8, trains=False))
    h, parts = g.norm(x, "ln1.0", trains=False), []
    for part in "qkv":
        y = g.linear(h, f"attn.0.{part}", 8, trains=False)
        y = y.unflatten(-1, (2, 4)).transpose(1, 2)
        if part != "q":
            before = g.p(f"attn.0.prefix_{part}", 2, 3, 4)
            y = torch.cat([before.expand(2, -1, -1, -1), y], 2)
        parts.append(y)
    sees = torch.ones(6, 9, dtype=torch.bool).tril(3)
    y = F.scaled_dot_product_attention(*parts, attn_mask=sees)
    x = x + g.linear(y.transpose(1, 2).flatten(2), "attn.0.out", 8, trains=False)
    h = F.gelu(g.linear(g.norm(x, "ln2.0", trains=False), "up.0", 32, trains=False))
    x = x + g.linear(h, "down.0", 8, trains=False)
    y = g.linear(g.norm(x, "ln", trains=False), "head", 11, bias=False, trains=False)
    return F.cross_entropy(y.flatten(0, 1), g.input("next", 2, 6, below=11).flatten())


def graph(g):
    x, adj = g.input("x", 6, 5), g.input("adj", 6, 6)
    h = F.relu(adj @ g.linear(x, "gc1", 4, bias=False))
    y = adj @ g.linear(h, "gc2", 3, bias=False)
    return F.cross_entropy(y, g.input("label", 6, below=3))


def series(g):
    past, future = g.input("past", 3, 6, 2), g.input("future", 3, 4, 2)
    mid = past.mean(1, keepdim=True)
    x = g.linear(past - mid, "embed", 8) + g.p("place", 6, 8)
    for i in range(1):
        x = x + g.attention(g.norm(x, f"ln1.{i}"), f"attn.{i}", 2)
        h = F.gelu(g.linear(g.norm(x, f"ln2.{i}"), f"up.{i}", 32))
        x = x + g.linear(h, f"down.{i}", 8)
    y = g.linear(g.norm(x.mean(1), "ln"), "head", 8).reshape(3, 4, 2) + mid
    return F.mse_loss(y, future)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, dy):
        return dy


class ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.by, None


def qat(g):
    def rounded(x, name, low, high):
        s = g.p(name + ".step")
        s = ScaledGradient.apply(s, (x.numel() * high) ** -0.5)
        return Round.apply((x / s).clamp(low, high)) * s

    def linear(x, name, n):
        w = g.p(name + ".weight", n, x.shape[1])
        return F.linear(rounded(x, name + ".x", 0, 15),
                        rounded(w, name + ".w", -8, 7), g.p(name + ".bias", n))

    h = F.relu(linear(g.input("x", 4, 12), "fc1", 6))
    return F.cross_entropy(linear(h, "fc2", 5), g.input("label", 4, below=5))


def pinn(g):
    def net(x, t):
        h = torch.tanh(g.linear(torch.cat([x, t], 1), "u.fc1", 6))
        return g.linear(torch.tanh(g.linear(h, "u.fc2", 6)), "u.fc3", 1)

    x = g.input("x", 5, 1).requires_grad_()
    t = g.input("t", 5, 1).requires_grad_()
    u = net(x, t)
    ux, ut = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    uxx, = torch.autograd.grad(ux.sum(), x, create_graph=True)
    known = net(g.input("x0", 5, 1), g.input("t0", 5, 1)) - g.input("u0", 5, 1)
    off = ut + u * ux - 0.01 / math.pi * uxx
    return off.square().mean() + known.square().mean()


def adam(lr, **how):
    return lambda p: torch.optim.Adam(p, lr, **how)


def adamw(lr):
    return lambda p: torch.optim.AdamW(p, lr)


def sgd(lr):
    return lambda p: torch.optim.SGD(p, lr, momentum=0.9)


RECIPES = [
    (vae, adam(1e-3), "B=4 X=12 H=8 Z=3"),
    (gan, adam(2e-4, betas=(0.5, 0.999)), "B=4 Z=5 X=12 H=8"),
    (ddpm, adamw(2e-4), "B=4 X=12 H=8 F=4"),
    (flow, adamw(2e-4), "B=4 X=12 H=8"),
    (distill, sgd(0.1), "B=4 X=12 H=10 S=6 C=5"),
    (dpo, adamw(1e-4), "B=3 T=6 VOCAB=11 D=8 HEADS=2 L=1"),
    (ppo, adam(3e-4), "B=8 S=5 H=6 A=3"),
    (contrastive, adamw(1e-3), "B=4 XA=7 XB=5 H=8 D=6"),
    (byol, sgd(0.05), "B=4 X=12 H=8 D=6"),
    (segment, adamw(1e-3), "B=2 SIZE=8 W=4"),
    (detect, adamw(1e-3), "B=2 SIZE=8 W=4 G=2"),
    (crnn, adamw(1e-3), "B=2 HIGH=8 WIDE=32 LETTERS=3 CLASSES=5 W=2 H=6"),
    (lora, adamw(1e-3), "B=2 T=6 VOCAB=11 D=8 HEADS=2 L=1"),
    (prefix, adamw(1e-2), "B=2 T=6 P=3 VOCAB=11 D=8 HEADS=2 L=1"),
    (graph, adam(0.01, weight_decay=5e-4), "N=6 X=5 H=4 C=3"),
    (series, adamw(1e-3), "B=3 T=6 F=2 P=4 D=8 HEADS=2 L=1"),
    (qat, sgd(0.01), "B=4 X=12 H=6 C=5"),
    (pinn, adam(1e-3), "N=5 M=5 H=6"),
]


def record(recipe, make, dims):
    """Objectives, which train the parameters of their letter, in turns."""
    g, losses, optimizer = Given(), [], {}
    parts = ["d", "g"] if recipe is gan else [""]
    for i in range(STEPS * len(parts)):
        g.step, g.salts, g.part = i // len(parts), 0, parts[i % len(parts)]
        loss = recipe(g)
        trained = [p for n, p in g.items()
                   if p.requires_grad and n.startswith(g.part.upper())]
        if g.part not in optimizer:
            optimizer[g.part] = make(trained)
        optimizer[g.part].zero_grad()
        loss.backward()
        if recipe is ppo:
            torch.nn.utils.clip_grad_norm_(trained, 0.5)
        optimizer[g.part].step()
        losses.append(loss.item())
    print(f"case {recipe.__name__}", *(f"--dim {d}" for d in dims.split()))
    for name, below in g.ints.items():
        print(f"below {name} {below}")
    print("losses", *(f"{v:.17g}" for v in losses), flush=True)


def main():
    print(f"# models/recipes/record.py: torch {torch.__version__}")
    for row in RECIPES:
        record(*row)


if __name__ == "__main__":
    main()
