#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters of GPT-2 beside PEFT in PyTorch (maintainers).

usage: lora.py AMPC [--steps N] [--only WORD] [--keep DIR]

GPT-2 of two layers is exported to ONNX and trained with adapters for some
steps of AdamW in fp32, by ampc and by PEFT, from the same weights: each kind of
adapter, and each dtype of --frozen-dtype with one of them. PEFT's frozen
weights are the numbers for which ampc's codes stand (--save-weights). A row
says how far the losses are apart, how far the logits of PEFT are that loads
ampc's adapters (ampc export --adapter), those of ONNX Runtime on the merged
model, and those of a session that loads the adapters again. Status 1 if a loss
is more than 1e-5 apart, or logits are more than 1e-4 of the largest.

Needs what gpt2.py needs, and peft."""
import json
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from gpt2 import (Logits, apart, call, export, in_folder, make, onnx_logits,
                  parser, windows)

LOSS_LIMIT, LOGIT_LIMIT = 1e-5, 1e-4
PREFIX = "base_model.model."
LAYERS = ["c_attn", "c_proj"]

LORA = [["--lora", f"*{n},rank=8,alpha=16"] for n in LAYERS]
DORA = [["--lora", f"*{n},rank=8,alpha=16,dora"] for n in LAYERS]
IA3 = [["--ia3", "*c_attn"], ["--ia3", "*mlp.c_proj,feedforward"]]


def lora_config(**more):
    return LoraConfig(r=8, lora_alpha=16, target_modules=LAYERS, **more)


# name, ampc's options, PEFT's configuration, whether logits are compared, too
CASES = [
    ("lora", LORA, lora_config(), True),
    ("dora", DORA, lora_config(use_dora=True), True),
    ("ia3", IA3, IA3Config(target_modules=["c_attn", "mlp.c_proj"],
                           feedforward_modules=["mlp.c_proj"]), True),
    ("biases", [["--freeze", "*"], ["--train", "*.bias"]], None, False),
] + [(f"{name} {dtype}", options + [["--frozen-dtype", dtype]], config, False)
     for dtype in ("bf16", "int8", "int4", "nf4")
     for name, options, config in (
         ("lora", LORA, lora_config()),
         ("dora", DORA, lora_config(use_dora=True)),
         ("ia3", IA3, IA3Config(target_modules=["c_attn", "mlp.c_proj"],
                                feedforward_modules=["mlp.c_proj"])),
         ("biases", [["--freeze", "*"], ["--train", "*.bias"]], None))]


def plain(name):
    for old in (PREFIX, ".base_layer"):
        name = name.replace(old, "")
    return name.replace("_vector.default.weight", "_vector").replace(
        ".default", "")


def adapted(base, config):
    """The model with PEFT's adapters, or with biases that train alone."""
    net = Logits(make(True, 0))
    net.load_state_dict(base, strict=False)
    if config:
        return get_peft_model(net, config)
    for name, p in net.named_parameters():
        p.requires_grad = name.endswith(".bias")
    return net


def torch_losses(net, tokens, o):
    optimizer = torch.optim.AdamW(
        [p for p in net.parameters() if p.requires_grad], lr=o.lr)
    losses = []
    for step in range(o.steps):
        ids, target = windows(tokens, o, step)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(ids).flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def logits_apart(run, at, x):
    """Logits beside ampc's: PEFT, ONNX Runtime, adapters loaded again."""
    run("export", "gpt2.so", "--load", "trained.safetensors", "--adapter", "-o",
        "adapter")
    run("export", "gpt2.so", "--load", "trained.safetensors", "-o",
        "merged.onnx")
    np.save(at("x.npy"), x.numpy())
    run("run", "gpt2.so", "--device", "cpu", "--feed", "ids=x.npy", "--load",
        "trained.safetensors", "--fetch", "out")
    run("run", "gpt2.so", "--device", "cpu", "--feed", "ids=x.npy", "--load",
        "adapter/adapter_model.safetensors", "--fetch", "again")
    want = np.load(at("out/logits.npy"))
    with torch.no_grad():
        loaded = PeftModel.from_pretrained(
            Logits(make(True, 0)), at("adapter")).eval()(x).numpy()
    return (apart(loaded, want), apart(onnx_logits(at("merged.onnx"), x), want),
            apart(np.load(at("again/logits.npy")), want))


def case(o, folder, tokens, name, options, config, with_logits):
    def at(file):
        return os.path.join(folder, file)

    def run(*words):
        call(folder, os.path.abspath(o.ampc), *words)

    fed = ["--feed", "ids=text.bin", "--feed", "target=text.bin:+1", "--device",
           "cpu", "--quiet"]
    run("gpt2.onnx", "-o", "gpt2.so", "--loss", "cross_entropy", "--precision",
        "fp32", "--optimizer", f"adamw,lr={o.lr}", "--target", "cpu",
        *sum(options, []))
    run("run", "gpt2.so", *fed, "--steps", "0", "--save-weights",
        "base.safetensors")
    base = load_file(at("base.safetensors"))
    net = adapted(base, config)
    save_file({**base, **{plain(n): p.detach().contiguous()
                          for n, p in net.named_parameters()
                          if plain(n) in base and p.requires_grad}},
              at("first.safetensors"))
    run("run", "gpt2.so", *fed, "--load", "first.safetensors", "--steps",
        str(o.steps), "--log", "log", "--save", "trained.safetensors")
    ours = np.array([json.loads(s)["loss"] for s in open(at("log"))])
    theirs = torch_losses(net, tokens, o)
    far = float(np.max(np.abs(ours - theirs) / np.abs(theirs)))
    near = logits_apart(run, at, windows(tokens, o, 0)[0]) if with_logits else ()
    print(f"{name:12} loss {theirs[0]:.5f} to {theirs[-1]:.5f}, ampc's at most "
          f"{far:.1e} apart" + "".join(f", {what} {v:.1e}" for what, v in zip(
              ("PEFT", "ONNX Runtime", "loaded again"), near)), flush=True)
    return far < LOSS_LIMIT and max(near, default=0) < LOGIT_LIMIT


def work(o, folder):
    tokens = np.fromfile(o.text, np.uint8)[:o.steps * o.batch * o.length + 1]
    tokens.astype(np.uint16).tofile(os.path.join(folder, "text.bin"))
    export(make(True, 0), windows(tokens, o, 0)[0],
           os.path.join(folder, "gpt2.onnx"))
    right = [case(o, folder, tokens, *c) for c in CASES
             if not o.only or o.only in c[0]]
    return 0 if right and all(right) else 1


def main():
    p = parser(__doc__, steps=10, length=32, lr=1e-3)
    p.add_argument("--only", help="cases with this word in their names")
    return in_folder(work, p.parse_args())


if __name__ == "__main__":
    sys.exit(main())
