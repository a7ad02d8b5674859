# SPDX-License-Identifier: Apache-2.0
"""What PyTorch and JAX take for a gradient at kinks, ties and singular points.

usage: kinks.py record NAME FOLDER   (maintainers) NAME: torch211 or torch215 in
                  a Python that has that PyTorch, jax in one that has jax2onnx
       kinks.py table FOLDER CSV     puts FOLDER/*.json into one table

`record` writes FOLDER/NAME.onnx, a sum of all functions that the exporter takes,
each of an input of its own, FOLDER/NAME-torchscript.onnx for torch211, and the
gradients by the framework's own backward, FOLDER/NAME.json.
"""
import contextlib
import csv
import io
import json
import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore")
inf = float("inf")

# name, point, PyTorch, JAX, the language of ampc; None: no such function.
# T makes a tensor, F is torch.nn.functional or jax.nn.
ROWS = [
    ("relu", [0.0], "F.relu(x)", "F.relu(x)", "relu(x)"),
    ("relu6", [0.0, 6.0], "F.relu6(x)", "F.relu6(x)", "clip(x, min=0, max=6)"),
    ("hardtanh", [-1.0, 1.0], "F.hardtanh(x)", "F.hard_tanh(x)", "clip(x, min=-1, max=1)"),
    ("hardtanh_2", [-2.0, 2.0], "F.hardtanh(x, -2., 2.)", None, None),
    ("clamp", [-1.0, 1.0], "x.clamp(-1, 1)", "np.clip(x, -1, 1)", "clip(x, min=-1, max=1)"),
    ("clamp_0_6", [0.0, 6.0], "x.clamp(0, 6)", "np.clip(x, 0, 6)", None),
    ("clamp_min", [-1.0], "x.clamp_min(-1)", "np.clip(x, -1)", "clip(x, min=-1)"),
    ("clamp_min_0", [0.0], "x.clamp(min=0)", None, None),
    ("clamp_max", [1.0], "x.clamp_max(1)", None, "clip(x, max=1)"),
    ("clamp_of_max", [1.0], "x.clamp(max=1)", None, None),
    ("clamp_tensors", [-1.0, 1.0], "x.clamp(T([-1., -1.]), T([1., 1.]))", "lax.clamp(T([-1., -1.]), x, T([1., 1.]))", None),
    ("clamp_min_tensor", [-1.0], "x.clamp(min=T([-1.]))", None, None),
    ("clamp_bound", [0.5], "T([0.5]).clamp(min=x)", None, None),
    ("maximum", [1.0], "torch.maximum(x, T([1.]))", "np.maximum(x, T([1.]))", "max(x, full(shape=[1], value=1, dtype=f32))"),
    ("minimum", [1.0], "torch.minimum(x, T([1.]))", "np.minimum(x, T([1.]))", "min(x, full(shape=[1], value=1, dtype=f32))"),
    ("maximum_0", [0.0], "torch.maximum(x, T([0.]))", "np.maximum(x, 0.)", "max(x, full(shape=[1], value=0, dtype=f32))"),
    ("elu", [0.0], "F.elu(x)", "F.elu(x)", "elu(x)"),
    ("elu_2", [0.0], "F.elu(x, 2.)", "F.elu(x, 2.)", "elu(x, alpha=2.0)"),
    ("selu", [0.0], "F.selu(x)", "F.selu(x)", "selu(x)"),
    ("celu", [0.0], "F.celu(x)", "F.celu(x)", "celu(x)"),
    ("celu_2", [0.0], "F.celu(x, 2.)", "F.celu(x, 2.)", "celu(x, alpha=2.0)"),
    ("leaky_relu", [0.0], "F.leaky_relu(x)", "F.leaky_relu(x)", "leaky_relu(x)"),
    ("prelu", [0.0], "F.prelu(x, T([.25]))", None, "prelu(x, full(shape=[1], value=0.25, dtype=f32))"),
    ("prelu_weight", [0.25], "F.prelu(T([0.]), x)", None, "prelu(full(shape=[1], value=0, dtype=f32), x)"),
    ("threshold", [0.0], "F.threshold(x, 0., 0.)", None, "thresholded_relu(x, alpha=0.0)"),
    ("hardsigmoid", [-3.0, 3.0], "F.hardsigmoid(x)", "F.hard_sigmoid(x)", "hard_sigmoid(x, alpha=1 / 6)"),
    ("hardswish", [-3.0, 3.0], "F.hardswish(x)", "F.hard_swish(x)", "hard_swish(x)"),
    ("hardshrink", [-0.5, 0.5], "F.hardshrink(x)", None, None),
    ("softshrink", [-0.5, 0.5], "F.softshrink(x)", None, None),
    ("softplus", [0.0], "F.softplus(x)", "F.softplus(x)", "softplus(x)"),
    ("silu", [0.0], "F.silu(x)", "F.silu(x)", "swish(x)"),
    ("gelu", [0.0], "F.gelu(x)", "F.gelu(x, approximate=False)", "gelu(x)"),
    ("softsign", [0.0], "F.softsign(x)", "F.soft_sign(x)", "softsign(x)"),
    ("abs", [0.0], "x.abs()", "np.abs(x)", "abs(x)"),
    ("sign", [0.0], "x.sign()", "np.sign(x)", "sign(x)"),
    ("floor", [1.0], "x.floor()", "np.floor(x)", "floor(x)"),
    ("round", [0.5], "x.round()", "np.round(x)", "round(x)"),
    ("remainder", [1.0], "torch.remainder(x, T([1.]))", None, None),
    ("max_all", [1.0, 1.0, 0.0], "x.max()", "x.max()", "reduce_max(x, axes=[0])"),
    ("min_all", [1.0, 1.0, 2.0], "x.min()", "x.min()", "reduce_min(x, axes=[0])"),
    ("max_dim", [1.0, 1.0, 0.0], "x.max(0).values", None, "max_element(x, axis=0)"),
    ("min_dim", [1.0, 1.0, 2.0], "x.min(0).values", None, "min_element(x, axis=0)"),
    ("amax", [1.0, 1.0, 0.0], "x.amax(0)", "x.max(0)", "reduce_max(x, axes=[0])"),
    ("amin", [1.0, 1.0, 2.0], "x.amin(0)", "x.min(0)", "reduce_min(x, axes=[0])"),
    ("max_pool", [1.0, 1.0, 0.0, 0.0], "F.max_pool1d(x[None, None], 2)", "lax.reduce_window(x[None, :, None], -inf, lax.max, (1, 2, 1), (1, 2, 1), 'VALID')", None),
    ("global_max_pool", [1.0, 1.0, 0.0, 1.0], "F.adaptive_max_pool1d(x[None, None], 1)", None, None),
    ("sort", [1.0, 1.0, 0.0], "x.sort().values * T([1., 2., 3.])", "np.sort(x) * T([1., 2., 3.])", None),
    ("topk", [1.0, 1.0, 1.0], "x.topk(2).values * T([1., 2.])", "lax.top_k(x, 2)[0] * T([1., 2.])", None),
    ("logsumexp", [1.0, 1.0], "x.logsumexp(0)", "F.logsumexp(x)", None),
    ("scatter_amax", [1.0, 1.0, 0.0], "torch.zeros(2).scatter_reduce(0, I([0, 0, 1]), x, 'amax')", None, None),
    ("scatter_twice", [1.0, 2.0, 3.0], "torch.zeros(2).scatter(0, I([0, 0, 1]), x)", None, None),
    ("scatter_add", [1.0, 2.0, 3.0], "torch.zeros(2).scatter_add(0, I([0, 0, 1]), x)", None, None),
    ("scatter_below", [5.0, 6.0], "x.scatter(0, I([0, 0]), T([1., 2.]))", None, None),
    ("norm_1", [0.0, 0.0], "torch.linalg.vector_norm(x, 1)", None, "reduce_l1(x, axes=[0])"),
    ("norm_2", [0.0, 0.0], "torch.linalg.vector_norm(x, 2)", "np.linalg.norm(x)", "reduce_l2(x, axes=[0])"),
    ("norm_3", [0.0, 0.0], "x.norm(p=3, dim=0)", None, None),
    ("norm_inf", [0.0, 0.0], "torch.linalg.vector_norm(x, inf)", None, None),
    ("norm_inf_tie", [1.0, -1.0], "torch.linalg.vector_norm(x, inf)", None, None),
    ("dist", [1.0, 1.0], "torch.dist(x, T([1., 1.]))", None, None),
    ("normalize", [0.0, 0.0], "F.normalize(x, dim=0)", None, None),
    ("pairwise_distance", [0.0, 0.0], "F.pairwise_distance(x[None], T([[0., 0.]]))", None, None),
    ("root_of_squares", [0.0, 0.0], "(x * x).sum().sqrt()", "np.sqrt((x * x).sum())", "sqrt(reduce_sum(x * x, axes=[0]))"),
    ("std", [1.0, 1.0, 1.0], "x.std()", "x.std(ddof=1)", None),
    ("std_biased", [1.0, 1.0, 1.0], "x.std(unbiased=False)", "x.std()", None),
    ("std_dim", [1.0, 1.0, 1.0], "x.std(0)", None, None),
    ("std_mean", [1.0, 1.0, 1.0], "torch.std_mean(x)[0]", None, None),
    ("var", [1.0, 1.0, 1.0], "x.var()", "x.var()", None),
    ("atan2_y", [0.0], "torch.atan2(x, T([0.]))", "np.arctan2(x, T([0.]))", None),
    ("atan2_x", [0.0], "torch.atan2(T([0.]), x)", "np.arctan2(T([0.]), x)", None),
    ("atan2_y_of_0", [2.0], "torch.atan2(x, T([0.]))", "np.arctan2(x, T([0.]))", None),
    ("atan2_x_at_0", [0.0], "torch.atan2(T([2.]), x)", "np.arctan2(T([2.]), x)", None),
    ("sqrt", [0.0], "x.sqrt()", "np.sqrt(x)", "sqrt(x)"),
    ("rsqrt", [0.0], "x.rsqrt()", "lax.rsqrt(x)", "rsqrt(x)"),
    ("pow_half", [0.0], "x ** 0.5", "x ** 0.5", "pow(x, 0.5)"),
    ("pow_0", [0.0], "x ** T([0.])", None, None),
    ("pow_1", [0.0], "x ** T([1.])", None, None),
    ("pow_1_5", [0.0], "x ** 1.5", "x ** 1.5", "pow(x, 1.5)"),
    ("pow_2", [0.0], "x ** 2", "x ** 2", "pow(x, 2)"),
    ("pow_exponent", [1.0, 2.0], "T([0., 0.]) ** x", None, "pow(full(shape=[2], value=0, dtype=f32), x)"),
    ("reciprocal", [0.0], "x.reciprocal()", "1 / x", "reciprocal(x)"),
    ("divided_by_0", [1.0], "x / T([0.])", "x / T([0.])", None),
    ("log", [0.0], "x.log()", "np.log(x)", "log(x)"),
    ("log1p", [-1.0], "x.log1p()", "np.log1p(x)", None),
    ("x_log_x", [0.0], "x * x.log()", "x * np.log(x)", "x * log(x)"),
    ("xlogy", [0.0], "torch.xlogy(x, x)", "jax.scipy.special.xlogy(x, x)", None),
    ("entropy_masked", [0.0, 0.5], "torch.where(x > 0, x * x.log(), T([0.]))", "np.where(x > 0, x * np.log(x), 0.)", "where(x > 0, x * log(x), 0)"),
    ("where_log", [0.0], "torch.where(x > 0, x.log(), T([0.]))", "np.where(x > 0, np.log(x), 0.)", "where(x > 0, log(x), 0)"),
    ("where_quotient", [0.0], "torch.where(x != 0, 1 / x, T([0.]))", "np.where(x != 0, 1 / x, 0.)", "where(x > 0, 1 / x, 0)"),
    ("log_clamped", [0.0, 2.0], "x.log().clamp(min=-100)", "np.maximum(np.log(x), -100.)", "max(log(x), -100)"),
    ("clamped_log", [0.0], "x.clamp(min=1e-8).log()", "np.log(np.clip(x, 1e-8))", "log(clip(x, min=0.00000001))"),
    ("sqrt_of_relu", [0.0, -1.0], "x.relu().sqrt()", "np.sqrt(F.relu(x))", "sqrt(relu(x))"),
    ("exp_masked", [100.0], "torch.where(x < 80, x.exp(), T([0.]))", "np.where(x < 80, np.exp(x), 0.)", "where(x < 80, exp(x), 0)"),
    ("cosine_similarity", [0.0, 0.0], "F.cosine_similarity(x, T([1., 2.]), 0)", None, None),
    ("bce_of_0", [0.0, 1.0], "F.binary_cross_entropy(x, T([0., 0.]), reduction='sum')", None, None),
    ("bce_of_1", [0.0, 1.0], "F.binary_cross_entropy(x, T([1., 1.]), reduction='sum')", None, None),
    ("bce_sigmoid_0", [-200.0, 50.0], "F.binary_cross_entropy(x.sigmoid(), T([0., 0.]), reduction='sum')", None, None),
    ("bce_sigmoid_1", [-200.0, 50.0], "F.binary_cross_entropy(x.sigmoid(), T([1., 1.]), reduction='sum')", None, None),
    ("l1_loss", [0.0], "F.l1_loss(x, T([0.]))", "np.abs(x - 0.).mean()", "l1_loss(x, full(shape=[1], value=0, dtype=f32))"),
    ("smooth_l1_loss", [0.0, 1.0], "F.smooth_l1_loss(x, T([0., 0.]), reduction='sum')", None, "huber_loss(x, full(shape=[2], value=0, dtype=f32), reduction=\"sum\")"),
    ("margin_ranking", [0.0], "F.margin_ranking_loss(x, T([0.]), T([1.]))", None, None),
    ("hinge", [1.0], "F.relu(1 - x)", "F.relu(1 - x)", "relu(1 - x)"),
    ("asin", [1.0], "x.asin()", "np.arcsin(x)", "asin(x)"),
    ("acosh", [1.0], "x.acosh()", "np.arccosh(x)", "acosh(x)"),
    ("atanh", [1.0], "x.atanh()", "np.arctanh(x)", "atanh(x)"),
    ("sinc", [0.0], "torch.sinc(x)", "np.sinc(x)", None),
    ("prod", [0.0, 0.0, 2.0], "x.prod()", "x.prod()", "reduce_prod(x, axes=[0])"),
    ("prod_one_zero", [0.0, 3.0, 2.0], "x.prod()", "x.prod()", "reduce_prod(x, axes=[0])"),
    ("nan_to_num", [inf], "torch.nan_to_num(x)", None, None),
    ("logit", [0.1, 0.9], "torch.logit(x, eps=.1)", None, None),
    ("logaddexp", [0.0], "torch.logaddexp(x, T([0.]))", "np.logaddexp(x, 0.)", None),
]

