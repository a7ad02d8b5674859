#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# onnxruntime 1.32.0: Resize with tf_crop_and_resize does not crop an axis whose size stays.
# ONNX takes the region from roi whatever the sizes are: half of an axis of 3, in 3 numbers, is
# enlarged by two. onnxruntime returns all of the axis, for one axis of several, too; from 4
# numbers to 3 it crops. ONNX's reference crops in each case.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export PIP_ROOT_USER_ACTION=ignore
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cat >"$dir/run.py" <<'PY'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

FIRST, LAST = 0.25, 0.75


def resized(shape, sizes):
    """Results of the reference and of onnxruntime, the middle half of each axis after the second."""
    plain = len(shape) - 2
    roi = np.array([0, 0] + plain * [FIRST] + [1, 1] + plain * [LAST], "f4")
    node = helper.make_node("Resize", ["x", "roi", "", "sizes"], ["y"], mode="linear",
                            coordinate_transformation_mode="tf_crop_and_resize")
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(roi, "roi"), numpy_helper.from_array(np.array(sizes), "sizes")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=["CPUExecutionProvider"])
    return x, ReferenceEvaluator(model).run(None, {"x": x})[0], session.run(None, {"x": x})[0]


print("onnxruntime", onnxruntime.__version__)
x, wanted, given = resized([1, 1, 3], [1, 1, 3])
print("3 to 3:", wanted.ravel().tolist(), "onnxruntime", given.ravel().tolist())
assert (given == x).all() and np.allclose(wanted, [0.5, 1, 1.5]), "the behaviour has changed"
x, wanted, given = resized([1, 1, 4], [1, 1, 3])
print("4 to 3:", wanted.ravel().tolist(), "onnxruntime", given.ravel().tolist())
assert np.allclose(given, wanted), "the behaviour has changed"
x, wanted, given = resized([1, 1, 3, 4], [1, 1, 3, 3])
print("3 x 4 to 3 x 3:", wanted.ravel().tolist(), "onnxruntime", given.ravel().tolist())
rows = [x[0, 0, i, :] for i in range(3)]
across = [np.interp([0.75, 1.5, 2.25], range(4), row) for row in rows]
assert np.allclose(given[0, 0], across), "the behaviour has changed"
assert not np.allclose(wanted, given), "the behaviour has changed"
PY
"$dir/venv/bin/python" "$dir/run.py"
