#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch.onnx.export(dynamo=False), over TorchScript, loses rows of index_add: where the index names
# a row twice, PyTorch adds both, and ONNX Runtime's result of the file holds the last one alone.
# The export gives no warning about it.  With dynamo=True the sum is right.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import contextlib
import io
import warnings

import onnxruntime
import torch
from finding import export


class Rows(torch.nn.Module):
    def forward(self, x):
        return torch.zeros(3, 2).index_add(0, torch.tensor([0, 2, 2]), x)


x = torch.arange(6.).reshape(3, 2)


def result():
    return onnxruntime.InferenceSession("rows.onnx").run(None, {"x": x.numpy()})[0].tolist()


with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
    warnings.simplefilter("ignore")
    torch.onnx.export(Rows(), (x,), "rows.onnx", input_names=["x"], dynamo=False)
script = result()
export(Rows(), (x,), "rows.onnx", input_names=["x"])
dynamo, own = result(), Rows()(x).tolist()
print("  PyTorch     ", own)
print("  dynamo=True ", dynamo)
print("  dynamo=False", script)
assert dynamo == own
assert script == [[0, 1], [0, 0], [4, 5]], "the behaviour has changed"
PY
done
echo "as recorded"
