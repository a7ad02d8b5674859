#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two chains of clamps that begin with the same one, clamp(clamp(x, 0, 1), .2, .8) and
# clamp(clamp(x, 0, 1), .1, .9), become an invalid ONNX file in torch.onnx.export(dynamo=True): its
# optimiser joins the clamps, and a Clip reads a bound that no node defines.  The export ends
# without an error; onnx.checker and ONNX Runtime refuse the file.  optimize=False writes a valid
# one, and one chain alone is right.
# Installs PyTorch twice with its CUDA libraries (some GB); a GPU is not needed.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
for version in 2.11.0 2.15.0; do
    python3 -m venv "$dir/$version"
    "$dir/$version/bin/pip" -q --disable-pip-version-check install "torch==$version" onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0 numpy==2.4.6
    "$dir/$version/bin/python" - <<'PY'
import contextlib
import io
import warnings

import onnx
import onnxruntime
import torch

warnings.filterwarnings("ignore")


class Chains(torch.nn.Module):
    def forward(self, x):
        return x.clamp(0, 1).clamp(.2, .8) + x.clamp(0, 1).clamp(.1, .9)


class Chain(torch.nn.Module):
    def forward(self, x):
        return x.clamp(0, 1).clamp(.2, .8)


def is_valid(model, optimize):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(model, (torch.randn(3, 4),), "clamps.onnx", dynamo=True,
                          optimize=optimize, verbose=False)
    try:
        onnx.checker.check_model(onnx.load("clamps.onnx"))
        checked = True
    except onnx.checker.ValidationError:
        checked = False
    try:
        onnxruntime.InferenceSession("clamps.onnx")
        loads = True
    except Exception:  # ONNX Runtime has an exception a status
        loads = False
    assert checked == loads
    return checked


print("torch", torch.__version__)
seen = []
for model in (Chain(), Chains()):
    for optimize in (True, False):
        seen.append(is_valid(model, optimize))
        print(f"  {type(model).__name__}, optimize={optimize}: valid {seen[-1]}")
assert seen == [True, True, False, True], "the behaviour has changed"
PY
    rm -rf "${dir:?}/$version"
done
echo "as recorded"
