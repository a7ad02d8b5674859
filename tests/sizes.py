#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No source file of the product or of the tests has more than 600 lines: a
reader takes a file in at once, and each has one subject. LONG names the
exceptions and why each is one."""
import os
import sys

TOPS = ("codegen", "frontend", "ir", "passes", "runtime", "tests")
ENDINGS = (".c", ".h", ".cuh", ".def", ".py")
MOST = 600
LONG = {
    "runtime/ampc.h": "hosts include one header; most of its lines explain it",
}


def files():
    for top in TOPS:
        for folder, _, names in os.walk(top, followlinks=True):
            yield from (f"{folder}/{n}" for n in names if n.endswith(ENDINGS))


def defects(lines):
    """lines: {file: its number of lines}"""
    for file, n in sorted(lines.items()):
        if n > MOST and file not in LONG:
            yield f"{file}: {n} lines, {MOST} at most: make it files by subject"
    for file in LONG:
        if lines.get(file, 0) <= MOST:
            yield f"{file} is short enough: tests/sizes.py need not name it"


def main():
    limits = {"a.c": MOST, "b.c": MOST + 1} | {f: MOST + 1 for f in LONG}
    assert [d.split(":")[0] for d in defects(limits)] == ["b.c"]
    lines = {}
    for file in files():
        with open(file, encoding="utf-8") as f:
            lines[file] = sum(1 for _ in f)
    found = list(defects(lines))
    if found or len(lines) < 900:
        sys.exit("\n".join(found) or f"only {len(lines)} files were found")
    print(f"{len(lines)} files, none longer than {MOST} lines")


if __name__ == "__main__":
    main()
