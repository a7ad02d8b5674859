#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks tests/traps.txt: traps 1 to 26, each with tests that exist."""
import pathlib
import re
import sys

TRAPS = 26
here = pathlib.Path(__file__).resolve().parent
if not (here / "whole").is_dir():  # where a link leads is not where tests are
    here = pathlib.Path(__file__).parent


def cases():
    """All SUITE.CASE: of TEST_CASE(SUITE, CASE), of tables {"CASE", .. beside
    harness_register("SUITE", and golden.FOLDER/FILE."""
    found = set()
    for source in here.glob("*/**/*.c"):
        text = source.read_text()
        found.update(f"{s}.{c}" for s, c in
                     re.findall(r"TEST_CASE\((\w+),\s*(\w+)\)", text))
        for suite in set(re.findall(r'harness_register\(\s*"(\w+)"', text)):
            found.update(f"{suite}.{c}" for c in
                         re.findall(r'^    \{"(\w+)"', text, re.M))
    found.update(f"golden.{f.parent.name}/{f.stem}"
                 for f in here.glob("golden/*/*.amp"))
    return found


def main():
    known, wrong, number = cases(), [], 0
    for line in (here / "traps.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        number += 1
        columns = re.split(r"\s{2,}", line.strip())
        if len(columns) != 3 or columns[0] != str(number):
            wrong.append(f"{number}: no row of three columns: {line}")
            continue
        wrong += [f"{number}: there is no test {t}"
                  for t in columns[1].split() if t not in known]
    if number != TRAPS:
        wrong.append(f"{number} traps, not {TRAPS}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{number} traps, {len(known)} tests")


if __name__ == "__main__":
    main()
