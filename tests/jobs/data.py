#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small data files for the jobs, written without packages.

usage: data.py array FILE.npy DTYPE SHAPE [MOST]   DTYPE f4, i8 or u1; SHAPE 60x1x28x28
       data.py tensors FILE.safetensors NAME=SHAPE..
       data.py photos FOLDER CLASS[=N]..           N PNG pictures of each class (8),
                                                   each class with a tint of its own
       data.py text FILE BYTES
Numbers are drawn anew by the name of the file; integers are below MOST.
"""
import json
import os
import random
import struct
import sys
import zlib

CODES = {"f4": "f", "i8": "q", "u1": "B"}


def shape_of(text):
    return [int(n) for n in text.split("x")]


def count(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def numbers(name, dtype, n, most=10):
    draw = random.Random(name)
    if dtype == "f4":
        return [draw.uniform(-1, 1) for _ in range(n)]
    return [draw.randrange(most) for _ in range(n)]


def packed(dtype, values):
    return struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


def array(path, dtype, shape, most="10"):
    shape = shape_of(shape)
    kind = "|u1" if dtype == "u1" else "<" + dtype
    head = (f"{{'descr': '{kind}', 'fortran_order': False, 'shape': "
            f"({', '.join(map(str, shape))},), }}")
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) +
                head.encode())
        f.write(packed(dtype, numbers(path, dtype, count(shape), int(most))))


def tensors(path, *specs):
    header, body = {}, b""
    for spec in specs:
        name, _, shape = spec.partition("=")
        data = packed("f4", numbers(path + name, "f4", count(shape_of(shape))))
        header[name] = {"dtype": "F32", "shape": shape_of(shape),
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    head = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + body)


def chunk(kind, data):
    return (struct.pack(">I", len(data)) + kind + data +
            struct.pack(">I", zlib.crc32(kind + data)))


def photo(path, tint, size=40):
    draw = random.Random(path)
    rows = b"".join(
        b"\0" + bytes((b >> 1) + tint[i % 3] for i, b in
                      enumerate(draw.randbytes(3 * size)))
        for _ in range(size))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" +
                chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0,
                                           0)) +
                chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def photos(folder, *classes):
    for spec in classes:
        name, _, n = spec.partition("=")
        tint = numbers(name, "u1", 3, 128)
        os.makedirs(f"{folder}/{name}")
        for i in range(int(n or 8)):
            photo(f"{folder}/{name}/{i}.png", tint)


def text(path, n):
    words = "the model reads bytes and says which byte comes next ".split()
    draw = random.Random(path)
    out = ""
    while len(out) < int(n):
        out += draw.choice(words) + " "
    with open(path, "w") as f:
        f.write(out[:int(n)])


if __name__ == "__main__":
    {"array": array, "tensors": tensors, "photos": photos,
     "text": text}[sys.argv[1]](*sys.argv[2:])
