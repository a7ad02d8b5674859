#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scatter_reduce("amax", include_self=False) leaves the operand out of the maximum, and its
# gradient all the same counts the operand among the ties: where it happens to equal the maximum
# of the source, a part of the gradient goes to nobody. An operand filled with another number,
# which changes no result, changes the gradient of the source.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import finding  # prints the version
import torch


def gradient(operand, include_self):
    x = torch.tensor([operand], requires_grad=True)
    source = torch.tensor([1., 1.], requires_grad=True)
    y = x.scatter_reduce(0, torch.tensor([0, 0]), source, "amax", include_self=include_self)
    y.sum().backward()
    return [y.item()] + [[round(g, 4) for g in of.grad.tolist()] for of in (x, source)]


rows = [gradient(1., True), gradient(1., False), gradient(0., False)]
for words, (y, x, source) in zip(("operand 1, included", "operand 1, left out",
                                  "operand 0, left out"), rows):
    print(f"  {words}: maximum {y:g}, gradient of the operand {x}, of the source {source}")
assert rows == [[1, [0.3333], [0.3333] * 2], [1, [0], [0.3333] * 2], [1, [0], [0.5] * 2]], \
    "the behaviour has changed"
PY
done
echo "as recorded"
