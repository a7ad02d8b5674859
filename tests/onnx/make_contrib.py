# SPDX-License-Identifier: Apache-2.0
"""Makes tests/onnx/contrib: nodes of domain com.microsoft with inputs and the results
of ONNX Runtime 1.32 (CPU), in the form of the backend tests of ONNX.  What has no
CPU kernel there is computed here in fp64 as its documentation says.

    python3 tests/onnx/make_contrib.py tests/onnx/contrib    # numpy, onnx, onnxruntime
"""
import math
import os
import shutil
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(57)
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32,
         np.dtype(np.int64): TensorProto.INT64, np.dtype(np.uint8): TensorProto.UINT8,
         np.dtype(np.int8): TensorProto.INT8, np.dtype(np.bool_): TensorProto.BOOL}


def f(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def i32(*v):
    return np.array(v, np.int32)


def i64(*v):
    return np.array(v, np.int64)


def bits(*shape):
    return rng.integers(0, 256, shape).astype(np.uint8)


def signed(*shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def one(x, dtype=np.float32):
    """A scale or a zero point, as a constant of the file."""
    return (np.array(x, dtype),)


def zero(x, dtype=np.uint8):
    return one(x, dtype)


def turns(half):
    angle = np.arange(8)[:, None] / 10000 ** (np.arange(half) / half)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


cos, sin = turns(4)
wide_cos, wide_sin = turns(8)
# name: op, operands (None: left out; a tuple: a constant of the file), results,
# attributes
CASES = {
    "gelu": ("Gelu", [f(3, 5)], 1, {}),
    "quick_gelu": ("QuickGelu", [f(3, 5)], 1, {"alpha": 1.5}),
    "quick_gelu_default": ("QuickGelu", [f(3, 5)], 1, {}),
    "fast_gelu": ("FastGelu", [f(3, 5)], 1, {}),
    "fast_gelu_bias": ("FastGelu", [f(3, 5), f(5)], 1, {}),
    "bias_gelu": ("BiasGelu", [f(3, 5), f(5)], 1, {}),
    "skip_layer_norm": ("SkipLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)],
                        4, {"epsilon": 1e-5}),
    "skip_layer_norm_wide": ("SkipLayerNormalization", [f(2, 3, 8), f(1, 3, 8), f(8)], 1, {}),
    "simplified_layer_norm": ("SimplifiedLayerNormalization", [f(2, 3, 8), f(8)], 1,
                              {"axis": -1, "epsilon": 1e-5}),
    "skip_rms_norm": ("SkipSimplifiedLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8)],
                      4, {"epsilon": 1e-5}),
    "embed": ("EmbedLayerNormalization",
              [i32([0, 2, 4], [1, 1, 3]), i32([0, 1, 1], [0, 0, 1]), f(5, 8), f(4, 8), f(2, 8),
               f(8), f(8), i32([1, 1, 0], [1, 1, 1])], 3, {"epsilon": 1e-5}),
    "embed_plain": ("EmbedLayerNormalization",
                    [i32([0, 2, 4], [1, 1, 3]), None, f(5, 8), f(4, 8), None, f(8), f(8)], 2, {}),
    "fused_matmul": ("FusedMatMul", [f(2, 4, 3), f(2, 5, 4)], 1,
                     {"transA": 1, "transB": 1, "alpha": 0.5}),
    "fused_gemm": ("FusedGemm", [f(4, 3), f(5, 4), f(5)], 1,
                   {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0,
                    "activation": "LeakyRelu", "activation_alpha": 0.2}),
    "attention": ("Attention", [f(2, 4, 8), f(8, 24), f(24)], 1, {"num_heads": 2}),
    "attention_causal": ("Attention", [f(2, 4, 8), f(8, 24), f(24)], 2,
                         {"num_heads": 2, "unidirectional": 1}),
    "attention_lengths": ("Attention", [f(2, 4, 8), f(8, 24), f(24), i32(3, 4)], 1,
                          {"num_heads": 2}),
    "attention_keys": ("Attention",
                       [f(2, 4, 8), f(8, 20), f(20), i32([1, 1, 0, 1], [0, 1, 1, 1])], 1,
                       {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}),
    "attention_bias": ("Attention",
                       [f(2, 4, 8), f(8, 24), f(24), None, None, f(2, 2, 4, 4)], 1,
                       {"num_heads": 2, "scale": 0.3}),
    "multi_head": ("MultiHeadAttention", [f(2, 4, 8), f(2, 5, 8), f(2, 5, 6), f(22)], 1,
                   {"num_heads": 2}),
    "multi_head_masked": ("MultiHeadAttention",
                          [f(2, 4, 8), f(2, 5, 8), f(2, 5, 8), None,
                           i32([1, 1, 1, 0, 0], [1, 1, 1, 1, 1]), f(1, 2, 4, 5)], 1,
                          {"num_heads": 2, "scale": 0.4}),
    "multi_head_cross": ("MultiHeadAttention", [f(2, 4, 8), f(2, 2, 5, 4), f(2, 2, 5, 4)], 1,
                         {"num_heads": 2}),
    "multi_head_causal": ("MultiHeadAttention", [f(2, 4, 8), f(2, 4, 8), f(2, 4, 8)], 1,
                          {"num_heads": 2, "unidirectional": 1}),
    "group_query": ("GroupQueryAttention",
                    [f(2, 5, 32), f(2, 5, 16), f(2, 5, 16), None, None, i32(4, 4), i32(5)], 3,
                    {"num_heads": 4, "kv_num_heads": 2}),
    "group_query_rotary": ("GroupQueryAttention",
                           [f(2, 5, 128), None, None, None, None, i32(4, 4), i32(5), wide_cos, wide_sin], 1,
                           {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1,
                            "local_window_size": 2}),
    "group_query_turned": ("GroupQueryAttention",
                           [f(2, 5, 64), f(2, 5, 32), f(2, 5, 32), None, None, i32(4, 4), i32(5),
                            wide_cos, wide_sin], 1,
                           {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1,
                            "rotary_interleaved": 1, "softcap": 3.0, "scale": 0.5}),
    "rotary": ("RotaryEmbedding", [f(2, 3, 16), i64([0, 1, 2], [3, 1, 5]), cos, sin], 1, {}),
    "rotary_offset": ("RotaryEmbedding", [f(2, 2, 3, 8), i64(2), cos, sin], 1,
                      {"interleaved": 1}),
    "nbits": ("MatMulNBits", [f(2, 3, 40), (bits(5, 3, 8),), (f(5, 3),)], 1,
              {"K": 40, "N": 5, "bits": 4, "block_size": 16}),
    "nbits_zero": ("MatMulNBits",
                   [f(3, 48), (bits(5, 3, 8),), (f(15),), (bits(10),), None, f(5)], 1,
                   {"K": 48, "N": 5, "bits": 4, "block_size": 16}),
    "nbits_eight": ("MatMulNBits", [f(3, 32), (bits(5, 2, 16),), (f(5, 2),), (bits(5, 2),)], 1,
                    {"K": 32, "N": 5, "bits": 8, "block_size": 16}),
    "blocks": ("GatherBlockQuantized",
               [(bits(6, 16),), i64([0, 5], [2, 2]), (f(6, 2),), (bits(6, 1),)], 1,
               {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}),
    "relative": ("RelativePositionBias", [f(32, 2), (i64(20),), (i64(20),)], 1,
                 {"max_distance": 20}),
    "relative_both": ("RelativePositionBias", [f(32, 2), (i64(20),), (i64(20),)], 1,
                      {"max_distance": 16, "is_bidirectional": 1}),
    "group_norm": ("GroupNorm", [f(2, 3, 2, 6), f(6), f(6)], 1,
                   {"groups": 2, "epsilon": 1e-5, "activation": 1, "channels_last": 1}),
    "bias_split_gelu": ("BiasSplitGelu", [f(2, 3, 6), f(6)], 1, {}),
    "trilu": ("Trilu", [f(3, 4), (i64(1)[0:1].reshape(()),)], 1, {"upper": 0}),
    "fused_conv": ("FusedConv", [f(2, 4, 5, 5), f(6, 2, 3, 3), f(6), f(2, 6, 5, 5)], 1,
                   {"group": 2, "kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "activation": "Relu"}),
    "fused_conv_clip": ("FusedConv", [f(2, 3, 5, 5), f(4, 3, 3, 3)], 1,
                        {"kernel_shape": [3, 3], "strides": [2, 2], "activation": "Clip",
                         "activation_params": [-0.5, 1.0]}),
    "fused_conv_leaky": ("FusedConv", [f(2, 3, 5, 5), f(4, 3, 3, 3), f(4)], 1,
                         {"kernel_shape": [3, 3], "activation": "LeakyRelu",
                          "activation_params": [0.2]}),
    "nhwc_conv": ("NhwcConv", [f(2, 5, 4, 3), f(6, 3, 3, 3), f(6)], 1,
                  {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "skip_group_norm": ("SkipGroupNorm", [f(2, 3, 2, 6), f(6), f(6), f(2, 6), f(6)], 2,
                        {"groups": 2, "epsilon": 1e-5, "activation": 1, "channels_last": 1}),
    "bias_add": ("BiasAdd", [f(2, 3, 4), f(4), f(2, 3, 4)], 1, {}),
    "bias_softmax": ("BiasSoftmax", [f(2, 3, 4, 5), f(2, 1, 1, 5)], 1,
                     {"axis": 3, "is_inner_broadcast": 1}),
    "bias_softmax_outer": ("BiasSoftmax", [f(2, 3, 4, 5), f(1, 3, 4, 5)], 1,
                           {"axis": 3, "is_inner_broadcast": 0}),
    "gemm_fast_gelu": ("GemmFastGelu", [f(2, 3, 4), f(4, 5), f(5)], 1, {}),
    "inverse": ("Inverse", [f(2, 3, 3)], 1, {}),
    "moe": ("MoE", [f(5, 8), f(5, 4), f(4, 16, 8), f(4, 16), f(4, 8, 16), f(4, 8)], 1,
            {"k": 2, "activation_type": "relu"}),
    "moe_swiglu": ("MoE", [f(2, 3, 8), f(6, 4), f(4, 32, 8), f(4, 32), f(4, 8, 16), f(4, 8)], 1,
                   {"k": 2, "normalize_routing_weights": 1, "activation_type": "swiglu",
                    "swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0,
                    "swiglu_limit": 0.7}),
    "qmoe": ("QMoE", [f(5, 32), f(5, 4), (bits(4, 64, 16),), (f(4, 64) / 9,), (f(4, 64),),
                      (bits(4, 32, 16),), (f(4, 32) / 9,), (f(4, 32),)], 1,
             {"k": 2, "normalize_routing_weights": 1, "activation_type": "swiglu",
              "swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0,
              "expert_weight_bits": 4}),
    "qmoe_eight": ("QMoE", [f(5, 32), f(5, 4), (bits(4, 32, 32),), (f(4, 32) / 99,), None,
                            (bits(4, 32, 32),), (f(4, 32) / 99,)], 1,
                   {"k": 2, "normalize_routing_weights": 1, "activation_type": "silu",
                    "expert_weight_bits": 8}),
    "matmul_dynamic": ("DynamicQuantizeMatMul", [f(2, 3, 8), (signed(8, 5),), (abs(f(5)) / 99,), (signed(5),), f(5)], 1, {}),
    "matmul_to_float": ("MatMulIntegerToFloat",
                        [bits(3, 8), (signed(8, 5),), one(0.02), (abs(f(5)) / 99,), zero(119), (signed(5),), f(5)], 1, {}),
    "dynamic_lstm": ("DynamicQuantizeLSTM",
                     [f(4, 2, 5), (signed(2, 5, 12),), (signed(2, 3, 12),), f(2, 24), None, f(2, 2, 3), f(2, 2, 3), None,
                      (abs(f(2)) / 99,), (signed(2),), (abs(f(2)) / 99,), (signed(2),)], 3,
                     {"hidden_size": 3, "direction": "bidirectional"}),
    "q_gemm": ("QGemm", [bits(3, 8), one(0.02), zero(119), (signed(8, 5),), (abs(f(5)) / 99,), (signed(5),),
                         (rng.integers(-999, 999, 5).astype(np.int32),), one(0.1), zero(130)], 1, {}),
    "q_gemm_float": ("QGemm", [bits(8, 3), one(0.02), zero(119), (signed(5, 8),), one(0.01), zero(0, np.int8)], 1,
                     {"transA": 1, "transB": 1, "alpha": 0.5}),
    "q_add": ("QLinearAdd", [bits(3, 5), one(0.02), zero(119), bits(5), one(0.05), zero(7), one(0.07), zero(99)], 1, {}),
    "q_mul": ("QLinearMul", [signed(3, 5), one(0.02), zero(-9, np.int8), signed(3, 1), one(0.05), zero(7, np.int8),
                             one(0.11), zero(-3, np.int8)], 1, {}),
    "q_sigmoid": ("QLinearSigmoid", [bits(3, 5), one(0.03), zero(128), one(1 / 256), zero(0)], 1, {}),
    "q_leaky_relu": ("QLinearLeakyRelu", [signed(3, 5), one(0.03), zero(12, np.int8), one(0.02), zero(-80, np.int8)], 1,
                     {"alpha": 0.2}),
    "q_softmax": ("QLinearSoftmax", [bits(3, 5), one(0.03), zero(12), one(1 / 256), zero(0)], 1, {"axis": 1, "opset": 13}),
    "q_softmax_flat": ("QLinearSoftmax", [bits(3, 2, 5), one(0.03), zero(12), one(1 / 256), zero(0)], 1,
                       {"axis": 1, "opset": 12}),
    "q_global_pool": ("QLinearGlobalAveragePool", [bits(2, 3, 4, 5), one(0.03), zero(12), one(0.02), zero(9)], 1,
                      {"channels_last": 0}),
    "q_global_pool_last": ("QLinearGlobalAveragePool", [bits(2, 4, 5, 3), one(0.03), zero(12), one(0.02), zero(9)], 1,
                           {"channels_last": 1}),
    "q_pool": ("QLinearAveragePool", [bits(2, 3, 5, 5), one(0.03), zero(12), one(0.0203), zero(9)], 1,
               {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "q_concat": ("QLinearConcat", [one(0.05), zero(20), bits(2, 3), one(0.03), zero(12), bits(2, 4), one(0.07), zero(99)], 1,
                 {"axis": 1}),
    "q_where": ("QLinearWhere", [rng.integers(0, 2, (3, 5)).astype(bool), bits(3, 5), one(0.03), zero(12),
                                 bits(5), one(0.07), zero(99), one(0.08), zero(50)], 1, {}),
    "q_attention": ("QAttention", [bits(2, 4, 8), (signed(8, 24),), f(24), one(0.02), one(0.01),
                                   i32([1, 1, 0, 1], [0, 1, 1, 1]), zero(119), zero(3, np.int8)], 1, {"num_heads": 2}),
    "dequantize": ("DequantizeLinear", [(bits(3, 4),), (f(4),), (bits(4),)], 1, {"axis": 1}),
    # of ONNX's own domain, where the generated node tests have no case
    "layer_norm_outer": ("ai.onnx:LayerNormalization", [f(2, 5, 7), f(2, 1, 7), f(2, 1, 7)], 1, {}),
    "layer_norm_outer_bias": ("ai.onnx:LayerNormalization", [f(2, 5, 7), f(7), f(2, 5, 1)], 1, {}),
    "batch_norm_vector": ("ai.onnx:BatchNormalization",
                          [f(10), f(1), f(1), f(1), np.abs(f(1))], 1, {"epsilon": 1e-3}),
    "pad_value": ("ai.onnx:Pad", [f(2, 3), (i64(1, 0, 0, 2),), f(1)[0:1].reshape(())], 1, {}),
    "pad_value_cropped": ("ai.onnx:Pad", [f(4, 3), (i64(-1, 2, 0, 1),), f(1)[0:1].reshape(())], 1, {}),
    "attention_integer_mask": ("ai.onnx:Attention", [f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4),
                               rng.integers(-2, 2, (3, 5))], 1, {}),
    "shrink_unsigned": ("ai.onnx:Shrink", [bits(4, 5)], 1, {"bias": 1.5, "lambd": 100.0}),
    "shrink_integers": ("ai.onnx:Shrink", [rng.integers(-9, 9, (4, 5))], 1, {"bias": 0.5, "lambd": 2.5}),
    "attention_past": ("Attention", [f(2, 4, 8), f(8, 24), f(24), None, f(2, 2, 2, 3, 4)], 2,
                       {"num_heads": 2, "unidirectional": 1}),
    "multi_head_past": ("MultiHeadAttention",
                        [f(2, 2, 8), f(2, 2, 8), f(2, 2, 8), None, i32([1, 1, 0, 1, 1], [0, 1, 1, 1, 1]), None,
                         f(2, 2, 3, 4), f(2, 2, 3, 4)], 3, {"num_heads": 2}),
    "group_query_past": ("GroupQueryAttention",
                         [f(2, 1, 64), f(2, 1, 32), f(2, 1, 32), f(2, 2, 4, 16), f(2, 2, 4, 16), i32(4, 4), i32(5),
                          wide_cos, wide_sin], 3, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}),
    "group_query_past_lengths": ("GroupQueryAttention",
                                 [f(2, 1, 64), f(2, 1, 32), f(2, 1, 32), f(2, 2, 4, 16), f(2, 2, 4, 16), i32(4, 2), i32(5),
                                  wide_cos, wide_sin], 3,
                                 {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 3}),
    "group_query_past_more": ("GroupQueryAttention",
                              [f(1, 2, 64), f(1, 2, 32), f(1, 2, 32), f(1, 2, 3, 16), f(1, 2, 3, 16), i32(4), i32(5),
                               wide_cos, wide_sin], 3, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}),
}


def relative_position_bias(table, queries, keys, max_distance=128, is_bidirectional=0):
    """As in transformers' T5Attention._relative_position_bucket."""
    y = np.zeros((1, table.shape[1], queries[0], keys[0]))
    for i in range(queries[0]):
        for j in range(keys[0]):
            buckets, bucket, back = len(table), 0, i - j
            if is_bidirectional:
                buckets //= 2
                bucket = buckets if j > i else 0
                back = abs(back)
            back = max(back, 0)
            near = buckets // 2
            if back >= near:
                far = math.log(back / near) / math.log(max_distance / near) * (buckets - near)
                back = min(near + int(far), buckets - 1)
            y[0, :, i, j] = table[bucket + back]
    return y


def group_norm(x, scale, bias, groups, epsilon, activation, channels_last):
    assert channels_last == 1
    x = x.astype(np.float64)
    cut = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    z = (cut - cut.mean((1, 3), keepdims=True)) / np.sqrt(cut.var((1, 3), keepdims=True) + epsilon)
    z = z.reshape(x.shape) * scale + bias
    return z / (1 + np.exp(-z)) if activation else z


def bias_split_gelu(x, bias):
    left, right = np.split(x.astype(np.float64) + bias, 2, -1)
    return left * right * 0.5 * (1 + np.vectorize(math.erf)(right / math.sqrt(2)))


def nhwc_conv(x, w, bias, kernel_shape, pads):
    assert pads == [1, 1, 1, 1]
    x = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    h, v = x.shape[1] - 2, x.shape[2] - 2
    return bias + sum(np.einsum("nhwc,oc->nhwo", x[:, i:i + h, j:j + v], w[:, i, j])
                      for i in range(3) for j in range(3))


def skip_group_norm(x, scale, shift, skip, bias, **attributes):
    total = x.astype(np.float64) + skip[:, None, None] + bias
    return group_norm(total, scale, shift, **attributes), total


def bias_add(x, bias, skip):
    return x + bias + skip


def bias_softmax(x, bias, axis, is_inner_broadcast):
    e = np.exp(x.astype(np.float64) + bias)
    return e / e.sum(axis, keepdims=True)


def gemm_fast_gelu(x, w, bias):
    z = x.astype(np.float64) @ w + bias
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z ** 3)))


HERE = {"NhwcConv": nhwc_conv, "SkipGroupNorm": skip_group_norm, "BiasAdd": bias_add,
        "BiasSoftmax": bias_softmax, "GemmFastGelu": gemm_fast_gelu,
        "RelativePositionBias": relative_position_bias, "GroupNorm": group_norm,
        "BiasSplitGelu": bias_split_gelu}


def run(model, outs, data, op, operands, attributes):
    if op in HERE:
        values = [v[0] if isinstance(v, tuple) else v for v in operands]
        got = HERE[op](*values, **attributes)
        return [y.astype(np.float32) for y in (got if isinstance(got, tuple) else (got,))]
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=["CPUExecutionProvider"])
    return session.run(outs, dict(data))


def make(name, folder):
    op, operands, results, attributes = CASES[name]
    names, inputs, constants, data = [], [], [], []
    for k, v in enumerate(operands):
        names.append("" if v is None else f"x{k}")
        if isinstance(v, tuple):
            constants.append(numpy_helper.from_array(v[0], names[-1]))
        elif v is not None:
            inputs.append(helper.make_tensor_value_info(names[-1], TYPES[v.dtype], v.shape))
            data.append((names[-1], v))
    outs = [f"y{k}" for k in range(results)]
    if name.startswith("skip") and results == 4:
        outs[1:3] = ["", ""]
    standard = op.startswith("ai.onnx:")
    domain = "" if standard or op == "SimplifiedLayerNormalization" else "com.microsoft"
    node = helper.make_node(op.removeprefix("ai.onnx:"), names, outs, domain=domain, name=name, **attributes)
    outs = [o for o in outs if o]
    graph = helper.make_graph(
        [node], name, inputs, [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outs],
        constants)
    for o in graph.output:
        o.type.tensor_type.elem_type = TensorProto.FLOAT
        if (op, o.name) == ("EmbedLayerNormalization", "y1"):
            o.type.tensor_type.elem_type = TensorProto.INT32
        if name.startswith("shrink"):
            o.type.tensor_type.elem_type = TYPES[operands[0].dtype]
        if op.startswith("QLinear") or name == "q_gemm":
            levels = operands[1 if op == "QLinearConcat" else -1]
            o.type.tensor_type.elem_type = TYPES[levels[0].dtype]
        o.type.tensor_type.ClearField("shape")
    model = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 23 if standard else 21), helper.make_opsetid("com.microsoft", 1)])
    got = run(model, outs, data, op, operands, attributes)
    for o, y in zip(graph.output, got):
        o.CopyFrom(helper.make_tensor_value_info(o.name, TYPES[y.dtype], y.shape))
    model.graph.CopyFrom(graph)
    path = os.path.join(folder, "node", name, "test_data_set_0")
    os.makedirs(path)
    with open(os.path.join(path, "..", "model.onnx"), "wb") as out:
        out.write(model.SerializeToString())
    for kind, values in (("input", [v for _, v in data]), ("output", got)):
        for k, v in enumerate(values):
            with open(os.path.join(path, f"{kind}_{k}.pb"), "wb") as out:
                out.write(numpy_helper.from_array(v).SerializeToString())


def main():
    folder = sys.argv[1]
    shutil.rmtree(folder, ignore_errors=True)
    for name in CASES:
        try:
            make(name, folder)
        except Exception as e:
            sys.exit(f"{name}: {e}")
    print(f"{len(CASES)} cases by ONNX Runtime {onnxruntime.__version__}")


main()
