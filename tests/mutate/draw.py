#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds many faults once and sees whether the tests notice each.

    draw.py --random N [--only GLOB] [--seed S] [--tests TARGET...]
            [--longest SECONDS] [--limit SECONDS]
    draw.py --together [--only GLOB|FOLDER] [--stale] [--record FILE] [--map] [..]

Run by script/mutate in a scratch checkout.  --together takes those of faults.txt
that change the body of one function: the body stands there once with each fault
and once without.  --random draws: N places of the .c files that GLOB matches, as
git has it (`runtime/*.c` has none of a folder below, ** all), get a fault that
sleeps:

    a < b          a bound one off                  f(a, b)   two operands exchanged
    a == b, !a     turned round                     12, 0.5   another constant
    a && b, a || b without one of the two           x = y;    left out, as are calls,
    a + b, a - b   the other sign                             break and continue
    if, while (a)  turned round                     true      false

AMPC_FAULT=NUMBER wakes one, so that all share one build.  Tests are all but the
slow ones, or --tests in the order given; of those that reached.txt tells of, only
those that reach a file with a fault, the quickest first (judge.py).  --map puts
a probe into every function and records which files each target reaches.  Prints
a line per fault (@: awake) and the figures:

    noticed     by this case, which passes without the fault
    survived    these targets reach the fault, and all their cases pass
    undecided   --limit seconds of processor time are spent; what was not tried
    unreached   by no case

