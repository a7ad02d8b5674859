# SPDX-License-Identifier: Apache-2.0
"""Which cases of the tests reach faults that share one build, and which notice.

A sown file (draw.py) asks ampc_fault(K) where fault K stands.  The file that
AMPC_REACHED names has a byte for each K, which all processes of a test share;
the harness writes a line for each case: its processor time and the faults that
it reached.  AMPC_FAULT=K wakes fault K.

Targets are tried in the order given, each once without a fault; then each fault
left that it reaches is tried with the cases that reach it, the quickest first,
until one fails, and passes again without the fault.  A fault is given up when
these runs have taken the limit of processor time; what is told then are the
targets that it was not tried with."""

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

# /tmp/c: what compilers made in runs without a fault; KEEP: this is such a run.
CAGE = """mkdir -p "$0/c" && mount --bind "$0" "$0" && mount -o bind,remount,ro / &&
          mount -t tmpfs none /tmp && mkdir -p /tmp/t /tmp/c /tmp/o/u /tmp/o/w &&
          if [ "$KEEP" ]; then mount --bind "$0/c" /tmp/c; else
              mount -t overlay -o "lowerdir=$0/c,upperdir=/tmp/o/u,workdir=/tmp/o/w" none /tmp/c
          fi && ln -s /tmp/c/objects /tmp/t && cd "$1" && shift &&
          { "$@"; exit $?; }"""

# Compiles the simulated GPU's kernels; for a text compiled before it copies the result.
GPP = r"""#!/bin/sh
for a; do
    case $a in *.twin.cc) twin=1 ;; esac
    [ "$last" = -o ] && out=$a
    last=$a
done
[ "$twin" ] || exec /usr/bin/g++ "$@"
/usr/bin/g++ "$@" -E -P && mv "$out" "$out.i" || exit
mkdir -p /tmp/c/twins
made=/tmp/c/twins/$(sha256sum <"$out.i" | cut -c1-64)
rm "$out.i"
[ -f "$made" ] || { /usr/bin/g++ "$@" && cp "$out" "$made.$$" && mv "$made.$$" "$made"; } || exit
cp "$made" "$out"
"""

WHOLE = "whole"  # the case of a test that is a script
GOLDEN = "//tests/passes:golden_test"


