#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints for tests/whole/old, and what training gives after them
(maintainers; needs NumPy).

usage: old.py AMPC PYTHON NAME FOLDER

AMPC is the compiler of the build, PYTHON its folder runtime/python; NAME is a row
of OLD, and FOLDER has the model dropout.amp. Writes FOLDER/NAME.safetensors and, in
FOLDER/NAME.txt, the options, the number of calls of step before the checkpoint was
written, and the loss of each call after it."""
import os
import subprocess
import sys
import tempfile

import numpy as np

AFTER = 6
OLD = {  # name: options, calls of step before
    "options": ("--precision fp16 --optimizer adamw,lr=0.01 --clip-norm 1 "
                "--lr-schedule cosine,total=50 --ema 0.9", 5),
    "between": ("--precision bf16 --optimizer sgd,lr=0.1,momentum=0.9 "
                "--accumulate 3", 7),
    "compact": ("--precision bf16 --optimizer adamw,lr=0.01 --state-dtype int8 "
                "--masters kahan", 5),
}


def batch():
    """As tests/whole/outlives_test.c."""
    i = np.arange(24)
    return {"x": ((i * 7 % 11) / 5 - 1).astype("f4").reshape(4, 6),
            "target": np.arange(4) % 3}


def main():
    program, python, name, folder = sys.argv[1:]
    sys.path.insert(0, python)
    import ampc
    options, before = OLD[name]
    with tempfile.TemporaryDirectory() as t:
        subprocess.run([program, f"{folder}/dropout.amp", "-o", f"{t}/m.so",
                        "--target", "cpu:x86-64-v2", *options.split()],
                       check=True, capture_output=True)
        s = ampc.Module(f"{t}/m.so").session(device="cpu", threads=1)
        for _ in range(before):
            s.step(**batch())
        s.save(f"{folder}/{name}.safetensors")
        losses = [s.step(**batch())["loss"] for _ in range(AFTER)]
    with open(f"{folder}/{name}.txt", "w") as f:
        f.write(f"{options}\n{before}\n" +
                "".join(f"{x:.9g}\n" for x in losses))
    if os.path.exists(f"{folder}/{name}.safetensors.prev"):
        os.remove(f"{folder}/{name}.safetensors.prev")


if __name__ == "__main__":
    sys.exit(main())
