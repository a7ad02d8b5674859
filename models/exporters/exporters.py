#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small models as each exporter writes them: what trains, and 5 steps of SGD, beside the framework.

    [MODES="raw-train .."] [MODELS="GLOB .."] [ONLY=MODULE] python models/exporters/exporters.py [--every N] FOLDER [AMPC]

Run it with the Python of one framework (PyTorch 2.11 or 2.15, or jax2onnx with flax, or Keras with
tf2onnx, or skl2onnx with scikit-learn, or Paddle with paddle2onnx).  It exports every model in every mode of that framework,
trains the framework's own model for 5 steps, writes FOLDER/NAME.onnx and FOLDER/NAME.txt, and
with AMPC (a binary of `ampc`, whose Python package must be importable) trains each file and prints
the comparison.  Of a case that differs, "named" says that a message names the tensor, node or line at which file and
model part (said.py), "general" that only the line about all files of the exporter speaks of it, WRONG that
nothing does.  FOLDER/results.csv collects the rows "case,state,reason,message": a sweep that was stopped goes on with
the cases that are not there.  --every N takes each Nth model of a mode, from all files of models: about 60 with 10.  tests/exporters holds what tests/whole/exporters_test.c checks without a framework.

Lines of NAME.txt:
    options OPTIONS             of `ampc`
    refused TEXT                it is not taken; part of the message; else:
    input NAME DTYPE DIMS VALUES..
    output NAME VALUES..        before training
    loss VALUES..               of the steps
    param|buffer NAME VALUES..  after the steps
    still NAME                  does not train
