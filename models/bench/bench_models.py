# SPDX-License-Identifier: Apache-2.0
"""The models of bench.py and their batches: MODELS, and by name only MORE and
REAL, those of real size."""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.append(os.path.join(os.path.dirname(__file__), "../coverage"))
from networks import Loss, Recurrent  # noqa: E402

VOCABULARY = 1024


def conv_norm(cin, cout, stride):
    return [nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
            nn.BatchNorm2d(cout)]


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.body = nn.Sequential(*conv_norm(cin, cout, stride), nn.ReLU(),
                                  *conv_norm(cout, cout, 1))
        self.skip = nn.Sequential()
        if stride != 1:
            self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride,
                                                bias=False),
                                      nn.BatchNorm2d(cout))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def resnet18():
    blocks, cin = [], 64
    for i, c in enumerate((64, 128, 256, 512)):
        blocks += [Block(cin, c, 1 if i == 0 else 2), Block(c, c, 1)]
        cin = c
    return nn.Sequential(*conv_norm(3, 64, 1), nn.ReLU(), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(512, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1568, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10))


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256),
                         nn.ReLU(), nn.Linear(256, 10))


def rotate(x):
    """Rotary positions; x is [batch, heads, time, width]."""
    half = x.shape[-1] // 2
    rate = 10000 ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[-2])[:, None] * rate[None, :]
    cos, sin = torch.cos(angle), torch.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads, causal, rotary, bias):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.causal, self.rotary = causal, rotary
        self.size = width // heads
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.size, bias)
        self.o = nn.Linear(width, width, bias)

    def forward(self, x):
        n, t, width = x.shape
        h, k = self.heads, self.kv_heads
        parts = self.qkv(x).split([h * self.size, k * self.size,
                                   k * self.size], -1)
        q, k, v = (p.reshape(n, t, -1, self.size).transpose(1, 2)
                   for p in parts)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        if self.heads != self.kv_heads:
            repeat = self.heads // self.kv_heads
            k, v = (p.repeat_interleave(repeat, 1) for p in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(y.transpose(1, 2).reshape(n, t, width))


class Gated(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate = nn.Linear(width, inner, False)
        self.up = nn.Linear(width, inner, False)
        self.down = nn.Linear(inner, width, False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, width, heads, kind):
        super().__init__()
        llama = kind == "llama"
        norm = (lambda: nn.RMSNorm(width)) if llama else \
            (lambda: nn.LayerNorm(width))
        self.a, self.b = norm(), norm()
        self.attention = Attention(width, heads, heads // 2 if llama else heads,
                                   kind in ("gpt", "llama"), llama, not llama)
        self.feed = Gated(width, 344) if llama else nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.after = kind == "bert"

    def forward(self, x):
        if self.after:
            x = self.a(x + self.attention(x))
            return self.b(x + self.feed(x))
        x = x + self.attention(self.a(x))
        return x + self.feed(self.b(x))


class Language(nn.Module):
    def __init__(self, kind, layers, width, heads, length):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = None
        if kind != "llama":
            self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.Sequential(*(Layer(width, heads, kind)
                                      for _ in range(layers)))
        self.norm = nn.LayerNorm(width) if kind != "llama" else \
            nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, False)

    def forward(self, ids):
        x = self.tokens(ids)
        if self.places is not None:
            x = x + self.places
        return self.head(self.norm(self.layers(x)))


class UNet(nn.Module):
    """Four levels, transposed convolutions, a class for every pixel."""

    def __init__(self, width=32, levels=4):
        super().__init__()
        self.down, self.up, self.join = (nn.ModuleList() for _ in range(3))
        cin = 3
        for i in range(levels):
            c = width << i
            self.down.append(self.double(cin, c))
            cin = c
        for i in reversed(range(levels - 1)):
            c = width << i
            self.up.append(nn.ConvTranspose2d(2 * c, c, 2, 2))
            self.join.append(self.double(2 * c, c))
        self.head = nn.Conv2d(width, 10, 1)

    @staticmethod
    def double(cin, cout):
        return nn.Sequential(*conv_norm(cin, cout, 1), nn.ReLU(),
                             *conv_norm(cout, cout, 1), nn.ReLU())

    def forward(self, x):
        kept = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return self.head(x)


class Ranking(nn.Module):
    """DLRM: numbers, ids of 26 tables, their products, clicked or not."""

    def __init__(self, tables=26, rows=2000, width=16):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width)
                                    for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(),
            nn.Linear(64, width), nn.ReLU())
        self.i, self.j = torch.tril_indices(tables + 1, tables + 1, -1)
        self.top = nn.Sequential(
            nn.Linear(width + len(self.i), 512), nn.ReLU(),
            nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 2))

    def forward(self, x, ids):
        x = self.bottom(x)
        v = torch.stack([x] + [table(ids[:, i])
                               for i, table in enumerate(self.tables)], 1)
        products = (v @ v.transpose(1, 2))[:, self.i, self.j]
        return self.top(torch.cat([x, products], 1))


