#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two chains of clamps that begin with the same one, clamp(clamp(x, 0, 1), .2, .8) and
# clamp(clamp(x, 0, 1), .1, .9), become an invalid ONNX file in torch.onnx.export(dynamo=True): its
# optimiser joins the clamps, and a Clip reads a bound that no node defines.  The export ends
# without an error; onnx.checker and ONNX Runtime refuse the file.  optimize=False writes a valid
# one, and one chain alone is right.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import onnx
import onnxruntime
import torch
from finding import export


class Chains(torch.nn.Module):
    def forward(self, x):
        return x.clamp(0, 1).clamp(.2, .8) + x.clamp(0, 1).clamp(.1, .9)


class Chain(torch.nn.Module):
    def forward(self, x):
        return x.clamp(0, 1).clamp(.2, .8)


def is_valid(model, optimize):
    export(model, (torch.randn(3, 4),), "clamps.onnx", optimize=optimize)
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


seen = []
for model in (Chain(), Chains()):
    for optimize in (True, False):
        seen.append(is_valid(model, optimize))
        print(f"  {type(model).__name__}, optimize={optimize}: valid {seen[-1]}")
assert seen == [True, True, False, True], "the behaviour has changed"
PY
done
echo "as recorded"
