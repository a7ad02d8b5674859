#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch.onnx.export(dynamo=True) of PyTorch 2.11 and 2.15 writes logsigmoid and
# binary_cross_entropy_with_logits as the nodes Sigmoid and Log. Sigmoid of onnxruntime 1.32 in
# fp32 is a sum of 0.5 and an approximation, with steps of 2^-25 near zero and exact zeros from
# -18 down; the right value there is 1.5e-8. Softplus of onnxruntime is right. So the exported
# loss of a logit of -18 is infinite for PyTorch's 18, already at -17 it is 16.23 for 17, and
# graph optimisation does not join the two nodes.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import onnx
import onnxruntime
import torch
from finding import export
from onnx import TensorProto, helper


class LogSigmoid(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.logsigmoid(x)


class Loss(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.binary_cross_entropy_with_logits(
            x, torch.ones_like(x), reduction="none")


def run(file):
    return torch.from_numpy(
        onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(
            None, {"x": x.numpy()})[0])


def single(op):
    vector = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [len(x)]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", vector[:1], vector[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)],
                             ir_version=9).SerializeToString()


x = torch.tensor([-100.0, -30.0, -18.0, -17.0, -14.0, -10.0, -5.0, 5.0])
print("  x", x.tolist())
sigmoid, softplus = run(single("Sigmoid")), run(single("Softplus"))
print("  Sigmoid in ONNX Runtime", sigmoid.tolist())
print("  Sigmoid in PyTorch     ", torch.sigmoid(x).tolist())
assert (sigmoid[:3] == 0).all() and torch.sigmoid(x)[2] > 1e-8, "the behaviour has changed"
assert torch.allclose(softplus, torch.nn.functional.softplus(x), rtol=1e-6), \
    "the behaviour has changed"
for model in (LogSigmoid(), Loss()):
    export(model, (x,), "m.onnx", input_names=["x"])
    nodes = [n.op_type for n in onnx.load("m.onnx").graph.node]
    got, want = run("m.onnx"), model(x)
    print(f"  {type(model).__name__}: nodes {', '.join(nodes)}")
    print("    PyTorch", want.tolist())
    print("    ONNX Runtime", got.tolist())
    assert "Sigmoid" in nodes and "Log" in nodes, "the behaviour has changed"
    assert got[:3].isinf().all() and want.isfinite().all(), "the behaviour has changed"
    assert 0.7 < abs(got[3] - want[3]) < 0.9 and abs(got[6] - want[6]) < 1e-4, \
        "the behaviour has changed"
PY
done
echo "as recorded"
