#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the compiler predicts of errors beside what 12 draws measure
(maintainers; needs NumPy).

usage: budget.py [--limit S] [--record FILE.csv] AMPC [NAME...]   prints the table
       budget.py --again OTHER.csv     compares its rows with tests/losses/budget.csv
       budget.py --keeps X AMPC [NAME...]

Models: the losses and heads of tests/losses, with random initial weights, and
examples of this folder made small.  Each is compiled with a limit that changes
nothing, so that the prediction is that of 16 bits as they are without a budget, and
with --max-loss-error 1e-3 --max-gradient-error 1e-2.  The compiler measures on
batches that this script writes for --calibrate; the 12 draws are others, of
weights and data.  Measured: the root mean square over the draws of |loss - loss in
fp32| / |loss in fp32|, and the same of the gradient by its 2-norm, from equal
weights on equal data.  tests/whole/budget_test.c compiles again and compares what
is predicted then with what tests/losses/budget.csv records.

Each model has a process of its own, which ends with it or after --limit seconds (900).
--record writes the rows of a model as soon as they are measured, in place of
those that FILE.csv has.  Models that it has are measured again only if they are
named, so that a run that was stopped goes on.

--keeps compiles larger examples (cnn as it is and a GPT of 4 layers, unless named)
with --max-loss-error X alone, no data given, and prints how many of the 12 draws
are within X, and the errors predicted and measured."""
import argparse
import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
LOSSES = os.path.join(HERE, "../../tests/losses")
sys.path[:0] = [HERE, os.path.join(HERE, "../../runtime/python")]
import ampc  # noqa: E402
import drawn  # noqa: E402

DRAWS, BATCHES, LR = 12, 4, 4096.0
BUDGETS = [("1e+30", ""), ("1e-3", "1e-2")]
EXAMPLES = {  # dimensions and classes: small, and for --keeps
    "mlp": [("B=32", 10), ("", 10)],
    "cnn": [("B=8 W=8", 10), ("", 10)],
    "gpt": [("B=2 T=32 D=64 HEADS=2 L=2 VOCAB=128", 128),
            ("B=4 T=128 D=256 HEADS=4 L=4 VOCAB=4096", 4096)],
}
HEADER = ("name,max_loss_error,max_gradient_error,predicted_loss,measured_loss,"
          "worst_loss,predicted_gradient,measured_gradient,worst_gradient")


def run(command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"{' '.join(command)}: {r.stderr}")
    return r.stderr


def with_weights(text):
    """Parameters begin at random: number K is uniform(K, -0.3, 0.3)."""
    n = iter(range(1000))
    return re.sub(r"(?m)^(  param %[^{\n]*\])",
                  lambda m: f"{m[1]} = uniform({next(n)}, -0.3, 0.3)", text)


class Model:
    def __init__(self, program, name, folder, small=True):
        self.program, self.name, self.folder = program, name, folder
        self.options = ["--optimizer", f"sgd,lr={LR}", "--target",
                        "cpu:x86-64-v3"]
        self.classes, self.want = 0, {}
        if name in EXAMPLES:
            dims, self.classes = EXAMPLES[name][not small]
            self.path = os.path.join(HERE, "..", f"{name}.amp")
            for d in dims.split():
                self.options += ["--dim", d]
        else:
            self.path = f"{folder}/{name}.amp"
            with open(f"{LOSSES}/{name}.amp") as f, open(self.path, "w") as out:
                out.write(with_weights(f.read()))
        self.base = self.compile("fp32")[0]
        self.inputs = self.base.inputs("train")
        self.rows = next(iter(self.inputs.values()))[1][0]
        self.data = []
        for n, (_, shape) in self.inputs.items():
            path = f"{folder}/{name}.{n}.npy"
            batches = BATCHES if shape[0] == self.rows else 1
            np.save(path, np.concatenate(
                [self.draw(n, 1000 + d) for d in range(batches)]))
            self.data += ["--calibrate", f"{n}={path}"]

    def draw(self, name, draw):
        dtype, shape = self.inputs[name]
        kind = f"i{self.classes}_" if dtype == "i64" else "n_"
        known = re.match(r"(u|n|i\d+)_", name)
        return drawn.numbers(name if known else kind + name, draw, shape)

    def compile(self, precision, *more):
        so = f"{self.folder}/{self.name}.{len(os.listdir(self.folder))}.so"
        text = run([self.program, self.path, "-o", so, "--precision", precision,
                    *self.options, *more])
        m = re.search(r"error of the loss (\S+) .*gradient ([-+.\de]+)", text)
        return ampc.Module(so), m and np.array([float(m[1]), float(m[2])])

    def stepped(self, m, draw):
        """Loss and gradient: of a weight, its change by plain SGD."""
        with m.session(device="cpu", threads=1) as s:
            before = {}
            for n, (kind, _, _) in m.variables().items():
                if kind != "parameter":
                    continue
                w = s[n]
                if np.ptp(w) > 0:  # another draw of the same distribution
                    rng = np.random.default_rng([draw, *n.encode()])
                    s[n] = (rng.permutation(w.ravel()).reshape(w.shape) *
                            rng.choice([-1, 1], w.shape)).astype(w.dtype)
                before[n] = s[n].astype("f8")
            feed = {n: self.draw(n, draw) for n in self.inputs}
            loss = s.step(**feed)["loss"]
            return loss, np.concatenate(
                [((before[n] - s[n].astype("f8")) / LR).ravel()
                 for n in sorted(before)])

    def measure(self, m):
        far = []
        for d in range(DRAWS):
            if d not in self.want:
                self.want[d] = self.stepped(self.base, d)
            (a, g), (b, h) = self.stepped(m, d), self.want[d]
            far.append((abs(a - b) / max(abs(b), 1e-6),
                        np.linalg.norm(g - h) / np.linalg.norm(h)))
        return np.array(far)


def rows(program, name):
    with tempfile.TemporaryDirectory() as folder:
        m = Model(program, name, folder)
        for loss, gradient in BUDGETS:
            more = ["--max-loss-error", loss]
            if gradient:
                more += ["--max-gradient-error", gradient]
            so, said = m.compile("bf16", *more, *m.data)
            far = m.measure(so)
            yield loss, gradient, said, np.sqrt((far ** 2).mean(0)), far.max(0)


def rows_apart(program, name, limit):
    """Those of a process of its own; None if it fails or takes too long."""
    receive, send = multiprocessing.Pipe(False)

    def child():
        os.setsid()  # what it starts ends with it
        send.send(list(rows(program, name)))
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    send.close()
    try:
        found = receive.recv() if receive.poll(limit) else None
    except EOFError:
        found = None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return found


def near(predicted, measured):
    """Within a factor of two; nothing is as good as nothing."""
    low = 2.0**-22  # fp32 has such errors, too
    return max(predicted, measured) <= 2 * max(min(predicted, measured), low)


def keeps(program, name, limit):
    """Prints how many draws of an example are within the limit of the loss."""
    with tempfile.TemporaryDirectory() as folder:
        m = Model(program, name, folder, small=False)
        so, said = m.compile("bf16", "--max-loss-error", limit)
        far = m.measure(so)[:, 0]
    print(f"{name}, --max-loss-error {limit}: {(far <= float(limit)).sum()} of "
          f"{DRAWS} draws within it; predicted {said[0]:.1e}, measured "
          f"{np.sqrt((far ** 2).mean()):.1e}, worst {far.max():.1e}", flush=True)


def recorded(path):
    """The file's rows by model."""
    rows = {}
    if path and os.path.exists(path):
        with open(path) as f:
            for line in f.read().splitlines()[1:]:
                rows.setdefault(line.split(",")[0], []).append(line)
    return rows


