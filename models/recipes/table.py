#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs every recipe of models/recipes, and prints a table.

usage: table.py AMPC [--data FOLDER] [--only NAME]

A row says how many lines a recipe has, how many seconds of processor time its
compilation takes at the sizes of its file, the C compiler's with it, and how far the
losses of five steps in fp32 by `ampc run` are from PyTorch's in fp64
(tests/models/recipes.txt, which record.py recorded at small sizes). --data keeps the
inputs at the file's sizes as FOLDER/NAME.INPUT.npy: random numbers of the right
shapes, to try a recipe with. Status 1 if a loss is more than 1e-5 apart.

Needs numpy."""
import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile

import numpy as np

STEPS, LIMIT = 5, 1e-5
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))


def drawn(state, count, below=0):
    """What record.py draws: numbers in [-1, 1), or integers below a bound."""
    out = []
    for _ in range(count):
        for _ in range(3):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((state >> 40) % below if below else
                   (state >> 40) / 2**23 - 1)
    return out


def recorded():
    """name: (options, bounds of integers, losses)"""
    rows = {}
    with open(os.path.join(ROOT, "tests/models/recipes.txt")) as f:
        for line in f:
            key, *words = line.split()
            if key == "case":
                name, (options, below) = words[0], (words[1:], {})
            elif key == "below":
                below[words[0]] = int(words[1])
            elif key == "losses":
                rows[name] = options, below, [float(w) for w in words]
    return rows


def call(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}:\n{done.stderr}")
    return done.stdout


def inputs_of(ampc, module):
    """(name, is an integer, shape) of each input."""
    said = json.loads(call(ampc, "inspect", module, "--json"))
    for t in said["module"]["inputs"]:
        kind, dims = re.fullmatch(r"(\w+)\[(.*)\]", t["type"]).groups()
        yield t["name"], kind == "i64", [int(d) for d in dims.split(",") if d]


def save_inputs(ampc, module, below, steps, path):
    """Writes batches one after the other; returns options of ampc run."""
    feeds = []
    for name, whole, shape in inputs_of(ampc, module):
        count = int(np.prod(shape))
        state = sum(name.encode())
        x = np.array([drawn(77 + 131 * step + state, count, below.get(name, 0))
                      for step in range(steps)])
        x = x.reshape([steps * shape[0]] + shape[1:])
        np.save(path(name), x.astype(np.int64 if whole else np.float32))
        feeds += ["--feed", f"{name}={path(name)}"]
    return feeds


def save_weights(ampc, module, path):
    """A safetensors file in which each parameter has numbers of its name."""
    header, data = {}, b""
    for name, dims in re.findall(r"^(?:param|frozen) +(\S+)  f32\[(.*?)\]",
                                 call(ampc, "inspect", module, "--params"),
                                 re.M):
        shape = [int(d) for d in dims.split(",") if d]
        x = np.array(drawn(7 + sum(name.encode()), int(np.prod(shape))))
        raw = (x.astype(np.float32) / 4).tobytes()
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)


def apart(ampc, name, row, folder):
    """The largest distance of five losses from PyTorch's."""
    options, below, want = row
    module = os.path.join(folder, f"{name}.small.so")
    call(ampc, f"models/recipes/{name}.amp", "-o", module, "--precision", "fp32",
         "--target", "cpu:x86-64-v3", *options)
    feeds = save_inputs(ampc, module, below, STEPS,
                        lambda i: os.path.join(folder, f"small.{i}.npy"))
    weights, log = (os.path.join(folder, f) for f in ("w.safetensors", "log"))
    save_weights(ampc, module, weights)
    if os.path.exists(log):
        os.remove(log)
    call(ampc, "run", module, *feeds, "--load", weights, "--steps", str(STEPS),
         "--log", log, "--quiet")
    with open(log) as f:
        got = [v for line in f for v in losses_in(json.loads(line))]
    if len(got) != len(want):
        sys.exit(f"{name}: {len(got)} losses, not {len(want)}")
    return max(abs(a - b) / max(1, abs(b)) for a, b in zip(got, want))


def processor_seconds():
    """Of all processes that have ended, so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def machine():
    with open("/proc/cpuinfo") as f:
        names = re.findall(r"^model name\s*: (.*)", f.read(), re.M)
    return f"{names[0] if names else 'unknown'}, {os.cpu_count()} threads"


def losses_in(line):
    return [line["loss"]] if "loss" in line else []


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("ampc")
    p.add_argument("--data", metavar="FOLDER")
    p.add_argument("--only", metavar="NAME")
    o = p.parse_args()
    ampc = os.path.abspath(o.ampc)
    os.chdir(ROOT)
    worst = 0
    print(f"{machine()}\n\n| recipe | lines | processor seconds to compile | "
          "from PyTorch |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, row in recorded().items():
            if o.only and name != o.only:
                continue
            file, module = f"models/recipes/{name}.amp", f"{folder}/{name}.so"
            start = processor_seconds()
            call(ampc, file, "-o", module, "--target", "cpu:x86-64-v3",
                 "--cache", "none")
            seconds = processor_seconds() - start
            if o.data:
                os.makedirs(o.data, exist_ok=True)
                save_inputs(ampc, module, row[1], 1,
                            lambda i: os.path.join(o.data, f"{name}.{i}.npy"))
            far = apart(ampc, name, row, folder)
            worst = max(worst, far)
            with open(file) as f:
                lines = sum(1 for _ in f)
            print(f"| `{name}` | {lines} | {seconds:.1f} | {far:.0e} |",
                  flush=True)
    return worst > LIMIT


if __name__ == "__main__":
    sys.exit(main())
