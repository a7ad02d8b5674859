# SPDX-License-Identifier: Apache-2.0
"""What `ampc --emit-onnx` writes, in the ONNX checker and in ONNX Runtime.

    python emit.py path/to/ampc

needs onnx and onnxruntime.  The models of this folder, small, and PyTorch's
exports of tests/onnx, in each precision: the file passes the full checker, and
ONNX Runtime gives the outputs that the module predicts.  apart: the largest
difference as a part of the output's largest magnitude.  In 16 bits a sum in
another order may be rounded to the other side, which is a unit of 16 bits.
Prints one row each; status 1 if one is out of bounds.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

MODELS_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = {"fp32": 2e-5, "fp16": 2.0**-10, "bf16": 2.0**-7}
TEXT = "--dim B=2 --dim T=16 --dim VOCAB=20 --dim D=32 --dim L=2 "
MODELS = [
    ("mlp.amp", "--dim B=4 --dim H=64"),
    ("cnn.amp", "--dim B=4 --dim W=8"),
    ("resnet18.amp", "--dim B=2 --dim W=16"),
    ("gpt.amp", TEXT + "--dim HEADS=2"),
    ("llama.amp", TEXT + "--dim HEADS=4 --dim KV=2 --dim FF=24"),
    ("vit.amp", "--dim B=4 --dim SIZE=8 --dim D=12 --dim L=2 --dim HEADS=3"),
    ("bert.amp", TEXT + "--dim HEADS=2"),
    ("unet.amp", "--dim B=2 --dim SIZE=16 --dim W=8 --dim DEPTH=2"),
    ("wgan_gp.amp", "--dim B=4 --dim Z=8 --dim X=16 --dim H=16"),
] + [(f"../tests/onnx/{m}.{kind}.onnx", "--dim batch=4 --loss none")
     for m in ("mlp", "cnn", "resnet", "gpt") for kind in ("ts", "dyn")]


def run(*args):
    r = subprocess.run(args, capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(args)}\n{r.stderr}")


def feed(value, rng):
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(
        value.type.tensor_type.elem_type)
    if np.issubdtype(dtype, np.floating):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def row(ampc, model, options, precision, folder):
    module, file = os.path.join(folder, "m.so"), os.path.join(folder, "m.onnx")
    run(ampc, os.path.join(MODELS_FOLDER, model), "-o", module, "--precision",
        precision, "--target", "cpu:x86-64-v2", "--emit-onnx", file,
        *options.split())
    m = onnx.load(file)
    onnx.checker.check_model(m, full_check=True)
    rng = np.random.default_rng(1)
    data = {i.name: feed(i, rng) for i in m.graph.input}
    args = []
    for name, x in data.items():
        path = os.path.join(folder, f"{name}.npy")
        np.save(path, x)
        args += ["--feed", f"{name}={path}"]
    run(ampc, "run", module, "--fetch", folder, *args)
    session = onnxruntime.InferenceSession(file)
    apart = 0
    for o, got in zip(session.get_outputs(), session.run(None, data)):
        want = np.load(os.path.join(folder, f"{o.name}.npy"))
        apart = max(apart, np.abs(got - want).max() / np.abs(want).max())
    low = sum(v.type.tensor_type.elem_type in
              (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16)
              for v in m.graph.value_info)
    casts = sum(n.op_type == "Cast" for n in m.graph.node)
    print(f"{os.path.basename(model):16} {precision}  {len(m.graph.node):4} "
          f"nodes {casts:4} casts {low:4} values of 16 bits  {apart:.1e}",
          flush=True)
    return apart <= LIMIT[precision]


def main():
    ok = True
    with tempfile.TemporaryDirectory() as folder:
        for model, options in MODELS:
            for precision in LIMIT:
                ok &= row(sys.argv[1], model, options, precision, folder)
    sys.exit(not ok)


main()
