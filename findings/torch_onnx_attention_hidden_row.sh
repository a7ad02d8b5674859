#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A query that no key is visible to: PyTorch's scaled_dot_product_attention gives zeros.  Its
# export to opset 20 gives the mean of all values where the mask is boolean (hidden keys get the
# least float, not -inf) and NaN where the mask is added; the export to opset 23 is right.
# Padded batches have such rows, and a loss over them trains on other numbers, or is NaN.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
with_torch 2.11.0 <<'PY'
import onnx
import onnx.reference
import torch
import torch.nn.functional as F
from finding import export


class Attend(torch.nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


torch.manual_seed(0)
q, k, v = (torch.randn(1, 1, 3, 4) for _ in range(3))
seen = torch.tensor([[False, False, False], [True, True, False], [True, True, True]])
added = torch.zeros(3, 3).masked_fill(~seen, -torch.inf)
print("onnx", onnx.__version__)
rows = {}
for name, mask in (("boolean", seen), ("added", added)):
    model = Attend(mask)
    print(f"{name} mask: PyTorch's row of the hidden query:", model(q, k, v)[0, 0, 0].tolist())
    for opset in (20, 23):
        export(model, (q, k, v), "m.onnx", opset_version=opset)
        names = [i.name for i in onnx.load("m.onnx").graph.input]
        y = onnx.reference.ReferenceEvaluator("m.onnx").run(None, dict(zip(names, (q.numpy(), k.numpy(), v.numpy()))))[0]
        rows[name, opset] = torch.tensor(y)[0, 0, 0]
        print(f"    the file of opset {opset}:", rows[name, opset].tolist())
mean = v.mean(2)[0, 0]
assert torch.allclose(rows["boolean", 20], mean, atol=1e-5), "the behaviour has changed"
assert rows["added", 20].isnan().all(), "the behaviour has changed"
assert not any(rows[n, 23].any() for n in ("boolean", "added")), "the behaviour has changed"
PY
