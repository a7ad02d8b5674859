#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# t.detach_() leaves nothing in the file of torch.onnx.export(dynamo=True, optimize=False): no node,
# and no record in the metadata of the node that reads t.  The same model with t.detach() has an
# Identity whose metadata name aten.detach.  The forward is equal, so a program that trains the file
# computes other gradients than PyTorch, and cannot know it.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import onnx
import torch
from finding import export


class Scaled(torch.nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.in_place = in_place

    def forward(self, x):
        h = torch.tanh(self.linear(x))
        t = h * 1.5
        return h * (t.detach_() if self.in_place else t.detach())


def records(in_place):
    """Lines of PyTorch's graph, in the file's metadata, that name detach."""
    export(Scaled(in_place), (torch.randn(3, 2),), "detach.onnx", optimize=False)
    nodes = onnx.load("detach.onnx").graph.node
    found = [p.value for n in nodes for p in n.metadata_props
             if p.key.endswith("fx_node") and "detach" in p.value]
    print(f"  detach{'_' * in_place}(): {len(nodes)} nodes, {len(found)} records name it")
    return len(found)


assert records(False) > 0
assert records(True) == 0, "the behaviour has changed"
PY
done
echo "as recorded"
