#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ONNX files of a folder, such as those of public repositories, beside ONNX Runtime
(maintainers): how many `ampc` takes for inference, why it refuses the others, and
which have other results.

usage: folder.py AMPC FOLDER [--run]     FOLDER/*/*.onnx; --run: compiles and compares

Files that ONNX Runtime does not load, or does not run with random inputs, are left out.
Every open dimension is 2; loops that want a bound get 16 trips, inputs that must be
known the numbers that ONNX Runtime gets.  Needs

    pip install onnx onnxruntime
"""
import collections
import contextlib
import glob
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.parse

import numpy as np
import onnx
import onnxruntime

os.environ["AMPC_CACHE_DIR"] = "none"
onnxruntime.set_default_logger_severity(4)
SECONDS = 120  # for one file


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
    errors = [s for s in r.stderr.splitlines() if "error" in s] or [f"status {r.returncode}"]
    return errors[0].split("error: ")[-1] if r.returncode else None


def rows_that_count(got, name, like):
    """The output in the other's shape; where data says how many rows it has, those."""
    y, n = got[name], got.get(f"{name}.rows")
    if n is not None:
        y = y.reshape(y.shape[y.ndim - like.ndim:])
        y = y[tuple(slice(n.item() if a != b else None) for a, b in zip(y.shape, like.shape))]
    return y.reshape(like.shape) if y.size == like.size else None


def results(model, runtime):
    """Random inputs, and what ONNX Runtime makes of them."""
    rng, feeds = np.random.default_rng(0), {}
    for name, (kind, shape) in inputs(model)[0].items():
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        x = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        feeds[name] = x.astype(dtype)
    return feeds, dict(zip([o.name for o in runtime.get_outputs()], runtime.run(None, feeds)))


def differs(ampc, path, feeds, want, bind):
    """None: equal; else the outputs, or why they could not be compared."""
    with tempfile.TemporaryDirectory() as folder:
        so, out, args = f"{folder}/m.so", f"{folder}/out", []
        bad = call(ampc, path, "-o", so, "--loss", "none", "--precision", "fp32", "--target", "cpu:native", *bind)
        for k, (name, x) in enumerate(feeds.items()):
            np.save(f"{folder}/{k}.npy", x)
            args += ["--feed", f"{name}={folder}/{k}.npy"]
        bad = bad or call(ampc, "run", so, *args, "--fetch", out, "--device", "cpu")
        if bad:
            return "not run: " + bad.replace(folder, "")
        got = {urllib.parse.unquote(f[:-4]): np.load(f"{out}/{f}") for f in os.listdir(out)}
    wrong = []
    for name, y in want.items():
        most = np.nanmax(np.abs(y.astype(float)), initial=1)
        ours = rows_that_count(got, name, y)
        if ours is None or not np.allclose(ours.astype(float), y.astype(float),
                                           rtol=1e-4, atol=1e-5 * most, equal_nan=True):
            wrong.append(name)
    return "differs: " + " ".join(wrong) if wrong else None


def checked(ampc, path, bind, feeds):
    """Why `ampc` refuses the file, when it gets what messages ask for; those options go to
    bind, and inputs that they give leave feeds."""
    trips = ["--max-trips", "16"]
    while why := call(ampc, "check", path, "--loss", "none", *bind):
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
    if why := checked(ampc, path, bind, feeds):
        return "refused", why, bind
    if not run:
        return "taken", "", bind
    try:
        bad = differs(ampc, path, feeds, want, bind)
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


def main():
    ampc, folder, run = os.path.abspath(sys.argv[1]), sys.argv[2], "--run" in sys.argv
    count, repositories, refused = collections.Counter(), set(), collections.defaultdict(list)
    given = 0
    for path in sorted(glob.glob(f"{folder}/*/*.onnx")):
        result, why, options = alone(ampc, path, run)
        count[result] += 1
        given += result != "refused" and "--set" in options
        if result != "left out":
            repositories.add(os.path.dirname(path))
        if result == "refused":
            refused[re.sub(r"'[^']*'|\d+", "#", why)[:80]].append((path, why))
        if result == "other":
            print(path, why[:150].replace("\n", " "), flush=True)
    for files in sorted(refused.values(), key=len, reverse=True):
        print(len(files), "refused:", files[0][0], files[0][1][:150])
    loaded = count.total() - count["left out"]
    taken = loaded - count["refused"]
    print(f"{len(repositories)} repositories, {loaded} files, {taken} taken, {given} of them with"
          f" --set, {count['equal']} equal")


if __name__ == "__main__":
    main()
