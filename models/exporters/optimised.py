#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that ONNX Runtime's optimisers wrote again: a transformer's block of PyTorch
by both exporters, fused by onnxruntime.transformers (python) or by the runtime itself
(extended); 5 steps beside PyTorch, the forward beside ONNX Runtime (maintainers; needs
torch 2.11, onnx, onnxscript, onnxruntime 1.32.0).

usage: optimised.py FOLDER AMPC

Writes FOLDER/onnxruntime-EXPORTER-LEVEL.onnx and .txt in the form of exporters.py."""
import contextlib
import io
import sys
import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn as nn
from onnxruntime.transformers.optimizer import optimize_model
from exporters import beside, put
from case import RATE, STEPS, Case

WIDTH, WIDER, BATCH, LENGTH = 8, 12, 2, 3
LEVELS = {"python": {"opt_level": 0}, "extended": {"opt_level": 2, "only_onnxruntime": True}}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2, self.fc3 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDER), nn.Linear(WIDER, WIDTH)
        self.norm1, self.norm2, self.plain = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4, bias=False)
        for p in self.parameters():
            if p.dim() == 1: nn.init.normal_(p, p.mean().item(), 0.1)

    def forward(self, x):
        h = self.norm1(self.fc1(x) + x)
        return self.plain(self.norm2(self.fc3(nn.functional.gelu(self.fc2(h))) + h))


def export(model, x, path, exporter, level):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if exporter == "script":
            torch.onnx.export(model, (x,), path, dynamo=False, input_names=["x"], output_names=["y"], opset_version=17)
        else:
            torch.onnx.export(model, (x,), path, dynamo=True, input_names=["x"], output_names=["y"], external_data=False)
        optimize_model(path, model_type="bert", **LEVELS[level]).save_model_to_file(path)


def name_in(file, parameter):
    """The tensor of the file with these elements, perhaps transposed."""
    for t in file.graph.initializer:
        a = onnx.numpy_helper.to_array(t)
        for v in (a, a.T):
            if v.shape == tuple(parameter.shape) and np.array_equal(v, parameter.detach().numpy()):
                return t.name, v is not a
    raise KeyError(parameter.shape)


def main():
    folder, binary = sys.argv[1:3]
    x = torch.tensor(np.random.RandomState(1).randn(BATCH, LENGTH, WIDTH), dtype=torch.float32)
    target = torch.tensor(np.random.RandomState(2).randn(BATCH, LENGTH, 4), dtype=torch.float32)
    for exporter in ("default", "script"):
        for level in LEVELS:
            name, model = f"onnxruntime-{exporter}-{level}", Block()
            path = f"{folder}/{name}.onnx"
            export(model, x, path, exporter, level)
            theirs = onnxruntime.InferenceSession(path).run(["y"], {"x": x.numpy()})[0]
            file, losses = onnx.load(path), []
            signed = any("graph_signature" in p.key for p in file.graph.metadata_props)  # ampc has PyTorch's names
            held = {k: (k, False) if signed else name_in(file, p) for k, p in model.named_parameters()}
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            for _ in range(STEPS):
                loss = (model(x) - target).square().mean()
                optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.item())
            params = {held[k][0]: (p.t() if held[k][1] else p).detach().numpy() for k, p in model.named_parameters()}
            case = Case(name, path, ["--loss", "mse"], {"x": x.numpy(), "target": target.numpy()}, losses, params, {}, [],
                        outputs={"y": theirs})
            bad, _, refused, out = beside(case, binary)
            print(f"{name}: {sorted({n.op_type for n in file.graph.node})}: {refused or bad or 'right'}")
            if bad or refused: print(out)
            else: put(case, refused)


if __name__ == "__main__":
    main()
