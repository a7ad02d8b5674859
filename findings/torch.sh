# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by findings about torch.onnx.export. Goes to a temporary folder, which is removed at
# the end, and defines with_torch VERSION [PACKAGE...], which installs PyTorch with its CUDA
# libraries (some GB) and runs the program on standard input; a GPU is not needed.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

cat >finding.py <<'PY'
import contextlib
import io
import warnings

import torch

print("torch", torch.__version__)


def export(model, inputs, path, **options):
    """Returns what the exporter said, its warnings too."""
    said = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, \
            contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        warnings.simplefilter("always")
        torch.onnx.export(model, inputs, path, dynamo=True, external_data=False, verbose=False,
                          **options)
    return said.getvalue() + " ".join(str(w.message) for w in caught)
PY

with_torch() {
    python3 -m venv "$dir/$1"
    "$dir/$1/bin/pip" -q --disable-pip-version-check install "torch==$1" onnx==1.23.2 \
        onnxscript==0.7.2 onnxruntime==1.32.0 numpy==2.4.6 "${@:2}"
    PYTHONPATH=$dir "$dir/$1/bin/python" -
    rm -rf "${dir:?}/$1"
}
