#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The gradient that torch.as_strided_scatter gives its operand is turned around: it arrives at
# the elements that the source overwrites, and is zero at those that are kept. slice_scatter,
# which writes the same elements, has the right one; the values of both are equal.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import finding  # prints the version
import torch


def gradient(write):
    x = torch.tensor([1., 2., 3., 4.], requires_grad=True)
    y = write(x, torch.tensor([10., 20.]))
    (y * torch.tensor([5., 6., 7., 8.])).sum().backward()
    return y.tolist(), x.grad.tolist()


values, strided = gradient(lambda x, s: torch.as_strided_scatter(x, s, (2,), (2,)))
same, sliced = gradient(lambda x, s: torch.slice_scatter(x, s, 0, 0, 4, 2))
print(f"  values {values}; gradients times 5, 6, 7, 8: as_strided_scatter {strided}, "
      f"slice_scatter {sliced}")
assert values == same == [10, 2, 20, 4]
assert strided == [5, 0, 7, 0] and sliced == [0, 6, 0, 8], "the behaviour has changed"
PY
done
echo "as recorded"
