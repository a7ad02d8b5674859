#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ONNX files of a folder, such as those of public repositories, beside ONNX Runtime
(maintainers): how many `ampc` takes for inference, why it refuses the others, and
which have other results.

usage: folder.py AMPC FOLDER [--run] [--resume TABLE]
       the .onnx files of each folder in FOLDER, which repositories.py makes; --run:
       compiles and compares; --resume: adds a row for each file to TABLE, without those
       that TABLE has

Small files come first, and before all others those with an op, attribute, operand or
element type that no file before them has.  Files of equal bytes are tried once.  Left out
are files of 4 MiB and more, pointers of Git LFS, and what ONNX Runtime does not load or does
not run with random inputs.
Equal are floats within 1e-4 of themselves or 1e-5 of the output's largest finite element
(16 bits and less: within two roundings of it), and all other elements exactly.
Every open dimension is 2; loops that want a bound get 16 trips, inputs that must be
known the numbers that ONNX Runtime gets.  Needs

    pip install onnx onnxruntime
"""
import argparse
import collections
import contextlib
import glob
import hashlib
import multiprocessing
import os
import re
import signal
import subprocess
import tempfile
import urllib.parse

import ml_dtypes
import numpy as np
import onnx
import onnxruntime

os.environ.setdefault("AMPC_CACHE_DIR", "none")
onnxruntime.set_default_logger_severity(4)
SECONDS = 300  # for one file
MOST = 4 << 20  # bytes of one file
EIGHT_BITS = {f"tensor({t.replace('_', '')})": getattr(ml_dtypes, t)
              for t in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")}
COMPILED = ["--precision", "fp32", "--target", "cpu:native", "--quick"]


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception:  # not a file for ONNX Runtime either
        return None


def inputs(model):
    """{name: (dtype, shape)} and the options that bind open dimensions."""
    held, found, bind = {t.name for t in model.graph.initializer}, {}, {}
    for i in model.graph.input:
        t = i.type.tensor_type
        if i.name in held:
            continue
        shape = []
        for k, d in enumerate(t.shape.dim):
            known = d.HasField("dim_value") and d.dim_value != -1
            if not known:
                bind[d.dim_param or f"{i.name}:{k}"] = 2
            shape.append(d.dim_value if known else 2)
        found[i.name] = t.elem_type, shape
    return found, [w for k, n in bind.items() for w in ("--dim", f"{k}={n}")]


def call(*command):
    r = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [s for s in r.stderr.splitlines() if "error: " in s] or [f"status {r.returncode}"]
    return errors[0].split("error: ")[-1] if r.returncode else None


def rows_that_count(got, name, like):
    """The output in the other's shape; where data says how many rows it has, those."""
    y, n = got[name], got.get(f"{name}.rows")
    if n is not None:
        y = y.reshape(y.shape[y.ndim - like.ndim:])
        y = y[tuple(slice(n.item() if a != b else None) for a, b in zip(y.shape, like.shape))]
    return y.reshape(like.shape) if y.size == like.size else None


def same(ours, theirs):
    """Whether two outputs are equal; floats up to roundings."""
    if ours is None:
        return False
    if theirs.dtype.kind in "biu":
        return np.array_equal(ours, theirs)
    try:
        near = max(1e-5, 2 * float(ml_dtypes.finfo(theirs.dtype).eps))
    except ValueError:  # not a float: its elements are compared as they are
        return np.array_equal(ours.astype(str), theirs.astype(str))
    ours, theirs = ours.astype(float), theirs.astype(float)
    finite = np.abs(theirs[np.isfinite(theirs)])
    return np.allclose(ours, theirs, rtol=1e-4, atol=near * finite.max(initial=0), equal_nan=True)


def results(model, runtime):
    """Random inputs, and what ONNX Runtime makes of them."""
    rng, feeds = np.random.default_rng(0), {}
    for name, (kind, shape) in inputs(model)[0].items():
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        x = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        if dtype.kind == "i" and shape == [2]:  # may be axes, which differ
            x = rng.permutation(2)
        feeds[name] = x.astype(dtype)
    want = {}
    for o, y in zip(runtime.get_outputs(), runtime.run(None, feeds)):
        if o.type in EIGHT_BITS:  # ONNX Runtime gives their bits
            y = y.view(EIGHT_BITS[o.type])
        want[o.name] = y
    return feeds, want


def differs(ampc, so, feeds, want):
    """None: equal; else the outputs, or why they could not be compared."""
    folder, args = os.path.dirname(so), {}
    out = f"{folder}/out"
    for k, (name, x) in enumerate(feeds.items()):
        np.save(f"{folder}/{k}.npy", x)
        args[name] = ["--feed", f"{name}={folder}/{k}.npy"]
    while bad := call(ampc, "run", so, *sum(args.values(), []), "--fetch", out, "--device", "cpu"):
        unread = re.match(r"--feed '(.*)=.*': no such input", bad)
        if not unread or not args.pop(unread[1], None):
            return "not run: " + bad.replace(folder, "")
    got = {urllib.parse.unquote(f[:-4]): np.load(f"{out}/{f}") for f in os.listdir(out)}
    wrong = [name for name, y in want.items() if not same(rows_that_count(got, name, y), y)]
    return "differs: " + " ".join(wrong) if wrong else None


