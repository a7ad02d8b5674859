#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make.py AMPC.JS TRAIN.WASM DIGITS PAGE.html: one page that holds the module, the
digits (MNIST's IDX files in the folder DIGITS) and the code that trains it."""
import base64
import gzip
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def read(path):
    with open(path, "rb") as f:
        return f.read()


def samples(folder, name):
    images = read(os.path.join(folder, f"{name}-images-idx3-ubyte"))[16:]
    labels = read(os.path.join(folder, f"{name}-labels-idx1-ubyte"))[8:]
    return struct.pack("<I", len(labels)) + labels + images


def packed(data):
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def main(ampc, wasm, digits, page):
    parts = {
        "@WASM@": packed(read(wasm)),
        "@DIGITS@": packed(samples(digits, "train") + samples(digits, "t10k")),
        "@AMPC@": read(ampc).decode(),
        "@PAGE@": read(os.path.join(HERE, "page.js")).decode(),
    }
    text = read(os.path.join(HERE, "page.html")).decode()
    for mark, part in parts.items():
        text = text.replace(mark, part)
    with open(page, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