def again(path):
    """Prints which rows of two files have other numbers, and by how much."""
    kept, new = recorded(os.path.join(LOSSES, "budget.csv")), recorded(path)
    other = 0
    good = np.zeros((2, 2), int)
    for name in new:
        for a, b in zip(kept[name], new[name]):
            v, w = ([float(x) for x in r.split(",")[3:]] for r in (a, b))
            limited = b.split(",")[2] != ""
            good[int(limited)] += [near(w[0], w[1]), near(w[3], w[4])]
            same = all(abs(x - y) <= .05 * max(x, y) for x, y in zip(v, w))
            other += not same
            if not same:
                print(f"{b}\n  was {a}")
    print(f"{len(new)} of {len(kept)} models; {other} rows differ by more than 5 %; "
          f"within a factor of 2: loss {good[0][0]}, gradient {good[0][1]} without a "
          f"budget; {good[1][0]} and {good[1][1]} with one")


def record(path, rows):
    with open(f"{path}.new", "w") as f:
        f.write("\n".join([HEADER] + [x for n in sorted(rows, key=place)
                                      for x in rows[n]]) + "\n")
    os.replace(f"{path}.new", path)


def place(name):
    """Losses by name, then the examples."""
    return name in EXAMPLES, list(EXAMPLES).index(name) if (
        name in EXAMPLES) else name


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--record")
    p.add_argument("--keeps")
    p.add_argument("--again")
    p.add_argument("--limit", type=float, default=900)
    p.add_argument("program", nargs="?")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    if a.again:
        return again(a.again)
    if not a.program:
        p.error("AMPC is missing")
    if a.keeps:
        for name in a.names or ["cnn", "gpt"]:
            keeps(a.program, name, a.keeps)
        return None
    kept = recorded(a.record)
    names = a.names or [n for n in sorted(
        f[:-4] for f in os.listdir(LOSSES) if f.endswith(".amp")
    ) + list(EXAMPLES) if n not in kept]
    good, failed = np.zeros((2, 2), int), []
    print(f"{'model':22}{'budget':>14}   loss: predicted measured worst"
          "   gradient: predicted measured worst")
    for name in names:
        lines, found = [], rows_apart(a.program, name, a.limit)
        if not found:
            failed.append(name)
            continue
        for i, (loss, gradient, said, rms, worst) in enumerate(found):
            ok = [near(said[k], rms[k]) for k in range(2)]
            good[i] += ok
            print(f"{name:22}{loss:>7}{gradient or '-':>7}" + "".join(
                f"   {said[k]:.1e} {rms[k]:.1e} {worst[k]:.1e}"
                f"{'' if ok[k] else ' !'}" for k in range(2)), flush=True)
            lines.append(f"{name},{loss},{gradient}," + ",".join(
                f"{said[k]:.2e},{rms[k]:.2e},{worst[k]:.2e}" for k in range(2)))
        if a.record:
            kept[name] = lines
            record(a.record, kept)
    print(f"within a factor of 2, of {len(names) - len(failed)} models: "
          f"loss {good[0][0]}, gradient {good[0][1]} without a budget; "
          f"{good[1][0]} and {good[1][1]} with one")
    if failed:
        print(f"not measured: {', '.join(failed)}")
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