# Where ampc differs, "FILE: GRADIENT" each, and why.
NOT_TAKEN = "a branch that is not taken passes 0"
ROOT = "the root of a sum of squares at 0 passes 0"
MAX_OR_AMAX = "the file does not tell max(dim) from amax(dim)"
ALL = ("torch211", "torch211-torchscript", "torch215", "jax", "amp")
TORCH = ALL[:3]
DIFFERS = {
    "clamp_0_6": ({"torch211-torchscript": "0 0"}, "the file does not tell it from relu6"),
    "clamp_tensors": ({"torch211-torchscript": "0.5 0.5"}, "the file does not tell it from maximum and minimum"),
    "clamp_min_tensor": ({"torch211-torchscript": "0.5"}, "the file does not tell it from maximum"),
    "clamp_bound": ({"torch211-torchscript": "0.5"}, "the file does not tell it from maximum"),
    "amax": ({"torch211-torchscript": "1 0 0"}, MAX_OR_AMAX),
    "amin": ({"torch211-torchscript": "1 0 0"}, MAX_OR_AMAX),
    "global_max_pool": ({"torch215": "0.333333333 0.333333333 0 0.333333333"}, "the exporter writes amax"),
    "scatter_twice": (dict.fromkeys(TORCH, "0 1 1"), "what is written over passes 0; PyTorch leaves it undefined"),
    "norm_2": ({"jax": "0 0"}, ROOT),
    "pairwise_distance": ({"torch211-torchscript": "0 0"}, "the file has no eps"),
    "root_of_squares": (dict.fromkeys(ALL, "0 0"), ROOT),
    "atan2_y": ({"jax": "0"}, "as PyTorch"),
    "atan2_x": ({"jax": "0"}, "as PyTorch"),
    "atan2_x_at_0": ({"jax": "0"}, "the file has a constant, pi / 2, at x = 0"),
    "xlogy": (dict.fromkeys(("torch211", "torch215", "jax"), "0"), NOT_TAKEN),
    "entropy_masked": (dict.fromkeys(ALL, "0 0.306852818"), NOT_TAKEN),
    "where_log": (dict.fromkeys(ALL, "0"), NOT_TAKEN),
    "where_quotient": (dict.fromkeys(ALL, "0"), NOT_TAKEN),
    "log_clamped": (dict.fromkeys(ALL, "0 0.5"), NOT_TAKEN),
    "exp_masked": (dict.fromkeys(ALL, "0"), NOT_TAKEN),
    "cosine_similarity": ({"torch211-torchscript": "1e+08 2e+08"}, "the file has the quotient by max(norms, eps)"),
    "logit": ({"torch211-torchscript": "11.1111116 0"}, "the file clamps at 1 - eps by comparisons that exclude it"),
    "logaddexp": ({"jax": "0"}, "the slopes of max and abs at a tie, which JAX replaces"),
}


