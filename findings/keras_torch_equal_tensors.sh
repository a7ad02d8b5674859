#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Keras on PyTorch: model.export(format="onnx") numbers the kernels and biases (onnx::MatMul_23)
# and stores equal ones once.  Biases begin as zeros, so two layers of one width have one bias in
# the file of a new model, and separate ones in that of a trained model.  A layer that is used
# twice looks the same: a second name, an Identity of the first.  Only the kernels beside them
# tell whether a bias is shared; who trains by the initializers trains one bias for two layers.
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
keras.utils.set_random_seed(1)


def tensors(name, model):
    """The initializers of the model's file, and what its Identity nodes copy."""
    model.export(name, format="onnx", verbose=False)
    graph = onnx.load(name).graph
    stored = {i.name: tuple(i.dims) for i in graph.initializer}
    copies = {n.output[0]: n.input[0] for n in graph.node
              if n.op_type == "Identity" and n.input[0] in stored}
    print(f"{name}: {len(model.trainable_variables)} variables, stored {stored}, copies {copies}")
    return stored, copies


x = np.random.default_rng(1).normal(size=(8, 4)).astype("float32")
two = keras.Sequential([layers.Input((4,)), layers.Dense(4, "tanh"), layers.Dense(4)])
two(x)
stored, copies = tensors("two_new.onnx", two)
assert len(two.trainable_variables) == 4 and len(stored) == 3, "the behaviour has changed"
assert len(copies) == 1 and all(n.startswith("onnx::") for n in stored), "the behaviour has changed"

two.compile(keras.optimizers.SGD(0.1), "mse")
two.train_on_batch(x, x + 1)
stored, copies = tensors("two_trained.onnx", two)
assert len(stored) == 4 and not copies, "the behaviour has changed"

i = keras.Input((4,))
layer = layers.Dense(4, "tanh")
twice = keras.Model(i, layer(layer(i)))
twice(x)
stored, copies = tensors("twice.onnx", twice)
assert len(twice.trainable_variables) == 2 and len(stored) == 2, "the behaviour has changed"
assert len(copies) == 2, "the behaviour has changed"
PY
