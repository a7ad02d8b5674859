#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch.onnx.export(dynamo=True) writes an LSTM with proj_size as an ONNX LSTM, which has no
# projection: the weight weight_hr_l0 is not in the file, and ONNX Runtime refuses the shapes of the
# initial states.  The export ends without an error; the exporter over TorchScript (dynamo=False)
# says that it does not support projections.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import onnx
import onnxruntime
import torch
from finding import export


class Projected(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 4, proj_size=size, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def runs(size):
    x = torch.randn(2, 5, 4)
    export(Projected(size), (x,), "lstm.onnx", input_names=["x"], optimize=False)
    names = [i.name for i in onnx.load("lstm.onnx").graph.initializer]
    try:
        onnxruntime.set_default_logger_severity(4)
        session = onnxruntime.InferenceSession("lstm.onnx")
        session.run(None, {"x": x.numpy()})
        ran = True
    except Exception:  # ONNX Runtime has an exception a status
        ran = False
    print(f"  proj_size={size}: the file has {len(names)} weights, runs: {ran}")
    return ran, any("weight_hr" in name for name in names)


assert runs(0) == (True, False)
assert runs(3) == (False, False), "the behaviour has changed"
PY
done
echo "as recorded"