class Machine:
    """Where tests run: the folder of the built ones, one to write to, and for how
    long a target may run without a fault."""

    def __init__(self, bin_, scratch, longest):
        self.bin, self.scratch, self.longest = bin_, scratch, longest
        (scratch / "bin").mkdir(parents=True, exist_ok=True)
        wrapper = scratch / "bin/g++"
        wrapper.write_text(GPP)
        wrapper.chmod(0o755)

    def run(self, target, cases, timeout, **env):
        """Whether the cases pass (None: not in time), and the processor time."""
        path = f"{self.bin}/{target[2:].replace(':', '/')}"
        env = {**os.environ, "PATH": f"{self.scratch}/bin:{os.environ['PATH']}",
               "AMPC_CACHE_DIR": "/tmp/c", "TEST_SRCDIR": f"{path}.runfiles",
               "TEST_WORKSPACE": "ampc", "TEST_TMPDIR": "/tmp/t", **env}
        flags = self.scratch / f"flags.{threading.get_ident()}"
        args = []
        if cases and cases != [WHOLE]:
            asked = ":".join(cases).replace("-", "?")  # what follows - is left out
            flags.write_text(f"--gtest_fail_fast\n--gtest_filter={asked}\n")
            args = [f"--gtest_flagfile={flags}"]
        process = subprocess.Popen(
            ["unshare", "-rmpf", "--kill-child", "sh", "-c", CAGE, self.scratch,
             f"{path}.runfiles/ampc", path, *args], env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        late = threading.Timer(timeout, process.kill)
        late.start()
        _, status, used = os.wait4(process.pid, 0)
        in_time = late.is_alive()
        late.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        passed = process.returncode == 0 if in_time else None
        return passed, used.ru_utime + used.ru_stime

    def reaching(self, target, n):
        """[(processor time, case, faults reached)] of n faults, quickest first."""
        told = self.scratch / f"told.{target[2:].replace('/', '.').replace(':', '.')}"
        told.write_bytes(bytes(n))
        log = told.with_name(told.name + ".log")
        log.unlink(missing_ok=True)
        passed, seconds = self.run(target, None, self.longest, KEEP="1",
                                   AMPC_REACHED=str(told))
        if log.exists():
            rows = [line.split() for line in log.read_text().splitlines()]
            cases = [(float(r[1]), r[2], set(map(int, r[3:]))) for r in rows if r[0] == "ok"]
            lost = [r[2] for r in rows if r[0] != "ok"]
        else:
            reached = {k for k, byte in enumerate(told.read_bytes()) if byte}
            cases, lost = [(seconds, WHOLE, reached)] if passed else [], [WHOLE]
            lost = [] if passed else lost
        late = "" if passed is not None else ", not to its end in time"
        failed = f", {len(lost)} fail here without a fault and are left out" if lost else ""
        print(f"{target}: {len(cases)} cases, {seconds:.0f} s{late}{failed}", flush=True)
        told.unlink()
        log.unlink(missing_ok=True)
        return sorted((c for c in cases if c[2]), key=lambda c: c[0])


class Map:
    """What reached.txt says: which targets reach a file, and their processor
    seconds.  files: those that have a probe now, whose numbers follow the faults'."""

    HEAD = "# script/mutate --map: processor seconds of targets, and which reach a file.\n"

    def __init__(self, path, files=()):
        self.path, self.files, self.rows, names = path, list(files), {}, []
        for line in path.read_text().splitlines() if path.exists() and not files else []:
            first, *rest = line.split()
            if first == "=":
                names.append(rest[1])
                self.rows[rest[1]] = float(rest[0]), set()
            elif first != "#":
                for i in rest:
                    self.rows[names[int(i)]][1].add(first)
        self.known = {f for _, of in self.rows.values() for f in of}

    def seconds(self, target):
        return self.rows.get(target, (0, ()))[0]

    def may(self, target, file):
        """Whether the target may reach a fault of the file."""
        return (target not in self.rows or file not in self.known or
                file in self.rows[target][1])

    def add(self, target, cases, faults):
        """Notes which files the cases reach; written when all files have probes."""
        if not self.files:
            return
        ids = set().union(*(c[2] for c in cases))
        of = {self.files[k - len(faults)] for k in ids if k >= len(faults)}
        self.rows[target] = sum(c[0] for c in cases), of
        self.write()

    def write(self):
        names = sorted(self.rows, key=lambda t: (self.rows[t][0], t))
        lines = [f"= {self.rows[t][0]:.1f} {t}" for t in names]
        for file in sorted({f for _, of in self.rows.values() for f in of}):
            of = [str(i) for i, t in enumerate(names) if file in self.rows[t][1]]
            lines.append(f"{file} {' '.join(of)}")
        self.path.write_text(self.HEAD + "\n".join(lines) + "\n")


def judge(f, target, cases, machine, limit):
    """Tries the fault with the cases of a target that reach it, in pieces, so that
    quick ones come first."""
    mine = [c for c in cases if f.id in c[2]]
    if not mine or f.by:
        return
    f.reached.append(target)
    at = 0
    while at < len(mine) and not f.by:
        end, seconds = at, 0.0
        while end < len(mine) and (end == at or seconds + mine[end][0] < 10 and end < at + 500):
            seconds += mine[end][0]
            end += 1
        if f.seconds + seconds > limit:
            f.left.append(f"{target} ({len(mine) - at} cases, {sum(c[0] for c in mine[at:]):.0f} s)")
            return
        names = [c[1] for c in mine[at:end]]
        passed, used = machine.run(target, names, 10 * seconds + 60, AMPC_FAULT=str(f.id))
        f.seconds += used
        if not passed and machine.run(target, names, 10 * seconds + 60)[0]:
            f.by = f"{target} {names[0] if len(names) == 1 else first_of(f, target, names, machine)}"
        at = end


def first_of(f, target, names, machine):
    """The case of these that notices the fault."""
    while len(names) > 1:
        half = names[:len(names) // 2]
        if machine.run(target, half, 300, AMPC_FAULT=str(f.id))[0]:
            half = names[len(names) // 2:]
        names = half
    return names[0]


def verdict_of(f):
    """The verdict and what tells of it."""
    if f.by:
        return "noticed", f.by
    if f.left:
        return "undecided", f"after {f.seconds:.0f} s; not tried: {', '.join(f.left)}"
    if f.reached:
        return "survived", f"{len(f.reached)} targets reach it: {' '.join(f.reached)}"
    return "unreached", ""


def try_all(faults, targets, machine, limit, keep, reached):
    """Target by target, two at once; golden text last.  reached, a Map, is added to."""
    score, told, n = {}, threading.Lock(), len(faults) + len(reached.files)
    for f in faults:
        f.by, f.reached, f.left, f.seconds, f.busy = "", [], [], 0, threading.Lock()

    def tell(f):
        verdict, by = verdict_of(f)
        print(f"{verdict:<9} {f.file}:{f.line}: {f.shown} {by}", flush=True)
        keep(f, verdict, by)
        s = score.setdefault(f.file.split("/")[0], {})
        s[verdict] = s.get(verdict, 0) + 1

    def look(target):
        if not any(reached.may(target, f.file) for f in faults if not f.by):
            return
        cases = machine.reaching(target, n)
        with told:
            reached.add(target, cases, faults)
        for f in faults:
            with f.busy:
                before = f.by
                judge(f, target, cases, machine, limit)
            if f.by and not before:
                with told:
                    tell(f)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(look, [t for t in targets if t != GOLDEN]))
    if GOLDEN in targets:
        look(GOLDEN)
    for f in faults:
        if not f.by:
            tell(f)
    for folder, s in sorted(score.items()):
        n = sum(s.values())
        print(f"{folder:<10} {n:4} faults: {s.get('noticed', 0)} noticed "
              f"({100 * s.get('noticed', 0) // n} %), {s.get('survived', 0)} survived, "
              f"{s.get('unreached', 0)} unreached, {s.get('undecided', 0)} undecided")
