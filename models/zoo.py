#!/usr/bin/env python3
"""Trains small models in PyTorch and in ampc and prints how far the losses are
apart: one row for each model and exporter (maintainers).

usage: zoo.py AMPC [NAME...]     names by their beginning; default: all

Needs torch, onnx, onnxscript, numpy and, for language models, transformers.
fp32, SGD, five steps on one batch; dropout off.  The last line counts."""
import json
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

STEPS, RATE, VOCABULARY = 5, 0.1, 64


class Loss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.m = model

    def forward(self, x, target):
        y = self.m(x)
        if y.dim() == 3:  # tokens
            y, target = y.reshape(-1, y.shape[-1]), target.reshape(-1)
        return F.cross_entropy(y, target)


class LanguageModel(nn.Module):
    def __init__(self, name, attention, **sizes):
        super().__init__()
        import transformers
        config = getattr(transformers, name + "Config")(
            vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2, **sizes)
        config._attn_implementation = attention
        head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
        self.m = getattr(transformers, name + head)(config)

    def forward(self, ids):
        return self.m(input_ids=ids, use_cache=False).logits


class Recurrent(nn.Module):
    def __init__(self, kind, both):
        super().__init__()
        self.r = getattr(nn, kind)(8, 16, num_layers=1 if both else 2,
                                   bidirectional=both, batch_first=True)
        self.fc = nn.Linear(32 if both else 16, 5)

    def forward(self, x):
        return self.fc(self.r(x)[0][:, -1])


class UNet(nn.Module):
    def __init__(self, mode, **how):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 16, 3, padding=1)
        self.c = nn.Conv2d(24, 8, 3, padding=1)
        self.d = nn.Conv2d(8, 4, 1)
        self.how = dict(scale_factor=2, mode=mode, **how)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        up = F.interpolate(b, **self.how)
        return self.d(F.relu(self.c(torch.cat([up, a], 1))))


class Warp(nn.Module):
    """A spatial transformer with one transform for all images."""

    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 3, 3, padding=1)
        self.by = nn.Parameter(torch.tensor([[.9, .1, 0], [-.1, .8, .1]]))
        self.f = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        h = self.c(x)
        grid = F.affine_grid(self.by.expand(x.shape[0], 2, 3), h.shape,
                             align_corners=False)
        return self.f(F.grid_sample(h, grid, align_corners=False))


def tokens():
    return [torch.randint(0, VOCABULARY, (2, 12)) for _ in range(2)]


def series():
    return torch.randn(4, 7, 8), torch.randint(0, 5, (4,))


def images():
    return torch.randn(2, 3, 16, 16), torch.randint(0, 4, (2, 16, 16))


def language_models():
    llama = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=64, pad_token_id=None)
    neox = {k: v for k, v in llama.items() if k != "num_key_value_heads"}
    sizes = {
        "GPT2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64,
                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
        "Llama": llama, "Mistral": llama, "Qwen2": llama, "Phi3": llama,
        "Qwen3": dict(llama, head_dim=8), "Gemma2": dict(llama, head_dim=8),
        "GPTNeoX": neox,
        "OPT": dict(hidden_size=32, ffn_dim=64, num_hidden_layers=2,
                    num_attention_heads=4, max_position_embeddings=64,
                    word_embed_proj_dim=32, dropout=0., pad_token_id=1),
    }
    for name, s in sizes.items():
        for attention in ("eager", "sdpa"):
            if (name, attention) == ("Gemma2", "sdpa"):
                continue  # transformers has none
            yield (f"{name.lower()}_{attention}",
                   lambda n=name, a=attention, s=s: LanguageModel(n, a, **s),
                   tokens)


def zoo():
    yield from language_models()
    for kind in ("LSTM", "GRU", "RNN"):
        for both in (False, True):
            yield (kind.lower() + ("_both" if both else ""),
                   lambda k=kind, b=both: Recurrent(k, b), series)
    for name, how in {
            "nearest": dict(mode="nearest"),
            "linear": dict(mode="bilinear", align_corners=False),
            "corners": dict(mode="bilinear", align_corners=True),
            "cubic": dict(mode="bicubic", align_corners=False)}.items():
        yield "unet_" + name, lambda h=how: UNet(**h), images
    yield "warp", Warp, images


def export(model, data, path, exporter):
    how = dict(dynamo=True, optimize=False, verbose=False)
    if exporter == "torchscript":
        how = dict(dynamo=False, do_constant_folding=False, opset_version=17,
                   training=torch.onnx.TrainingMode.TRAINING)
    torch.onnx.export(model, data, path, input_names=["x", "target"], **how)


def torch_losses(model, data):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(*data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def ampc_losses(ampc, path, data):
    feeds = []
    for name, x in zip(("x", "target"), data):
        np.save(f"{path}.{name}.npy", x.numpy())
        feeds += ["--feed", f"{name}={path}.{name}.npy"]
    log = path + ".jsonl"
    for command in (
            [ampc, path, "-o", path + ".so", "--precision", "fp32",
             "--optimizer", f"sgd,lr={RATE}", "--target", "cpu:x86-64-v3"],
            [ampc, "run", path + ".so", "--device", "cpu", "--steps",
             str(STEPS), "--log", log, "--quiet"] + feeds):
        r = subprocess.run(command, capture_output=True, text=True)
        if r.returncode:
            lines = [s for s in r.stderr.splitlines() if "error" in s]
            raise RuntimeError((lines or [r.stderr])[0].split("error: ")[-1])
    return np.array([json.loads(s)["loss"] for s in open(log)])


def row(ampc, folder, name, make, data, exporter):
    path = os.path.join(folder, f"{name}.{exporter}.onnx")
    torch.manual_seed(0)
    model, batch = Loss(make()).train(), data()
    try:
        export(model, tuple(batch), path, exporter)
    except Exception as e:  # what PyTorch cannot export is not ours to train
        return None, "not exported: " + str(e).partition("\n")[0][:60]
    want = torch_losses(model, batch)
    try:
        got = ampc_losses(ampc, path, batch)
    except RuntimeError as e:
        return False, "refused: " + str(e)[:100]
    far = np.max(np.abs(got - want) / np.abs(want))
    return bool(far < 1e-4), f"{want[0]:.4f} to {want[-1]:.4f}, {far:.1e} apart"


def main(ampc, *names):
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    good = bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, make, data in zoo():
            if names and not name.startswith(names):
                continue
            # tracing exports neither transformers' masks nor affine_grid
            traced = data is not tokens and name != "warp"
            for exporter in ("dynamo", "torchscript")[:1 + traced]:
                ok, text = row(ampc, folder, name, make, data, exporter)
                good, bad = good + (ok is True), bad + (ok is False)
                print(f"{name:16} {exporter:12} {text}", flush=True)
    print(f"{good} files train as in PyTorch, {bad} do not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
