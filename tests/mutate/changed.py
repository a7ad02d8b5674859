#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the tests of what a change touches, for `script/test --changed`.

    changed.py FILE.. < LOG     FILE: changed files; LOG: a run of the suite
    changed.py --check          compares itself with an example

For a source these are the tests that look for its faults (`targets` lines of
faults.txt, cheapest first); for a file of tests/ the tests that are made of it.
The fast tests about all sources are in it, too. The tests shall end in three
minutes on two cores: of those that took longer in LOG, as many are left for the
whole suite as do not fit; the last lines name them after a #."""
import re
import subprocess
import sys
from pathlib import Path

from mutate import GOLDEN, read_table, targets_of

SECONDS = 2 * 180
ALWAYS = ["//tests:rooms_test", "//tests:faults_test", "//tests:sizes_test",
          "//tests:targets_test", "//tests/ir:circles_test"]
TEXTS = re.compile(r"^(docs/|README|CHANGELOG|CONTRIBUTING|SECURITY|findings/)")
SOURCES = re.compile(r"^(codegen|frontend|ir|passes|runtime)/")


def seconds_of(log):
    """Target -> seconds, of Bazel's summary."""
    return {m[1]: float(m[2]) for m in re.finditer(
        r"^(//\S+) +(?:\(cached\) )?PASSED in ([0-9.]+)s", log, re.M)}


def made_of(files):
    """The tests that files of tests/ are in."""
    if not files:
        return []
    query = 'kind(".*_test rule", rdeps(//tests/..., set(%s)))' % " ".join(files)
    return subprocess.run(["bazel", "query", "--keep_going", query], text=True,
                          stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL).stdout.split()


def chosen(files, table, seconds, of_tests):
    """(tests to run, tests that do not fit), in order."""
    want = list(ALWAYS)
    for file in files:
        if SOURCES.match(file):
            want += targets_of({"file": file}, table)
            want += [GOLDEN] if file.startswith(("ir/", "passes/")) else []
        elif TEXTS.match(file):
            want.append("//tests/docs:docs_test")
    want += sorted(of_tests, key=lambda t: (seconds.get(t, 0), t))
    run, left, total = [], [], 0
    for test in dict.fromkeys(want):
        total += seconds.get(test, 0)
        (run if total <= SECONDS else left).append(test)
        if total > SECONDS:
            total -= seconds.get(test, 0)
    return run, left


def check():
    table = {"ir": ["//a:short", "//a:long"], "ir/op": ["//a:long", "//a:op"]}
    seconds = seconds_of("//a:long   (cached) PASSED in 359.7s\n"
                         "//a:short           PASSED in 0.4s\n"
                         "//a:op              PASSED in 0.2s\n"
                         "//a:broken          FAILED in 9.0s\n")
    assert seconds == {"//a:long": 359.7, "//a:short": 0.4, "//a:op": 0.2}
    run, left = chosen(["ir/op/x.c"], table, seconds, [])
    assert run == ALWAYS + ["//a:long", "//a:op", GOLDEN] and not left
    run, left = chosen(["ir/x.c", "ir/op/x.c"], table, seconds, ["//t:new"])
    assert run == ALWAYS + ["//a:short", GOLDEN, "//a:op", "//t:new"]
    assert left == ["//a:long"]
    assert chosen(["docs/x.md"], table, {}, [])[0][-1] == "//tests/docs:docs_test"


def main(args):
    if args == ["--check"]:
        return check()
    table = read_table(Path("tests/mutate/faults.txt"))[1]
    of_tests = made_of([f for f in args if f.startswith("tests/")
                        and Path(f).is_file()])
    run, left = chosen(args, table, seconds_of(sys.stdin.read()), of_tests)
    print("\n".join(run + [f"# left for the whole suite: {t}" for t in left]))


if __name__ == "__main__":
    main(sys.argv[1:])
