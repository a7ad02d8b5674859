#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses with optimizer state in 8 or 16 bits, weights without masters and
activations kept in 8 bits, beside runs in fp32 from three seeds (maintainers; needs ampc alone).

usage: compact.py AMPC --text FILE --digits FOLDER [--steps N] [--only MODEL] [--products]

Trains a GPT on the characters of FILE, a CNN on the digits of FOLDER (IDX files,
as script/demo unpacks them) and a ViT on patterns that this script draws, for N
steps (300) each, with every pair of --state-dtype and --masters, and with --keep f8; --products:
in bf16 and with products of 8 bits instead. The table has
the mean loss of the last sixth of the steps, its difference from the fp32 run
of the same seed, and that difference divided by the spread of fp32 (largest
minus smallest of the three seeds). The script ends with 1 if a run in bf16 is
worse than the fp32 run of its seed by more than the spread."""
import argparse
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile

MODELS_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SEEDS = (1, 2, 3)
KINDS = [(masters, state, "") for masters in ("fp32", "kahan", "none")
         for state in ("fp32", "bf16", "int8", "f8")] + [("fp32", "fp32", " --keep f8")]
KINDS = [("bf16, masters %s%s" % (masters, keep), state,
          "--precision bf16 --masters %s --state-dtype %s%s" % (masters, state, keep))
         for masters, state, keep in KINDS]
PRODUCTS = [(kind, "fp32", "--precision " + kind)
            for kind in ("bf16", "f8", "f8 --f8-scales delayed",
                         "f8 --f8-scales block")]


def npy(path, dtype, shape, code, values):
    head = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (dtype, shape)
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        f.write(struct.pack("<%d%s" % (len(values), code), *values))


def patterns(folder, n=2048, size=16, classes=10):
    """Waves of one of ten directions in noise."""
    draw, x, y = random.Random(1), [], []
    for _ in range(n):
        c = draw.randrange(classes)
        a, phase = math.pi * c / classes, draw.random() * 6
        for channel in range(3):
            for i in range(size):
                for j in range(size):
                    wave = math.sin(i * math.cos(a) + j * math.sin(a) + phase + channel)
                    x.append(wave + draw.gauss(0, 1.5))
        y.append(c)
    npy(folder + "/x.npy", "<f4", (n, 3, size, size), "f", x)
    npy(folder + "/y.npy", "<i8", (n,), "q", y)


def models(o, folder):
    yield ("gpt", "--dim B=8 --dim T=64 --dim VOCAB=256 --dim D=64 --dim HEADS=2 --dim L=2"
           " --lr-schedule constant",
           ["--feed", "tokens=" + o.text, "--feed", "target=%s:+1" % o.text])
    yield ("cnn", "--dim B=32 --dim W=16 --optimizer adamw,lr=1e-3 --lr-schedule constant",
           ["--feed", "x=%s/train-images-idx3-ubyte" % o.digits,
            "--feed", "target=%s/train-labels-idx1-ubyte" % o.digits])
    yield ("vit", "--dim B=32 --dim SIZE=16 --dim D=64 --dim HEADS=2 --dim L=3"
           " --lr-schedule constant",
           ["--feed", "x=%s/x.npy" % folder, "--feed", "target=%s/y.npy" % folder])


def losses(o, folder, model, options, feed, seed):
    so, log = folder + "/m.so", folder + "/log.jsonl"
    commands = [[o.ampc, "%s/%s.amp" % (MODELS_FOLDER, model), "-o", so, "--target", o.target,
                 "--seed", str(seed)] + options.split(),
                [o.ampc, "run", so, "--steps", str(o.steps), "--shuffle", "--log", log] + feed]
    if os.path.exists(log):
        os.remove(log)
    for command in commands:
        said = subprocess.run(command, capture_output=True, text=True)
        if said.returncode:
            sys.exit(said.stderr)
    with open(log) as f:
        rows = [json.loads(line) for line in f]
    return [r["loss"] for r in rows if "loss" in r and "step" in r]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ampc")
    p.add_argument("--text", required=True)
    p.add_argument("--digits", required=True)
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--target", default="cpu:x86-64-v3")
    p.add_argument("--only")
    p.add_argument("--products", action="store_true")
    o = p.parse_args()
    last, far = max(o.steps // 6, 1), 0
    print("| model | weights | state | loss of step 1 | mean of the last %d | minus fp32 | "
          "divided by the spread |\n|---|---|---|---|---|---|---|" % last)
    with tempfile.TemporaryDirectory() as folder:
        patterns(folder)
        for model, dims, feed in models(o, folder):
            if o.only and model != o.only:
                continue
            ends = []
            for seed in SEEDS:
                x = losses(o, folder, model, dims + " --precision fp32", feed, seed)
                ends.append(sum(x[-last:]) / last)
                print("| %s | fp32, seed %d | fp32 | %.4f | %.4f | %+.4f | |"
                      % (model, seed, x[0], ends[-1], ends[-1] - ends[0]), flush=True)
            spread = max(ends) - min(ends)
            for kind, state, options in PRODUCTS if o.products else KINDS:
                x = losses(o, folder, model, dims + " " + options, feed, SEEDS[0])
                end = sum(x[-last:]) / last
                far += not end - ends[0] <= spread
                print("| %s | %s | %s | %.4f | %.4f | %+.4f | %+.2f |"
                      % (model, kind, state, x[0], end, end - ends[0],
                         (end - ends[0]) / spread), flush=True)
    return far > 0


if __name__ == "__main__":
    sys.exit(main())
