#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Metrics of scikit-learn and torchmetrics on made-up scores (maintainers; needs
numpy, scikit-learn, torch, torchmetrics).

usage: metric_values.py TESTS       writes, in the tests' folder,
  metrics/values.csv    metric|kind|shape of a sample|shape of its label|classes|value

The scores of sample i are those of draw(), which metric_test.c has, too."""
import sys

import numpy as np
import sklearn.metrics as sk
import torch
import torchmetrics.classification as tc
from torchmetrics.text import Perplexity

N = 150
STATE = 0


def draw():
    global STATE
    STATE = (STATE * 1103515245 + 12345) & 0x7fffffff
    return (STATE >> 8) % 4096


def made(shape, label_shape, kind, classes):
    """Scores and labels, sample by sample: first all of its scores."""
    global STATE
    STATE = 1
    x = np.empty((N, *shape), np.float64)
    t = np.empty((N, *label_shape), np.float64)
    for scores, answers in zip(x.reshape(N, -1), t.reshape(N, -1)):
        for k in range(scores.size):
            v = draw()
            scores[k] = v / 4096 if kind == "probabilities" else v / 512 - 4
        for k in range(answers.size):
            v = draw()
            answers[k] = v / 512 - 4 if kind == "numbers" else v % classes
            if kind == "ignored" and v % 7 == 0:
                answers[k] = -100
    return x, t


def flat(x, t):
    """[positions, classes], [positions], without the ignored."""
    x = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
    t = t.reshape(-1).astype(int)
    return x[t != -100], t[t != -100]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def f1(average):
    return lambda x, t: sk.f1_score(t, x.argmax(-1), average=average)


def both(a, b):
    assert abs(a - b) < 1e-6 * a, (a, b)
    return a


def miou(x, t):
    c = x.shape[1]
    mine = tc.MulticlassJaccardIndex(c)(torch.tensor(x.argmax(-1)), torch.tensor(t))
    return both(sk.jaccard_score(t, x.argmax(-1), average="macro"), float(mine))


def auc(x, t):
    p = softmax(x)
    if p.shape[1] == 2:
        return sk.roc_auc_score(t, p[:, 1])
    return both(sk.roc_auc_score(t, p, multi_class="ovr"),
                float(tc.MulticlassAUROC(p.shape[1])(torch.tensor(p), torch.tensor(t))))


def perplexity(x, t):
    return both(np.exp(sk.log_loss(t, softmax(x), labels=range(x.shape[1]))),
                float(Perplexity()(torch.tensor(x)[None], torch.tensor(t)[None])))


CLASSES = [
    ("accuracy", lambda x, t: sk.accuracy_score(t, x.argmax(-1))),
    ("top1", lambda x, t: sk.accuracy_score(t, x.argmax(-1))),
    ("top3", lambda x, t: sk.top_k_accuracy_score(t, x, k=3, labels=range(x.shape[1]))),
    ("f1", f1("macro")), ("f1,average=micro", f1("micro")),
    ("f1,average=weighted", f1("weighted")),
    ("auc", auc), ("miou", miou), ("perplexity", perplexity)]


def yes(scores, threshold):
    return (scores > threshold).astype(int).reshape(-1)


BINARY = [
    ("accuracy", lambda x, t, h: sk.accuracy_score(t, yes(x, h))),
    ("f1", lambda x, t, h: sk.f1_score(t, yes(x, h))),
    ("f1,average=macro", lambda x, t, h: sk.f1_score(t, yes(x, h), average="macro")),
    ("auc", lambda x, t, h: sk.roc_auc_score(t, x.reshape(-1))),
    ("miou", lambda x, t, h: sk.jaccard_score(t, yes(x, h), average="macro"))]


def main(tests):
    rows = []

    def put(metric, kind, shape, labels, classes, value):
        sizes = ["x".join(map(str, s)) for s in (shape, labels)]
        rows.append(f"{metric}|{kind}|{sizes[0]}|{sizes[1]}|{classes}|{value:.10g}")

    for shape, labels in [((6,), ()), ((4, 5), (5,)), ((3, 2, 3), (2, 3))]:
        for kind in "plain", "ignored":
            x, t = flat(*made(shape, labels, kind, shape[0]))
            for metric, value in CLASSES:
                put(metric, kind, shape, labels, shape[0], value(x, t))
    x, t = flat(*made((2,), (), "plain", 2))
    for metric, value in [("auc", auc), ("f1,average=binary", f1("binary"))]:
        put(metric, "plain", (2,), (), 2, value(x, t))
    for kind, threshold in ("plain", 0), ("probabilities", .5):
        more = ",scores=probabilities" if kind == "probabilities" else ""
        for shape, none in ((1,), ""), ((2, 3), ",axis=none"):
            x, t = made(shape, shape, kind, 2)
            for metric, value in BINARY:
                put(metric + more + none, kind, shape, shape, 2,
                    value(x, t.reshape(-1).astype(int), threshold))
    x, t = made((4,), (4,), "numbers", 1)
    put("rmse", "numbers", (4,), (4,), 1,
        sk.root_mean_squared_error(t.reshape(-1), x.reshape(-1)))
    with open(f"{tests}/metrics/values.csv", "w") as f:
        f.write("\n".join(rows) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
