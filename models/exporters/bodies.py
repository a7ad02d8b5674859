# SPDX-License-Identifier: Apache-2.0
"""Function bodies that ampc.torch.export writes for nodes of domain ampc, in ONNX Runtime
beside PyTorch in fp64, over batches and sizes.

usage: bodies.py FOLDER AMPC [NAME]

FOLDER gets one exported file a node. AMPC, the compiler, must have PyTorch's loss in the first step
of training, and equal losses without the functions. Needs torch, onnx and onnxruntime."""
import json
import math
import os
import subprocess
import sys
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import torch
import torch.nn.functional as F
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../runtime/python"))
import ampc.torch  # noqa: E402
from ampc import _torch_bodies as bodies  # noqa: E402

BATCHES = ((), (3,), (2, 3))
SIZES = (1, 2, 5, 12)
OPSET, BOUND = 20, 1e-5


def general(*shape):
    """Well-conditioned: near a multiple of the identity."""
    m, n = shape[-2:]
    return torch.randn(*shape, dtype=torch.double) + 2 * max(m, n) ** .5 * torch.eye(m, n, dtype=torch.double)


def symmetric(*shape):
    a = torch.randn(*shape, dtype=torch.double)
    return a + a.mT


def positive(*shape):
    a = general(*shape)
    return a @ a.mT / shape[-1]


def permuted(*shape):
    return general(*shape).flip(-1)


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.double)


L = torch.linalg


class Node:
    """A node, its operands for a batch and a size, and PyTorch's function of them; same
    turns results into what does not depend on free signs."""
    def __init__(self, operands, function, same=lambda given, y: y, **attributes):
        self.operands, self.function, self.same = operands, function, same
        self.attributes = attributes


def one(make):
    return lambda batch, n: [make(*batch, n, n)]


def two(make):
    return lambda batch, n: [make(*batch, n, n), torch.randn(*batch, n, 3, dtype=torch.double)]


def lu_of(a):
    y, at = L.lu_factor(a)
    return y, at.to(torch.int64), torch.lu_unpack(y, at)[0].mT


def symmetric_pair(*shape):
    """Its upper triangle is not read."""
    a = positive(*shape)
    return a.tril() + torch.randn(*shape, dtype=torch.double).triu(1)


def low_rank(*shape):
    n = shape[-1]
    return general(*shape)[..., :(n + 1) // 2] @ general(*shape)[..., :(n + 1) // 2, :]


def symmetric_parts(given, y):
    """Values; the matrix of values and vectors; the vectors' products."""
    w, v = y
    return w, v * w.unsqueeze(-2) @ v.mT, v.mT @ v


def singular_parts(given, y):
    u, s, v = y
    return s, u * s.unsqueeze(-2) @ v.mT, u.mT @ u, v.mT @ v


def spoken(one_row):
    """Logarithms of probabilities, labels and lengths; the first sample has no label, the last repeats its."""
    def operands(batch, n):
        many = math.prod(batch) + 2
        x = torch.randn(2 * n + 3, many, 6, dtype=torch.double).log_softmax(-1)
        labels = torch.randint(0, n + 1, (many,))
        labels[0], labels[-1] = 0, n
        rows = torch.randint(1, 6, (many, n))
        rows[-1] = 1
        target = torch.cat([row[:k] for row, k in zip(rows, labels)]) if one_row else rows
        steps = torch.randint(2 * n, 2 * n + 4, (many,))
        steps[-1] = n  # too few for a repeated label: an infinite loss
        return [x, target, steps, labels]
    return operands


def ctc(one_row, reduction, zero_infinity):
    return Node(spoken(one_row), lambda x, *rest: F.ctc_loss(x, *rest, 0, reduction, zero_infinity),
                blank=0, reduction=reduction, zero_infinity=int(zero_infinity))


TOLERANCES = {"absolute": 0.0, "relative": 1e-5}
NODES = {
    "Inverse": [Node(one(permuted), L.inv)],
    "Solve": [Node(two(permuted), L.solve)],
    "SolveTriangular": [
        Node(two(general), lambda a, b, upper=upper, unit=unit: L.solve_triangular(
            a, b, upper=bool(upper), unitriangular=bool(unit)), upper=upper, unit=unit)
        for upper in (0, 1) for unit in (0, 1)],
    "Cholesky": [Node(one(positive), L.cholesky)],
    "Slogdet": [Node(one(make), lambda a: tuple(L.slogdet(a))) for make in (permuted, zeros)],
    "Lu": [Node(lambda batch, n, m=m: [torch.randn(*batch, n + m, n + 2, dtype=torch.double)], lu_of)
           for m in (0, 2, 5)],
    "Qr": [Node(lambda batch, n, m=m: [torch.randn(*batch, n + m, n, dtype=torch.double)],
                lambda a: tuple(L.qr(a))) for m in (0, 3)],
    "MatrixExp": [Node(lambda batch, n, size=size: [torch.randn(*batch, n, n, dtype=torch.double) * size],
                       torch.matrix_exp) for size in (.1, 1.)],
    "Pinv": [Node(lambda batch, n, m=m, k=k: [general(*batch, n + m, n + k)], L.pinv, **TOLERANCES, hermitian=0)
             for m, k in ((0, 0), (3, 0), (0, 3))] +
            [Node(one(low_rank), lambda a: L.pinv(a, rtol=1e-5), **TOLERANCES, hermitian=0),
             Node(one(symmetric_pair), lambda a: L.pinv(a, hermitian=True), **TOLERANCES, hermitian=1)],
    "Eigh": [Node(one(symmetric), lambda a: tuple(L.eigh(a)), same=symmetric_parts)],
    "Svd": [Node(lambda batch, n, m=m, k=k: [torch.randn(*batch, n + m, n + k, dtype=torch.double)],
                 lambda a: (*L.svd(a, full_matrices=False)[:2], L.svd(a, full_matrices=False)[2].mT), same=singular_parts)
            for m, k in ((0, 0), (3, 0), (0, 3))],
    "CtcLoss": [ctc(one_row, reduction, zero) for one_row in (False, True) for reduction in ("mean", "sum", "none")
                for zero in (True, False)],
}


def value(name, x):
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim)


