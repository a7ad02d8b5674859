# SPDX-License-Identifier: Apache-2.0
"""What PyTorch and JAX take for a gradient at kinks, ties and singular points.

usage: kinks.py record NAME FOLDER   (maintainers) NAME: torch211 or torch215 in
                  a Python that has that PyTorch, jax in one that has jax2onnx
       kinks.py table FOLDER CSV     puts FOLDER/*.json into one table

`record` writes FOLDER/NAME.onnx, a sum of all functions that the exporter takes,
each of an input of its own, FOLDER/NAME-torchscript.onnx for torch211,
FOLDER/NAME-own.onnx of those that only ampc.torch.export takes, and the gradients
by the framework's own backward, FOLDER/NAME.json.
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
    ("logsigmoid", [0.0, -120.0, 120.0], "F.logsigmoid(x)", "F.log_sigmoid(x)", "log_sigmoid(x)"),
    ("glu", [0.0, 0.0], "F.glu(x, 0)", "F.glu(x)", None),
    ("mish", [0.0, -120.0, 120.0], "F.mish(x)", "F.mish(x)", "mish(x)"),
    ("tanhshrink", [0.0], "F.tanhshrink(x)", None, None),
    ("softshrink_0", [0.0], "F.softshrink(x, 0.)", None, None),
    ("hardshrink_0", [0.0], "F.hardshrink(x, 0.)", None, None),
    ("gelu_tanh", [0.0, -120.0, 120.0], "F.gelu(x, approximate='tanh')", "F.gelu(x)", None),
    ("huber_loss", [0.0, 1.0, -1.0], "F.huber_loss(x, T([0., 0., 0.]), reduction='sum')", None, "huber_loss(x, full(shape=[3], value=0, dtype=f32), reduction=\"sum\")"),
    ("huber_loss_2", [2.0, -2.0, 3.0], "F.huber_loss(x, T([0., 0., 0.]), reduction='sum', delta=2.)", None, None),
    ("smooth_l1_beta", [0.0, 0.5, -0.5], "F.smooth_l1_loss(x, T([0., 0., 0.]), reduction='sum', beta=0.5)", None, None),
    ("smooth_l1_beta_0", [0.0, 0.5], "F.smooth_l1_loss(x, T([0., 0.]), reduction='sum', beta=0.)", None, None),
    ("hinge_embedding", [1.0, 0.0, 2.0], "F.hinge_embedding_loss(x, T([-1., -1., 1.]), reduction='sum')", None, None),
    ("soft_margin", [0.0, 100.0, -100.0], "F.soft_margin_loss(x, T([1., 1., 1.]), reduction='sum')", None, None),
    ("multi_margin", [1.0, 0.0, 1.0], "F.multi_margin_loss(x[None], I([0]), reduction='sum')", None, None),
    ("multi_margin_2", [1.0, 0.0, 1.0], "F.multi_margin_loss(x[None], I([0]), p=2, reduction='sum')", None, None),
    ("multilabel_soft_margin", [0.0, 100.0, -100.0], "F.multilabel_soft_margin_loss(x[None], T([[1., 0., 1.]]), reduction='sum')", None, None),
    ("cosine_embedding", [1.0, 0.0], "F.cosine_embedding_loss(x[None], T([[1., 0.]]), T([-1.]), margin=1., reduction='sum')", None, None),
    ("cosine_embedding_0", [0.0, 0.0], "F.cosine_embedding_loss(x[None], T([[1., 2.]]), T([1.]), reduction='sum')", None, None),
    ("triplet_margin", [0.0, 0.0], "F.triplet_margin_loss(x[None], T([[0., 0.]]), T([[0., 0.]]), reduction='sum')", None, None),
    ("triplet_margin_knee", [0.0, 0.0], "F.triplet_margin_loss(x[None], T([[1., 0.]]), T([[2., 0.]]), reduction='sum', eps=0.)", None, None),
    ("poisson_nll", [0.0, -1.0], "F.poisson_nll_loss(x, T([0., 1.]), log_input=False, reduction='sum')", None, None),
    ("gaussian_nll", [0.0, 1e-06], "F.gaussian_nll_loss(T([1., 1.]), T([0., 0.]), x, reduction='sum')", None, None),
    ("kl_div", [0.0, 1.0], "F.kl_div(T([0., 0.]), x, reduction='sum')", None, None),
    ("bce_logits", [0.0, 200.0, -200.0], "F.binary_cross_entropy_with_logits(x, T([1., 0., 1.]), reduction='sum')", None, None),
    ("bce_logits_pos", [0.0, 200.0, -200.0], "F.binary_cross_entropy_with_logits(x, T([1., 0., 1.]), reduction='sum', pos_weight=T([2., 2., 2.]))", None, None),
    ("log_softmax", [-300.0, 300.0], "F.log_softmax(x, 0)", "F.log_softmax(x)", None),
    ("masked_softmax", [1.0, 2.0], "x.masked_fill(T([True, True]), -inf).softmax(0).nan_to_num() * T([1., 3.])", None, None),
    ("masked_fill", [0.0, 1.0], "(1 / x).masked_fill(T([True, False]), 0.)", None, None),
    ("masked_fill_inf", [1.0, 2.0], "x.masked_fill(T([True, False]), -inf).softmax(0) * T([1., 3.])", None, None),
    ("where_sqrt", [-1.0, 4.0], "torch.where(x > 0, x.sqrt(), x)", "np.where(x > 0, np.sqrt(x), x)", "where(x > 0, sqrt(x), x)"),
    ("where_pow", [0.0, -4.0, 4.0], "torch.where(x > 0, x ** 0.5, T([0.]))", None, "where(x > 0, pow(x, 0.5), 0)"),
    ("where_norm", [0.0, 0.0], "torch.where((x.norm() > 0), x.norm(), T(0.))", None, None),
    ("where_asin", [2.0, 0.5], "torch.where(x.abs() < 1, x.asin(), T([0.]))", None, None),
    ("where_atan2", [0.0], "torch.where(x > 0, torch.atan2(x, x), T([0.]))", None, None),
    ("mask_times", [0.0, 4.0], "(1 / x).nan_to_num(0., 0., 0.) * T([0., 1.])", None, None),
    ("index_where", [0.0, 4.0], "x.log()[T([False, True])]", None, None),
    ("cdist_of_mm", [0.0, 0.0], "torch.cdist(x[None], T([[0., 0.], [3., 4.]]), compute_mode='use_mm_for_euclid_dist')", None, None),
    ("pairwise_distance_1", [0.0, 0.0], "F.pairwise_distance(x[None], T([[0., 0.]]), p=1., eps=0.)", None, None),
    ("pairwise_distance_eps_0", [0.0, 0.0], "F.pairwise_distance(x[None], T([[0., 0.]]), eps=0.)", None, None),
    ("norm_0", [0.0, 2.0], "torch.linalg.vector_norm(x, 0)", None, None),
    ("norm_half", [0.0, 0.0], "torch.linalg.vector_norm(x, 0.5)", None, None),
    ("norm_half_part", [0.0, 4.0], "torch.linalg.vector_norm(x, 0.5)", None, None),
    ("norm_1_5", [0.0, 0.0], "torch.linalg.vector_norm(x, 1.5)", None, None),
    ("norm_1_5_part", [0.0, -4.0], "torch.linalg.vector_norm(x, 1.5)", None, None),
    ("norm_3_part", [0.0, -4.0], "x.norm(p=3, dim=0)", None, None),
    ("norm_4", [0.0, 0.0], "x.norm(p=4)", None, None),
    ("norm_minus_inf", [0.0, 0.0], "torch.linalg.vector_norm(x, -inf)", None, None),
    ("norm_minus_inf_tie", [1.0, -1.0, 2.0], "torch.linalg.vector_norm(x, -inf)", None, None),
    ("norm_minus_1", [1.0, -2.0], "torch.linalg.vector_norm(x, -1)", None, None),
    ("norm_1_dim", [0.0, -4.0], "x.norm(p=1, dim=0)", None, None),
    ("norm_inf_dim", [0.0, 0.0], "x.norm(p=inf, dim=0)", None, None),
    ("matrix_norm", [0.0, 0.0, 0.0, 0.0], "torch.linalg.matrix_norm(x.view(2, 2))", None, None),
    ("matrix_norm_1", [1.0, 1.0, -1.0, 1.0], "torch.linalg.matrix_norm(x.view(2, 2), 1)", None, None),
    ("normalize_1", [0.0, 0.0], "F.normalize(x, p=1., dim=0)", None, None),
    ("normalize_eps", [0.0, 0.001], "F.normalize(x, dim=0, eps=1e-3)", None, None),
    ("normalize_max", [0.0, 0.0], "x / torch.maximum(x.norm(), T(1e-6))", None, None),
    ("amax_keep", [1.0, 1.0, 0.0, 1.0], "x.view(2, 2).amax(1, keepdim=True)", None, None),
    ("max_keep", [1.0, 1.0, 0.0, 1.0], "x.view(2, 2).max(0, keepdim=True).values", None, None),
    ("max_both", [1.0], "torch.maximum(x, x)", "np.maximum(x, x)", "max(x, x)"),
    ("argmax_gather", [1.0, 1.0, 0.0], "x.gather(0, x.argmax(0, keepdim=True))", None, None),
    ("prod_dim", [0.0, 0.0, 2.0, 3.0], "x.view(2, 2).prod(1)", None, None),
    ("prod_dim_0", [0.0, 5.0, 2.0, 3.0], "x.view(2, 2).prod(0)", None, None),
    ("sort_desc", [1.0, 1.0, 1.0], "x.sort(descending=True).values * T([1., 2., 3.])", None, None),
    ("topk_smallest", [1.0, 1.0, 1.0], "x.topk(2, largest=False).values * T([1., 2.])", None, None),
    ("logsumexp_inf", [-300.0, -300.0], "(x * 1e38).logsumexp(0).clamp(min=-5)", None, None),
    ("max_pool_overlap", [1.0, 1.0, 1.0, 0.0], "F.max_pool1d(x[None, None], 3, 1)", None, None),
    ("max_pool_pad", [-1.0, -1.0, -1.0], "F.max_pool1d(x[None, None], 3, 2, 1)", None, None),
    ("max_pool_dilated", [1.0, 0.0, 1.0, 1.0, 1.0], "F.max_pool1d(x[None, None], 2, 1, 0, 2)", None, None),
    ("max_pool_ceil", [1.0, 1.0, 1.0, 1.0, 1.0], "F.max_pool1d(x[None, None], 2, 2, ceil_mode=True)", None, None),
    ("max_pool2d", [1.0, 1.0, 1.0, 1.0], "F.max_pool2d(x.view(1, 1, 2, 2), 2)", None, None),
    ("max_pool2d_zero", [0.0, 0.0, 0.0, 0.0], "F.max_pool2d(x.view(1, 1, 2, 2).relu(), 2)", None, None),
    ("max_unpool", [1.0, 1.0, 1.0, 1.0], "F.max_unpool1d(*F.max_pool1d(x[None, None], 2, return_indices=True), 2) * T([1., 2., 3., 4.])", None, None),
    ("lp_pool", [0.0, 0.0, 3.0, 4.0], "F.lp_pool1d(x[None, None], 2., 2)", None, None),
    ("lp_pool_3", [0.0, 0.0, -3.0, 4.0], "F.lp_pool1d(x[None, None], 3., 2)", None, None),
    ("pow_tensor_0", [0.0, 2.0], "x ** T([0., 0.])", None, None),
    ("pow_x_x", [0.0, 1.0], "x ** x", "x ** x", "pow(x, x)"),
    ("pow_3", [0.0, -1.0], "x ** 3", "x ** 3", "pow(x, 3)"),
    ("pow_minus_1", [0.0], "x ** -1", "x ** -1", None),
    ("pow_base_0", [0.0, 1.0], "0. ** x", None, None),
    ("pow_base_negative", [2.0, 3.0], "T([-1., -2.]) ** x", None, None),
    ("pow_0_scalar", [0.0, 2.0], "x ** 0", "x ** 0", "pow(x, 0)"),
    ("logaddexp2", [0.0], "torch.logaddexp2(x, T([0.]))", "np.logaddexp2(x, 0.)", None),
    ("xlogy_y", [0.0, 2.0], "torch.xlogy(T([0., 0.]), x)", "jax.scipy.special.xlogy(T([0., 0.]), x)", None),
    ("xlogy_x", [0.0, 2.0], "torch.xlogy(x, T([0., 0.]))", "jax.scipy.special.xlogy(x, T([0., 0.]))", None),
    ("xlogy_const", [0.0, 2.0], "torch.xlogy(x, T([2., 3.]))", None, None),
    ("xlog1py", [0.0, 2.0], "torch.special.xlog1py(x, T([-1., 1.]))", "jax.scipy.special.xlog1py(x, T([-1., 1.]))", None),
    ("xlog1py_y", [-1.0, 2.0], "torch.special.xlog1py(T([0., 0.]), x)", None, None),
    ("nan_to_num_all", [inf, -inf, 1.0], "torch.nan_to_num(x, 1., 2., 3.)", "np.nan_to_num(x)", None),
    ("nan_to_num_of", [0.0, 4.0], "torch.nan_to_num(1 / x, posinf=0.)", None, None),
    ("sinc_1", [1.0, 0.0], "torch.sinc(x)", "np.sinc(x)", None),
    ("fmod", [0.0, 4.0], "torch.fmod(x, 2.)", "np.fmod(x, 2.)", None),
    ("fmod_y", [2.0, -2.0], "torch.fmod(T([4., 5.]), x)", None, None),
    ("remainder_y", [2.0, -2.0], "torch.remainder(T([4., 5.]), x)", None, None),
    ("remainder_x", [-4.0, 5.0], "torch.remainder(x, 2.)", None, None),
    ("quotient_of_0", [0.0, 0.0], "T([1., 0.]) / x", "T([1., 0.]) / x", None),
    ("acos", [1.0, -1.0], "x.acos()", "np.arccos(x)", "acos(x)"),
    ("acos_clamped", [1.0, -1.0, 2.0], "x.clamp(-1 + 1e-6, 1 - 1e-6).acos()", None, None),
    ("square_root_of_square", [0.0], "x.square().sqrt()", None, None),
    ("clip_grad_like", [3.0, 4.0], "x * (1. / x.norm()).clamp(max=1.)", None, None),
    ("softplus_threshold", [20.0, 21.0], "F.softplus(x)", "F.softplus(x)", "softplus(x)"),
    ("softplus_beta", [10.0, 0.0, 11.0], "F.softplus(x, beta=2.)", None, None),
    ("clamp_1_1", [1.0], "x.clamp(1, 1)", None, None),
    ("clamp_crossed", [1.0, 2.0], "x.clamp(2, 1)", None, None),
    ("clamp_max_tensor", [1.0], "x.clamp(max=T([1.]))", None, None),
    ("clamp_max_bound", [0.5], "T([0.5]).clamp(max=x)", None, None),
    ("relu_clamped", [0.0, 1.0], "x.relu().clamp(max=1)", None, None),
    ("ppo", [1.2, 0.8], "torch.min(x * T([1., -1.]), x.clamp(0.8, 1.2) * T([1., -1.]))", "np.minimum(x * T([1., -1.]), np.clip(x, 0.8, 1.2) * T([1., -1.]))", None),
    ("index_put", [1.0, 2.0, 3.0], "torch.zeros(2).index_put((I([0, 0, 1]),), x)", None, None),
    ("index_put_add", [1.0, 2.0, 3.0], "torch.zeros(2).index_put((I([0, 0, 1]),), x, accumulate=True) ** 2", None, None),
    ("index_put_below", [1.0, 2.0], "x.index_put((I([0, 0]),), T([5., 6.]))", None, None),
    ("index_add", [1.0, 2.0, 3.0], "torch.zeros(2).index_add(0, I([0, 0, 1]), x) ** 2", None, None),
    ("index_copy", [1.0, 2.0], "torch.ones(3).index_copy(0, I([2, 0]), x) ** 2", None, None),
    ("index_fill", [1.0, 2.0, 0.0], "(x.log()).index_fill(0, I([2, 2]), 0.)", None, None),
    ("masked_scatter", [1.0, 2.0], "torch.zeros(3).masked_scatter(T([True, False, True]), x) ** 2", None, None),
    ("masked_scatter_below", [1.0, 2.0], "x.masked_scatter(T([True, False]), T([5., 6.]))", None, None),
    ("scatter_amin", [1.0, 1.0, 0.0], "torch.zeros(2).scatter_reduce(0, I([0, 0, 1]), x, 'amin')", None, None),
    ("scatter_amax_not_self", [1.0, 1.0, 0.0], "torch.zeros(2).scatter_reduce(0, I([0, 0, 1]), x, 'amax', include_self=False)", None, None),
    ("scatter_amax_self", [1.0, 0.0], "x.scatter_reduce(0, I([0, 0, 1]), T([1., 1., 0.]), 'amax')", None, None),
    ("scatter_prod", [0.0, 2.0, 0.0], "torch.ones(2).scatter_reduce(0, I([0, 0, 1]), x, 'prod')", None, None),
    ("embedding_pad", [1.0, 2.0, 3.0, 4.0], "F.embedding(I([0, 0, 1]), x.view(2, 2), padding_idx=0) ** 2", None, None),
    ("embedding_bag_max", [1.0, 1.0, 1.0, 0.0], "F.embedding_bag(I([[0, 1]]), x.view(2, 2), mode='max')", None, None),
    ("grid_sample_x", [1.0, 2.0, 3.0, 4.0], "F.grid_sample(x.view(1, 1, 2, 2), T([[[[-1., -1.], [1., 1.], [0., 0.], [2., 2.]]]]), align_corners=True)", None, None),
    ("grid_sample_grid", [1.0, 1.0, 0.0, 0.0, -1.0, -1.0, 1.5, 0.0], "F.grid_sample(T([[[[1., 2.], [3., 5.]]]]), x.view(1, 1, 4, 2), align_corners=True)", None, None),
    ("grid_sample_border", [1.0, 1.0, 0.0, 0.0, -1.0, -1.0, 1.5, 0.0], "F.grid_sample(T([[[[1., 2.], [3., 5.]]]]), x.view(1, 1, 4, 2), padding_mode='border', align_corners=True)", None, None),
    ("grid_sample_reflect", [1.0, 1.0, 0.0, 0.0, -1.0, -1.0, 1.5, 0.0], "F.grid_sample(T([[[[1., 2.], [3., 5.]]]]), x.view(1, 1, 4, 2), padding_mode='reflection', align_corners=True)", None, None),
    ("grid_sample_border_half", [1.0, 1.0, 0.5, 0.5, -0.5, -0.5, 1.5, 0.0], "F.grid_sample(T([[[[1., 2.], [3., 5.]]]]), x.view(1, 1, 4, 2), padding_mode='border', align_corners=False)", None, None),
    ("grid_sample_reflect_half", [1.0, 1.0, 0.5, 0.5, -0.5, -0.5, 1.5, 0.0], "F.grid_sample(T([[[[1., 2.], [3., 5.]]]]), x.view(1, 1, 4, 2), padding_mode='reflection', align_corners=False)", None, None),
    ("grid_sample_nearest", [1.0, 2.0, 3.0, 4.0], "F.grid_sample(x.view(1, 1, 2, 2), T([[[[0., 0.], [0.5, 0.5], [-.5, 0.]]]]), mode='nearest', align_corners=False)", None, None),
    ("grid_sample_nearest_al", [1.0, 2.0, 3.0, 4.0], "F.grid_sample(x.view(1, 1, 2, 2), T([[[[0., 0.], [0.5, 0.5], [-.5, 0.]]]]), mode='nearest', align_corners=True)", None, None),
    ("nearest_up", [1.0, 2.0, 3.0], "F.interpolate(x[None, None], size=5, mode='nearest') * T([1., 2., 3., 4., 5.])", None, None),
    ("nearest_down", [1.0, 2.0, 3.0, 4.0, 5.0], "F.interpolate(x[None, None], size=3, mode='nearest') * T([1., 2., 3.])", None, None),
    ("nearest_exact", [1.0, 2.0, 3.0, 4.0], "F.interpolate(x[None, None], size=2, mode='nearest-exact') * T([1., 2.])", None, None),
    ("nearest_exact_odd", [1.0, 2.0, 3.0], "F.interpolate(x[None, None], size=6, mode='nearest-exact') * T([1., 2., 3., 4., 5., 6.])", None, None),
    ("std_keep", [1.0, 1.0, 3.0, 3.0], "x.view(2, 2).std(1, keepdim=True)", None, None),
    ("std_rows", [1.0, 1.0, 1.0, 3.0], "x.view(2, 2).std(1)", None, None),
    ("std_eps", [1.0, 1.0], "x / (x.std(0) + 1e-5)", None, None),
    ("cosine_both", [0.0, 0.0, 0.0, 0.0], "F.cosine_similarity(x[None, :2], x[None, 2:])", None, None),
    ("cosine_eps", [0.0, 0.0], "F.cosine_similarity(x, T([1., 2.]), 0, eps=1e-3)", None, None),
    ("dist_1", [1.0, 1.0], "torch.dist(x, T([1., 1.]), 1)", None, None),
    ("dist_inf", [1.0, 1.0], "torch.dist(x, T([1., 1.]), inf)", None, None),
    ("sqrt_clamped", [0.0, 0.0], "x.square().sum().clamp(min=1e-12).sqrt()", None, None),
    ("sqrt_of_difference", [0.0, 0.0], "(x[0] - x[1]).square().sqrt()", None, None),
    ("sqrt_var", [1.0, 1.0], "x.var().sqrt()", None, None),
    ("lerp_where", [0.0, 1.0], "torch.lerp(x, x.log(), T([0., 0.]))", None, None),
    ("sparse_plus", [0.0, 1.0, -1.0], "torch.where(x <= -1, T(0.), torch.where(x >= 1, x, (x + 1) ** 2 / 4))", "F.sparse_plus(x)", None),
    ("maxout", [1.0, 1.0, 0.0, 1.0], "x.view(2, 2).max(-1)[0]", None, None),
    ("max_minus", [1.0, 1.0, 0.0], "x - x.max(0, keepdim=True).values", None, None),
    ("amax_minus", [1.0, 1.0, 0.0], "(x - x.amax(0, keepdim=True)) * T([1., 2., 3.])", None, None),
    ("softmax_by_hand", [1.0, 1.0, 0.0], "(e := (x - x.max()).exp(), e / e.sum())[1] * T([1., 2., 3.])", None, None),
    ("pairwise_3_far", [3.0, -4.0], "F.pairwise_distance(x[None], T([[0., 0.]]), p=3.)", None, None),
    ("scatter_amax_tie", [1.0, 1.0, 1.0], "T([1., 0.]).scatter_reduce(0, I([0, 0, 1]), x, 'amax')", None, None),
    ("cdist", [0.0, 0.0], "torch.cdist(x[None], T([[0., 0.], [3., 4.]]))", None, None),
    ("cdist_1", [0.0, 0.0], "torch.cdist(x[None], T([[0., 0.], [3., 4.]]), p=1.)", None, None),
    ("cdist_3", [0.0, 0.0], "torch.cdist(x[None], T([[0., 0.], [3., 4.]]), p=3.)", None, None),
    ("cdist_1_far", [3.0, -4.0], "torch.cdist(x[None], T([[0., 0.]]), p=1.)", None, None),
    ("where_inf", [0.0, 4.0], "torch.where(x > 0, 1 / x, T(1.)).log()", None, None),
    ("multilabel_margin", [1.0, 0.0, 0.0], "F.multilabel_margin_loss(x[None], I([[0, -1, 0]]), reduction='sum')", None, None),
    ("margin_ranking_equal", [1.0, 1.0], "F.margin_ranking_loss(x, T([1., 0.]), T([1., -1.]), reduction='sum', margin=1.)", None, None),
    ("gaussian_nll_full", [0.0, 1e-06, 1e-07], "F.gaussian_nll_loss(T([1., 1., 0.]), T([0., 0., 0.]), x, reduction='sum', full=True)", None, None),
    ("cross_entropy_far", [300.0, -300.0], "F.cross_entropy(x[None], I([1]))", None, None),
    ("min_of_max", [1.0, 2.0], "torch.min(torch.max(x, T([1., 0.])), T([3., 2.]))", "np.minimum(np.maximum(x, T([1., 0.])), T([3., 2.]))", "min(max(x, full(shape=[1], value=1, dtype=f32)), full(shape=[1], value=2, dtype=f32))"),
    ("abs_pow", [0.0, -2.0], "x.abs() ** 1.5", "np.abs(x) ** 1.5", "pow(abs(x), 1.5)"),
    ("abs_sqrt", [0.0, -4.0], "(x.abs() + 1e-12).sqrt()", None, None),
    ("frac", [1.0, -0.5], "x.frac()", None, None),
    ("trunc", [1.0, -0.5], "x.trunc()", "np.trunc(x)", None),
    ("rsqrt_clamped", [0.0, 4.0], "x.clamp(min=1e-6).rsqrt()", None, None),
    ("group_max", [1.0, 1.0, 2.0, 2.0], "x.view(2, 2).amax(dim=(0, 1))", None, None),
    ("layer_norm_constant", [1.0, 1.0, 1.0], "F.layer_norm(x, (3,)) * T([1., 2., 3.])", None, None),
    ("rms_norm_0", [0.0, 0.0], "F.rms_norm(x, (2,)) * T([1., 2.])", None, None),
    ("tversky", [0.0, 1.0], "1 - (x * T([1., 0.])).sum() / (x.sum() + 1e-7)", None, None),
    ("step_ste", [0.0, 0.5], "x + (x.round() - x).detach()", "x + lax.stop_gradient(np.round(x) - x)", None),
    ("bce_clamped", [0.0, 1.0], "-(x.clamp(1e-7, 1 - 1e-7).log())", None, None),
]

# Where ampc differs, "FILE: GRADIENT" each, and why.
NOT_TAKEN = "a branch that is not taken passes 0"
ROOT = "the root of a sum of squares at 0 passes 0"
MAX_OR_AMAX = "the file does not tell max(dim) from amax(dim)"
NO_MARGIN = "the exporter writes a loss by margins with clamp"
NO_GRAD = "the file does not tell that the clamp stands under no_grad"
LAST = "what is written over passes 0; PyTorch leaves it undefined"
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
    "scatter_twice": (dict.fromkeys(TORCH, "0 1 1"), LAST),
    "index_put": (dict.fromkeys(TORCH, "0 1 1"), LAST),
    "multi_margin": ({"torch211": "-0.666666687 0.333333343 0.333333343"}, NO_MARGIN),
    "multilabel_margin": ({"torch211": "-2 1 1"}, NO_MARGIN),
    "scatter_amax_not_self": (dict.fromkeys(("torch211", "torch215"), "0.5 0.5 1"),
                              "PyTorch counts the operand that include_self=False leaves out"),
    "amax_keep": ({"torch211-torchscript": "1 0 0 1"}, MAX_OR_AMAX),
    "amax_minus": ({"torch211-torchscript": "-5 2 3"}, MAX_OR_AMAX),
    "matrix_norm_1": ({"torch211-torchscript": "1 0 -1 0"}, MAX_OR_AMAX),
    "clamp_max_tensor": ({"torch211-torchscript": "0.5"}, "the file does not tell it from minimum"),
    "clamp_max_bound": ({"torch211-torchscript": "0.5"}, "the file does not tell it from minimum"),
    "cosine_eps": ({"torch211-torchscript": "1000 2000"}, "the file has the quotient by max(norms, eps)"),
    "embedding_pad": ({"torch211-torchscript": "4 8 6 8"}, "the file does not tell the row of padding"),
    "gaussian_nll": ({"torch211-torchscript": "0 -4.99999506e+11"}, NO_GRAD),
    "gaussian_nll_full": ({"torch211-torchscript": "0 -4.99999506e+11 0"}, NO_GRAD),
    "step_ste": ({"torch211-torchscript": "0 0"}, "the file does not tell detach"),
    "norm_2": ({"jax": "0 0"}, ROOT),
    "pairwise_distance": ({"torch211-torchscript": "0 0"}, "the file has no eps"),
    "root_of_squares": (dict.fromkeys(ALL, "0 0"), ROOT),
    "std": ({"jax": "0 0 0"}, ROOT),
    "std_biased": ({"jax": "0 0 0"}, ROOT),
    "square_root_of_square": (dict.fromkeys(TORCH, "0"), ROOT),
    "sqrt_of_difference": (dict.fromkeys(TORCH, "0 0"), ROOT),
    "sqrt_var": (dict.fromkeys(TORCH, "0 0"), ROOT),
    "atan2_y": ({"jax": "0"}, "as PyTorch"),
    "atan2_x": ({"jax": "0"}, "as PyTorch"),
    "atan2_x_at_0": ({"jax": "0"}, "the file has a constant, pi / 2, at x = 0"),
    "xlogy": (dict.fromkeys(("torch211", "torch215", "jax"), "0"), NOT_TAKEN),
    "entropy_masked": (dict.fromkeys(ALL, "0 0.306852818"), NOT_TAKEN),
    "where_log": (dict.fromkeys(ALL, "0"), NOT_TAKEN),
    "where_quotient": (dict.fromkeys(ALL, "0"), NOT_TAKEN),
    "log_clamped": (dict.fromkeys(ALL, "0 0.5"), NOT_TAKEN),
    "exp_masked": (dict.fromkeys(ALL, "0"), NOT_TAKEN),
    "kl_div": (dict.fromkeys(TORCH, "0 1"), NOT_TAKEN),
    "masked_fill": (dict.fromkeys(TORCH, "0 -1"), NOT_TAKEN),
    "where_sqrt": (dict.fromkeys(ALL, "1 0.25"), NOT_TAKEN),
    "where_pow": (dict.fromkeys(ALL, "0 0 0.25"), NOT_TAKEN),
    "where_asin": (dict.fromkeys(TORCH, "0 1.15470052"), NOT_TAKEN),
    "where_inf": (dict.fromkeys(TORCH, "0 -0.25"), NOT_TAKEN),
    "mask_times": (dict.fromkeys(TORCH, "0 -0.0625"), NOT_TAKEN),
    "index_where": (dict.fromkeys(TORCH, "0 0.25"), NOT_TAKEN),
    "index_fill": (dict.fromkeys(TORCH, "1 0.5 0"), NOT_TAKEN),
    "nan_to_num_of": (dict.fromkeys(TORCH, "0 -0.0625"), NOT_TAKEN),
    "lerp_where": (dict.fromkeys(TORCH, "1 1"), NOT_TAKEN),
    "xlogy_y": (dict.fromkeys(("torch211", "torch215", "jax"), "0 0"), NOT_TAKEN),
    "xlog1py_y": (dict.fromkeys(("torch211", "torch215"), "0 0"), NOT_TAKEN),
    "cosine_similarity": ({"torch211-torchscript": "1e+08 2e+08"}, "the file has the quotient by max(norms, eps)"),
    "logit": ({"torch211-torchscript": "11.1111116 0"}, "the file clamps at 1 - eps by comparisons that exclude it"),
    "logaddexp": ({"jax": "0"}, "the slopes of max and abs at a tie, which JAX replaces"),
    "logaddexp2": ({"jax": "0"}, "the slopes of max and abs at a tie, which JAX replaces"),
    "pow_x_x": ({"jax": "0 1"}, "as PyTorch"),
    "xlogy_x": ({"jax": "0 -inf"}, "as PyTorch"),
    "xlog1py": ({"jax": "0 0.693147182"}, "as PyTorch"),
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
        if dynamo is None:
            import ampc.torch
            return ampc.torch.export(Sum(names).train(), args, path, dynamic_shapes={})
        more = {"optimize": False, "verbose": False, "external_data": False} if dynamo else {
            "training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False, "opset_version": 17}
        with quiet(), contextlib.redirect_stderr(io.StringIO()):
            torch.onnx.export(Sum(names).train(), args, path, dynamo=dynamo, **more)

    def exportable(dynamo, names):
        def of(names):
            try:
                export(names, folder + "/some.onnx", dynamo)
                return names
            except Exception:
                half = len(names) // 2
                return of(names[:half]) + of(names[half:]) if half else []

        good = sum((of(names[i:i + 16]) for i in range(0, len(names), 16)), [])
        if good:
            os.remove(folder + "/some.onnx")
        return good

    grads, files = {}, {}
    for n, (point, f) in rows.items():
        x = T(point, requires_grad=True)
        f(x).sum().backward()
        grads[n] = x.grad.tolist() if x.grad is not None else [0.0] * len(point)
    kinds = {"": True, "-torchscript": False, "-own": None}  # how to export
    if name != "torch211":
        del kinds["-torchscript"]
    for kind, dynamo in kinds.items():
        left = set(files[""]) if dynamo is None else ()
        files[kind] = exportable(dynamo, [n for n in rows if n not in left])
        if files[kind]:
            path = f"{folder}/{name}{kind}.onnx"
            export(files[kind], path, dynamo)
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
