#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The optimiser of torch.onnx.export(dynamo=True) takes a number of at most 1e-8 for 0 and drops
# its addition: log(x + 1e-8), x / (s + 1e-8) and sqrt(x + 1e-12) become log(x), x / s and sqrt(x),
# so that the file gives -inf or NaN at 0, and its gradient is infinite. 1e-7 stays, and
# optimize=False keeps all. The consumer's metadata still name the sum.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import numpy
import onnx
import onnxruntime
import torch
from finding import export


class Log(torch.nn.Module):
    def __init__(self, epsilon):
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x):
        return torch.log(x + self.epsilon)


def at_0(epsilon, optimize):
    export(Log(epsilon), (torch.zeros(1),), "log.onnx", optimize=optimize)
    ops = [n.op_type for n in onnx.load("log.onnx").graph.node]
    session = onnxruntime.InferenceSession("log.onnx")
    y = session.run(None, {"x": numpy.zeros(1, numpy.float32)})[0][0]
    print(f"  log(0 + {epsilon:g}), optimize={optimize}: {y:g}  {ops}")
    return bool(numpy.isfinite(y))


seen = [at_0(epsilon, optimize) for epsilon in (1e-7, 1e-8, 1e-12) for optimize in (True, False)]
assert seen == [True, True, False, True, False, True], "the behaviour has changed"
PY
done
echo "as recorded"
