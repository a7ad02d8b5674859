#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The gradient of torch.linalg.det at a singular matrix depends on create_graph: with False (what
# backward() uses) it is 0, with True it is the matrix of cofactors, which is right: of a d - b c
# at [[1, 1], [1, 1]] it is [[1, -1], [-1, 1]]. A loss that holds a determinant away from 0 thus
# has no gradient at 0 in a plain training step, and one under a gradient penalty.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import finding  # prints the version
import torch


def gradient(rows, create_graph):
    a = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    d, = torch.autograd.grad(torch.linalg.det(a), a, create_graph=create_graph)
    return (d.detach().round(decimals=6) + 0.0).tolist()


matrices = {
    ((1., 1.), (1., 1.)): [[1, -1], [-1, 1]],
    ((1., 2.), (2., 4.)): [[4, -2], [-2, 1]],
    ((1., 0., 0.), (0., 2., 0.), (0., 0., 0.)): [[0, 0, 0], [0, 0, 0], [0, 0, 2]],
}
for rows, cofactors in matrices.items():
    plain, twice = gradient(rows, False), gradient(rows, True)
    print(f"  {rows}: {plain}, with create_graph=True {twice}")
    assert twice == cofactors, "the behaviour has changed"
    assert plain == [[0] * len(rows)] * len(rows), "the behaviour has changed"
PY
done
echo "as recorded"