"""
import argparse, contextlib, copy, csv, fnmatch, functools, io, logging, os, subprocess, sys, tempfile, warnings
import numpy as np
import onnx
from case import Case, RATE, STEPS, held, neutral_paths
from said import Parted, judged
from others import jax_cases, keras_cases, paddle_cases, sklearn_cases, tensorflow_cases
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
# ---- PyTorch -----------------------------------------------------------------

def torch_models():
    import torch, torch.nn as nn, torch.nn.functional as F

    class Base(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.l = nn.Linear(4, 4); s.m = nn.Linear(4, 3)

    class Numbers(Base):
        def forward(s, x): return s.m(torch.tanh(s.l(x)) * 2 + 0.5)

    class Normalised(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.c = nn.Conv2d(3, 4, 3); s.l = nn.Linear(4, 2)
        def forward(s, x):
            mean = torch.tensor([.485, .456, .406]).view(3, 1, 1)
            std = torch.tensor([.229, .224, .225]).view(3, 1, 1)
            return s.l(torch.relu(s.c((x - mean) / std)).mean((2, 3)))

    class Buffers(Base):
        def __init__(s):
            super().__init__()
            s.register_buffer("mean", torch.randn(4)); s.register_buffer("std", torch.rand(4) + .5)
            s.register_buffer("table", torch.randn(3), persistent=False)
        def forward(s, x): return s.m(torch.tanh(s.l((x - s.mean) / s.std))) * s.table

    class Lifted(Base):
        def __init__(s):
            super().__init__()
            s.d = {"w": nn.Parameter(torch.randn(4, 4)), "b": nn.Parameter(torch.randn(4))}
            s.layers = [nn.Linear(4, 4)]
        def named(s):
            yield "lifted_tensor_0", "d.w", s.d["w"]
            yield "lifted_tensor_1", "d.b", s.d["b"]
            yield "lifted_tensor_2", "layers.0.weight", s.layers[0].weight
            yield "lifted_tensor_3", "layers.0.bias", s.layers[0].bias
        def forward(s, x): return s.m(torch.tanh(s.layers[0](torch.tanh(s.l(x) @ s.d["w"] + s.d["b"]))))

    class Scalars(Base):
        def __init__(s):
            super().__init__()
            s.logit_scale = nn.Parameter(torch.tensor(0.3)); s.temperature = nn.Parameter(torch.tensor([1.5]))
            s.gain = nn.Parameter(torch.rand(3) + .5)
        def forward(s, x): return s.m(torch.tanh(s.l(x)) / s.temperature) * s.logit_scale.exp() * s.gain

    class Tied(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.a = nn.Linear(4, 4); s.b = nn.Linear(4, 4); s.b.weight = s.a.weight
        def forward(s, x): return s.b(torch.tanh(s.a(x)))

    class Frozen(Base):
        options = ["--freeze", "l.*"]
        def __init__(s):
            super().__init__()
            for p in s.l.parameters(): p.requires_grad_(False)
        def forward(s, x): return s.m(torch.tanh(s.l(x)))

    class StraightThrough(Base):
        def forward(s, x):
            h = torch.tanh(s.l(x)); q = torch.round(h * 4) / 4
            return s.m(h + (q - h).detach())

    class Detached(Base):
        def forward(s, x):
            h = torch.tanh(s.l(x))
            return s.m(h * h.detach() + h.detach().clone())

    class NoGrad(Base):
        def forward(s, x):
            with torch.no_grad(): t = torch.tanh(s.l(x))
            return s.m(t + s.l(x))

    class OwnLoss(Base):
        own_loss = True
        def forward(s, x):
            h = torch.tanh(s.l(x))
            return F.mse_loss(s.m(h), h.detach()[:, :3]) + 0.1 * h.square().mean()

    class BatchNorm(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.c = nn.Conv2d(3, 4, 3); s.bn = nn.BatchNorm2d(4); s.l = nn.Linear(4, 2)
        def forward(s, x): return s.l(torch.relu(s.bn(s.c(x))).mean((2, 3)))

    class Norms(Base):
        def __init__(s):
            super().__init__(); s.n = nn.LayerNorm(4); s.g = nn.GroupNorm(2, 4)
        def forward(s, x): return s.m(F.gelu(s.g(s.n(s.l(x)))))

    class Attention(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.q = nn.Linear(4, 4); s.k = nn.Linear(4, 4); s.v = nn.Linear(4, 4); s.o = nn.Linear(4, 2)
            s.register_buffer("causal", torch.full((5, 5), float("-inf")).triu(1))
            p = torch.arange(5)[:, None] / 10000 ** (torch.arange(0, 4, 2) / 4)
            s.register_buffer("positions", torch.stack([p.sin(), p.cos()], -1).reshape(5, 4))
        def forward(s, x):
            x = x + s.positions
            a = torch.softmax(s.q(x) @ s.k(x).transpose(1, 2) / 2 + s.causal, -1)
            return s.o(a @ s.v(x)).mean(1)

    class Embedding(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.w = nn.Embedding(7, 4); s.p = nn.Embedding(5, 4); s.l = nn.Linear(4, 2)
        def forward(s, i): return s.l(torch.tanh(s.w(i) + s.p(torch.arange(5)))).mean(1)

    class Rotary(Base):
        def __init__(s):
            super().__init__(); s.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0, 4, 2) / 4), persistent=False)
        def forward(s, x):
            f = torch.arange(x.shape[0]).float()[:, None] * s.inv_freq
            f = torch.cat([f, f], -1); h = s.l(x)
            return s.m(h * f.cos() + torch.cat([-h[:, 2:], h[:, :2]], -1) * f.sin())

    class Codebook(Base):
        def __init__(s):
            super().__init__(); s.code = nn.Parameter(torch.randn(5, 4))
        def forward(s, x):
            h = s.l(x); i = (h[:, None] - s.code).square().sum(-1).argmin(-1)
            q = F.embedding(i, s.code)
            return s.m(h + (q - h).detach() + 0.5 * (q - h.detach()))

    class Gates(Base):
        def __init__(s):
            super().__init__()
            s.alpha = nn.Parameter(torch.tensor(0.2)); s.act = nn.PReLU(4); s.gamma = nn.Parameter(torch.full((4,), 0.1))
        def forward(s, x):
            h = s.act(s.l(x))
            return s.m(torch.sigmoid(s.alpha) * h + (1 - torch.sigmoid(s.alpha)) * s.gamma * x)

    class Transposed(Base):
        def forward(s, x): return s.m(torch.tanh(torch.tanh(s.l(x)) @ s.l.weight)) @ s.m.weight @ s.m.weight.t()

    class Recurrent(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.r = nn.GRU(4, 4, batch_first=True); s.l = nn.Linear(4, 2)
        def forward(s, x): return s.l(s.r(x)[0].mean(1))

    class Lstm(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.r = nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True); s.l = nn.Linear(6, 2)
        def forward(s, x): return s.l(s.r(x)[0].mean(1))

    class Equal(Base):
        """What an optimiser merges, being equal, and drops, being 0."""
        def __init__(s):
            super().__init__()
            s.a, s.b = nn.LayerNorm(4), nn.LayerNorm(4); s.k = nn.Linear(4, 4); s.g, s.h = nn.GroupNorm(2, 4), nn.GroupNorm(1, 4)
            s.gain, s.bias = nn.Parameter(torch.full((4,), 0.5)), nn.Parameter(torch.full((4,), 0.5))
            nn.init.zeros_(s.l.bias); nn.init.zeros_(s.k.bias); nn.init.zeros_(s.m.bias)
        def forward(s, x):
            x = torch.tanh(s.b(s.k(s.a(s.l(x)) * s.gain)) + s.bias)
            return s.m(s.h(torch.tanh(s.g(x))))

    class Ones(Base):
        """A product that an optimiser drops with its factor."""
        def __init__(s): super().__init__(); s.gain = nn.Parameter(torch.tensor(1.))
        def forward(s, x): return s.m(torch.tanh(s.l(x) * s.gain))

    class Positions(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.w = nn.Embedding(7, 4); s.p = nn.Embedding(5, 4); s.q = nn.Parameter(torch.randn(5, 4)); s.l = nn.Linear(4, 2)
            s.cls = nn.Parameter(torch.randn(4))
        def forward(s, i):
            p = torch.arange(i.shape[1]).unsqueeze(0)
            return s.l(torch.tanh(s.w(i) + s.p(p) + s.q[:i.shape[1]] + s.cls.unsqueeze(0).unsqueeze(0))).mean(1)

    class Literals(Base):
        def forward(s, x):
            m = torch.tensor([[1., 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]])
            return s.m(torch.tanh(s.l(x) @ m) * torch.linspace(.5, 1.5, 4) + torch.eye(4)[1]) * torch.tensor(0.7)

    x4 = (lambda r: [torch.tensor(r.randn(6, 4), dtype=torch.float32)])
    from edges import edges
    from kinds import kinds
    from more import MODELS as more
    from plain import plain
    from tables import MODELS as tables
    image = (lambda r: [torch.tensor(r.rand(4, 3, 6, 6), dtype=torch.float32)])
    sequence = (lambda r: [torch.tensor(r.randn(3, 5, 4), dtype=torch.float32)])
    ids = (lambda r: [torch.tensor(r.randint(0, 7, (3, 5)))])
    return [(Numbers, x4), (Normalised, image), (Buffers, x4), (Lifted, x4), (Scalars, x4), (Tied, x4), (Frozen, x4),
            (StraightThrough, x4), (Detached, x4), (NoGrad, x4), (OwnLoss, x4), (BatchNorm, image), (Norms, x4),
            (Attention, sequence), (Embedding, ids), (Rotary, x4), (Codebook, x4), (Gates, x4), (Transposed, x4),
            (Recurrent, sequence), (Literals, x4), (Lstm, sequence), (Equal, x4), (Ones, x4), (Positions, ids),
            *edges(), *kinds(), *plain(), *more, *tables]


def keep_translations():
    """PyTorch reads the sources of all its translations to ONNX anew for each export, which takes half of the time."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry
    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))


