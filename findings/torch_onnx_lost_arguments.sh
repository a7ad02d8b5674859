#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch.onnx.export(dynamo=True) drops label_smoothing of F.cross_entropy and divisor_override of
# F.avg_pool2d without an error or a warning: the file computes another loss.  The same file's
# default (optimised) form has Python's numbers as initializers beside the weights: a reader that
# trains every floating-point initializer trains the 2 and the 0.5 of `tanh(x) * 2 + 0.5`.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
with_torch 2.11.0 <<'PY'
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from finding import export


class Smoothed(torch.nn.Module):
    def forward(self, x, t):
        return F.cross_entropy(x, t, label_smoothing=0.3)


class Divided(torch.nn.Module):
    def forward(self, x):
        return F.avg_pool2d(x, 2, divisor_override=3)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)

    def forward(self, x):
        return torch.tanh(self.fc(x)) * 2 + 0.5


def run(model, inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return torch.tensor(session.run(None, {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs)})[0])


torch.manual_seed(0)
x, t, image = torch.randn(4, 5), torch.tensor([0, 1, 2, 3]), torch.randn(1, 1, 4, 4)
print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
changed = []
for model, inputs, word in ((Smoothed(), (x, t), "smoothing"), (Divided(), (image,), "divisor")):
    said = export(model, inputs, "m.onnx", optimize=False)
    file = onnx.load("m.onnx")
    ours, theirs = model(*inputs).flatten()[0].item(), run(file, inputs).flatten()[0].item()
    print(f"{type(model).__name__}: PyTorch {ours:.6f}, the exported file {theirs:.6f}; the exporter said of it: {word in said}")
    changed.append(abs(ours - theirs) < 1e-4 or word in said)
export(Scaled(), (torch.randn(2, 3),), "m.onnx", optimize=True)
file = onnx.load("m.onnx")
numbers = [i.name for i in file.graph.initializer if not i.dims and i.data_type == onnx.TensorProto.FLOAT]
print("Scaled: initializers of one number:", numbers)
changed.append(len(numbers) != 2)
assert not any(changed), "the behaviour has changed"
PY