class Clicks(Loss):
    def forward(self, x, ids, target):
        return F.cross_entropy(self.m(x, ids), target)


def torchvision(name, **how):
    import torchvision.models
    return getattr(torchvision.models, name)(num_classes=10, **how)


class Vision(nn.Module):
    def __init__(self, layers, width, heads):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(64, width))
        self.layers = nn.Sequential(*(Layer(width, heads, "vit")
                                      for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(x)).mean(1))


class Logits(nn.Module):
    """A language model of transformers, tokens to logits."""

    def __init__(self, model):
        super().__init__()
        self.m = model

    def forward(self, x):
        return self.m(input_ids=x).logits


def transformer(name, **how):
    import transformers
    config = getattr(transformers, name.rpartition("For")[0] + "Config")
    return Logits(getattr(transformers, name)(config(
        vocab_size=VOCABULARY, **how)))


def timm(name):
    import timm
    return timm.create_model(name, num_classes=10)


class Pooled(nn.Module):
    """The mean over all positions of what `features` makes, classified."""

    def __init__(self, features, width):
        super().__init__()
        self.features, self.head = features, nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(2).mean(2))


def dilated(width, layers):
    rest = [m for i in range(layers) for m in (
        nn.ReLU(), nn.Conv1d(width, width, 3, padding=2 ** i, dilation=2 ** i))]
    return Pooled(nn.Sequential(nn.Conv1d(1, width, 3, padding=1), *rest), width)


def audio(width):
    parts, channels = [], 1
    for kernel, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (2, 2)):
        parts += [nn.Conv1d(channels, width, kernel, stride),
                  nn.GroupNorm(1, width), nn.GELU()]
        channels = width
    return Pooled(nn.Sequential(*parts), width)


def volumes(*widths):
    parts, channels = [], 3
    for width in widths:
        parts += [nn.Conv3d(channels, width, 3, padding=1),
                  nn.BatchNorm3d(width), nn.ReLU(), nn.MaxPool3d(2)]
        channels = width
    return Pooled(nn.Sequential(*parts), channels)


def wide_mlp():
    return nn.Sequential(nn.Linear(1024, 2048), nn.GELU(),
                         nn.Linear(2048, 2048), nn.GELU(),
                         nn.Linear(2048, 256), nn.GELU(), nn.Linear(256, 10))


