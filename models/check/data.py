# SPDX-License-Identifier: Apache-2.0
"""The same samples in every format that `ampc run` reads, beside PyTorch.

    python data.py path/to/ampc

needs torch, onnxscript, onnx, numpy and safetensors, which write the files.  A
small language model is trained for one epoch from each form of its data; prints
one row each, and status 1 if a loss is off PyTorch's.
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn

BATCH, LENGTH, WORDS, STEPS = 4, 8, 100, 5
LIMIT = 1e-6  # relative; fp32 sums in other orders


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)

    def forward(self, ids):
        return self.head(torch.relu(self.words(ids)))


def write(folder):
    """Files; returns ids and targets, and the feeds of each form."""
    def at(name):
        return os.path.join(folder, name)

    count = BATCH * LENGTH * STEPS
    text = np.random.RandomState(0).randint(0, WORDS, count + 1)
    ids = text[:-1].reshape(-1, LENGTH).astype(np.int64)
    target = text[1:].reshape(-1, LENGTH).astype(np.int64)
    both = {"ids": ids, "target": target}
    text.astype(np.uint16).tofile(at("u16.bin"))
    text.astype(np.uint32).tofile(at("u32.bin"))
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(text)
    with open(at("llmc.bin"), "wb") as f:
        f.write(header.tobytes() + text.astype(np.uint16).tobytes())
    np.savez(at("a.npz"), **both)
    np.savez_compressed(at("packed.npz"), **both)
    save_file(both, at("a.safetensors"))
    names = [f"i{k}" for k in range(LENGTH)] + [f"t{k}" for k in range(LENGTH)]
    for end, mark in (("csv", ","), ("tsv", "\t"), ("csv.gz", ";")):
        np.savetxt(at(f"a.{end}"), np.concatenate([ids, target], 1), fmt="%d",
                   delimiter=mark, header=mark.join(names), comments="")
    for k in ("u8", "i2", "i4", "u4"):
        np.save(at(f"{k}.ids.npy"), ids.astype(k))
        np.save(at(f"{k}.target.npy"), np.asfortranarray(target.astype(k)))
    forms = [(f, f) for f in ("a.npz", "packed.npz", "a.safetensors")]
    forms += [("u16.bin", "u16.bin:+1"), ("u32.bin:u32", "u32.bin:u32+1"),
              ("llmc.bin", "llmc.bin:+1")]
    forms += [(f"a.{e}:0-{LENGTH - 1}", f"a.{e}:{','.join(names[LENGTH:])}")
              for e in ("csv", "tsv", "csv.gz")]
    forms += [(f"{k}.ids.npy", f"{k}.target.npy")
              for k in ("u8", "i2", "i4", "u4")]
    return ids, target, forms


def torch_losses(model, ids, target):
    adam, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for at in range(0, len(ids), BATCH):
        part = slice(at, at + BATCH)
        loss = nn.functional.cross_entropy(
            model(torch.tensor(ids[part])).flatten(0, 1),
            torch.tensor(target[part]).flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


def main():
    warnings.filterwarnings("ignore")
    ampc, bad = os.path.abspath(sys.argv[1]), False
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model = Model()
        example = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
        torch.onnx.export(model, (example,), os.path.join(folder, "m.onnx"),
                          dynamo=False, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.TRAINING,
                          input_names=["ids"], output_names=["logits"])
        ids, target, forms = write(folder)
        want = torch_losses(model, ids, target)
        subprocess.run([ampc, "m.onnx", "-o", "m.so", "--loss", "cross_entropy",
                        "--precision", "fp32", "--optimizer", "adamw,lr=1e-3",
                        "--target", "cpu"], cwd=folder, check=True)
        print("| ids | target | off PyTorch |\n|---|---|---|")
        for form in forms:
            done = subprocess.run([ampc, "run", "m.so", "--quiet",
                                   "--feed", f"ids={form[0]}",
                                   "--feed", f"target={form[1]}"], cwd=folder,
                                  check=True, stdout=subprocess.PIPE)
            got = [json.loads(line)["loss"] for line in done.stdout.splitlines()]
            off = max(abs(a - b) / b for a, b in zip(got, want))
            bad |= len(got) != STEPS or not off < LIMIT
            print(f"| {form[0]} | {form[1][:20]} | {off:.1e} |")
    sys.exit(bad)


if __name__ == "__main__":
    main()
