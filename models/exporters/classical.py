#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pipelines of scikit-learn that skl2onnx 1.20 wrote with ops of ai.onnx.ml: their forward
beside ONNX Runtime; of linear models 5 steps beside PyTorch (maintainers; needs torch,
scikit-learn 1.9, skl2onnx 1.20, onnxruntime 1.32.0).

usage: classical.py FOLDER AMPC

Writes FOLDER/sklearn-ml-*.onnx and their .txt in the form of exporters.py, and the files with
inputs and ONNX Runtime's results as FOLDER/node/*, for tests/onnx/classical."""
import os
import subprocess
import sys
import tempfile
import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, MinMaxScaler, Normalizer, OrdinalEncoder, StandardScaler
from sklearn.svm import SVR, OneClassSVM
from sklearn.tree import DecisionTreeClassifier
from exporters import beside, put
from case import RATE, STEPS, Case

rng = np.random.RandomState(0)
X = rng.randn(40, 5).astype("f4")
HOLES = X.copy(); HOLES[::7, 1] = np.nan
CODES = np.random.RandomState(1).randint(3, 9, (40, 2)).astype("i8")
Y = (X @ rng.randn(5) > 0).astype(int) + (X[:, 0] > 1)
T = (X @ rng.randn(5, 2)).astype("f4")
FORWARD = {  # alone: no gradient, or no parameter
    "scaled-forest": (make_pipeline(StandardScaler(), RandomForestClassifier(5, max_depth=4, random_state=0)), X, Y),
    "forest": (RandomForestRegressor(5, max_depth=5, random_state=0), X, T),
    "boosted": (GradientBoostingClassifier(n_estimators=6, random_state=0), X, Y),
    "boosted-two": (GradientBoostingClassifier(n_estimators=6, random_state=0), X, Y > 0),
    "boosted-numbers": (GradientBoostingRegressor(n_estimators=6, random_state=0), X, T[:, 0]),
    "tree-two": (DecisionTreeClassifier(max_depth=3, random_state=0), X, (Y > 0).astype(int) * 3),
    "imputed": (make_pipeline(SimpleImputer(), MinMaxScaler(), Binarizer(threshold=.4), LinearRegression()), HOLES, T),
    "normalised": (make_pipeline(StandardScaler(), Normalizer("l1"), LogisticRegression()), X, Y),
    "vectors": (make_pipeline(StandardScaler(), SVR()), X, T[:, 0]),
    "vectors-cubed": (SVR(kernel="poly", coef0=1.5), X, T[:, 0]),
    "vectors-sigmoid": (SVR(kernel="sigmoid", gamma=.05), X, T[:, 0]),
    "one-class": (OneClassSVM(nu=.3), X, None),
    "chosen": (make_pipeline(SelectKBest(f_regression, k=3), SVR(kernel="linear")), X, T[:, 0]),
    "encoded": (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), CODES, None),
    "normalised-max": (make_pipeline(Normalizer("max"), LogisticRegression()), np.abs(X), Y > 0),
}
TRAINED = {
    "linear": (make_pipeline(StandardScaler(), LinearRegression()), X, T),
    "logistic": (make_pipeline(SimpleImputer(), Normalizer("l2"), LogisticRegression()), HOLES, Y),
}


def write(folder, name, model, x, y):
    model.fit(x, y)
    path = f"{folder}/sklearn-ml-{name}.onnx"
    options = {"zipmap": False} if hasattr(model, "predict_proba") else None
    with open(path, "wb") as f:
        f.write(to_onnx(model, x[:1], target_opset={"": 18, "ai.onnx.ml": 3}, options=options).SerializeToString())
    return path


def infer(path, x):
    session = onnxruntime.InferenceSession(path)
    return {o.name: v for o, v in zip(session.get_outputs(), session.run(None, {"X": x}))}


def predicted(path, x, binary):
    """Outputs of a module for inference, by name."""
    folder = tempfile.mkdtemp()
    r = subprocess.run([binary, path, "-o", f"{folder}/m.so", "--loss", "none", "--precision", "fp32", "--target", "cpu:x86-64-v3",
                        "--dim", f"X:0={len(x)}"], capture_output=True, text=True)
    if r.returncode: return r.stderr
    np.save(f"{folder}/x.npy", x)
    subprocess.run([binary, "run", f"{folder}/m.so", "--feed", f"X={folder}/x.npy", "--fetch", f"{folder}/out", "--device", "cpu"],
                   check=True, capture_output=True)
    return {f[:-4]: np.load(f"{folder}/out/{f}") for f in os.listdir(f"{folder}/out")}


def forward(folder, binary):
    for name, (model, x, y) in {**FORWARD, **TRAINED}.items():
        path = write(folder, name, model, x, y)
        want, got = infer(path, x), predicted(path, x, binary)
        if isinstance(got, str): print(name, "REFUSED", got); continue
        far = {k: float(np.abs(got[k].reshape(v.shape).astype(float) - v).max()) for k, v in want.items()}
        print(name, {k: f"{v:.1e}" for k, v in far.items()})
        if name in FORWARD: keep(folder, name, path, x, want)


def keep(folder, name, path, x, want):
    """The file for ten rows, as a backend test of ONNX."""
    model, data = onnx.load(path), f"{folder}/node/{name}/test_data_set_0"
    os.makedirs(data, exist_ok=True)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 10
    for o in model.graph.output: o.type.tensor_type.ClearField("shape")
    onnx.save(model, f"{folder}/node/{name}/model.onnx")
    for kind, values in (("input", [x[:10]]), ("output", [v[:10] for v in want.values()])):
        for k, v in enumerate(values):
            with open(f"{data}/{kind}_{k}.pb", "wb") as f: f.write(numpy_helper.from_array(v).SerializeToString())


def line(name, x, held):
    """PyTorch's form of the trained pipelines."""
    w, b = (held[k] for k in held if k.endswith(("coefficients", "intercepts")))
    if name == "linear":
        scaler = TRAINED[name][0][0]
        return torch.tensor((x - scaler.mean_) / scaler.scale_).float() @ w.t() + b
    means = torch.tensor(TRAINED[name][0][0].statistics_).float()
    z = torch.where(torch.tensor(x).isnan(), means, torch.tensor(x))
    return torch.softmax(z / z.norm(dim=1, keepdim=True) @ w.t() + b, 1)


def trained(folder, name, binary):
    model, x, _ = TRAINED[name]
    path, linear = f"{folder}/sklearn-ml-{name}.onnx", model[-1]
    node = next(n.name for n in onnx.load(path).graph.node if n.op_type.startswith("Linear"))
    held = {f"{node}.coefficients": torch.tensor(linear.coef_).float().requires_grad_(True),
            f"{node}.intercepts": torch.tensor(linear.intercept_).float().requires_grad_(True)}
    output = "variable" if name == "linear" else "probabilities"
    target = torch.tensor(np.random.RandomState(1).rand(*line(name, x, held).shape)).float()
    optimizer, losses = torch.optim.SGD(held.values(), lr=RATE), []
    for _ in range(STEPS):
        loss = F.mse_loss(line(name, x, held), target)
        optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.item())
    case = Case(os.path.basename(path)[:-5], path, ["--loss", f"mse:{output}", "--dim", f"X:0={len(x)}"],
                {"X": x, "target": target.numpy()}, losses, {k: v.detach().numpy() for k, v in held.items()}, {}, [])
    bad, _, refused, out = beside(case, binary)
    print(name, refused or bad or "right")
    if bad or refused: return print(out)
    put(case, refused)


def main():
    folder, binary = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    forward(folder, binary)
    for name in TRAINED: trained(folder, name, binary)


main()
