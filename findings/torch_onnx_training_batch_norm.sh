#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch.onnx.export(dynamo=True) of a network in training mode writes BatchNorm as in evaluation:
# BatchNormalization without training_mode, which the optimiser then folds into the weights of the
# convolution before it. A reader that trains the file thus trains a network without BatchNorm.
# training=TrainingMode.TRAINING changes nothing; the documentation calls it deprecated and
# says to set the training mode of the model instead. A warning says that training mode "may lead
# to different behavior during inference", but the file does not depend on that mode.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import copy

import numpy
import onnx
import onnxruntime
import torch
from finding import export

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).train()
x = 3 * torch.randn(8, 3, 6, 6) + 1
with torch.no_grad():
    batch = copy.deepcopy(net)(x).numpy()
    running = copy.deepcopy(net).eval()(x).numpy()


def export_ops(words, **options):
    """Returns the ops of the file after a check that its output is that of evaluation."""
    export(net, (x,), "norm.onnx", **options)
    nodes = onnx.load("norm.onnx").graph.node
    assert not any(a.name == "training_mode" for n in nodes for a in n.attribute), \
        "the behaviour has changed"
    session = onnxruntime.InferenceSession("norm.onnx")
    y = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    far, near = (float(numpy.abs(y - z).max()) for z in (batch, running))
    ops = [n.op_type for n in nodes]
    print(f"  {words}: {ops}, furthest from training mode {far:.1e}, from evaluation {near:.1e}")
    assert far > 1 and near < 1e-4, "the behaviour has changed"
    return ops


training = torch.onnx.TrainingMode.TRAINING
assert export_ops("default") == ["Conv"], "the behaviour has changed"
assert export_ops("training=TRAINING", training=training) == ["Conv"], "the behaviour has changed"
assert export_ops("optimize=False", optimize=False) == ["Conv", "BatchNormalization"], \
    "the behaviour has changed"
PY
done
echo "as recorded"
