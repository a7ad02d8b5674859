#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files with the operators of ONNX Runtime's model builder (int4 MatMulNBits,
GroupQueryAttention with rotary positions, skip norms): a decoder layer written by
hand, and a LLaMA of the builder itself.  Their forward beside ONNX Runtime, and 5
steps that fine-tune norms and head beside PyTorch on the dequantised weights
(maintainers; needs torch 2.11, transformers 5.23.0, onnx, onnxruntime 1.32.0,
onnxruntime-genai 0.18.0).

usage: genai.py FOLDER AMPC

Writes FOLDER/onnxruntime-genai.onnx, FOLDER/onnxruntime-genai-llama.onnx and their
.txt in the form of exporters.py."""
import os
import subprocess
import sys
import tempfile
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from exporters import beside, put
from case import RATE, STEPS, Case

# The builder takes a product for the head if it has as many columns as there are CLASSES.
BATCH, STEP, WIDTH, HEADS, PAIRS, SIZE, CLASSES, HIDDEN, BLOCK = 2, 5, 32, 2, 1, 16, 20, 64, 16
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


def inputs():
    ids = torch.tensor(np.random.RandomState(1).randint(0, CLASSES, (BATCH, STEP)))
    return ids, ids.roll(-1, 1)


def trained(path, name, feeds, target, logits, parameters, options, still, binary):
    """Compares forward and training; `parameters` by their names in the file."""
    import onnxruntime
    past = [i.name for i in onnx.load(path).graph.input if i.name not in feeds]
    data = {**feeds, **{k: np.zeros((BATCH, PAIRS, 0, SIZE), "f4") for k in past}}
    theirs = onnxruntime.InferenceSession(path).run(["logits"], data)[0]
    print(f"{name}: forward of PyTorch beside ONNX Runtime: {np.abs(logits().detach().numpy() - theirs).max():.1e}")
    optimizer, losses = torch.optim.SGD(parameters.values(), lr=RATE), []
    for _ in range(STEPS):
        loss = F.cross_entropy(logits().reshape(-1, CLASSES), target.reshape(-1))
        optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.item())
    options = ["--loss", "cross_entropy:logits", *(x for n in parameters for x in ("--train", n)),
               *(x for n in still for x in ("--freeze", n)), *options]
    case = Case(name, path, options, {**feeds, "target": target.numpy()}, losses,
                {k: v.detach().numpy() for k, v in parameters.items()}, {}, still, outputs={"logits": theirs})
    bad, _, refused, out = beside(case, binary)
    print(refused or bad or "right")
    if bad or refused:
        return print(out)
    put(case, refused)


def by_hand(folder, binary):
    path, held = f"{folder}/onnxruntime-genai.onnx", numbers()
    file(path, held)
    p, (ids, target) = {k: torch.tensor(v) for k, v in held.items()}, inputs()
    learned = {k: p[k].requires_grad_(True) for k in (*NORMS, "head.weight")}
    trained(path, "onnxruntime-genai", {"ids": ids.numpy()}, target, lambda: forward(p, ids), learned, [], ["embed.weight"], binary)


# ---- the builder itself ------------------------------------------------------

def random_llama(folder):
    """A model of transformers with a tokenizer, saved in the folder."""
    import tokenizers, transformers
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=CLASSES, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=PAIRS, head_dim=SIZE, max_position_embeddings=16, bos_token_id=1, eos_token_id=2, rope_theta=100.))
    with torch.no_grad():
        for p in model.parameters(): p.copy_(torch.randn_like(p) / 5 + (1 if p.dim() == 1 else 0))
    model.save_pretrained(folder)
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(CLASSES)}, unk_token="w0")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), unk_token="w0").save_pretrained(folder)
    return model


def widened(tensors, name):
    """[rows, columns] of 4-bit codes in blocks."""
    codes, scales = tensors[name + ".weight_Q4"], tensors[name + ".weight_scales"]
    levels = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], -1).astype("f4") - 8
    return torch.tensor((levels * scales.reshape(*codes.shape[:2], 1)).reshape(len(codes), -1))


def by_builder(folder, binary):
    import onnxruntime_genai
    path, work = f"{folder}/onnxruntime-genai-llama.onnx", tempfile.mkdtemp()
    model = random_llama(work + "/model")
    script = os.path.join(os.path.dirname(onnxruntime_genai.__file__), "models", "builder.py")
    subprocess.run([sys.executable, script, "-i", work + "/model", "-o", work + "/out", "-c", work + "/cache", "-m", "llama",
                    "-p", "int4", "-e", "cpu", "--extra_options", f"block_size={BLOCK}", "accuracy_level=1",
                    "nodes_to_exclude=/lm_head/MatMul"], check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    made = onnx.load(work + "/out/model.onnx")
    onnx.save(made, path)
    tensors = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    learned, head = {}, torch.nn.Parameter(torch.tensor(tensors["lm_head.MatMul.weight"]))
    for i, layer in enumerate(model.model.layers):
        start, a, m = f"model.layers.{i}.", layer.self_attn, layer.mlp
        rows = widened(tensors, start + "attn.qkv_proj.MatMul").split([WIDTH, PAIRS * SIZE, PAIRS * SIZE])
        for linear, w in zip((a.q_proj, a.k_proj, a.v_proj), rows): linear.weight.data = w
        a.o_proj.weight.data = widened(tensors, start + "attn.o_proj.MatMul")
        for k in ("gate_proj", "up_proj", "down_proj"): getattr(m, k).weight.data = widened(tensors, start + f"mlp.{k}.MatMul")
        learned[start + "input_layernorm.weight"] = layer.input_layernorm.weight
        learned[start + "post_attention_layernorm.weight"] = layer.post_attention_layernorm.weight
    learned[f"model.layers.{len(model.model.layers)}.final_norm_layernorm.weight"] = model.model.norm.weight
    learned["lm_head.MatMul.weight"] = head
    ids, target = inputs()
    feeds = {"input_ids": ids.numpy(), "attention_mask": np.ones((BATCH, STEP), "i8")}
    sizes = {"batch_size": BATCH, "sequence_length": STEP, "total_sequence_length": STEP, "past_sequence_length": 0,
             "kv_cache_dim": SIZE}
    options = [x for k, v in sizes.items() for x in ("--dim", f"{k}={v}")]
    trained(path, "onnxruntime-genai-llama", feeds, target, lambda: model.model(ids).last_hidden_state @ head, learned, options,
            ["model.embed_tokens.weight"], binary)


def main():
    folder, binary = sys.argv[1:3]
    by_hand(folder, binary)
    by_builder(folder, binary)


if __name__ == "__main__":
    main()
