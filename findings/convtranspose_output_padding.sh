#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ConvTranspose with output_padding as large as the stride: ONNX allows it where the dilation is
# larger ("must be less than the corresponding stride/dilation dimension"), PyTorch exports it
# (output_padding 1, stride 1, dilation 2), and the checker with shape inference accepts it.
# Neither ONNX Runtime nor ONNX's own reference evaluator runs the node.
# A model that trains in PyTorch and passes the ONNX checker therefore has no inference there.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import onnx
import onnx.reference
import onnxruntime
from onnx import TensorProto, helper

onnxruntime.set_default_logger_severity(4)
x = np.random.default_rng(0).standard_normal((1, 2, 7, 6), np.float32)
w = np.ones((2, 3, 2, 2), np.float32)
node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[1, 1], pads=[3, 3, 3, 3],
                        output_padding=[1, 1], dilations=[2, 2])
graph = helper.make_graph(
    [node], "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
     helper.make_tensor_value_info("w", TensorProto.FLOAT, w.shape)],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 4, 3])])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
onnx.checker.check_model(model, full_check=True)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def refusal(run):
    try:
        run(None, {"x": x, "w": w})
        return ""
    except Exception as error:
        return str(error)


runtime = refusal(session.run)
reference = refusal(onnx.reference.ReferenceEvaluator(model).run)
print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
print("onnx checker with shape inference: accepts an output of shape (1, 3, 4, 3)")
print("onnxruntime:", runtime[-140:] or "runs")
print("onnx reference evaluator:", reference[:140] or "runs")
assert "output_padding" in runtime and "sliding blocks" in reference, "the behaviour has changed"
PY
