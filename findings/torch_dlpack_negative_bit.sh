#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The imaginary part of a conjugate is a view whose minus PyTorch keeps as a flag. Its
# __dlpack__() hands the memory out without the minus, and without an error: NumPy's from_dlpack
# reads numbers of the other sign. Tensor.numpy() refuses the same tensor.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import finding  # prints the version
import numpy
import torch

view = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
read = numpy.from_dlpack(view).tolist()
try:
    view.numpy()
    refusal = ""
except RuntimeError as e:
    refusal = str(e)
print("  PyTorch          ", view.tolist())
print("  numpy.from_dlpack", read)
print("  Tensor.numpy()   ", refusal)
assert view.is_neg() and "negative bit" in refusal
assert view.tolist() == [-2, 4] and read == [2, -4], "the behaviour has changed"
PY
done
echo "as recorded"
