# SPDX-License-Identifier: Apache-2.0
"""What exporters.py compares: a file beside what a framework made of its model."""
import re
import numpy as np
import onnx
STEPS, RATE = 5, 0.1


class Case:
    """One file, and what the framework's training made of its model; first_step has parameters after
    one step, where the framework's trial records them; outputs are the untrained model's."""
    def __init__(self, name, path, options, inputs, losses, params, buffers, still, first_step={}, outputs={}):
        self.name, self.path, self.options, self.inputs = name, path, options, inputs
        self.losses, self.params, self.buffers, self.still = losses, params, buffers, still
        self.first_step, self.outputs = first_step, outputs


def neutral_paths(path):
    """No folders of this machine stay in stack traces."""
    m = onnx.load(path)
    strip = lambda s: re.sub(r'File "[^"<]*/([^"/]+)"', r'File "\1"', s)
    nodes = list(m.graph.node) + [n for f in m.functions for n in f.node]
    for n in nodes:
        n.doc_string = ""
        for p in n.metadata_props: p.value = strip(p.value)
    onnx.save(m, path)


def held(path):
    """The file's initializers."""
    from onnx import numpy_helper
    return {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}
