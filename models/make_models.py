#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the models of this folder; for maintainers (needs the PyPI packages
onnx and numpy).  Same bytes every time.

  models/make_models.py        mnist_cnn.onnx and mlp.onnx here

They look like what PyTorch's TorchScript exporter writes for a module in
training mode: module-path names, BatchNormalization with training_mode=1 and
three outputs, Dropout with three inputs.  Initial weights are Kaiming-uniform
(a = sqrt(5), as torch.nn does), that is U(-1/sqrt(fan_in), 1/sqrt(fan_in)).
"""

import math
import os
import random
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    def __init__(self, name, seed):
        self.name = name
        self.rng = random.Random(seed)
        self.nodes = []
        self.inits = []
        self.last = "input"

    def param(self, name, array):
        self.inits.append(
            numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def uniform(self, name, shape, fan_in):
        bound = 1 / math.sqrt(fan_in)
        flat = [self.rng.uniform(-bound, bound) for _ in range(math.prod(shape))]
        return self.param(name, np.array(flat, np.float32).reshape(shape))

    def node(self, op, inputs=(), outputs=1, out=None, **attrs):
        """Appends a node that reads the last value; its result is the next."""
        path = "/%s_%d" % (op, len(self.nodes))
        outs = [out or path + "_output_0"]
        outs += ["%s_output_%d" % (path, i) for i in range(1, outputs)]
        self.nodes.append(helper.make_node(
            op, [self.last, *inputs], outs, name=path, **attrs))
        self.last = outs[0]

    def conv(self, name, cin, cout):
        self.node("Conv",
                  [self.uniform(name + ".weight", (cout, cin, 3, 3), cin * 9),
                   self.uniform(name + ".bias", (cout,), cin * 9)],
                  dilations=[1, 1], group=1, kernel_shape=[3, 3],
                  pads=[1, 1, 1, 1], strides=[1, 1])

    def batchnorm(self, name, n):
        ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
        self.node("BatchNormalization",
                  [self.param(name + ".weight", ones),
                   self.param(name + ".bias", zeros),
                   self.param(name + ".running_mean", zeros),
                   self.param(name + ".running_var", ones)],
                  outputs=3, epsilon=1e-5, momentum=0.9, training_mode=1)

    def maxpool(self):
        self.node("MaxPool", kernel_shape=[2, 2], strides=[2, 2],
                  pads=[0, 0, 0, 0], dilations=[1, 1], ceil_mode=0)

    def linear(self, name, nin, nout, out=None):
        self.node("Gemm",
                  [self.uniform(name + ".weight", (nout, nin), nin),
                   self.uniform(name + ".bias", (nout,), nin)],
                  out=out, alpha=1.0, beta=1.0, transB=1)

    def dropout(self, ratio):
        name = "/Dropout_%d" % len(self.nodes)
        consts = [("_ratio", np.array(ratio, np.float32)),
                  ("_training_mode", np.array(True))]
        for suffix, value in consts:
            self.nodes.append(helper.make_node(
                "Constant", [], [name + suffix],
                value=numpy_helper.from_array(value)))
        self.node("Dropout", [name + s for s, _ in consts])

    def save(self, path, input_shape, classes):
        graph = helper.make_graph(
            self.nodes, self.name,
            [helper.make_tensor_value_info(
                "input", TensorProto.FLOAT, ["batch", *input_shape])],
            [helper.make_tensor_value_info(
                "logits", TensorProto.FLOAT, ["batch", classes])],
            self.inits)
        model = helper.make_model(
            graph, producer_name="ampc-models", ir_version=8,
            opset_imports=[helper.make_opsetid("", 17)])
        onnx.checker.check_model(model, full_check=True)
        with open(path, "wb") as f:
            f.write(model.SerializeToString(deterministic=True))


def make_cnn(path):
    net = Net("mnist_cnn", seed=1)
    net.conv("conv1", 1, 16)
    net.batchnorm("bn1", 16)
    net.node("Relu")
    net.maxpool()
    net.conv("conv2", 16, 32)
    net.batchnorm("bn2", 32)
    net.node("Relu")
    net.maxpool()
    net.node("Flatten", axis=1)
    net.linear("fc1", 32 * 7 * 7, 64)
    net.node("Relu")
    net.dropout(0.25)
    net.linear("fc2", 64, 10, out="logits")
    net.save(path, [1, 28, 28], 10)


def make_mlp(path, widths):
    net = Net("mlp", seed=2)
    for i, (nin, nout) in enumerate(zip(widths, widths[1:]), 1):
        last = i == len(widths) - 1
        net.linear("fc%d" % i, nin, nout, out="logits" if last else None)
        if not last:
            net.node("Relu")
    net.save(path, widths[:1], widths[-1])


def main(args):
    here = os.path.dirname(os.path.abspath(__file__))
    if args:
        sys.exit(__doc__)
    make_cnn(os.path.join(here, "mnist_cnn.onnx"))
    make_mlp(os.path.join(here, "mlp.onnx"), [784, 64, 32, 10])


main(sys.argv[1:])
