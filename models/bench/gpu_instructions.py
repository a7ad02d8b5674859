#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions of a module's CUDA kernels: the model's beside the machine code's.

usage: gpu_instructions.py AMPC NVDISASM MODULE.so [LINES]

MODULE.so is compiled for one architecture, as by --target cuda:sm_90; NVDISASM
is a file of the PyPI package nvidia-cuda-nvdisasm.  Prints the kernels of a
training step, those first in which most time is predicted: the instructions of
one thread by codegen/cost/cost.c and as counted in SASS, and the time that an
H100 would take to issue these.  The integers of a thread are computed here, which
say how often loops run: of the first thread of each warp in a block amid the
others.  `?`: a loop whose end depends on loaded data ran once.  Behind them the
kernels of tensor cores, with the loop that multiplies: instructions, tensor
instructions among them, most bytes stored at once.  No GPU is needed."""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

EM_CUDA, SHT_NOBITS = 190, 8
ISSUED = .6 * 128 * 132 * 1.755e9  # a second, of an H100 (rates.def)


def cubins(path):
    """The images in a module, which are not packed."""
    data = open(path, "rb").read()
    for m in re.finditer(b"\x7fELF\x02\x01", data):
        at = m.start()
        if struct.unpack_from("<H", data, at + 18)[0] != EM_CUDA:
            continue
        ph, sh = struct.unpack_from("<QQ", data, at + 32)
        pe, pn, se, sn = struct.unpack_from("<HHHH", data, at + 54)
        end = max(sh + se * sn, ph + pe * pn)
        for i in range(sn):
            kind, = struct.unpack_from("<I", data, at + sh + i * se + 4)
            offset, size = struct.unpack_from("<QQ", data,
                                              at + sh + i * se + 24)
            if kind != SHT_NOBITS:
                end = max(end, offset + size)
        yield data[at:at + end]


class Inst:
    def __init__(self, guard, text):
        self.guard = guard
        name, _, rest = text.partition(" ")
        self.name = name.split(".")
        self.args = [a.strip().replace(".reuse", "") for a in rest.split(",")]
        to = re.search(r"`\((\S+)\)", rest)
        self.to = to.group(1) if to else None

    @property
    def op(self):
        return self.name[0]

    def bytes(self):
        """Of a global access; 0: it is none."""
        if self.op not in ("LDG", "STG"):
            return 0
        wide = [int(n.lstrip("US")) // 8 for n in self.name
                if re.fullmatch("[US]?(8|16|64|128)", n)]
        return wide[0] if wide else 4


def functions(sass):
    """name: (instructions, label: place) of what is not called."""
    found, code, labels, called = {}, None, None, False
    for line in sass.splitlines():
        if m := re.match(r"\.text\.(\w+):", line):
            code, labels, called = [], {}, False
            found[m.group(1)] = code, labels
        elif code is not None and (m := re.match(r"(\.L_x_\d+):", line)):
            labels[m.group(1)] = len(code)
        elif line.startswith("$"):  # division and the like
            called = True
        elif m := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@(!?\w+)\s+)?(.+?)\s*;",
                           line):
            if code is not None and not called:
                code.append(Inst(m.group(1), m.group(2)))
    return found


# ---- one thread -------------------------------------------------------------

FULL = (1 << 32) - 1
COMPARE = {"LT": lambda a, b: a < b, "LE": lambda a, b: a <= b,
           "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
           "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b}


def signed(x):
    return x - (1 << 32) if x >> 31 else x


def lut(table, a, b, c):
    """A bitwise function of three numbers."""
    return sum(((a if i & 4 else ~a) & (b if i & 2 else ~b) &
                (c if i & 1 else ~c)) & FULL
               for i in range(8) if table >> i & 1)


class Thread:
    """Runs the integers and predicates of a thread; what is loaded or computed
    in floating point is not known (None), parameters are large and even."""

    def __init__(self, tid, ctaid):
        self.is_ = {"SR_TID.X": tid, "SR_CTAID.X": ctaid}
        self.reg, self.pred, self.lost = {}, {}, False

    def predicate(self, text):
        turned = text.startswith("!")
        name = text.lstrip("!")
        x = True if name in ("PT", "UPT") else self.pred.get(name)
        return None if x is None else x != turned

    def value(self, text, wide=False):
        sign = text[0] if text[:1] in "-~" and not text[1:2].isdigit() else ""
        text = text.lstrip("-~") if sign else text
        if text in ("RZ", "URZ", "SRZ"):
            x = 0
        elif text.startswith("c["):
            at = int(re.findall(r"0x[0-9a-f]+|0", text)[-1], 16)
            x = 1 << 40 if at >= 0x210 and at % 8 == 0 else \
                1 << 8 if at >= 0x210 else None
            x = x if x is None or wide or at % 8 else 0
        elif re.fullmatch(r"U?R\d+", text):
            x = self.reg.get(text)
            if wide and x is not None:
                high = self.reg.get(self.next(text))
                x = None if high is None else x | high << 32
        elif re.fullmatch(r"-?0x[0-9a-f]+|-?\d+", text):
            x = int(text, 0)
        else:
            return self.is_.get(text)
        if x is None:
            return None
        x = -x if sign == "-" else ~x if sign == "~" else x
        return x if wide else x & FULL

    @staticmethod
    def next(register, by=1):
        name, n = re.fullmatch(r"(U?R)(\d+)", register).groups()
        return f"{name}{int(n) + by}"

    def put(self, to, x, wide=False):
        if not re.fullmatch(r"U?R\d+", to):
            return
        self.reg[to] = None if x is None else x & FULL
        if wide:
            self.reg[self.next(to)] = None if x is None else x >> 32 & FULL

    def sum(self, x, outs, ins, terms, carry_in):
        """Of terms, with carries out to predicates; ins: carries in."""
        known = [self.predicate(p) for p in ins] if carry_in else []
        total = None if None in terms or None in known else \
            sum(terms) + sum(known)
        self.put(x, total)
        for p in outs:
            self.pred[p] = None if total is None else total >> 32 > 0
        if total is not None and len(outs) == 2:
            self.pred[outs[1]] = total >> 32 > 1

    def run(self, x):
        """An instruction that is no branch."""
        op, mods, a = x.op.lstrip("U") if x.op not in ("USEL",) else "SEL", \
            x.name[1:], x.args
        predicates = [p for p in a if re.fullmatch(r"!?U?P[\dT]", p)]
        rest = [p for p in a if p not in predicates]
        outs = [p for p in a[1:3] if p in predicates and "!" not in p and
                p[-1] != "T"] if op in ("IADD3", "IMAD", "LEA", "LOP3") else []
        if a[1:2] and a[1] not in predicates:
            outs = a[:1] if a[0] in predicates and op == "LOP3" else []
        ins = predicates[len(outs):]
        v = [self.value(t) for t in rest[1:]]
        to, carry = rest[0] if rest else "", "X" in mods
        if op in ("MOV", "S2R", "S2UR", "2UR", "R2UR", "LDC", "LDC64"):
            wide = "64" in mods
            self.put(to, self.value(rest[1], wide), wide)
        elif op == "CS2R":
            self.put(to, 0, "32" not in mods)
        elif op == "HFMA2" and rest[1].endswith("RZ") and rest[2] == "RZ":
            halves = [struct.unpack("<H", struct.pack("<e", float(h)))[0]
                      for h in rest[3:5]]
            self.put(to, halves[0] << 16 | halves[1])
        elif op in ("IADD3", "VIADD"):
            self.sum(to, outs, ins, v, carry)
        elif op == "IMAD" and ("WIDE" in mods or "HI" in mods):
            third = self.value(rest[3], True)
            two = v[:2]
            if None not in two and "U32" not in mods:
                two = [signed(t) for t in two]
            y = None if None in two or third is None else \
                two[0] * two[1] + third
            if "HI" in mods:
                self.put(to, None if y is None else y >> 32)
            else:
                self.put(to, y, True)
            for p in outs:
                self.pred[p] = None if y is None else y >> 64 > 0
        elif op == "IMAD":
            product = 0 if 0 in v[:2] else None if None in v[:2] else \
                v[0] * v[1] & FULL
            self.sum(to, outs, ins, [product, v[2]], carry)
        elif op == "LEA":
            shift = v[-1] or 0
            if "HI" in mods:
                low, add, high = v[0], v[1], v[2] if len(v) > 3 else 0
                if "SX32" in mods and low is not None:
                    high = FULL if low >> 31 else 0
                y = None if None in (low, high) else \
                    (high << 32 | low) << shift >> 32 & FULL
                self.sum(to, outs, ins, [y, add], carry)
            else:
                y = None if v[0] is None else v[0] << shift & FULL
                self.sum(to, outs, ins, [y, v[1]], carry)
        elif op == "SHF":
            low, n, high = v[0], v[1], v[2]
            if None in v[:3]:
                y = None
            elif "L" in mods:
                y = (high << 32 | low) << n
                y = y >> 32 if "HI" in mods else low << n
            else:
                if "S32" in mods or "S64" in mods:
                    high = signed(high)
                y = (high << 32 | low) >> n
                y = high >> n if "HI" in mods else y
            self.put(to, y)
        elif op == "LOP3":
            y = self.bits(v)
            self.put(to, y)
            for p in outs:
                self.pred[p] = None if y is None else y != 0
        elif op == "SEL":
            p = self.predicate(predicates[-1])
            self.put(to, None if p is None else v[0] if p else v[1])
        elif op == "PRMT":
            y = None
            if v[1] is not None and v[::2] != [None, None]:
                from_ = (v[0] or 0) | (v[2] or 0) << 32  # a half may be new
                y = sum((from_ >> 8 * (v[1] >> 4 * i & 7) & 255) << 8 * i
                        for i in range(4))
            self.put(to, y)
        elif op == "ISETP":
            self.compare(x, predicates, [self.value(t) for t in rest])
        elif op == "PLOP3":
            given = [self.predicate(p) for p in predicates[2:5]]
            table = int(a[-2], 16)
            y = None if None in given else bool(
                table >> (4 * given[0] + 2 * given[1] + given[2]) & 1)
            self.pred[predicates[0]] = y
        else:
            self.forget(x)

    @staticmethod
    def bits(v):
        if len(v) < 4 or v[3] is None:
            return None
        if None not in v[:3]:
            return lut(v[3], *v[:3])
        return 0 if v[3] == 0xc0 and 0 in v[:2] else None

    def compare(self, x, predicates, v):
        to, other, with_ = predicates[0], predicates[1], predicates[2]
        a, b = v[:2]
        more = self.predicate(with_)
        y = None
        if a is not None and b is not None:
            if "U32" not in x.name:
                a, b = signed(a), signed(b)
            how = [m for m in x.name if m in COMPARE][0]
            y = COMPARE[how](a, b)
            if "EX" in x.name and a == b:  # as the lower halves are
                y = self.predicate(predicates[3])
        both = {"AND": (False, lambda p, q: p and q),
                "OR": (True, lambda p, q: p or q)}
        absorbs, join = both["OR" if "OR" in x.name else "AND"]
        if y is None or more is None:
            y = absorbs if absorbs in (y, more) else None
        else:
            y = join(y, more)
        if to[-1] != "T":
            self.pred[to] = y
        if other[-1] != "T":
            self.pred[other] = None if y is None else not y

    def forget(self, x):
        for t in x.args[:2]:
            if re.fullmatch(r"U?P\d", t):
                self.pred[t] = None
        to = [t for t in x.args[:2] if not re.fullmatch(r"U?P[\dT]", t)]
        if x.op not in ("STG", "STS", "ST", "RED") and to and \
                re.fullmatch(r"U?R\d+", to[0]):
            n = 4 if "128" in x.name else 2 if "64" in x.name else 1
            for i in range(4 if x.op in ("HMMA", "LDSM") else n):
                self.reg[self.next(to[0], i)] = None

    def count(self, code, labels, most=1 << 17):
        """Instructions until it ends."""
        at = n = 0
        while at < len(code) and n < most:
            x = code[at]
            at += 1
            n += x.op != "NOP"
            go = self.predicate(x.guard) if x.guard else True
            if x.op in ("BRA", "EXIT", "CALL", "BRX", "RET"):
                if x.op == "BRA" and re.fullmatch(r"!?U?P[\dT]", x.args[0]):
                    also = self.predicate(x.args[0])
                    go = also if go else go
                back = labels.get(x.to, at) < at
                self.lost |= go is None and back
                if not go or x.op == "CALL":
                    continue
                if x.op == "EXIT" or x.to not in labels:
                    break
                at = labels[x.to]
            elif go:
                self.run(x)
            elif go is None:
                self.forget(x)
        self.lost |= n >= most
        return n


def instructions(code, labels, threads, blocks):
    """Of a thread, on average over the first of each warp of a block amid
    others; whether all loops were understood."""
    total, sure = 0, True
    for tid in range(0, threads, 32):
        t = Thread(tid, blocks // 2)
        total += t.count(code, labels)
        sure &= not t.lost
    return total / len(range(0, threads, 32)), sure


def tensor_loop(code, labels):
    """Instructions and tensor instructions of the loop with most of these."""
    best = 0, 0
    for at, x in enumerate(code):
        to = labels.get(x.to) if x.op == "BRA" else None
        if to is not None and to <= at:
            mma = sum(y.op == "HMMA" for y in code[to:at + 1])
            if mma > best[1]:
                best = at + 1 - to, mma
    return best


def inspect(ampc, path, question):
    return json.loads(subprocess.run(
        [ampc, "inspect", path, question, "--json"], check=True,
        stdout=subprocess.PIPE, text=True).stdout)


def launches(ampc, path):
    """(kernel names, predicted step) of the program that trains; kernels that
    GELU by cuBLASLt replaces are among them."""
    steps = [p for p in inspect(ampc, path, "--roofline")
             if p["target"] == "cuda"][0]
    kernels = [p for p in inspect(ampc, path, "--kernels")
               if p["target"] == "cuda" and p["program"] == steps["program"]]
    names = [[k["name"] for k in g["cuda"]["kernels"]]
             for g in kernels[0]["kernels"] if g["cuda"]["kernels"]]
    steps = [s for s in steps["steps"] if s["threads"] and s["since"] <= 0]
    if len(names) != len(steps):
        sys.exit("the two answers of ampc inspect differ")
    return zip(names, steps)


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    ampc, nvdisasm, path = sys.argv[1:4]
    lines = int(sys.argv[4]) if len(sys.argv) > 4 else 40
    code = {}
    for image in cubins(path):
        with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
            f.write(image)
            f.flush()
            code |= functions(subprocess.run(
                [os.path.abspath(nvdisasm), "-c", f.name], check=True,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True).stdout)
    rows = {}
    for names, s in launches(ampc, path):
        row = rows.setdefault(names[0], {"us": 0, "n": 0, "step": s})
        row["us"] += s["H100"]["us"]
        row["n"] += 1
    order = sorted(rows.items(), key=lambda x: -x[1]["us"])
    print("| kernel | n | us each | bound | model | SASS | SASS / model | "
          "us to issue | first |\n|---|---|---|---|---|---|---|---|---|")
    for name, row in [x for x in order if not x[1]["step"]["mma"]][:lines]:
        s = row["step"]
        told = s["insts"] / (s["blocks"] * s["threads"])
        n, sure = instructions(*code[name], int(s["threads"]),
                               int(s["blocks"]))
        issue = 1e6 * n * s["blocks"] * s["threads"] / ISSUED
        print(f"| {name} | {row['n']} | {row['us'] / row['n']:.1f} "
              f"| {s['H100']['bound']} | {told:.0f} "
              f"| {n:.0f}{'' if sure else '?'} | {n / told:.2f} | {issue:.1f} "
              f"| {s['name']} |")
    print("\n| kernel | n | us | % of roof | how | loop | tensor | stores | "
          "first |\n|---|---|---|---|---|---|---|---|---|")
    for name, row in [x for x in order if x[1]["step"]["mma"]][:lines]:
        s = row["step"]
        n, mma = tensor_loop(*code[name])
        stores = [x.bytes() for x in code[name][0] if x.op == "STG"]
        print(f"| {name} | {row['n']} | {row['us']:.0f} "
              f"| {100 * s['H100']['roof']:.0f} | {s['how']} | {n} | {mma} "
              f"| {max(stores, default=0)} | {s['name']} |")


if __name__ == "__main__":
    main()