class Table(nn.Module):
    """A transformer over the columns of a table."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1, 64)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(
            64, 4, 128, 0., batch_first=True), 2)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.layers(self.embed(x.unsqueeze(-1))).mean(1))


def images(*shape):
    return lambda: (torch.rand(shape), torch.randint(0, 10, shape[:1]))


def tokens(*shape):
    return lambda: tuple(torch.randint(0, VOCABULARY, shape) for _ in range(2))


def numbers(*shape):
    return lambda: (torch.randn(shape), torch.randint(0, 10, shape[:1]))


def clicks(n):
    return lambda: (torch.randn(n, 13), torch.randint(0, 2000, (n, 26)),
                    torch.randint(0, 2, (n,)))


MODELS = {
    "mlp": ("MLP 784-512-256-10 (128)", mlp, images(128, 784)),
    "cnn": ("CNN+BN, MNIST (64)", cnn, images(64, 1, 28, 28)),
    "resnet18": ("ResNet-18, CIFAR (16)", resnet18, images(16, 3, 32, 32)),
    "gpt": ("GPT 4x256, T=128 (8)",
            lambda: Language("gpt", 4, 256, 8, 128), tokens(8, 128)),
    "llama": ("LLaMA 2x128, T=64 (8)",
              lambda: Language("llama", 2, 128, 4, 64), tokens(8, 64)),
    "vit": ("ViT 4x192 (16)", lambda: Vision(4, 192, 3), images(16, 3, 32, 32)),
    "bert": ("BERT 2x128, T=64 (16)",
             lambda: Language("bert", 2, 128, 4, 64), tokens(16, 64)),
    "resnet50": ("ResNet-50, 224 (4)", lambda: torchvision("resnet50"),
                 images(4, 3, 224, 224)),
    "mobilenet": ("MobileNetV3-large, 224 (8)",
                  lambda: torchvision("mobilenet_v3_large"),
                  images(8, 3, 224, 224)),
    "convnext": ("ConvNeXt-tiny, 224 (2)",
                 lambda: torchvision("convnext_tiny"), images(2, 3, 224, 224)),
    "unet": ("U-Net 32-256, 128 (4)", UNet,
             lambda: (torch.rand(4, 3, 128, 128),
                      torch.randint(0, 10, (4, 128, 128)))),
    "lstm": ("LSTM 2x256, T=64 (32)",
             lambda: Recurrent("LSTM", False, 64, 256, 10),
             lambda: (torch.randn(32, 64, 64), torch.randint(0, 10, (32,)))),
    "dlrm": ("DLRM 26x2000x16 (512)", lambda: Clicks(Ranking()), clicks(512)),
}

MORE = {
    "vgg11": ("VGG-11, CIFAR (16)", lambda: torchvision("vgg11_bn"),
              images(16, 3, 32, 32)),
    "densenet": ("DenseNet-121, 224 (2)", lambda: torchvision("densenet121"),
                 images(2, 3, 224, 224)),
    "efficientnet": ("EfficientNet-B0, 224 (4)",
                     lambda: torchvision("efficientnet_b0"),
                     images(4, 3, 224, 224)),
    "shufflenet": ("ShuffleNetV2, 224 (8)",
                   lambda: torchvision("shufflenet_v2_x1_0"),
                   images(8, 3, 224, 224)),
    "squeezenet": ("SqueezeNet, 224 (8)", lambda: torchvision("squeezenet1_1"),
                   images(8, 3, 224, 224)),
    "regnet": ("RegNetY-400MF, 224 (4)", lambda: torchvision("regnet_y_400mf"),
               images(4, 3, 224, 224)),
    "resnext": ("ResNeXt-50, 128 (4)", lambda: torchvision("resnext50_32x4d"),
                images(4, 3, 128, 128)),
    "swin": ("Swin-T, 224 (1)", lambda: torchvision("swin_t"),
             images(1, 3, 224, 224)),
    "deit": ("DeiT-tiny, 224 (4)", lambda: timm("deit_tiny_patch16_224"),
             images(4, 3, 224, 224)),
    "mixer": ("Mixer-S/32, 224 (4)", lambda: timm("mixer_s32_224"),
              images(4, 3, 224, 224)),
    "mobilevit": ("MobileViT-xs, 224 (2)", lambda: timm("mobilevit_xs"),
                  images(2, 3, 224, 224)),
    "poolformer": ("PoolFormer-S12, 224 (2)", lambda: timm("poolformer_s12"),
                   images(2, 3, 224, 224)),
    "distilbert": ("DistilBERT 3x256, T=128 (8)", lambda: transformer(
        "DistilBertForMaskedLM", dim=256, n_layers=3, n_heads=4,
        hidden_dim=1024, dropout=0., attention_dropout=0.), tokens(8, 128)),
    "neox": ("GPT-NeoX 3x256, T=256 (4)", lambda: transformer(
        "GPTNeoXForCausalLM", hidden_size=256, num_hidden_layers=3,
        num_attention_heads=4, intermediate_size=1024, use_cache=False),
        tokens(4, 256)),
    "qwen2": ("Qwen2 3x256, T=256 (4)", lambda: transformer(
        "Qwen2ForCausalLM", hidden_size=256, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=2, intermediate_size=704,
        use_cache=False), tokens(4, 256)),
    "tcn": ("TCN 6x64, T=1024 (8)", lambda: dilated(64, 6),
            numbers(8, 1, 1024)),
    "audio": ("convolutions of 16,000 samples (4)", lambda: audio(128),
              numbers(4, 1, 16000)),
    "volumes": ("3-D convolutions, 16x32x32 (4)", lambda: volumes(16, 32, 64),
                numbers(4, 3, 16, 32, 32)),
    "wide": ("MLP 1024-2048-2048-256-10 (256)", wide_mlp, images(256, 1024)),
    "few": ("MLP 1024-2048-2048-256-10 (8)", wide_mlp, images(8, 1024)),
    "gru": ("GRU 2x256, T=64 (32)",
            lambda: Recurrent("GRU", False, 64, 256, 10), numbers(32, 64, 64)),
    "table": ("transformer of 26 columns (256)", Table, numbers(256, 26)),
}



def sized(network, batch):
    """A network and a batch of real.py, which reads this file."""
    def of(make):
        import real
        return make(real)
    return lambda: of(network), lambda: of(batch)()


REAL = {
    "real_gpt2_256": ("GPT-2 124M, T=256 (2)", *sized(
        lambda r: r.GPT(12, 768, 12, 256, 50257),
        lambda r: r.tokens(50257, 2, 256))),
    "real_gpt2_1024": ("GPT-2 124M, T=1024 (1)", *sized(
        lambda r: r.GPT(12, 768, 12, 1024, 50257),
        lambda r: r.tokens(50257, 1, 1024))),
    "real_bert": ("BERT-base, T=512 (2)", *sized(
        lambda r: r.BERT(12, 768, 12, 512, 30522),
        lambda r: r.words(30522, 2, 512))),
    "real_vit": ("ViT-B/16, 224 (4)", *sized(
        lambda r: r.ViT(12, 768, 12, 224, 16),
        lambda r: r.images(4, 3, 224, 224))),
    "real_resnet50": ("ResNet-50, 224 (8)", *sized(
        lambda r: r.resnet50(), lambda r: r.images(8, 3, 224, 224))),
    "real_unet": ("U-Net 64-1024, 256 (2)", *sized(
        lambda r: r.UNet(), lambda r: r.pixels(2, 3, 256, 256))),
}

ALL = MODELS | MORE | REAL
INPUTS = {2: ("x", "target"), 3: ("x", "ids", "target")}


def entry(name):
    """Title, network, batch of NAME or NAME@SAMPLES."""
    return ALL[name.partition("@")[0]]


def make(name):
    """Model and batch; of NAME@SAMPLES so many, the model's own repeated."""
    torch.manual_seed(0)
    model, batch = entry(name)[1](), entry(name)[2]()
    samples = int(name.partition("@")[2] or len(batch[0]))
    batch = tuple(torch.cat([x] * -(-samples // len(x)))[:samples]
                  for x in batch)
    return (model if isinstance(model, Loss) else Loss(model)).train(), batch


def there_is(name):
    try:
        make(name)
        return True
    except ImportError as e:
        print(f"{ALL[name][0]} is left out: {e}", file=sys.stderr)
        return False