def alone(name, node, operands):
    """A session of one node, whose sizes are free."""
    results = node.function(*[torch.from_numpy(x) for x in operands])
    results = results if isinstance(results, tuple) else (results,)
    texts = bodies.texts([name], OPSET)
    functions = [onnx.parser.parse_function(t) for t in texts.values()]
    ins = [value(f"i{k}", x) for k, x in enumerate(operands)]
    outs = [value(f"o{k}", y.numpy()) for k, y in enumerate(results)]
    n = onnx.helper.make_node(name, [i.name for i in ins], [o.name for o in outs], domain="ampc", **node.attributes)
    imports = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid("ampc", 1)]
    m = onnx.helper.make_model(onnx.helper.make_graph([n], "g", ins, outs), functions=functions,
                               opset_imports=imports, ir_version=10)
    onnx.checker.check_model(m)
    return onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])


def single(x):
    return x.to(torch.float32) if x.is_floating_point() else x


def difference(node, operands, y):
    """The greatest difference to PyTorch in fp64, of the greatest number of a result."""
    want = node.function(*operands)
    want = want if isinstance(want, tuple) else (want,)
    y = node.same(operands, tuple(torch.from_numpy(np.asarray(v)) for v in y))
    worst = 0.0
    for got, w in zip(y, node.same(operands, want), strict=True):
        if got.shape != w.shape:
            raise SystemExit(f"shape {tuple(got.shape)}, PyTorch has {tuple(w.shape)}")
        off = torch.where(got == w, 0.0, (got.double() - w.double()).abs())
        finite = torch.where(w.isinf(), 0.0, w.double().abs())
        off = off.nan_to_num(nan=float("inf"))
        worst = max(worst, float(off.max() / finite.max().clamp(min=1e-30)))
    return worst


def compared(name, node):
    worst, sessions = 0.0, {}
    for batch in BATCHES:
        for size in SIZES:
            operands = [single(x) for x in node.operands(batch, size)]
            fed = [x.numpy() for x in operands]
            if batch not in sessions:
                sessions[batch] = alone(name, node, fed)
            y = sessions[batch].run(None, {f"i{k}": x for k, x in enumerate(fed)})
            exact = [x.double() if x.is_floating_point() else x for x in operands]
            worst = max(worst, difference(node, exact, y))
    return worst


class Layer(torch.nn.Module):
    """The function of a product with a weight, whose first operand is a parameter."""
    def __init__(self, node, operands):
        super().__init__()
        self.function, self.same = node.function, node.same
        self.weight = torch.nn.Parameter(operands[0])
        self.rest = operands[1:]

    def forward(self, x):
        y = self.function(self.weight + x.mean() * 0.01, *self.rest)
        y = self.same((self.weight, *self.rest), y if isinstance(y, tuple) else (y,))
        return sum(v.sum() * 0.1 for v in y if v.is_floating_point()) + x


def losses(model, ampc_path, feeds):
    """Losses of three steps of training."""
    def ran(*words):
        return subprocess.run([ampc_path, *words], check=True, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.PIPE).stdout
    ran(model, "--dim", "batch=3", "--loss", "mse", "--precision", "fp32", "--target", "cpu:x86-64-v3", "-o", f"{model}.so")
    lines = ran("run", f"{model}.so", "--steps", "3", *feeds).splitlines()
    return [json.loads(line)["loss"] for line in lines if '"loss"' in line]


def exported(name, node, folder, ampc_path):
    """What ampc.torch.export wrote, in ONNX Runtime; the losses of ampc with and without functions."""
    torch.manual_seed(0)
    operands = [single(x) for x in node.operands((2,), 4)]
    layer, x = Layer(node, operands).eval(), torch.randn(3, 4)
    path, plain, fed = (os.path.join(folder, name + end) for end in (".onnx", "_plain.onnx", "_x.npy"))
    ampc.torch.export(layer, (x,), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    y, = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    want = layer(x).detach()
    off = float((torch.from_numpy(y) - want).abs().max() / want.abs().max())
    m = onnx.load(path)
    if name not in [f.name for f in m.functions]:
        raise SystemExit(f"{name}: no such function in {path}")
    del m.functions[:]
    onnx.save(m, plain)
    np.save(fed, x.numpy())
    feeds = ["--feed", f"x={fed}", "--feed", f"target={fed}"]
    first, second = (losses(p, ampc_path, feeds) for p in (path, plain))
    off = max(off, abs(first[0] / float(F.mse_loss(want, x)) - 1))
    return off, len(first) == 3 and first == second


def main():
    folder, ampc_path, *names = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    torch.set_num_threads(1)
    failed = []
    for name in names or NODES:
        torch.manual_seed(0)
        alone_off = max(compared(name, node) for node in NODES[name])
        off, equal = exported(name, NODES[name][0], folder, os.path.abspath(ampc_path))
        print(f"{name:16} {alone_off:.1e} alone, {off:.1e} in a file; ampc: "
              f"{'equal losses' if equal else 'OTHER LOSSES'} without the function", flush=True)
        if not (max(alone_off, off) <= BOUND and equal):
            failed.append(name)
    if failed:
        raise SystemExit(f"beyond {BOUND}, or other losses: {', '.join(failed)}")


if __name__ == "__main__":
    main()
