#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# float8_e8m0 (the block scale of MX formats): ONNX's Cast and ml_dtypes, which the same
# Python process uses side by side, give other bytes for the same float32 value.
#
# Behaviour: ONNX's Cast rounds up to the next power of two unless round_mode says otherwise
# (1.25 becomes 2), and maps 0 to 2^-127 and -1 to 1: the sign is dropped. ml_dtypes, whose
# dtype ONNX's reference evaluator returns, rounds 1.25 to 1 and makes 0 and -1 NaN.
# A scale computed on one side and decoded on the other is off by a factor of two.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install onnx==1.23.2 ml_dtypes==0.6.0 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import ml_dtypes
import numpy as np
import onnx
import onnx.reference
from onnx import TensorProto, helper

values = np.array([1.0, 1.25, 1.5, 0.0, -1.0], np.float32)


def cast(**attributes):
    """The bytes that ONNX's Cast to FLOAT8E8M0 gives for `values`."""
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E8M0, **attributes)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [len(values)])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT8E8M0, [len(values)])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    onnx.checker.check_model(model)
    return onnx.reference.ReferenceEvaluator(model).run(None, {"x": values})[0].view(np.uint8)


rows = {
    "onnx Cast, default": cast(),
    "onnx Cast, round_mode=nearest": cast(round_mode="nearest"),
    "ml_dtypes astype": values.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8),
}
seen = {
    "onnx Cast, default": [127, 128, 128, 0, 127],
    "onnx Cast, round_mode=nearest": [127, 127, 128, 0, 127],
    "ml_dtypes astype": [127, 127, 128, 255, 255],
}
print("onnx", onnx.__version__, "ml_dtypes", ml_dtypes.__version__)
print(f"{'bytes of':30}", *values)
for name, row in rows.items():
    print(f"{name:30}", *row)
assert {k: v.tolist() for k, v in rows.items()} == seen, "the behaviour has changed"
print("as recorded: byte 127 is 1.0, 128 is 2.0, 0 is 2^-127, 255 is NaN")
PY
