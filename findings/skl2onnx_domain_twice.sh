#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# skl2onnx imports the default domain twice: of a linear model, alone or behind a StandardScaler,
# opset_import has two entries of "" with the same version.  The ONNX specification allows each
# domain once; onnx.checker takes the file all the same.  MinMaxScaler, PCA and networks have one.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv "$dir/env"
"$dir/env/bin/pip" -q --disable-pip-version-check install skl2onnx==1.20.0 scikit-learn==1.7.2 onnx==1.19.1 numpy==2.3.5
"$dir/env/bin/python" - <<'PY'
import warnings

import numpy as np
import onnx
import skl2onnx
import sklearn
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

warnings.filterwarnings("ignore")
print("skl2onnx", skl2onnx.__version__, "scikit-learn", sklearn.__version__)
x = np.random.RandomState(0).randn(20, 4).astype("f")
y = x.sum(1)
seen = []
for model in (LinearRegression(), make_pipeline(StandardScaler(), Ridge()), make_pipeline(MinMaxScaler(), Ridge()),
              make_pipeline(PCA(2), Ridge()), MLPRegressor(max_iter=3), MLPClassifier(max_iter=3)):
    model.fit(x, y > 0 if isinstance(model, MLPClassifier) else y)
    proto = skl2onnx.to_onnx(model, x)
    found = [(i.domain, i.version) for i in proto.opset_import]
    print(" ", str(model).split("\n")[0][:60], found)
    onnx.checker.check_model(proto)
    seen.append(len(found) - len(set(found)))
assert seen == [1, 1, 0, 0, 0, 0], "the behaviour has changed"
PY
echo "as recorded"
