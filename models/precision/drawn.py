# SPDX-License-Identifier: Apache-2.0
"""Numbers of a name and a draw, which tests/support/drawn.c computes as well.

The first letter of an input's name says what is in it: u, uniform in [0, 1); n,
about normal; i and a number, integers below that."""
import numpy as np


def hash_of(name, draw):
    h = 0xcbf29ce484222325
    for c in f"{name}/{draw}".encode():
        h = (h ^ c) * 0x100000001b3 % 2**64
    return h


def uniform(name, draw, n):
    """splitmix64 of the name's FNV-1a hash and the index: 24 bits in [0, 1)."""
    with np.errstate(over="ignore"):
        z = (np.uint64(hash_of(name, draw)) +
             np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) / 2**24


def numbers(name, draw, shape):
    n = int(np.prod(shape))
    if name.startswith("u_"):
        v = uniform(name, draw, n)
    elif name.startswith("n_"):  # of four uniform numbers, with variance 1
        v = (uniform(name, draw, 4 * n).reshape(n, 4).sum(1) - 2) * 3**.5
    elif name[0] == "i" and name[1].isdigit():
        below = int(name[1:].split("_")[0])
        v = np.floor(uniform(name, draw, n) * below)
        return v.reshape(shape).astype(np.int64)
    else:  # a parameter
        v = (uniform(name, draw, n) - .5) * .6
    return v.reshape(shape).astype(np.float32)
