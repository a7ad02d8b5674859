# SPDX-License-Identifier: Apache-2.0
"""Models with state beside their weights, and how PyTorch trains them.

usage: state.py FOLDER   (maintainers) writes FOLDER/NAME.onnx and FOLDER/NAME.fp32,
                         with PyTorch 2.11 mixed.ts.* of TorchScript alone

Each model is trained for STEPS steps of SGD on one batch and then evaluated in
eval(): NAME.fp32 has these losses, and the buffers and frozen weights behind them.
tests/whole/state_test.c makes the same batch.
"""
import contextlib
import io
import logging
import sys
import warnings

import torch
import torch.nn as nn

warnings.filterwarnings("ignore")
STEPS, LR = 4, 0.05
SHAPE = (4, 2, 5, 5)


def numbers(shape, by, plus):
    n = torch.arange(torch.Size(shape).numel())
    return ((n * by + plus) % 64 / 32 - 1).reshape(shape)


class Net(nn.Module):
    """Convolutions with a layer between them, and the loss."""

    def __init__(self, layer, last=None, frozen=()):
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.layer = nn.Conv2d(2, 3, 3), layer
        self.head, self.last = nn.Conv2d(3, 2, 1), last or nn.Identity()
        self.frozen = frozen
        for bn in frozen:
            getattr(self, bn).running_mean.copy_(torch.tensor([0.5, -0.25, 0.125]))
            getattr(self, bn).running_var.copy_(torch.tensor([0.5, 1.5, 2.0]))

    def train(self, mode=True):
        super().train(mode)
        for bn in self.frozen:
            getattr(self, bn).eval()
        return self

    def forward(self, x, t):
        y = self.last(self.head(torch.tanh(self.layer(self.conv(x)))))
        return ((y - t) ** 2).mean()


def mixed():
    return Net(nn.BatchNorm2d(3), nn.BatchNorm2d(2), ["layer"])


MODELS = {  # how to make it, exported in train() or eval()
    "mixed": (mixed, True),
    "cumulative": (lambda: Net(nn.BatchNorm2d(3, momentum=None)), False),
    "instance": (lambda: Net(nn.InstanceNorm2d(3, affine=True, track_running_stats=True)), False),
    "dropout2d": (lambda: Net(nn.Dropout2d(0.5)), True),
    "alpha": (lambda: Net(nn.AlphaDropout(0.5)), True),
}


def export(net, batch, path, dynamo):
    more = {"optimize": False, "verbose": False, "external_data": False} if dynamo else {
        "training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(net, batch, path, input_names=["x", "t"], dynamo=dynamo, **more)
    import onnx

    model = onnx.load(path)
    for node in model.graph.node:  # where a line of the source was
        keep = [p for p in node.metadata_props if "fx_node" in p.key]
        del node.metadata_props[:]
        node.metadata_props.extend(keep)
        node.doc_string = ""
    onnx.save(model, path)


def losses(net, batch):
    """Without dropout, which no other program draws alike."""
    for module in net.modules():
        if "Dropout" in type(module).__name__:
            module.p = 0
    made = torch.optim.SGD(net.parameters(), LR)
    result = []
    for _ in range(STEPS):
        made.zero_grad()
        loss = net(*batch)
        loss.backward()
        made.step()
        result.append(loss.item())
    with torch.no_grad():
        return result + [net.eval()(*batch).item()]


def line(kind, name, t):
    dims = " ".join(map(str, t.shape))
    return f"{kind} {name} f32 {t.dim()} {dims} " + " ".join(f"{v:.9g}" for v in t.flatten().tolist()) + "\n"


def record(name, folder, kind="", dynamo=True):
    make, train = MODELS[name]
    batch = numbers(SHAPE, 37, 5), numbers((4, 2, 3, 3), 29, 3)
    net = make().train(train)
    export(net, batch, f"{folder}/{name}{kind}.onnx", dynamo)
    net.train()  # the same: TorchScript's export moves running statistics
    with open(f"{folder}/{name}{kind}.fp32", "w") as f:
        f.write(line("output", "losses", torch.tensor(losses(net, batch))))
        for buffer, value in net.named_buffers():
            if value.dim():
                f.write(line("buffer", buffer, value))


def main():
    folder = sys.argv[1]
    if torch.__version__.startswith("2.11."):
        return record("mixed", folder, ".ts", False)
    for name in MODELS:
        record(name, folder)


if __name__ == "__main__":
    main()
