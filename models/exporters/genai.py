#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A decoder layer with the operators of ONNX Runtime's model builder (int4
MatMulNBits, GroupQueryAttention with rotary positions, skip norms), written by hand:
its forward beside ONNX Runtime, and 5 steps that fine-tune its norms and head beside
PyTorch on the dequantised weights (maintainers; needs torch, onnx, onnxruntime).

usage: genai.py FOLDER AMPC

Writes FOLDER/onnxruntime-genai.onnx and .txt in the form of exporters.py."""
import sys
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from exporters import beside, put
from case import RATE, STEPS, Case

BATCH, STEP, WIDTH, HEADS, PAIRS, SIZE, CLASSES, HIDDEN, BLOCK = 2, 5, 32, 2, 1, 16, 16, 64, 16
EPSILON = 1e-6
SHAPES = {"q": (WIDTH, WIDTH), "k": (PAIRS * SIZE, WIDTH), "v": (PAIRS * SIZE, WIDTH), "o": (WIDTH, WIDTH),
          "gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
NORMS = ("input_norm.weight", "post_norm.weight", "norm.weight")


def numbers():
    """{name: array}: trained, codes, scales, tables."""
    rng = np.random.RandomState(0)
    t = np.arange(STEP)[:, None] / 100 ** (np.arange(SIZE // 2) / (SIZE // 2))
    found = {"embed.weight": rng.randn(CLASSES, WIDTH) * .5, "head.weight": rng.randn(WIDTH, CLASSES) / 6,
             "cos": np.cos(t), "sin": np.sin(t), **{n: 1 + .1 * rng.randn(WIDTH) for n in NORMS}}
    found = {k: v.astype("f4") for k, v in found.items()}
    for name, (n, k) in SHAPES.items():
        blocks = rng.randn(n, k // BLOCK, BLOCK).astype("f4") / np.sqrt(k)
        scale = (np.abs(blocks).max(2) / 7).astype("f4")
        codes = np.clip(np.round(blocks / scale[..., None]) + 8, 0, 15).astype("u1")
        found[name + ".codes"], found[name + ".scales"] = codes[..., 0::2] | (codes[..., 1::2] << 4), scale.reshape(-1)
        found[name] = ((codes.astype("f4") - 8) * scale[..., None]).reshape(n, k)  # not in the file
    found["last"], found["total"] = np.full(BATCH, STEP - 1, "i4"), np.array(STEP, "i4")
    return found


def file(path, held):
    nodes = []

    def node(op, inputs, outputs, domain="com.microsoft", **attributes):
        nodes.append(helper.make_node(op, inputs, outputs, name=f"{op}_{len(nodes)}", domain=domain, **attributes))
        return outputs[0]

    def product(x, name):
        n, k = SHAPES[name]
        return node("MatMulNBits", [x, name + ".codes", name + ".scales"], [name + ".y"], K=k, N=n, bits=4, block_size=BLOCK)
    x = node("Gather", ["embed.weight", "ids"], ["x"], "")
    h = node("SimplifiedLayerNormalization", [x, NORMS[0]], ["h"], "", epsilon=EPSILON, axis=-1)
    a = node("GroupQueryAttention", [product(h, "q"), product(h, "k"), product(h, "v"), "", "", "last", "total", "cos", "sin"],
             ["a", "keys", "values"], num_heads=HEADS, kv_num_heads=PAIRS, do_rotary=1)
    h = node("SkipSimplifiedLayerNormalization", [x, product(a, "o"), NORMS[1]], ["h1", "", "", "s1"], epsilon=EPSILON)
    gate, up = product(h, "gate"), product(h, "up")
    g = node("Mul", [node("Mul", [gate, node("Sigmoid", [gate], ["open"], "")], ["silu"], ""), up], ["g"], "")
    h = node("SkipSimplifiedLayerNormalization", ["s1", product(g, "down"), NORMS[2]], ["h2", "", "", "s2"], epsilon=EPSILON)
    node("MatMul", [h, "head.weight"], ["logits"], "")
    graph = helper.make_graph(
        nodes, "genai", [helper.make_tensor_value_info("ids", TensorProto.INT64, [BATCH, STEP])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [BATCH, STEP, CLASSES])],
        [numpy_helper.from_array(v, k) for k, v in held.items() if k not in SHAPES])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]), path)


def norm(x, scale):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * scale


def forward(p, ids):
    def heads(x, n):
        return x.reshape(BATCH, STEP, n, SIZE).transpose(1, 2)

    def turned(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * p["cos"] - b * p["sin"], b * p["cos"] + a * p["sin"]], -1)
    x = p["embed.weight"][ids]
    h = norm(x, p[NORMS[0]])
    q, k = turned(heads(h @ p["q"].t(), HEADS)), turned(heads(h @ p["k"].t(), PAIRS))
    v = heads(h @ p["v"].t(), PAIRS)
    k, v = (t.repeat_interleave(HEADS // PAIRS, 1) for t in (k, v))
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, STEP, WIDTH)
    x = x + a @ p["o"].t()
    h = norm(x, p[NORMS[1]])
    x = x + (F.silu(h @ p["gate"].t()) * (h @ p["up"].t())) @ p["down"].t()
    return norm(x, p[NORMS[2]]) @ p["head.weight"]


def main():
    import onnxruntime
    folder, binary = sys.argv[1:3]
    path, held = f"{folder}/onnxruntime-genai.onnx", numbers()
    file(path, held)
    p = {k: torch.tensor(v) for k, v in held.items()}
    ids = torch.tensor(np.random.RandomState(1).randint(0, CLASSES, (BATCH, STEP)))
    target = ids.roll(-1, 1)
    theirs = onnxruntime.InferenceSession(path).run(["logits"], {"ids": ids.numpy()})[0]
    print("forward beside ONNX Runtime:", np.abs(forward(p, ids).numpy() - theirs).max())
    trained = {k: p[k].requires_grad_(True) for k in (*NORMS, "head.weight")}
    optimizer, losses = torch.optim.SGD(trained.values(), lr=RATE), []
    for _ in range(STEPS):
        loss = F.cross_entropy(forward(p, ids).reshape(-1, CLASSES), target.reshape(-1))
        optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.item())
    options = ["--loss", "cross_entropy", *(x for n in trained for x in ("--train", n)), "--freeze", "embed.weight"]
    case = Case("onnxruntime-genai", path, options, {"ids": ids.numpy(), "target": target.numpy()}, losses,
                {k: v.detach().numpy() for k, v in trained.items()}, {}, ["embed.weight"])
    bad, refused, out = beside(case, binary)
    print(refused or bad or "right")
    if bad or refused:
        return print(out)
    put(case, refused)


if __name__ == "__main__":
    main()