def torch_case(folder, make, data, mode, name):
    import torch
    path = f"{folder}/{name}.onnx"
    inputs = data(np.random.RandomState(1))
    m = make(); m.train("eval" not in mode)
    if hasattr(m, "modes"): m.modes()
    names = ["x" if inputs[0].is_floating_point() else "i"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if "own" in mode:
            import ampc.torch
            ampc.torch.export(m, tuple(inputs), path, input_names=names)
        elif "script" in mode:
            training = torch.onnx.TrainingMode.EVAL if "eval" in mode else torch.onnx.TrainingMode.TRAINING
            torch.onnx.export(m, tuple(inputs), path, dynamo=False, training=training, do_constant_folding="eval" in mode,
                              input_names=names, opset_version=17)
        else:
            torch.onnx.export(m, tuple(inputs), path, dynamo=True, optimize="default" in mode, external_data=False,
                              input_names=names, verbose=False)
    neutral_paths(path)
    own = getattr(make, "own_loss", False)
    m = make(); m.train("eval" not in mode); in_file, first = held(path), copy.deepcopy(m.state_dict())
    for n in m.modules():  # a file of eval() trains its normalisations all the same
        if hasattr(n, "running_mean") and hasattr(n, "momentum") and "own" not in mode: n.train()
    if hasattr(m, "modes"): m.modes()
    for k, b in m.named_buffers():  # TorchScript's export is a step of BatchNorm
        if k in in_file and b.is_floating_point(): b.data.copy_(torch.tensor(np.array(in_file[k])))
    named = list(m.named_parameters()) + [(paths if "own" in mode else lifted, p) for lifted, paths, p in
                                          (m.named() if hasattr(m, "named") else [])]
    optimizer = torch.optim.SGD([p for _, p in named if p.requires_grad], lr=RATE)
    target, losses, first_step = None, [], {}
    for _ in range(STEPS):
        y = getattr(m, "unrolled", m)(*inputs)
        if not own and target is None: target = torch.tensor(np.random.RandomState(2).randn(*y.shape), dtype=torch.float32)
        loss = y if own else (y - target).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.item())
        first_step = first_step or {k: p.detach().clone().numpy() for k, p in named}
    feed = dict(zip(names, (t.numpy() for t in inputs)))
    if not own: feed["target"] = target.numpy()
    statistics = {k: b.numpy() for k, b in m.named_buffers() if k.endswith(("running_mean", "running_var"))
                  and (k in in_file or not torch.equal(b, first.get(k, b)))}
    still = [k for k, b in m.named_buffers() if b.is_floating_point() and k not in statistics]
    still += [k for k, p in named if not p.requires_grad]
    options = getattr(make, "own_options" if "own" in mode else "options", [])
    batch = onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_param
    if batch: options = ["--dim", f"{batch}={inputs[0].shape[0]}", *options]
    trained = {k: name_in(in_file, m, k, p) for k, p in named if p.requires_grad and p.grad is not None}
    return Case(name, path, ["--loss", "auto" if own else "mse", *options], feed, losses,
                {trained[k]: p.detach().numpy() for k, p in named if k in trained}, statistics, still,
                {trained[k]: v for k, v in first_step.items() if k in trained})