def quiet():
    return contextlib.redirect_stdout(io.StringIO())


def rename_operands(graph, new):
    for node in graph.node:
        node.input[:] = [new.get(n, n) for n in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                rename_operands(attribute.g, new)
        keep = [p for p in node.metadata_props if p.key == "pkg.torch.onnx.fx_node"]
        del node.metadata_props[:]  # where a line of the source was, and whose
        node.metadata_props.extend(keep)
        node.doc_string = ""
    del graph.value_info[:]


def rename_inputs(path, names):
    """As at.NAME, which no result of a node is called."""
    import onnx

    model = onnx.load(path)
    new = {v.name: "at." + n for v, n in zip(model.graph.input, names)}
    for value in model.graph.input:
        value.name = new[value.name]
    rename_operands(model.graph, new)
    onnx.save(model, path)


def record_torch(name, folder):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    logging.disable(logging.WARNING)
    T, I = torch.tensor, torch.tensor
    scope = {"torch": torch, "F": F, "T": T, "I": I, "inf": inf}
    rows = {n: (p, eval("lambda x: " + t, scope)) for n, p, t, _, _ in ROWS if t}

    class Sum(nn.Module):
        def __init__(self, names):
            super().__init__()
            self.names = names

        def forward(self, *xs):
            return sum(rows[n][1](x).sum() for n, x in zip(self.names, xs))

    def export(names, path, dynamo):
        args = tuple(T(rows[n][0]) for n in names)
        more = {"optimize": False, "verbose": False, "external_data": False} if dynamo else {
            "training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False, "opset_version": 17}
        with quiet(), contextlib.redirect_stderr(io.StringIO()):
            torch.onnx.export(Sum(names).train(), args, path, dynamo=dynamo, **more)

    def exportable(dynamo):
        good = []
        for n in rows:
            try:
                export([n], folder + "/one.onnx", dynamo)
                good.append(n)
            except Exception:
                pass
        os.remove(folder + "/one.onnx")
        return good

    grads, files = {}, {}
    for n, (point, f) in rows.items():
        x = T(point, requires_grad=True)
        f(x).sum().backward()
        grads[n] = x.grad.tolist()
    for kind in ["", "-torchscript"] if name == "torch211" else [""]:
        files[kind] = exportable(not kind)
        path = f"{folder}/{name}{kind}.onnx"
        export(files[kind], path, not kind)
        rename_inputs(path, files[kind])
    return {"version": "PyTorch " + torch.__version__.split("+")[0], "grads": grads, "files": files}


def record_jax(name, folder):
    import jax
    import jax.numpy as jnp
    import onnx
    from jax2onnx import to_onnx

    logging.disable(logging.WARNING)
    scope = {"jax": jax, "np": jnp, "lax": jax.lax, "F": jax.nn, "inf": inf,
             "T": lambda v: jnp.array(v, jnp.float32)}
    scope["F"].logsumexp = jax.nn.logsumexp
    rows = {n: (p, eval("lambda x: " + t, scope)) for n, p, _, t, _ in ROWS if t}
    good = []
    for n, (point, f) in rows.items():
        try:
            to_onnx(lambda x: f(x).sum(), [(len(point),)])
            good.append(n)
        except Exception:
            pass
    model = to_onnx(lambda *xs: sum(rows[n][1](x).sum() for n, x in zip(good, xs)),
                    [(len(rows[n][0]),) for n in good])
    onnx.save(model, f"{folder}/{name}.onnx")
    rename_inputs(f"{folder}/{name}.onnx", good)
    grads = {n: jax.grad(lambda x: f(x).sum())(jnp.array(p, jnp.float32)).tolist()
             for n, (p, f) in rows.items()}
    return {"version": "JAX " + jax.__version__, "grads": grads, "files": {"": good}}


def text(numbers):
    return " ".join("0" if v == 0 else f"{v:.9g}" for v in numbers)


def differs(name):
    cells, why = DIFFERS.get(name, ({}, ""))
    return ["; ".join(f"{file}: {numbers}" for file, numbers in cells.items()), why]


def table(folder, path):
    seen = {n: json.load(open(f"{folder}/{n}.json")) for n in ("torch211", "torch215", "jax")}
    with open(path, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["name", "at", "PyTorch", "JAX", "ampc"] +
                     [s["version"] for s in seen.values()] + ["ampc differs", "why"])
        for name, point, torch, jax, amp in ROWS:
            cells = [text(s["grads"][name]) if name in s["grads"] else "-" for s in seen.values()]
            out.writerow([name, text(point), torch or "-", jax or "-", amp or "-"] + cells +
                         differs(name))


def main():
    if sys.argv[1] == "table":
        return table(sys.argv[2], sys.argv[3])
    name, folder = sys.argv[2:4]
    os.makedirs(folder, exist_ok=True)
    result = (record_jax if name == "jax" else record_torch)(name, folder)
    json.dump(result, open(f"{folder}/{name}.json", "w"))
    print(name, result["version"], {k or "dynamo": len(v) for k, v in result["files"].items()})


if __name__ == "__main__":
    main()
