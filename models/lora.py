#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA of GPT-2 beside PEFT in PyTorch (maintainers).

usage: lora.py AMPC [--steps N] [--keep DIR]

GPT-2 of two layers is exported to ONNX and trained with adapters of its
attention for some steps of AdamW in fp32, by ampc and by PEFT, from the same
weights.  Prints how far the losses are apart, how far the logits of PEFT are
that loads ampc's adapters (ampc export --adapter), and those of ONNX Runtime
on the merged model.  Status 1 if a loss is more than 1e-5 apart, or logits are
more than 1e-4 of the largest.

Needs what gpt2.py needs, and peft."""
import json
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file

from gpt2 import (Logits, apart, call, export, in_folder, make, onnx_logits,
                  parser, windows)

LOSS_LIMIT, LOGIT_LIMIT = 1e-5, 1e-4
PREFIX = "base_model.model."


def adapted(net):
    return get_peft_model(net, LoraConfig(r=8, lora_alpha=16,
                                          target_modules=["c_attn", "c_proj"]))


def work(o, folder):
    def at(name):
        return os.path.join(folder, name)

    tokens = np.fromfile(o.text, np.uint8)[:o.steps * o.batch * o.length + 1]
    tokens.astype(np.uint16).tofile(at("text.bin"))
    x = windows(tokens, o, 0)[0]
    export(make(True, 0), x, at("gpt2.onnx"))
    net = adapted(Logits(make(True, 0)))
    save_file({n.replace(PREFIX, "").replace(".default", ""): p.detach()
               for n, p in net.named_parameters() if "lora_" in n},
              at("first.safetensors"))

    ampc = os.path.abspath(o.ampc)
    call(folder, ampc, "gpt2.onnx", "-o", "gpt2.so", "--loss", "cross_entropy",
         "--precision", "fp32", "--optimizer", f"adamw,lr={o.lr}", "--target",
         "cpu", "--lora", "*c_attn,rank=8,alpha=16", "--lora",
         "*c_proj,rank=8,alpha=16")
    call(folder, ampc, "run", "gpt2.so", "--device", "cpu", "--feed",
         "ids=text.bin", "--feed", "target=text.bin:+1", "--load",
         "first.safetensors", "--steps", str(o.steps), "--log", "log",
         "--quiet", "--save", "trained.safetensors")
    ours = np.array([json.loads(s)["loss"] for s in open(at("log"))])

    optimizer = torch.optim.AdamW(
        [p for p in net.parameters() if p.requires_grad], lr=o.lr)
    theirs = []
    for step in range(o.steps):
        ids, target = windows(tokens, o, step)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(ids).flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    far = float(np.max(np.abs(ours - theirs) / np.abs(theirs)))
    print(f"loss {theirs[0]:.5f} to {theirs[-1]:.5f}, ampc's at most "
          f"{far:.1e} apart", flush=True)

    call(folder, ampc, "export", "gpt2.so", "--load", "trained.safetensors",
         "--adapter", "-o", "adapter")
    call(folder, ampc, "export", "gpt2.so", "--load", "trained.safetensors",
         "-o", "merged.onnx")
    np.save(at("x.npy"), x.numpy())
    call(folder, ampc, "run", "gpt2.so", "--device", "cpu", "--feed",
         "ids=x.npy", "--load", "trained.safetensors", "--fetch", "out")
    # and back: PEFT's file into a fresh session
    call(folder, ampc, "run", "gpt2.so", "--device", "cpu", "--feed",
         "ids=x.npy", "--load", "adapter/adapter_model.safetensors", "--fetch",
         "again")
    want = np.load(at("out/logits.npy"))
    with torch.no_grad():
        loaded = PeftModel.from_pretrained(
            Logits(make(True, 0)), at("adapter")).eval()(x).numpy()
    ort = onnx_logits(at("merged.onnx"), x)
    near = (apart(loaded, want), apart(ort, want),
            apart(np.load(at("again/logits.npy")), want))
    print("logits beside ampc's: PEFT with ampc's adapters {:.1e}, ONNX Runtime "
          "on the merged model {:.1e}, adapters loaded again {:.1e}"
          .format(*near))
    return 0 if far < LOSS_LIMIT and max(near) < LOGIT_LIMIT else 1


def main():
    p = parser(__doc__, steps=10, length=32, lr=1e-3)
    return in_folder(work, p.parse_args())


if __name__ == "__main__":
    sys.exit(main())
