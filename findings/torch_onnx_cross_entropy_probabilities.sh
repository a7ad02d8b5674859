#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cross_entropy takes class numbers or, with a target of floats, class probabilities.
# torch.onnx.export(dynamo=True) writes both as SoftmaxCrossEntropyLoss, whose labels ONNX allows
# to be integers only: the export ends without an error and its file is no valid model.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import onnx
import torch
from finding import export


class Loss(torch.nn.Module):
    def forward(self, x, target):
        return torch.nn.functional.cross_entropy(x, target)


x = torch.arange(15.).reshape(3, 5)
verdicts = {}
for words, target in (("class numbers", torch.tensor([0, 4, 2])),
                      ("class probabilities", torch.full((3, 5), 0.2))):
    export(Loss(), (x, target), "loss.onnx")
    model = onnx.load("loss.onnx")
    ops = [node.op_type for node in model.graph.node]
    try:
        onnx.checker.check_model(model, full_check=True)
        verdicts[words] = "valid"
    except onnx.shape_inference.InferenceError as e:
        verdicts[words] = str(e).splitlines()[0]
    print(f"  {words}: {ops}: {verdicts[words]}")
assert verdicts["class numbers"] == "valid"
assert "unsupported type: tensor(float)" in verdicts["class probabilities"], \
    "the behaviour has changed"
PY
done
echo "as recorded"
