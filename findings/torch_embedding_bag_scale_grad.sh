#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# EmbeddingBag(scale_grad_by_freq=True) divides a row's gradient by how often the indices have
# that row. On a CPU PyTorch 2.11 divides by how often they have another one: of indices with
# three 1s and a single 3, the gradient of row 1 is divided by 2 and that of row 3 by 3.
# Embedding, and both in PyTorch 2.15, are right.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import torch

print("torch", torch.__version__)
F = torch.nn.functional
i = torch.tensor([0, 1, 1, 3, 1, 0])
weight = torch.zeros(5, 1, requires_grad=True)


def gradient(y):
    return torch.autograd.grad(y.sum(), weight)[0].flatten().tolist()


bags = {"offsets": (i, torch.tensor([0, 2, 2, 5])), "a table": (i.reshape(2, 3), None)}
plain = gradient(F.embedding(i, weight, scale_grad_by_freq=True))
print("  Embedding:", plain)
assert plain == [1, 1, 0, 1, 0], "the behaviour has changed"
for name, (indices, offsets) in bags.items():
    whole, divided = (gradient(F.embedding_bag(indices, weight, offsets, mode="sum",
                                               scale_grad_by_freq=scale))
                      for scale in (False, True))
    print(f"  EmbeddingBag of {name}: {whole}, divided {divided}")
    assert whole == [2, 3, 0, 1, 0], "the behaviour has changed"
    by = [2, 2, 1, 3, 1] if torch.__version__.startswith("2.11") else [2, 3, 1, 1, 1]
    assert max(abs(d * n - w) for d, n, w in zip(divided, by, whole)) < 1e-6, \
        "the behaviour has changed"
PY
done
echo "as recorded"
