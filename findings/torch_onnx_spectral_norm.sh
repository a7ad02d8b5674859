#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch.onnx.export(dynamo=False) cannot export torch.nn.utils.spectral_norm in training:
# F.normalize writes its result into `out`, aten::div gets a third operand, and the exporter takes
# that operand for rounding_mode: "Expected node type 'onnx::Constant' for argument
# 'rounding_mode'".  In eval() nothing is normalised and the export works.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import contextlib
import io
import warnings

import torch

warnings.filterwarnings("ignore")
layer = torch.nn.utils.spectral_norm(torch.nn.Linear(4, 3))
print("torch", torch.__version__)
seen = []
for mode in (torch.onnx.TrainingMode.TRAINING, torch.onnx.TrainingMode.EVAL):
    said = "exported"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            torch.onnx.export(layer, (torch.randn(2, 4),), "layer.onnx", dynamo=False, training=mode)
        except torch.onnx.errors.SymbolicValueError as e:
            said = str(e).split(",")[0]
    print(f"  {mode.name}: {said}")
    seen.append(said)
assert "'rounding_mode'" in seen[0] and seen[1] == "exported", "the behaviour has changed"
PY
done
echo "as recorded"
