#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the faults of faults.txt in one at a time and sees which test notices.

    mutate.py [--only GLOB] [--list | --check | --figures] [--limit SECONDS]
              [--record FILE] [--stale] [--log FILE]

Run by script/mutate in a scratch checkout; --check, a test of its own, only
says which faults no longer apply.  A fault is a block

    @ ID FILE
    # what goes wrong
    - a text that stands once in FILE
    + what it becomes

(several - and + lines: whole texts, joined by newlines).  `targets FOLDER
TARGET...` lines say which tests are tried for a file below FOLDER, the longest
folder wins; golden files are tried last, so that the table tells which faults
only a diff of printed IR sees.  `why ID REASON` explains one that survives
because nothing observable changes.

Prints a line per fault: ID, noticed|survived|explained|undecided (no test
failed within --limit), by what.  noticed.txt keeps the last such line of every
fault with its day: what noticed a fault is tried first the next time, --stale
runs only those whose file was committed to since, and --figures prints the
figures by folder.  --record says where it is.  Exit status 1 if a fault
no longer applies or an unexplained one survives."""

import argparse
import datetime
import fnmatch
import subprocess
import sys
import time
from pathlib import Path

GOLDEN = "//tests/passes:golden_test"
FAILED_TESTS = 3  # bazel's exit status when all was built


def read_table(path):
    faults, targets, why, fault = [], {}, {}, None
    for number, line in enumerate(path.read_text().split("\n"), 1):
        where = f"{path.name}:{number}"
        if line.startswith("@ "):
            _, name, file = line.split()
            fault = dict(id=name, file=file, what="", old=[], new=[], at=where)
            faults.append(fault)
        elif line.startswith("targets "):
            _, folder, *names = line.split()
            targets[folder] = names
        elif line.startswith("why "):
            _, name, reason = line.split(" ", 2)
            why[name] = reason
        elif fault and line[:2] in ("- ", "+ "):
            fault["old" if line[0] == "-" else "new"].append(line[2:])
        elif fault and not fault["old"] and line.startswith("# "):
            fault["what"] += line[2:]
        elif line.strip() and not line.startswith("#"):
            sys.exit(f"{where}: neither @, #, -, +, targets nor why")
    names = [f["id"] for f in faults]
    twice = {n for n in names if names.count(n) > 1}
    unknown = set(why) - set(names)
    if twice or unknown:
        sys.exit(f"{path.name}: twice: {twice or '-'}; no such fault: {unknown or '-'}")
    return faults, targets, why


def texts(fault, root):
    """The file's text without and with the fault; None if it does not apply."""
    path = root / fault["file"]
    old, new = "\n".join(fault["old"]), "\n".join(fault["new"])
    text = path.read_text() if path.is_file() else ""
    times = text.count(old) if old else 0
    if times == 1 and new not in ("", old):
        return text, text.replace(old, new)
    why = ("its + text changes nothing" if times == 1 else
           f"its - text stands there {times} times")
    print(f"{fault['at']}: {fault['id']} does not apply to {fault['file']}: {why}")
    return None


def targets_of(fault, table):
    folders = [f for f in table if fault["file"].startswith(f)]
    return table[max(folders, key=len)] if folders else ["//tests/..."]