Some that survive change nothing.  A target that takes more than --longest
seconds without a fault is left out.  Tests run where the machine is read-only
but for /tmp, for a fault may delete or overwrite what it likes; what was compiled
without a fault is kept (Linux 5.11)."""

import argparse
import datetime
import fnmatch
import random
import re
import subprocess
import sys
import time
from pathlib import Path

from judge import Machine, Map, try_all
from mutate import read_record, read_table, texts, touched, write_record

# Stands behind the #include lines of a file with faults: ampc_fault(k) is true if
# k is awake, and notes that it was asked for.
HEAD = r"""
#ifndef AMPC_FAULTS
#define AMPC_FAULTS
#if defined __linux__ && !defined AMPC_PORTABLE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static char *ampc_reached_;
static int ampc_awake_ = -1;
__attribute__((constructor)) static void ampc_wake_(void) {
    if (getenv("AMPC_FAULT")) ampc_awake_ = atoi(getenv("AMPC_FAULT"));
    int f = getenv("AMPC_REACHED") ? open(getenv("AMPC_REACHED"), O_RDWR) : -1;
    if (f < 0) return;
    void *p = mmap(NULL, %(n)d, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    if (p != MAP_FAILED) ampc_reached_ = p;
    close(f);
}
static inline int ampc_fault(int k) {
    if (ampc_reached_) ampc_reached_[k] = 1;
    return ampc_awake_ == k;
}
#else
#define ampc_fault(k) 0
#endif
#endif
#line %(line)d
"""

# ---- places ------------------------------------------------------------------

ROOTS = ("codegen", "frontend", "ir", "passes", "runtime")
OPEN, CLOSE = "([{", ")]}"


def blank(text):
    """The text with comments and the preprocessor's lines blank, and ` for each
    letter of a string."""
    pattern = (r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
               r"|/\*.*?\*/|//[^\n]*|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*")
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", "`" if m[1] else " ", m[0]), text,
                  flags=re.S | re.M)


def end_of(t, i, stops):
    """Where the operand that begins at i ends: at one of `stops` or outside."""
    depth = 0
    while i < len(t):
        if t[i] in OPEN:
            depth += 1
        elif t[i] in CLOSE:
            if depth == 0:
                return i
            depth -= 1
        elif depth == 0 and (t[i] in ",;?:" or any(t.startswith(s, i) for s in stops)):
            return len(t[:i].rstrip())
        i += 1
    return i


def start_of(t, i):
    """Where the operand that ends before i begins."""
    depth = 0
    while i > 0:
        i -= 1
        if t[i] in CLOSE:
            depth += 1
        elif t[i] in OPEN:
            if depth == 0:
                break
            depth -= 1
        elif depth == 0 and re.search(r"([,;?:]|&&|\|\||[^=!<>]= |\breturn )$", t[max(0, i - 8):i + 1]):
            break
    i += 1
    return i + len(t[i:]) - len(t[i:].lstrip())


def places(t):
    """Yields faults: lists of (where, rank, text to insert there), @ for the
    question whether this fault is awake; of two inserted at one place, the one
    of lower rank is nearer to the operand."""
    for m in re.finditer(r" (<=|>=|<|>) ", t):
        sign = "" if m[1] in ("<", ">=") else "-"
        yield [(m.end(), 1, f"{sign}@ + ")]
    for m in re.finditer(r" [!=]= ", t):
        yield [(end_of(t, m.end(), ["&", "|", "^"]), 2, " ^ @")]
    for m in re.finditer(r" (&&|\|\|) ", t):
        right = end_of(t, m.end(), ["||", "&&"] if m[1] == "&&" else ["||"])
        asked = ("(@ || ", ")") if m[1] == "&&" else ("(!@ && (", "))")
        yield [(m.end(), 3, asked[0]), (right, 3, asked[1])]
        yield [(start_of(t, m.start()), 3, asked[0]),
               (m.start(), 3, asked[1])]
    for m in re.finditer(r" [+-] (?=[\w(])", t):
        yield [(m.end(), 0, "(@ ? -1 : 1) * ")]
    for m in re.finditer(r"(?<=[(\s])!(?=[\w(])", t):
        yield [(m.start(), 0, "@ ^ ")]
    for m in re.finditer(r"\b(if|while) \(", t):
        yield [(m.end(), 5, "@ ^ !!("), (end_of(t, m.end(), []), 5, ")")]
    for m in re.finditer(r"(?<![\w.])(\d+\.\d+(?:e-?\d+)?|\d+)(?![\w.])", t):
        line = t[t.rfind("\n", 0, m.start()) + 1:m.start()]
        if re.search(r"NEW_ARRAY|\{$|^ *(static |const )*\w+ \w+\[[^\]]*$", line):
            continue  # room, or zeros
        yield [(m.start(), 0, "("), (m.end(), 0, " * (@ ? 1.25 : 1))" if "." in m[1] else " + @)")]
    for m in re.finditer(r"\b(true|false)\b", t):
        yield [(m.start(), 0, "(@ ^ "), (m.end(), 0, ")")]
    for m in re.finditer(r"\b\w+\((\w+), (\w+)(?=[,)])", t):
        if not re.match(r"\d", m[1] + m[2]) and m[1] != m[2]:
            yield [(m.start(1), 9, f"@ ? {m[2]} : "), (m.start(2), 9, f"@ ? {m[1]} : ")]
    called = r"(?:->|\.)\w+|\[[^\]\n]*\]"
    for m in re.finditer(r"(?<=[;{})\n])[ \t]*\n?[ \t]*(?=(?:\+\+|--|\*)?(?!return|if|for|while|do|switch|else|case|goto|sizeof)"
                         rf"[a-z_]\w*(?:{called})*(?:\s?[-+*/|&^]?=|\(|\+\+|--)|break;|continue;)", t):
        i = m.end()
        end = end_of(t, i, [])
        while end < len(t) and t[end] in ",?:":
            end = end_of(t, end + 1, [])
        before = t[:i].rstrip()[-1:]
        if t[end:end + 1] == ";" and before in ";{})" and not re.search(r"free|close", t[i:i + 20]):
            yield [(i, 9, "{ if (!@) "), (end + 1, 9, " }")]


def bodies(t):
    """The text with everything outside of functions blank."""
    out, depth = [], 0
    for line in t.split("\n"):
        inside = depth > 0
        depth += line.count("{") - line.count("}")
        out.append(line if inside and "ASSERT" not in line else " " * len(line))
        if not inside and depth > 0 and re.search(r"[=\w] *\{$", line) and ")" not in line:
            out[-1] = " " * len(line)
    return "\n".join(out)


class Fault:
    def __init__(self, file, text, edits):
        self.file, self.edits = file, edits
        at = min(e[0] for e in edits)
        self.line = text.count("\n", 0, at) + 1
        end = max(e[0] for e in edits)
        first = text.rfind("\n", 0, at) + 1
        last = text.find("\n", max(at, end - 1))
        shown = text[first:last]
        for where, _, what in sorted(edits, reverse=True):
            shown = shown[:where - first] + what + shown[where - first:]
        self.shown = " ".join(shown.split())


BODY = 20  # the rank of an edit that is a whole body


class Listed:
    """One of faults.txt, as a second body of its function; edits is None if it
    changes something else."""

    def __init__(self, fault, text, faulty):
        self.file, self.name, self.edits = fault["file"], fault["id"], None
        self.shown = f"{self.name}: {fault['what']}"
        at = next(i for i, (a, b) in enumerate(zip(text, faulty)) if a != b)
        self.line = text.count("\n", 0, at) + 1
        begin, end = text.rfind("\n}", 0, at) + 2, text.find("\n}\n", at)
        head = re.search(r"^[a-zA-Z][^;{}]*\) \{\n", blank(text[begin:end]), re.M)
        behind = len(text) - end
        if (end > 0 and head and begin + head.end() <= at and
                faulty[:begin + head.end()] == text[:begin + head.end()] and
                faulty[-behind:] == text[-behind:]):
            begin += head.end()
            void = re.match(r"(static )?(inline )?void\b(?! *\*)", head[0])
            leave = "return;\n" if void else ""  # not on to the body without it
            self.edits = [(begin, BODY, f"if (@) {{\n{faulty[begin:-behind]}\n{leave}}}\n")]


def sown(text, faults, n):
    """The text with these faults of n; each has its number in .id."""
    inserts = []
    behind = max(m.end() for m in re.finditer(r"^#include.*\.h[\">].*\n", text, re.M))
    head = HEAD % {"n": n, "line": text.count("\n", 0, behind) + 1}
    for f in faults:
        for n, (where, rank, what) in enumerate(f.edits):
            closing = n == 1 and rank != 9 or rank == 2
            what = what.replace("@", f"ampc_fault({f.id})", 1 if rank == BODY else -1)
            inserts.append((where, 0 if closing else 1, rank if closing else -rank, f.id, what))
    for where, *_, what in sorted(inserts, reverse=True):
        text = text[:where] + what + text[where:]
    return text[:behind] + head + text[behind:]


# ---- building ----------------------------------------------------------------

def refused(path, include):
    """The lines at which the compiler refuses the file."""
    run = subprocess.run(["gcc", "-std=c17", "-fsyntax-only", *include, path],
                         stderr=subprocess.PIPE, text=True)
    return {int(m[1]) for m in re.finditer(
        rf"^{re.escape(str(path))}:(\d+):\d+: (?:error|warning: .*(?:mismatch|makes|incompatible))",
        run.stderr, re.M)}


def draw(root, only, n, include):
    """Faults by file, as many as n in all that the compiler takes."""
    found = []
    listed = subprocess.run(["git", "ls-files", f":(glob){only}"], cwd=root,
                            stdout=subprocess.PIPE, text=True, check=True).stdout
    for file in listed.split():
        if file.endswith(".c"):
            text = (root / file).read_text()
            found += [Fault(file, text, e) for e in places(bodies(blank(text)))]
    random.shuffle(found)
    print(f"{len(found)} places", flush=True)
    chosen, rest = found[:n], found[n:]
    while True:
        by_file = {}
        for i, f in enumerate(chosen):
            f.id = i
            by_file.setdefault(f.file, []).append(f)
        bad = set()
        for file, faults in by_file.items():
            text = (root / file).read_text()
            (root / file).write_text(sown(text, faults, n))
            lines = refused(root / file, include)
            (root / file).write_text(text)
            bad |= {f for f in faults if f.line in lines or
                    text.count("\n", 0, max(e[0] for e in f.edits)) + 1 in lines}
            if lines and not bad & set(faults):
                bad |= set(faults)
        if not bad:
            return by_file
        chosen = [f for f in chosen if f not in bad]
        while len(chosen) < n and rest:
            chosen.append(rest.pop())


def listed(root, args, table, include):
    """The faults of faults.txt that are asked for by file; says which stand alone."""
    record = read_record(args.record) if args.record else {}
    by_file, id_ = {}, 0
    for fault in table:
        if not (fnmatch.fnmatch(fault["id"], args.only) or fault["file"].startswith(args.only)):
            continue
        row = record.get(fault["id"])
        if args.stale and row and row[1] != "undecided" and not touched(fault, row, root):
            continue
        found = texts(fault, root)
        if not found:
            continue
        f, path = Listed(fault, *found), root / fault["file"]
        f.id = id_
        if f.edits and path.suffix == ".c" and not refused(path, include):
            path.write_text(sown(found[0], [f], f.id + 1))
            f.edits = None if refused(path, include) else f.edits
            path.write_text(found[0])
        if not f.edits:
            print(f"{f.name} {f.file}: alone, by script/mutate --only {f.name}", flush=True)
            continue
        by_file.setdefault(f.file, []).append(f)
        id_ += 1
    return by_file


def bazel(*args):
    run = subprocess.run(["bazel", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, errors="replace")
    if run.returncode:
        sys.exit(f"bazel {args[0]}: {run.stderr[-3000:]}")
    return run.stdout


def keeper(path, why):
    """What writes a verdict into the record."""
    record = read_record(path) if path else {}

    def keep(f, verdict, by):
        if path and isinstance(f, Listed):
            if verdict != "noticed" and f.name in why:
                verdict, by = "explained", why[f.name]
            if verdict == "unreached":
                verdict, by = "survived", "no target reaches it"
            record[f.name] = [datetime.date.today().isoformat(), verdict, by]
            write_record(path, record)

    return keep


def probed(root):
    """The files that get a probe in each function: not those compiled once a level."""
    git = subprocess.run(["git", "ls-files", *(f":(glob){r}/**/*.c" for r in ROOTS)], cwd=root,
                         stdout=subprocess.PIPE, text=True, check=True).stdout
    return [f for f in git.split() if not f.endswith("_isa.c") and "/portable/" not in f]


def with_probes(text, k):
    for m in reversed(list(re.finditer(r"^[a-zA-Z][^;{}]*\) \{\n", blank(text), re.M))):
        if not re.search(r"ampc_(fault|wake_)\(", m[0]):
            text = text[:m.end()] + f"ampc_fault({k});\n" + text[m.end():]
    return text


def all_targets(reached):
    """All targets but the slow ones, the cheapest first."""
    slow = set(bazel("query", 'attr(tags, "slow|manual", tests(//tests/...))').split())
    found = bazel("query", "tests(//tests/...)").split()
    return sorted((t for t in found if t not in slow), key=lambda t: (reached.seconds(t), t))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--random", type=int)
    ap.add_argument("--together", action="store_true")
    ap.add_argument("--only", default="**")
    ap.add_argument("--seed", default=str(int(time.time())))
    ap.add_argument("--tests", nargs="*")
    ap.add_argument("--longest", type=float, default=900)
    ap.add_argument("--limit", type=float, default=120)
    ap.add_argument("--stale", action="store_true")
    ap.add_argument("--record", type=Path)
    ap.add_argument("--map", action="store_true")
    args = ap.parse_args()
    random.seed(args.seed)
    root = Path.cwd()
    table, _, why = read_table(root / "tests/mutate/faults.txt")
    bin_ = bazel("info", "-c", "opt", "bazel-bin").strip()
    bazel("build", "-c", "opt", "//frontend:onnx_pb")
    include = ["-iquote", str(root), "-I", f"{bin_}/frontend"]
    by_file = (listed(root, args, table, include) if args.together else
               draw(root, args.only, args.random, include))
    faults = [f for list_ in by_file.values() for f in list_]
    if not faults:
        sys.exit("no fault")
    beside = (args.record or root / "tests/mutate/noticed.txt").parent
    files = probed(root) if args.map else []
    reached = Map(beside / "reached.txt", files)
    names = args.tests or all_targets(reached)
    names = [t for t in names if any(reached.may(t, f.file) for f in faults)]
    sown_files = list(dict.fromkeys([*by_file, *files]))
    former = {file: (root / file).read_text() for file in sown_files}
    n = len(faults) + len(files)
    try:
        for file, text in former.items():
            text = sown(text, by_file.get(file, []), n)
            if file in files:
                text = with_probes(text, len(faults) + files.index(file))
            (root / file).write_text(text)
        bazel("build", "-c", "opt", "--keep_going",
              f"--per_file_copt={','.join(by_file)}@-w,-Wno-error,-O1",
              f"--per_file_copt={','.join(files)}@-w,-Wno-error", *names)
    finally:
        for file, text in former.items():
            (root / file).write_text(text)
    try_all(faults, names, Machine(bin_, root / "drawn", args.longest), args.limit,
            keeper(args.record, why), reached)


if __name__ == "__main__":
    main()