def refused(command, bind, feeds):
    """Why `ampc` refuses the file, when it gets what messages ask for; those options go to
    bind, and inputs that they give leave feeds."""
    trips = ["--max-trips", "16"]
    while why := call(*command, "--loss", "none", *bind):
        names = [n for n in re.findall(r"--set (\S+)=N", why) if n in feeds]
        for name in names:
            numbers = [repr(+x.item()) for x in feeds.pop(name).ravel()] or ["0"]
            bind += ["--set", f"{name}={','.join(numbers)}"]
        if not names:
            if "--max-trips" not in why or trips[0] in bind:
                break
            bind += trips
    return why


def tried(ampc, path, run):
    """[result, reason, options]: "left out", "refused", "taken", "equal" or "other"."""
    runtime = session(path)
    if not runtime:
        return "left out", "", []
    model = onnx.load(path)
    bind = inputs(model)[1]
    try:
        feeds, want = results(model, runtime)
    except Exception:  # ONNX Runtime does not run it with these inputs
        return "left out", "", []
    with tempfile.TemporaryDirectory() as folder:
        so = f"{folder}/m.so"
        command = [ampc, path, "-o", so, *COMPILED] if run else [ampc, "check", path]
        if why := refused(command, bind, feeds):
            return "refused", why, bind
        if not run:
            return "taken", "", bind
        try:
            bad = differs(ampc, so, feeds, want)
        except Exception as e:
            bad = f"not run: {e}"
    return ("other", bad, bind) if bad else ("equal", "", bind)


def alone(ampc, path, run):
    """The same in a process of its own: a file can end it, or take for ever."""
    def child(pipe):
        os.setsid()
        pipe.send(tried(ampc, path, run))

    mine, its = multiprocessing.Pipe()
    p = multiprocessing.Process(target=child, args=(its,))
    p.start()
    its.close()
    try:
        return mine.recv() if mine.poll(SECONDS) else ("other", f"not run: more than {SECONDS} s", [])
    except EOFError:
        return "other", "not run: the process ended", []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(p.pid, signal.SIGKILL)
        p.join()


def onnx_files(folder):
    """Those below MOST that are there, and no pointers of Git LFS; small ones first."""
    found = []
    for path in glob.glob(f"{glob.escape(folder)}/**/*.onnx", recursive=True):
        if os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) < MOST:
            with open(path, "rb") as f:
                if not f.read(40).startswith(b"version https://git-lfs"):
                    found.append(path)
    return sorted(found, key=lambda p: (os.path.getsize(p), p))


def nodes_in(graph):
    for n in graph.node:
        yield n
        for a in n.attribute:
            for inner in [a.g, *a.graphs]:
                yield from nodes_in(inner)


def features(path):
    """The ops of a file with their attributes, operands and element types."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # not a file of ONNX
        return set()
    graph, found = model.graph, set()
    kinds = {v.name: v.type.tensor_type.elem_type
             for v in [*graph.input, *graph.value_info, *graph.output]}
    kinds.update((t.name, t.data_type) for t in graph.initializer)
    for n in [n for g in [graph, *model.functions] for n in nodes_in(g)]:
        op = f"{n.domain}.{n.op_type}"
        found |= {(op, a.name, a.i, a.s) for a in n.attribute}
        found |= {(op, k, bool(name)) for k, name in enumerate(n.input)}
        found |= {(op, len(n.input), len(n.output))}
        found |= {(op, "kind", k, kinds.get(name)) for k, name in enumerate([*n.input, *n.output])}
    return found


def in_order(paths):
    known, others = set(), []
    for path in paths:
        new = features(path) - known
        known |= new
        if new:
            yield path
        else:
            others.append(path)
    yield from others


def rows(ampc, folder, run, table):
    """[path, result, reason, options] of each file, those of the table first."""
    told, same_bytes = {}, {}
    if table and os.path.exists(table):
        with open(table, encoding="utf-8") as f:
            told = {r[0]: r for r in (line.rstrip("\n").split("\t") for line in f)}
    for path in in_order(onnx_files(folder)):
        with open(path, "rb") as f:
            key = hashlib.sha256(f.read()).digest()
        if path not in told:
            if key in same_bytes:
                told[path] = [path, *same_bytes[key][1:]]
            else:
                result, why, options = alone(ampc, path, run)
                told[path] = [path, result, re.sub(r"\s+", " ", why), " ".join(options)]
            if table:
                with open(table, "a", encoding="utf-8") as f:
                    f.write("\t".join(told[path]) + "\n")
        same_bytes[key] = told[path]
        yield told[path]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("ampc", type=os.path.abspath)
    p.add_argument("folder")
    p.add_argument("--run", action="store_true")
    p.add_argument("--resume", metavar="TABLE")
    a = p.parse_args()
    count, repositories, refused = collections.Counter(), set(), collections.defaultdict(list)
    given = 0
    for path, result, why, options in rows(a.ampc, a.folder, a.run, a.resume):
        count[result] += 1
        given += result != "refused" and "--set" in options
        if result != "left out":
            repositories.add(os.path.relpath(path, a.folder).split(os.sep)[0])
        if result == "refused":
            refused[re.sub(r"'[^']*'|\d+", "#", why)[:80]].append((path, why))
        if result == "other":
            print(path, why[:150], flush=True)
    for files in sorted(refused.values(), key=len, reverse=True):
        print(len(files), "refused:", files[0][0], files[0][1][:150])
    loaded = count.total() - count["left out"]
    taken = loaded - count["refused"]
    print(f"{len(repositories)} repositories, {loaded} files, {taken} taken, {given} of them with"
          f" --set, {count['equal']} equal")


if __name__ == "__main__":
    main()