def bazel(command, names, log):
    run = subprocess.run(
        ["bazel", command, "-c", "opt", "--copt=-Wno-error",
         "--test_env=AMPC_LIBNVRTC", "--test_env=AMPC_ONNX_NODES", *names],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
    log.write(run.stdout)
    log.flush()
    return run.returncode, run.stdout


def read_record(path):
    """ID -> [day, verdict, test and case or reason]"""
    lines = path.read_text().split("\n") if path.is_file() else []
    rows = [l.split(None, 3) for l in lines if l and not l.startswith("#")]
    return {row[0]: [*row[1:], ""][:3] for row in rows}


def write_record(path, record):
    path.write_text("# What noticed each fault when it was last tried (mutate.py writes this).\n"
                    + "".join(f"{name:<28} {' '.join(record[name])}".rstrip() + "\n"
                              for name in sorted(record)))


def figures(faults, record):
    score = {}
    for f in faults:
        s = score.setdefault(f["file"].split("/")[0], [0] * 5)
        verdict, by = record.get(f["id"], ["", "never tried", ""])[1:3]
        s[0] += 1
        s[1] += verdict in ("noticed", "explained")
        s[2] += verdict in ("noticed", "explained") and not by.startswith(GOLDEN)
        s[3] += verdict == "survived"
        s[4] += verdict in ("never tried", "undecided")
    for folder, s in sorted(score.items()) + [("all", [sum(c) for c in zip(*score.values())])]:
        n = s[1] + s[3] or 1
        print(f"{folder:<10} {s[0]:4} faults: {s[1]:3} noticed or explained ({100 * s[1] // n} %), "
              f"{s[2]:3} without golden text ({100 * s[2] // n} %), "
              f"{s[3]} survived, {s[4]} undecided")


def touched(fault, row, root):
    """Whether the fault's file was committed to since the day of its row."""
    days = subprocess.run(["git", "log", "-1", "--format=%cs", "--", fault["file"]],
                          cwd=root, stdout=subprocess.PIPE, text=True).stdout
    return days.strip() > row[0]


def noticed_by(names, log, case=None, until=float("inf")):
    """The first test that fails, in the order given; None if all pass."""
    for name in names:
        if time.time() > until:
            raise TimeoutError
        rc, out = bazel("test", ["--test_output=errors", "--test_arg=--gtest_fail_fast",
                                 *([f"--test_filter={case}"] if case else []), name], log)
        if rc not in (0, FAILED_TESTS):
            sys.exit(f"bazel test {name}: status {rc}\n{out[-2000:]}")
        if rc:
            cases = [l.split("]", 1)[1].split()[0] for l in out.split("\n")
                     if l.startswith("[  FAILED  ] ") and "(" in l]
            return f"{name} {cases[0] if cases else ''}".strip()
    return None


def judge(fault, targets, row, limit, log):
    """What notices the fault: the test that did the last time is tried first."""
    until = time.time() + limit
    rc, _ = bazel("build", ["//:ampc"], log)
    if rc:
        return "the build"
    names = [t for t in targets_of(fault, targets) if t != GOLDEN]
    known, *case = row[2].split() if row and row[1] == "noticed" else ["none"]
    if known.startswith("//") and known != GOLDEN:
        by = noticed_by([known], log, *case)
        if by:
            return by
    return noticed_by(names, log, None, until) or noticed_by([GOLDEN], log)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--only", default="*")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--figures", action="store_true")
    ap.add_argument("--limit", type=float, default=float("inf"))
    ap.add_argument("--record", type=Path)
    ap.add_argument("--stale", action="store_true")
    ap.add_argument("--log", default="/dev/null")
    args = ap.parse_args()
    root = Path.cwd()
    faults, targets, why = read_table(root / "tests/mutate/faults.txt")
    all_faults = faults
    faults = [f for f in faults if fnmatch.fnmatch(f["id"], args.only)
              or f["file"].startswith(args.only)]
    record = read_record(args.record or root / "tests/mutate/noticed.txt")
    if args.figures:
        return figures(faults, record)
    if args.stale:
        faults = [f for f in faults if f["id"] not in record or
                  record[f["id"]][1] == "undecided" or touched(f, record[f["id"]], root)]
    bad = 0
    with open(args.log, "a") as log:
        for f in faults:
            if args.list:
                print(f["id"], f["file"], f["what"])
                continue
            start = time.time()
            found = texts(f, root)
            bad += found is None
            if found is None or args.check:
                continue
            former, faulty = found
            log.write(f"==== {f['id']} {f['file']}\n")
            by, verdict = None, "explained" if f["id"] in why else "survived"
            try:
                (root / f["file"]).write_text(faulty)
                by = judge(f, targets, record.get(f["id"]), args.limit, log)
                verdict = "noticed" if by else verdict
            except TimeoutError:
                verdict = "explained" if f["id"] in why else "undecided"
            finally:
                (root / f["file"]).write_text(former)
            bad += verdict == "survived"
            by = by or (why.get(f["id"], "") if verdict == "explained" else "")
            print(f"{f['id']:<28} {verdict:<9} {by} ({time.time() - start:.0f} s)", flush=True)
            record[f["id"]] = [datetime.date.today().isoformat(), verdict, by]
            if args.record:
                write_record(args.record, record)
    unknown = record.keys() - {f["id"] for f in all_faults}
    if args.check:
        print(f"{len(faults)} faults, {bad} of which do not apply")
        for name in sorted(unknown):
            print(f"noticed.txt: {name}: no such fault")
    return bool(bad or unknown)


if __name__ == "__main__":
    sys.exit(main())
