#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# onnxruntime 1.32.0: MaxUnpool with output_shape counts the indices in a tensor of that shape.
# ONNX's reference and its own test (maxunpool_export_with_output_shape) count them in the
# smaller tensor that kernel and strides give, and pad that: onnxruntime fails the test, and the
# reference ends with an IndexError for the indices of a MaxPool over five by five numbers,
# whose maxima onnxruntime puts back in place.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export PIP_ROOT_USER_ACTION=ignore
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cat >"$dir/run.py" <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

SHAPE = [1, 1, 5, 5]
window = {"kernel_shape": [2, 2], "strides": [2, 2]}
unpool = helper.make_node("MaxUnpool", ["most", "at", "shape"], ["y"], **window)
pool = helper.make_node("MaxPool", ["x"], ["most", "at"], **window)


def file(nodes, inputs, outputs):
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*v, None) for v in inputs],
        [helper.make_tensor_value_info(*v, None) for v in outputs],
        [numpy_helper.from_array(np.array(SHAPE), "shape")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def runtime(model, inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
F, I = TensorProto.FLOAT, TensorProto.INT64
alone = file([unpool], [("most", F), ("at", I)], [("y", F)])
test = {"most": np.array([[[[1, 2], [3, 4]]]], "f4"), "at": np.array([[[[5, 7], [13, 15]]]])}
wanted, = ReferenceEvaluator(alone).run(None, test)
given, = runtime(alone, test)
print("onnx's test: 1 is at", np.argwhere(wanted == 1)[0, 2:].tolist(), "and in onnxruntime at",
      np.argwhere(given == 1)[0, 2:].tolist())
both = file([pool, unpool], [("x", F)], [("y", F), ("at", I)])
x = np.arange(25, dtype="f4").reshape(SHAPE)
y, at = runtime(both, {"x": x})
print("indices of MaxPool", at.ravel().tolist(), "onnxruntime has", y[y > 0].tolist())
failed = ""
try:
    ReferenceEvaluator(both).run(None, {"x": x})
except IndexError as e:
    failed = str(e)
print("the reference:", failed)
in_place = np.where(np.isin(np.arange(25), at), x.ravel(), 0).reshape(SHAPE)
assert (y == in_place).all() and failed and (wanted != given).any(), "the behaviour has changed"
PY
"$dir/venv/bin/python" "$dir/run.py"
echo "as recorded"
