# SPDX-License-Identifier: Apache-2.0
"""Where training ends in bf16 and fp16, beside fp32's spread over seeds.

    python seeds.py path/to/ampc MNIST-FOLDER TEXT-FILE [NAME...]

needs numpy.  Three models of this folder, small: cnn on digits; resnet18 on
digits in noise of three colours, 32 by 32, as CIFAR's images are; gpt on the
characters of a text.  Each trains in each precision with the same three seeds
(initial weights, dropout, order of data) and is evaluated on data that it has
not seen.  Prints the mean loss, the smallest and the largest, and whether the
mean of 16 bits lies between fp32's smallest and largest or below; status 1 if
not.
"""
import gzip
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

MODELS_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SEEDS, PRECISIONS = (1, 2, 3), ("fp32", "bf16", "fp16")


def digits(folder, kind):
    """As MNIST ships them, or as some name its test set."""
    def read(name, head):
        path = os.path.join(folder, f"{kind}-{name}.gz")
        if kind == "t10k" and not os.path.exists(path):
            path = os.path.join(folder, f"test-{name}.gz")
        with gzip.open(path) as f:
            return np.frombuffer(f.read(), np.uint8, offset=head)
    images = read("images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    return images / np.float32(255), read("labels-idx1-ubyte", 8).astype("i8")


def cnn(folder, _):
    x, y = digits(folder, "train")
    u, v = digits(folder, "t10k")
    return {"x": (x[:8192], u[:4096]), "target": (y[:8192], v[:4096])}


def resnet18(folder, _):
    rng = np.random.default_rng(7)
    out = {"x": [], "target": []}
    for kind, n in (("train", 6400), ("t10k", 2048)):
        x, y = digits(folder, kind)
        x = np.pad(x[:n], ((0, 0), (0, 0), (2, 2), (2, 2)))
        colour = rng.uniform(0.3, 1, (n, 3, 1, 1))
        noise = rng.normal(0, 0.5, (n, 3, 32, 32))
        out["x"].append((x * colour + noise).astype("f4"))
        out["target"].append(y[:n])
    return out


def gpt(_, file):
    text = np.frombuffer(open(file, "rb").read(), np.uint8)
    ids = np.searchsorted(np.unique(text), text).astype("i8")
    out = {}
    for name, first in (("tokens", 0), ("target", 1)):
        windows = ids[first:first + (len(ids) - 1) // 64 * 64].reshape(-1, 64)
        out[name] = (windows[:-512], windows[-512:])
    return out


MODELS = {  # data, steps, options
    "cnn": (cnn, 256, "--dim W=8 --optimizer sgd,lr=0.05,momentum=0.9 "
            "--lr-schedule cosine,warmup=20,total=256"),
    "resnet18": (resnet18, 120, "--dim W=8 --dim B=64 --optimizer "
                 "sgd,lr=0.1,momentum=0.9,weight_decay=5e-4 "
                 "--lr-schedule cosine,warmup=12,total=120"),
    "gpt": (gpt, 300, "--dim B=16 --dim T=64 --dim VOCAB=65 --dim D=64 "
            "--dim HEADS=4 --dim L=2 --dim DROP=10 --optimizer "
            "adamw,lr=3e-3,weight_decay=0.1 "
            "--lr-schedule cosine,warmup=30,total=300"),
}


def run(*args):
    r = subprocess.run(args, capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(args)}\n{r.stderr}")
    return r.stdout


def last_loss(ampc, name, precision, seed, folder, feeds):
    _, steps, options = MODELS[name]
    so, weights = (os.path.join(folder, f) for f in ("m.so", "w"))
    run(ampc, os.path.join(MODELS_FOLDER, name + ".amp"), "-o", so, "--precision",
        precision, "--seed", str(seed), "--target", "cpu:x86-64-v3",
        *options.split())
    run(ampc, "run", so, *feeds[0], "--steps", str(steps), "--shuffle",
        "--threads", "1", "--log", os.path.join(folder, "log"), "--save",
        weights)
    return json.loads(run(ampc, "run", so, *feeds[1], "--eval", "--load",
                          weights, "--threads", "1"))["eval_loss"]


def rows(ampc, name, mnist, text):
    ok, spread = True, None
    with tempfile.TemporaryDirectory() as folder:
        feeds = ([], [])
        for key, parts in MODELS[name][0](mnist, text).items():
            for i, part in enumerate(parts):
                path = os.path.join(folder, f"{key}.{i}.npy")
                np.save(path, part)
                feeds[i].extend(("--feed", f"{key}={path}"))
        for precision in PRECISIONS:
            loss = [last_loss(ampc, name, precision, s, folder, feeds)
                    for s in SEEDS]
            spread = spread or (min(loss), max(loss))
            within = np.mean(loss) <= spread[1]
            ok &= within
            print(f"| {name} | {precision} | {np.mean(loss):.4f} | "
                  f"{min(loss):.4f} | {max(loss):.4f} | "
                  f"{'yes' if within else 'no'} |", flush=True)
    return ok


def main():
    ampc, mnist, text, *names = sys.argv[1:]
    print("| model | precision | mean loss | smallest | largest | within |")
    print("|---|---|---|---|---|---|")
    sys.exit(not all([rows(ampc, n, mnist, text) for n in names or MODELS]))


main()