def name_in(in_file, m, name, p):
    """A tie has one of its names in the file."""
    names = [k for k, q in m.named_parameters(remove_duplicate=False) if q is p and k in in_file]
    return names[0] if names else name


def torch_cases(folder, done, every):
    import torch
    from flow import flow, scripted
    from own import kept
    keep_translations(); version = ".".join(torch.__version__.split(".")[:2])
    modes = "raw-train default-train script-train raw-eval default-eval script-eval own-train own-eval"
    for mode in os.environ.get("MODES", modes).split():
        x4 = lambda r: [torch.tensor(r.randn(6, 4).astype(np.float32))]
        more = flow() if "own" in mode else scripted() if "script" in mode else []
        taken = set()
        for make, data in (torch_models() + (kept() if "own" in mode else []) + [(m, x4) for m in more])[::every]:
            if not any(fnmatch.fnmatch(make.__name__, g) for g in os.environ.get("MODELS", "*").split()): continue
            name = f"torch-{version}-{mode}-{make.__name__.lower()}"
            assert name not in taken, f"two models would write {name}.onnx"
            taken.add(name)
            if name in done: continue
            try: yield torch_case(folder, make, data, mode, name)
            except Exception as e: yield name, "not exported", (str(e) or type(e).__name__).splitlines()[0][:100]


# ---- beside ampc -------------------------------------------------------------

def put(case, refused):
    number = lambda v: " ".join("%.9g" % a for a in np.asarray(v, np.float64).ravel())
    lines = ["options " + " ".join(case.options)]
    if refused:
        lines.append(f"refused {refused[:120]}")
    else:
        lines += [f"input {k} {'i64' if v.dtype.kind in 'iu' else 'f32'} {','.join(map(str, v.shape))} {number(v)}" for k, v in case.inputs.items()]
        lines += [f"output {k} {number(v)}" for k, v in case.outputs.items()]
        lines.append("loss " + number(case.losses))
        lines += [f"param {k} {number(v)}" for k, v in case.params.items()]
        lines += [f"buffer {k} {number(v)}" for k, v in case.buffers.items()]
        lines += [f"still {k}" for k in case.still]
    with open(case.path[:-5] + ".txt", "w") as f: f.write("\n".join(lines) + "\n")


