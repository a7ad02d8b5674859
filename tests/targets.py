#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each C file of the product and of the tests is a source of a target: what no
target has compiles nowhere, and compile_commands.json (script/compdb) does not
know it. tests/compiled lists the sources of all targets (tests/BUILD)."""
import os
import sys

TOPS = ("codegen", "frontend", "ir", "passes", "runtime", "tests")


def files():
    for top in TOPS:
        for folder, _, names in os.walk(top, followlinks=True):
            yield from (f"{folder}/{n}" for n in names if n.endswith(".c"))


def main():
    with open("tests/compiled") as f:
        known = {l.strip().lstrip("/").replace(":", "/") for l in f}
    found = sorted(files())
    missing = [f for f in found if f not in known]
    if missing or len(found) < 100:
        sys.exit("\n".join(f"{f}: no target has it" for f in missing)
                 or f"only {len(found)} files were found")
    print(f"{len(found)} files, each in a target")


if __name__ == "__main__":
    main()
