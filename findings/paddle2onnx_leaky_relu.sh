#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# paddle.onnx.export writes LeakyRelu with an alpha that is not the slope of paddle's leaky_relu:
# other numbers from file to file, of any size.  elu and the model's parameters are right.  Nothing
# is said, and ONNX Runtime's results differ from Paddle's.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv "$dir/env"
"$dir/env/bin/pip" -q --disable-pip-version-check install paddlepaddle==3.3.1 paddle2onnx==2.1.0 onnx==1.17.0 packaging setuptools
cat >net.py <<'PY'
import contextlib
import io

import onnx
import paddle
import paddle.nn.functional as F


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.layer = paddle.nn.Linear(3, 3)


class Slope(Net):
    def forward(self, x):
        return F.leaky_relu(self.layer(x), 0.25)


class Elu(Net):
    def forward(self, x):
        return F.elu(self.layer(x), 0.25)


def alpha(layer):
    with contextlib.redirect_stdout(io.StringIO()):
        paddle.onnx.export(layer, "file", [paddle.static.InputSpec([2, 3], "float32", "x")], opset_version=17)
    return [a.f for n in onnx.load("file.onnx").graph.node for a in n.attribute if a.name == "alpha"]


print("paddlepaddle", paddle.__version__)
slopes = [alpha(Slope()) for _ in range(3)]
elu = alpha(Elu())
print("  leaky_relu of slope 0.25, alpha in three files:", slopes)
print("  elu of alpha 0.25, alpha in the file:          ", elu)
assert elu == [0.25]
assert all(len(a) == 1 and a[0] != 0.25 for a in slopes), "the behaviour has changed"
PY
"$dir/env/bin/python" net.py 2>/dev/null | grep -v "^\[Paddle2ONNX\]" # nor a warning about ccache
echo "as recorded"
