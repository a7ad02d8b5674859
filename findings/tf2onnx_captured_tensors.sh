#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tf2onnx.convert.from_function makes each eager tensor that the function captures an input of the
# file, without a value, so that the file cannot run as the function does.  TensorFlow's own
# signature of the function has one input.  A captured Variable, a NumPy array and a tensor that the
# function makes itself are initializers, as expected.  Nothing is said.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv "$dir/env"
"$dir/env/bin/pip" -q --disable-pip-version-check install tf2onnx==1.17.0 tensorflow-cpu==2.21.0 onnx==1.23.2 numpy==2.4.6
"$dir/env/bin/python" - <<'PY'
import logging
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy as np
import tensorflow as tf
import tf2onnx

print("tf2onnx", tf2onnx.__version__, "tensorflow", tf.__version__)
said = []
logging.getLogger("tf2onnx").addHandler(type("H", (logging.Handler,), {"emit": lambda s, r: said.append(r)})())
table = np.random.RandomState(0).randn(4, 3).astype("f")
eager, variable = tf.constant(table), tf.Variable(table)
functions = {
    "eager tensor": lambda x: tf.tanh(x @ eager),
    "Variable": lambda x: tf.tanh(x @ variable),
    "NumPy array": lambda x: tf.tanh(x @ table),
    "made inside": lambda x: tf.tanh(x @ tf.constant(table)),
}
seen = {}
for name, f in functions.items():
    f = tf.function(f, input_signature=[tf.TensorSpec((2, 4), tf.float32, name="x")], autograph=False)
    model, _ = tf2onnx.convert.from_function(f, f.input_signature, opset=18)
    signature = f.get_concrete_function().structured_input_signature
    assert len(signature[0]) == 1 and not signature[1]
    seen[name] = len(model.graph.input)
    print(" ", name + ":", [i.name for i in model.graph.input], "initializers:", len(model.graph.initializer))
warnings = [r.getMessage() for r in said if r.levelno >= logging.WARNING and "input" in r.getMessage()]
assert seen == {"eager tensor": 2, "Variable": 1, "NumPy array": 1, "made inside": 1}, "the behaviour has changed"
assert not warnings, warnings
PY
echo "as recorded"
