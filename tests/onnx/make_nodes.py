#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the node tests that the onnx package can generate: make_nodes.py DIR.

A folder per test, as the package's own older releases shipped them:
DIR/node/NAME/model.onnx and test_data_set_0/{input,output}_I.pb.  Values that
are no tensors (sequences, optionals) leave their test without data files, which
its reader reports.
"""
import os
import sys
import warnings

import numpy
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases


def write(path, message):
    with open(path, "wb") as f:
        f.write(message.SerializeToString())


def write_values(folder, kind, infos, values):
    for i, (info, value) in enumerate(zip(infos, values)):
        if info.type.WhichOneof("value") != "tensor_type":
            return
        if not isinstance(value, onnx.TensorProto):
            value = numpy_helper.from_array(numpy.asarray(value), info.name)
        write(os.path.join(folder, f"{kind}_{i}.pb"), value)


def main(root):
    warnings.simplefilter("ignore")
    cases = collect_testcases()
    for case in cases:
        folder = os.path.join(root, "node", case.name)
        data = os.path.join(folder, "test_data_set_0")
        os.makedirs(data)
        write(os.path.join(folder, "model.onnx"), case.model)
        inputs, outputs = case.data_sets[0]
        write_values(data, "input", case.model.graph.input, inputs)
        write_values(data, "output", case.model.graph.output, outputs)
    print(f"{len(cases)} node tests of onnx {onnx.__version__}")


main(sys.argv[1])
