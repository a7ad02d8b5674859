#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How libraries cast fp32 to 8-bit floats (maintainers; needs torch, ml_dtypes,
onnx, a C++ compiler and CUDA's headers).

usage: f8.py TESTS --cuda INCLUDE [--torch PYTHON]...
  writes TESTS/runtime/f8.txt: the first line names the columns, each other line
  is TYPE, the bits of an fp32 number, and the code that each library gives.
  PYTHON: an interpreter with another torch, which becomes a column of its own.

The numbers: every number of the type, the middle between neighbours, the fp32
numbers beside the middle, what overflows, infinities and NaN, both signs."""
import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np

TYPES = {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu"}
TORCH = """
import sys, numpy, torch
x = torch.from_numpy(numpy.load(sys.argv[1])).to(getattr(torch, sys.argv[2]))
numpy.save(sys.argv[3], x.view(torch.uint8).numpy())
print(torch.__version__.split("+")[0])
"""
CUDA = """
#include <cuda_fp8.h>
#include <stdio.h>
int main(int n, char **v) {
    float x;
    for (FILE *f = fopen(v[1], "rb"); fread(&x, 4, 1, f) == 1;)
        putchar(v[2][0] == 'e' ? __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf)
                : __nv_cvt_float_to_fp8(x, __NV_SATFINITE,
                                        v[2][3] == '4' ? __NV_E4M3 : __NV_E5M2));
    return n - 3;
}
"""


def numbers(ml):
    codes = np.arange(256, dtype=np.uint8).view(ml).astype(np.float32)
    known = np.unique(codes[np.isfinite(codes) & (codes >= 0)])
    middle = ((known[:-1].astype(np.float64) + known[1:]) / 2).astype(np.float32)
    top = known[-1] + (known[-1] - middle[-1])
    with np.errstate(over="ignore"):
        some = np.concatenate([known, middle, [top, 2 * known[-1], 3e38, known[1] / 4]])
        some = some.astype(np.float32)
        some = np.concatenate([some, np.nextafter(some, np.float32(0)),
                               np.nextafter(some, np.float32(np.inf)), [np.inf, np.nan]])
    return np.unique(np.concatenate([some, -some]).astype(np.float32).view(np.uint32))


def torch_column(python, x, name, folder):
    np.save(folder + "/x.npy", x)
    version = subprocess.run([python, "-c", TORCH, folder + "/x.npy", name, folder + "/y.npy"],
                             check=True, capture_output=True, text=True).stdout.strip()
    return "torch-" + version, np.load(folder + "/y.npy")


def onnx_column(x, name, saturate):
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator
    to = getattr(TensorProto, {"f8e4m3": "FLOAT8E4M3FN", "f8e5m2": "FLOAT8E5M2",
                               "e8m0": "FLOAT8E8M0"}[name])
    more = {"round_mode": "nearest"} if name == "e8m0" else {}
    node = helper.make_node("Cast", ["x"], ["y"], to=to, saturate=saturate, **more)
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [info("x", TensorProto.FLOAT, [len(x)])],
                              [info("y", to, [len(x)])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    return ReferenceEvaluator(model).run(None, {"x": x})[0].view(np.uint8)


def cuda_column(program, x, name, folder):
    x.tofile(folder + "/x.bin")
    out = subprocess.run([program, folder + "/x.bin", name], check=True, capture_output=True)
    return np.frombuffer(out.stdout, np.uint8)


def main():
    import ml_dtypes
    p = argparse.ArgumentParser()
    p.add_argument("tests")
    p.add_argument("--cuda", required=True)
    p.add_argument("--torch", action="append", default=[sys.executable])
    o = p.parse_args()
    lines, head = [], None
    with tempfile.TemporaryDirectory() as folder:
        program = folder + "/cuda"
        with open(program + ".cc", "w") as f:
            f.write(CUDA)
        subprocess.run(["g++", "-I" + o.cuda, program + ".cc", "-o", program], check=True)
        for name, of in TYPES.items():
            bits = numbers(getattr(ml_dtypes, of))
            x = bits.view(np.float32)
            columns = [torch_column(python, x, of, folder) for python in o.torch]
            with np.errstate(over="ignore", invalid="ignore"):
                columns.append(("ml_dtypes", x.astype(getattr(ml_dtypes, of)).view(np.uint8)))
                columns.append(("onnx-saturate", onnx_column(x, name, 1)))
                columns.append(("onnx", onnx_column(x, name, 0)))
            columns.append(("cuda-satfinite", cuda_column(program, x, name, folder)))
            head = ["type", "fp32"] + [c[0] for c in columns]
            for i, b in enumerate(bits):
                lines.append("%s %08x %s" % (name, b, " ".join("%02x" % c[1][i] for c in columns)))
    with open(os.path.join(o.tests, "runtime", "f8.txt"), "w") as f:
        f.write("\n".join([" ".join(head)] + lines) + "\n")


if __name__ == "__main__":
    main()
