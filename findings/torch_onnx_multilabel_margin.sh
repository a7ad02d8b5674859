#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# F.multilabel_margin_loss reads the labels of a row up to the first -1.  Where a row has one, as
# every row with fewer labels than classes, the file that torch.onnx.export(dynamo=True) of PyTorch
# 2.11 writes is another loss (1.7125 for 0.775 below), without an error or a warning.  In 2.15 it
# is right.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import onnxruntime
import torch
from finding import export


class Loss(torch.nn.Module):
    def forward(self, x, t):
        return torch.nn.functional.multilabel_margin_loss(x, t)


x = torch.tensor([[0.1, 0.2, 0.4, 0.8], [0.5, -0.3, 0.25, 1.0]])
labels = {"as many labels as classes": torch.tensor([[0, 2, 1, 3], [3, 0, 1, 2]]),
          "two labels, then -1": torch.tensor([[0, 2, -1, -1], [3, 0, -1, -1]]),
          "a label behind -1": torch.tensor([[0, 2, -1, 1], [3, 0, -1, 2]])}
export(Loss(), (x, labels["a label behind -1"]), "loss.onnx", input_names=["x", "t"])
file = onnxruntime.InferenceSession("loss.onnx")
for name, t in labels.items():
    want = Loss()(x, t).item()
    got = float(file.run(None, {"x": x.numpy(), "t": t.numpy()})[0])
    print(f"  {name}: PyTorch {want:.6g}, the file in ONNX Runtime {got:.6g}")
    wrong = torch.__version__.startswith("2.11") and -1 in t
    assert (abs(got - want) > 1e-4) == wrong, "the behaviour has changed"
PY
done
echo "as recorded"
