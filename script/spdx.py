#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gives each file named on standard input (separated by NUL) its SPDX line.

usage: spdx.py [--check]; --check writes nothing and names the files without it
"""
import os
import sys

LINE = "SPDX-License-Identifier: Apache-2.0"
C = "/* %s */"
STYLES = {
    ".c": C, ".h": C, ".cuh": C, ".def": C,
    ".cc": "// %s", ".hpp": "// %s", ".go": "// %s\n", ".rs": "// %s",
    ".html": "<!-- %s -->",
}


def with_line(path, text):
    """The text with the line: first, or behind `#!` or `<!doctype`."""
    line = STYLES.get(os.path.splitext(path)[1], "# %s") % LINE + "\n"
    first, newline, rest = text.partition("\n")
    if first.startswith("#!") or first.lower().startswith("<!doctype"):
        return first + newline + line + rest
    return line + text


def main():
    check = "--check" in sys.argv[1:]
    missing = []
    for path in filter(None, sys.stdin.read().split("\0")):
        if not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8") as f:
            text = f.read()
        if LINE in "\n".join(text.split("\n", 3)[:3]):
            continue
        missing.append(path)
        if not check:
            with open(path, "w", encoding="utf-8") as f:
                f.write(with_line(path, text))
    if check and missing:
        sys.exit("".join(f"{p}: has no SPDX line (script/format adds it)\n"
                         for p in missing).rstrip())


main()
