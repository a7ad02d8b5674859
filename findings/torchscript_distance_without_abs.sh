#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The TorchScript exporter writes cdist() and pairwise_distance() as sum((a - b)^p)^(1/(p + eps)),
# without absolute values: for an odd p the file computes another function (NaN where the sum of
# signed powers is below 0), for p=inf the number 1. The
# export ends without a word.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import warnings

import finding  # prints the version
import onnxruntime
import torch

warnings.simplefilter("ignore")


class Distance(torch.nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, a, b):
        return torch.cdist(a, b, p=self.p)


def is_right(p):
    a, b = torch.tensor([[1., 2.]]), torch.tensor([[4., 6.]])
    torch.onnx.export(Distance(p), (a, b), "distance.onnx", dynamo=False, opset_version=17,
                      input_names=["a", "b"])
    session = onnxruntime.InferenceSession("distance.onnx")
    y = session.run(None, {"a": a.numpy(), "b": b.numpy()})[0].item()
    want = torch.cdist(a, b, p=p).item()
    print(f"  p={p:g}: {y:g} in ONNX Runtime, {want:g} in PyTorch")
    return abs(y - want) < 1e-3


seen = [is_right(p) for p in (1., 2., 3., 4., float("inf"))]
assert seen == [False, True, False, True, False], "the behaviour has changed"
PY
done
echo "as recorded"
