#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that ONNX Runtime's quantize_dynamic and quantize_static wrote: their forward beside
ONNX Runtime, and 5 steps that train what stayed fp32 beside PyTorch, which executes the
file's nodes and passes the gradient straight through each rounding (maintainers; needs
torch, onnx, onnxruntime 1.32.0).

usage: quantized.py FOLDER AMPC

Writes FOLDER/onnxruntime-quantized-*.onnx and their .txt in the form of exporters.py."""
import os
import sys
import tempfile
import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn as nn
import torch.nn.functional as F
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from exporters import beside, put
from case import RATE, STEPS, Case, neutral_paths


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.third(torch.sigmoid(self.second(torch.relu(self.first(x)))))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        y = F.leaky_relu(self.second(torch.relu(self.first(x))), .1)
        y = F.max_pool2d(y, 2)
        return self.third(F.avg_pool2d(y * torch.sigmoid(y) + y, 3).flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 6), nn.LSTM(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.third(self.second(self.first(x))[0][-1])


class Samples(CalibrationDataReader):
    def __init__(self, x): self.left = [{"x": x.numpy()}]
    def get_next(self): return self.left.pop() if self.left else None


def first_product(path):
    return next(n.name for n in onnx.load(path).graph.node if n.op_type in ("Gemm", "MatMul", "Conv"))


def files(folder):
    """name, path, input: the first layer keeps its fp32 weights."""
    for name, module, x in (("dense", Dense(), torch.randn(4, 6)), ("image", Image(), torch.randn(2, 2, 8, 8)),
                            ("recurrent", Recurrent(), torch.randn(4, 2, 5))):
        plain = f"{tempfile.mkdtemp()}/plain.onnx"
        torch.onnx.export(module, (x,), plain, dynamo=False, input_names=["x"], output_names=["y"], opset_version=17,
                          do_constant_folding=name == "recurrent", training=torch.onnx.TrainingMode.TRAINING)
        out = lambda kind: f"{folder}/onnxruntime-quantized-{name}-{kind}.onnx"
        keep = [first_product(plain)]
        quantize_dynamic(plain, out("dynamic"), nodes_to_exclude=[keep[0], keep[0] + "_MatMul"])
        yield out("dynamic"), x
        if name == "recurrent": continue
        for how in QuantFormat:
            quantize_static(plain, out(how.name.lower()), Samples(x), quant_format=how, nodes_to_exclude=keep)
            yield out(how.name.lower()), x


# ---- PyTorch executes a file -------------------------------------------------

def quantize(x, scale, zero, low, high):
    """Like fake_quantize the gradient is 0 where the rounded level is beyond the range."""
    level = (torch.round(x / scale) + zero).detach()
    passes = torch.where((level >= low) & (level <= high), x / scale, 0.)
    return passes + (torch.clamp(level, low, high) - passes).detach()


def dynamic(x, each=False):
    v = x.detach()
    least, most = (v.amin(1, True), v.amax(1, True)) if each else (v.min(), v.max())
    span = most.clamp(min=0) - least.clamp(max=0)
    scale = torch.where(span == 0, 1., span / 255)
    zero = torch.clamp(torch.round(-least.clamp(max=0) / scale), 0, 255)
    return quantize(x, scale, zero, 0, 255), scale, zero


def lstm(x, w, r, b, h, c, ws, wz, rs, rz):
    w, r = (w[0] - wz) * ws, (r[0] - rz) * rs
    q, s, z = dynamic(x)
    hidden, h, c, ys = r.shape[0], h[0], c[0], []
    for step in (q - z) * s:
        q, qs, qz = dynamic(h, True)
        i, o, f, g = (step @ w + (q - qz) * qs @ r + b[0, :4 * hidden] + b[0, 4 * hidden:]).split(hidden, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        ys.append(h)
    return torch.stack(ys)[:, None]


def channels(v, rank):
    return v if v.numel() == 1 else v.reshape(-1, *[1] * (rank - 2))


def execute(model, held, x):
    """Integers are floats here; ranges of the zero points say how many bits."""
    values, ranges = {"x": x, **held}, {t.name: numpy_helper.to_array(t).dtype for t in model.graph.initializer}
    for n in model.graph.node:
        a = {p.name: onnx.helper.get_attribute_value(p) for p in n.attribute}
        v = [values[i] if i else None for i in n.input]
        real = lambda k: (v[k] - v[k + 2]) * v[k + 1]

        def level(y, scale, zero):
            info = np.iinfo(ranges[n.input[zero]])
            return quantize(y, v[scale], v[zero], info.min, info.max)
        conv = lambda x, w, b=None: F.conv2d(x, w, b, a.get("strides", [1, 1]), a.get("pads", [0, 0])[:2])
        op = n.op_type
        if op == "Constant": y = torch.tensor(numpy_helper.to_array(a["value"]).copy())
        elif op in ("Cast", "Identity"): y = v[0]
        elif op == "Gemm": y = v[0] @ (v[1].t() if a.get("transB") else v[1]) + v[2]
        elif op == "MatMul": y = v[0] @ v[1]
        elif op in ("Relu", "Sigmoid"): y = getattr(torch, op.lower())(v[0])
        elif op == "LeakyRelu": y = F.leaky_relu(v[0], a["alpha"])
        elif op in ("Add", "Mul"): y = v[0] + v[1] if op == "Add" else v[0] * v[1]
        elif op == "Conv": y = conv(*v)
        elif op == "MaxPool": y = F.max_pool2d(v[0], a["kernel_shape"], a["strides"])
        elif op == "AveragePool": y = F.avg_pool2d(v[0], a["kernel_shape"], a["strides"])
        elif op == "Reshape": y = v[0].reshape(tuple(v[1].int()))
        elif op == "Shape": y = torch.tensor(v[0].shape)
        elif op == "Unsqueeze": y = v[0].unsqueeze(int(v[1]))
        elif op == "Concat": y = torch.cat(v, a["axis"])
        elif op == "Expand": y = v[0].expand(tuple(v[1].int()))
        elif op == "Flatten": y = v[0].flatten(1)
        elif op == "Transpose": y = v[0].permute(a["perm"])
        elif op == "Squeeze": y = v[0].squeeze(int(v[1]))
        elif op == "Gather": y = v[0].select(a.get("axis", 0), int(v[1]))
        elif op == "QuantizeLinear": y = level(v[0], 1, 2)
        elif op == "DequantizeLinear": y = real(0)
        elif op == "DynamicQuantizeLinear": y = dynamic(v[0])
        elif op == "MatMulInteger": y = (v[0] - v[2]) @ (v[1] - v[3])
        elif op == "ConvInteger": y = conv(v[0] - v[2], v[1] - v[3])
        elif op == "DynamicQuantizeLSTM": y = lstm(*v[:4], *v[5:7], *v[8:])
        elif op == "QGemm": y = level((v[0] - v[2]) @ (v[3] - v[5]).permute(*((1, 0) if a.get("transB") else (0, 1))) * (v[1] * v[4]) + v[6] * (v[1] * v[4]), 7, 8)
        elif op == "QLinearConv": y = level((conv(v[0] - v[2], v[3] - channels(v[5], 5)) + channels(v[8], 4)) * v[1] * channels(v[4], 4), 6, 7)
        elif op == "QLinearLeakyRelu": y = level(F.leaky_relu(real(0), a["alpha"]), 3, 4)
        elif op == "QLinearSigmoid": y = level(torch.sigmoid(real(0)), 3, 4)
        elif op == "QLinearAveragePool": y = level(F.avg_pool2d(real(0), a["kernel_shape"], a["strides"]), 3, 4)
        elif op == "QLinearAdd": y = level(real(0) + real(3), 6, 7)
        elif op == "QLinearMul": y = level(real(0) * real(3), 6, 7)
        else: raise NotImplementedError(op)
        for name, t in zip(n.output, y if isinstance(y, tuple) else (y,)):
            values[name] = t
    return values["y"]


def trained(path, x, binary):
    model = onnx.load(path)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    held = {k: torch.tensor(v.astype("f4") if v.dtype != np.int64 else v) for k, v in weights.items()}
    learned = {k: held[k].requires_grad_(True) for k, v in weights.items() if k.endswith(("weight", "bias", "weight_Transposed")) and v.dtype == np.float32}
    target = torch.randn(execute(model, held, x).shape)
    theirs = onnxruntime.InferenceSession(path).run(["y"], {"x": x.numpy()})[0]
    ours = execute(model, held, x).detach().numpy()
    print(f"{os.path.basename(path)}: PyTorch beside ONNX Runtime {np.abs(ours - theirs).max():.1e}; trains {sorted(learned)}")
    optimizer, losses = torch.optim.SGD(learned.values(), lr=RATE), []
    for _ in range(STEPS):
        loss = F.mse_loss(execute(model, held, x), target)
        optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.item())
    case = Case(os.path.basename(path)[:-5], path, ["--loss", "mse:y"], {"x": x.numpy(), "target": target.numpy()}, losses,
                {k: v.detach().numpy() for k, v in learned.items()}, {}, [k for k in weights if k not in learned and weights[k].dtype == np.float32],
                outputs={"y": theirs})
    bad, _, refused, out = beside(case, binary)
    print(refused or bad or "right")
    if bad or refused: return print(out)
    put(case, refused)


def main():
    torch.manual_seed(0)
    folder, binary = sys.argv[1:]
    for path, x in list(files(folder)):
        trained(path, x, binary)


main()
