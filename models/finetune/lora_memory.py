#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory of fine-tuning GPT-2 beside PyTorch and PEFT (maintainers).

usage: lora_memory.py AMPC [--only WORD] [--steps N] [--keep DIR]

GPT-2 of 124 million parameters is fine-tuned in bf16 on the CPU, 2 x 256 tokens
a step, with all its parameters and with adapters of rank 8 beside c_attn, by
ampc and by PyTorch with PEFT from the same file of weights. Each row is a
process under /usr/bin/time -v: what `ampc run` or Python takes from its start
to its end. "part" is the memory as a part of ampc's full fine-tuning. Compiling
is measured, too. Status 1 if LoRA takes more than 0.30 of full fine-tuning, or
more than 0.22 over an int8 base.

PyTorch's rows are autocast to bf16 with fp32 master weights ("all parameters"),
and PEFT over a base in bf16 or fp32, whose adapters are fp32. The losses of the
last step are printed, since memory of steps that differ would say nothing.

Needs what lora.py needs, and /usr/bin/time."""
import json
import os
import re
import subprocess
import sys
import time

import numpy as np

from gpt2 import export, in_folder, make, parser, published, windows

LORA = ["--lora", "*attn.c_attn,rank=8"]
DORA = ["--lora", "*attn.c_attn,rank=8,dora"]
# name, ampc's options, the largest part of full fine-tuning
AMPC = [("all parameters", [], None),
        ("LoRA, bf16 base", LORA, 0.30)] + [
    (f"LoRA, {d} base", LORA + ["--frozen-dtype", d], 0.22)
    for d in ("int8", "int4", "nf4")] + [
    ("DoRA, bf16 base", DORA, 0.30),
    ("DoRA, int8 base", DORA + ["--frozen-dtype", "int8"], 0.22)]
PEERS = ["all parameters", "LoRA, fp32 base", "LoRA, bf16 base",
         "DoRA, bf16 base"]


def measured(folder, *command):
    """What the command prints, its seconds and its peak in MB."""
    start = time.perf_counter()
    done = subprocess.run(["/usr/bin/time", "-v", *command], cwd=folder,
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr}")
    kb = re.search(r"Maximum resident set size \(kbytes\): (\d+)", done.stderr)
    return done.stdout, time.perf_counter() - start, int(kb[1]) * 1024 / 1e6


def peer(name, o):
    """One row of PyTorch, in a process of its own; prints its last loss."""
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file
    tokens = np.fromfile("text.bin", np.uint16)
    net = make(False, 1)
    net.load_state_dict(load_file("model.safetensors"), strict=False)
    net.tie_weights()
    if name != "all parameters":
        from peft import LoraConfig, get_peft_model
        if "bf16" in name:
            net = net.to(torch.bfloat16)
        net = get_peft_model(net, LoraConfig(
            r=8, lora_alpha=8, target_modules=["c_attn"],
            use_dora="DoRA" in name))
    optimizer = torch.optim.AdamW(
        [p for p in net.parameters() if p.requires_grad], lr=o.lr)
    for step in range(o.steps):
        ids, target = windows(tokens, o, step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(input_ids=ids, use_cache=False).logits
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
    print(loss.item())


def row(who, name, mb, full, loss, seconds):
    print(f"| {who} | {name} | {mb:,.0f} | {mb / full:.2f} | {loss:.4f} | "
          f"{seconds:.0f} |", flush=True)


def ampc_row(o, folder, name, options):
    ampc = os.path.abspath(o.ampc)
    _, seconds, mb = measured(
        folder, ampc, "gpt2.onnx", "-o", "gpt2.so", "--loss", "cross_entropy",
        "--optimizer", f"adamw,lr={o.lr}", "--target", "cpu", *options)
    compiled = f"compiled in {seconds:.0f} s, {mb:,.0f} MB"
    _, seconds, mb = measured(
        folder, ampc, "run", "gpt2.so", "--device", "cpu", "--feed",
        "ids=text.bin", "--feed", "target=text.bin:+1", "--load",
        "model.safetensors", "--load-map",
        "transformer.wte.weight=model.lm_head.weight", "--load-map",
        "transformer.=model.transformer.", "--steps", str(o.steps), "--log",
        "log", "--quiet")
    with open(os.path.join(folder, "log")) as f:
        loss = json.loads(f.readlines()[-1])["loss"]
    return compiled, seconds, mb, loss


def work(o, folder):
    from safetensors.torch import save_file
    os.environ["AMPC_CACHE_DIR"] = "none"
    tokens = np.fromfile(o.text, np.uint8)[:o.steps * o.batch * o.length + 1]
    tokens.astype(np.uint16).tofile(os.path.join(folder, "text.bin"))
    net = make(False, 0)
    save_file(published(net.state_dict()),
              os.path.join(folder, "model.safetensors"))
    export(net, windows(tokens, o, 0)[0], os.path.join(folder, "gpt2.onnx"))
    del net
    print("| by | trained | MB | part | last loss | seconds |\n"
          "|---|---|---|---|---|---|")
    full, notes, right = None, [], True
    for name, options, most in AMPC:
        if full and o.only and o.only not in name:
            continue
        said, seconds, mb, loss = ampc_row(o, folder, name, options)
        full = full or mb
        row("ampc", name, mb, full, loss, seconds)
        notes.append(f"{name}: {said}")
        right &= most is None or mb <= most * full
    for name in PEERS:
        if o.only and o.only not in name:
            continue
        said, seconds, mb = measured(
            folder, sys.executable, os.path.abspath(__file__), "--peer", name,
            "--steps", str(o.steps), "--lr", str(o.lr), o.ampc)
        row("PyTorch", name, mb, full, float(said), seconds)
    print("\n".join(notes))
    return 0 if right else 1


def main():
    p = parser(__doc__, steps=4, length=256, lr=1e-4)
    p.add_argument("--only", help="rows with this word, beside the first")
    p.add_argument("--peer", help="(for the script itself: one PyTorch row)")
    o = p.parse_args()
    return peer(o.peer, o) if o.peer else in_folder(work, o)


if __name__ == "__main__":
    sys.exit(main())
