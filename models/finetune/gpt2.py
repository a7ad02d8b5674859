#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 from a safetensors file to trained ONNX, beside PyTorch (maintainers).

usage: gpt2.py AMPC [--small] [--text FILE] [--weights FILE] [--steps N] ...

A file of weights in Hugging Face's shape, which PyTorch writes (random ones
unless --weights names a published one), is loaded by name into a compiled
module, trained on a text for some steps of AdamW in fp32, and exported; PyTorch
does the same from the same file.  Prints what the compiler took, losses and how
far they are apart, and how far ONNX Runtime's logits of the exported model are
from ampc's and from those of PyTorch's model; status 1 if a loss is more than
1e-4 apart or logits are more than 1e-3 of the largest.  Tokens are bytes: what
is trained is no better for it, and no tokenizer has to be fetched.

Needs what coverage/zoo.py needs, and onnxruntime."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.append(os.path.join(os.path.dirname(__file__), "../bench"))
from bench import peak_mb  # noqa: E402

LOSS_LIMIT, LOGIT_LIMIT = 1e-4, 1e-3


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits


def make(small, seed):
    import transformers
    sizes = dict(n_layer=2, n_embd=64, n_head=4, vocab_size=300) \
        if small else {}
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        resid_pdrop=0., embd_pdrop=0., attn_pdrop=0., **sizes)
    return transformers.GPT2LMHeadModel(config).train()


def export(model, x, path):
    torch.onnx.export(Logits(model), (x,), path, input_names=["ids"],
                      output_names=["logits"], dynamo=True, optimize=False,
                      verbose=False)


def published(state):
    """As Hugging Face publishes it: what is tied stands there once."""
    return {k: v.contiguous() for k, v in state.items()
            if k != "lm_head.weight"}


def call(folder, *command):
    """Runs it; returns seconds by the clock, of all processes, and MB."""
    start, before = time.perf_counter(), os.times()
    mb = 0
    with open(os.path.join(folder, "said"), "w+") as said:
        child = subprocess.Popen(command, cwd=folder, stdout=said,
                                 stderr=subprocess.STDOUT)
        while child.poll() is None:  # ru_maxrss would count this process
            mb = max(mb, peak_mb(child.pid))
            time.sleep(0.01)
        said.seek(0)
        if child.returncode:
            sys.exit(f"{' '.join(command)}:\n{said.read()}")
    after = os.times()
    return (time.perf_counter() - start, after.children_user +
            after.children_system - before.children_user -
            before.children_system, mb)


def windows(tokens, o, step):
    """Batch `step` and what follows each of its tokens."""
    at = [(step * o.batch + i) * o.length for i in range(o.batch)]
    return [torch.tensor(np.stack([
        tokens[a + d:a + d + o.length] for a in at]).astype(np.int64))
        for d in (0, 1)]


