#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The gradient of torch.clamp where x equals a bound was 1 up to PyTorch 2.11 and is 0 in 2.15;
# with tensors as bounds it went from 1 to 0.5.  A model whose values lie on a bound (pixels, a
# ReLU clamped at 0) trains to other weights after an upgrade.
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


def gradient(f):
    return torch.autograd.grad(f(x).sum(), x)[0].tolist()


numbers = gradient(lambda x: x.clamp(-1, 1))
most = gradient(lambda x: x.clamp(max=1))
tensors = gradient(lambda x: torch.clamp(x, torch.tensor(-1.0), torch.tensor(1.0)))
print("torch", torch.__version__, "gradient at -1, 0, 1 of clamp(-1, 1):", numbers, "clamp(max=1):", most, "with tensors:", tensors)
old = torch.__version__.startswith("2.11")
assert numbers == ([1, 1, 1] if old else [0, 1, 0]), "the behaviour has changed"
assert most == ([1, 1, 1] if old else [1, 1, 0]), "the behaviour has changed"
PY
    rm -rf "${dir:?}/$version"
done
