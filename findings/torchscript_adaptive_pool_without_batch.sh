#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch pools a single image [C, H, W] without a batch. The TorchScript exporter writes
# adaptive_avg_pool2d and adaptive_max_pool2d of it as a pool over one axis: ONNX Runtime's
# result of the file has another shape, and the export says nothing about it.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import contextlib
import io
import warnings

import finding  # prints the version
import onnxruntime
import torch
import torch.nn.functional as F


class Pool(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x, (2, 3))


def shape_in_file(function, x):
    said = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, \
            contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        warnings.simplefilter("always")
        torch.onnx.export(Pool(function), (x,), "pool.onnx", input_names=["x"], dynamo=False)
    words = said.getvalue() + " ".join(str(w.message) for w in caught)
    assert "batch" not in words and "pool" not in words, words
    session = onnxruntime.InferenceSession("pool.onnx")
    return list(session.run(None, {"x": x.numpy()})[0].shape)


image = torch.arange(192.).reshape(4, 8, 6)
for function in (F.adaptive_avg_pool2d, F.adaptive_max_pool2d):
    for x in (image[None], image):
        own, file = list(Pool(function)(x).shape), shape_in_file(function, x)
        print(f"  {function.__name__} of {list(x.shape)}: {own} in PyTorch, {file} in the file")
        assert file == (own if x.ndim == 4 else [4, 8, 2]), "the behaviour has changed"
PY
done
echo "as recorded"