def torch_losses(model, tokens, o):
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr)
    losses = []
    for step in range(o.steps):
        x, target = windows(tokens, o, step)
        optimizer.zero_grad()
        logits = model(input_ids=x, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def onnx_logits(path, x):
    import onnxruntime
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime.InferenceSession(path).run(None, {"ids": x.numpy()})[0]


def apart(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def work(o, folder):
    def at(name):
        return os.path.join(folder, name)

    tokens = np.fromfile(o.text, np.uint8)[:o.steps * o.batch * o.length + 1]
    tokens.astype(np.uint16).tofile(at("text.bin"))
    weights = o.weights and os.path.abspath(o.weights)
    if not weights:
        weights = at("model.safetensors")
        save_file(published(make(o.small, 0).state_dict()), weights)
    x = windows(tokens, o, 0)[0]
    # The exported weights are others than those that are loaded.
    export(make(o.small, 1), x, at("gpt2.onnx"))

    ampc = os.path.abspath(o.ampc)
    os.environ["AMPC_CACHE_DIR"] = "none"  # compile times are of compiling
    wall, busy, mb = call(folder, ampc, "gpt2.onnx", "-o", "gpt2.so", "--loss",
                          "cross_entropy", "--precision", "fp32",
                          "--optimizer", f"adamw,lr={o.lr}", "--target",
                          o.target)
    print(f"compile, {o.target}: {wall:.1f} s, {busy:.1f} s of processors, "
          f"{mb:.0f} MB; module {os.path.getsize(at('gpt2.so')) / 1e6:.0f} MB",
          flush=True)
    feeds = ["--feed", "ids=text.bin", "--feed", "target=text.bin:+1"]
    wall, busy, mb = call(folder, ampc, "run", "gpt2.so", "--device", "cpu",
                          *feeds, "--load", weights, "--load-map",
                          "transformer.wte.weight=model.lm_head.weight",
                          "--load-map", "transformer.=model.transformer.",
                          "--steps", str(o.steps), "--log", "log", "--quiet",
                          "--save-weights", "trained.safetensors")
    print(f"{o.steps} steps of {o.batch} x {o.length} tokens: {wall:.1f} s, "
          f"{busy:.1f} s of processors, {mb:.0f} MB", flush=True)
    ours = np.array([json.loads(s)["loss"] for s in open(at("log"))])

    model = make(o.small, 2)
    model.load_state_dict(load_file(weights), strict=False)  # but for the tie
    start = time.perf_counter()
    theirs = torch_losses(model, tokens, o)
    print(f"PyTorch: {time.perf_counter() - start:.1f} s", flush=True)
    far = float(np.max(np.abs(ours - theirs) / np.abs(theirs)))
    print(f"loss {theirs[0]:.5f} to {theirs[-1]:.5f}, ampc's at most "
          f"{far:.1e} apart", flush=True)

    call(folder, ampc, "export", "gpt2.so", "--load", "trained.safetensors",
         "-o", "trained.onnx")
    np.save(at("x.npy"), x.numpy())
    call(folder, ampc, "run", "gpt2.so", "--device", "cpu", "--feed",
         "ids=x.npy", "--load", "trained.safetensors", "--fetch", "out")
    ort = onnx_logits(at("trained.onnx"), x)
    with torch.no_grad():
        want = model.eval()(input_ids=x, use_cache=False).logits.numpy()
    back = Logits(make(o.small, 3))
    missing, extra = back.load_state_dict(
        load_file(at("trained.safetensors")), strict=False)
    if extra or set(missing) - {"model.lm_head.weight",
                                "model.transformer.wte.weight"}:
        sys.exit(f"--save-weights: {missing} missing, {extra} left over")
    near = apart(ort, np.load(at("out/logits.npy"))), apart(ort, want)
    print(f"ONNX Runtime's logits: {near[0]:.1e} from ampc's, {near[1]:.1e} "
          "from PyTorch's")
    return 0 if far < LOSS_LIMIT and max(near) < LOGIT_LIMIT else 1


def parser(doc, steps, length, lr):
    """The options that lora.py has too, with these defaults."""
    p = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("ampc")
    p.add_argument("--text", default="README.md", metavar="FILE")
    p.add_argument("--steps", type=int, default=steps)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--length", type=int, default=length)
    p.add_argument("--lr", type=float, default=lr)
    p.add_argument("--keep", metavar="DIR", help="work there, and keep it")
    return p


def in_folder(work, o):
    """Status of work(o, folder): --keep's, or one that is removed."""
    warnings.filterwarnings("ignore")
    if o.keep:
        os.makedirs(o.keep, exist_ok=True)
        return work(o, os.path.abspath(o.keep))
    with tempfile.TemporaryDirectory() as folder:
        return work(o, folder)


def main():
    p = parser(__doc__, steps=20, length=64, lr=1e-4)
    p.add_argument("--small", action="store_true", help="2 layers of 64")
    p.add_argument("--weights", metavar="FILE.safetensors")
    p.add_argument("--target", default="cpu")
    return in_folder(work, p.parse_args())


if __name__ == "__main__":
    sys.exit(main())