def close(got, want, rtol=1e-4, atol=1e-5):
    return np.size(got) == np.size(want) and np.allclose(np.ravel(got), np.ravel(want), rtol=rtol, atol=atol)


def beside(case, binary):
    """What is wrong, where it begins, the text with which ampc refuses, and what it says."""
    import ampc
    so = tempfile.mkdtemp() + "/m.so"
    r = subprocess.run([binary, case.path, "-o", so, "--precision", "fp32", "--target", "cpu:x86-64-v3", "--optimizer", f"sgd,lr={RATE}", *case.options],
                       capture_output=True, text=True)
    out = (r.stdout + r.stderr).replace(case.path, "FILE").strip()
    if r.returncode: return [], None, out.splitlines()[-1].split("error: ")[-1], out
    s = ampc.Module(so).session(device="cpu", threads=1); kinds = {k: v[0] for k, v in s.module.variables().items()}
    got, bad, gradients = [], [], []
    try:
        for _ in range(STEPS):
            got.append(s.step(**case.inputs)["loss"])
            if len(got) == 1: gradients = [k for k, v in case.first_step.items() if k in kinds and not close(s[k], v, 1e-5, 1e-6)]
    except ampc.Error as e: bad.append(str(e))
    if not close(got, case.losses, atol=1e-6): bad.append(f"loss {got} {case.losses}")
    trained = {**case.params, **case.buffers}
    bad += [f"{k} is not there" for k in trained if k not in kinds]
    bad += [f"{k} ({kinds[k]})" for k, v in trained.items() if k in kinds and not close(s[k], v)]
    wrongly = [k for k, kind in kinds.items() if kind == "parameter" and (k in case.still or k not in case.params)]
    bad += [f"{k} trains" for k in wrongly if k in case.still]
    lost = [k for k in trained if k not in kinds] + [k for k in case.params if kinds.get(k, "parameter") != "parameter"]
    return bad, Parted(lost, wrongly, not close(got[:1], case.losses[:1], atol=1e-6), gradients), None, out


def compared(case, binary):
    """The state of a case, what differs or the reason, what counts of what ampc says, and all of it."""
    bad, parted, refused, out = beside(case, binary) if binary else ([], None, None, "")
    if not bad:
        put(case, refused)
        return "refused" if refused else "right", refused or "", "", out
    return judged(case, parted, out)[0], f"{parted}; " + " | ".join(bad), judged(case, parted, out)[1], out


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--every", type=int, default=1, metavar="N", help="each Nth model of a mode")
    p.add_argument("folder"); p.add_argument("ampc", nargs="?")
    return p.parse_args()


def main():
    args = arguments()
    os.makedirs(args.folder, exist_ok=True)
    with open(f"{args.folder}/results.csv", "a+", newline="") as f:
        f.seek(0); done, rows = {row[0] for row in csv.reader(f)}, csv.writer(f, lineterminator="\n")
        torch_selected = lambda folder, done: torch_cases(folder, done, args.every)
        for module, cases in (("torch", torch_selected), ("jax2onnx", jax_cases), ("keras", keras_cases), ("tf2onnx", tensorflow_cases),
                              ("skl2onnx", sklearn_cases), ("paddle2onnx", paddle_cases)):
            if os.environ.get("ONLY", module) != module: continue
            try: __import__(module)
            except ImportError:
                if "ONLY" in os.environ: raise
                continue
            for case in cases(args.folder, done):
                name, state, reason, message, out = (*case, "", "") if isinstance(case, tuple) else (case.name, *compared(case, args.ampc))
                print(f"{name}: {state} | {reason}")
                if state not in ("right", "refused", "not exported"): print(f"    counts: {message}\n   ", out.replace("\n", "\n    "))
                sys.stdout.flush(); rows.writerow([name, state, reason, message]); f.flush()


if __name__ == "__main__": main()
