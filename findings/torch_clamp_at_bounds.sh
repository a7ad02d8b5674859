#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The gradient of torch.clamp where x equals a bound was 1 up to PyTorch 2.11.  In 2.15 it is 0
# with numbers as bounds and 0.5 with tensors as bounds, so that writing the same bound in two
# ways gives two gradients.  A model whose values lie on a bound (pixels, ratios of a clipped
# policy, a sum clamped at 0) trains to other weights after an upgrade.
# Installs PyTorch twice with its CUDA libraries (some GB); a GPU is not needed.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for version in 2.11.0 2.15.0; do
    python3 -m venv "$dir/$version"
    "$dir/$version/bin/pip" -q --disable-pip-version-check install "torch==$version" numpy==2.4.6
    "$dir/$version/bin/python" - <<'PY'
import torch

x = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
low, high = torch.tensor(-1.0), torch.tensor(1.0)


def gradient(f):
    return torch.autograd.grad(f(x).sum(), x)[0].tolist()


rows = {
    "x.clamp(-1, 1)": gradient(lambda x: x.clamp(-1, 1)),
    "x.clamp(max=1)": gradient(lambda x: x.clamp(max=1)),
    "x.clamp(tensor(-1.), tensor(1.))": gradient(lambda x: x.clamp(low, high)),
}
print("torch", torch.__version__, "gradient at -1, 0, 1:")
for name, row in rows.items():
    print(f"  {name:34}", row)
if torch.__version__.startswith("2.11"):
    seen = [[1, 1, 1], [1, 1, 1], [1, 1, 1]]
else:
    seen = [[0, 1, 0], [1, 1, 0], [0.5, 1, 0.5]]
assert list(rows.values()) == seen, "the behaviour has changed"
PY
    rm -rf "${dir:?}/$version"
done
echo "as recorded"
