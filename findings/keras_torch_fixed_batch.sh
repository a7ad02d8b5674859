#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Keras on PyTorch: model.export(format="onnx") has two exporters and does not say which it used.
# A batch of any size goes through TorchScript, an input_signature with a fixed batch through
# dynamo.  Where the model multiplies by a Python integer (x * 2), dynamo's file multiplies a
# float tensor by an int32 one: Keras reports no error, ONNX's checker refuses the file.  The same
# model with a batch of any size gives a valid file.  In the file of the fixed batch no
# initializer has the name of a variable.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
with_torch 2.11.0 keras==3.15.1 <<'PY'
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import onnx
from keras import layers
import finding

print("keras", keras.__version__, "onnx", onnx.__version__)


def exported(batch):
    """Nodes, names and the checker's complaint of the file for a batch; None: any size."""
    i = keras.Input((4,))
    model = keras.Model(i, layers.Dense(3)(layers.Dense(4)(i) * 2))
    model(np.zeros((8, 4), "float32"))
    name = f"batch_{batch}.onnx"
    model.export(name, format="onnx", verbose=False, input_signature=[
        keras.InputSpec(shape=(batch, 4), dtype="float32", name="x")])
    file = onnx.load(name)
    try:
        onnx.checker.check_model(file, full_check=True)
        complaint = None
    except onnx.shape_inference.InferenceError as e:
        complaint = str(e).strip()
    names = [i.name for i in file.graph.initializer]
    print(f"batch {batch}: stored {names}, checker: {complaint}")
    return names, complaint


names, complaint = exported(None)
assert complaint is None and any(n.startswith("onnx::") for n in names), "the behaviour has changed"
names, complaint = exported(8)
assert complaint and "int32" in complaint and "Mul" in complaint, "the behaviour has changed"
assert any(n.startswith("lifted_tensor_") for n in names), "the behaviour has changed"
PY
