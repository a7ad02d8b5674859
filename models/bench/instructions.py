#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions that a training step takes at each CPU level, counted by qemu-user.

usage: instructions.py AMPC FOLDER [MODEL...] [--precision P...] [--level L...]

Compiles each model (models/mlp.amp and models/cnn.amp) into FOLDER for each
level and runs it with one thread under qemu-aarch64 or qemu-x86_64, whose plugin
counts instructions: those of four steps less those of two, halved.  They stand
in for the speed of processors that are not at hand, and say nothing of memory.
Needs gcc, aarch64-linux-gnu-gcc, qemu-user."""
import argparse
import os
import subprocess

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
LEVELS = ["x86-64-v2", "x86-64-v3", "armv8-a", "armv8.6-a+bf16"]

# qemu's functions as its documentation of plugins declares them (version 1).
PLUGIN = """
#include <inttypes.h>
#include <stdio.h>
typedef uint64_t Id;
typedef struct qemu_plugin_tb Block;
int qemu_plugin_version = 1;
void qemu_plugin_register_vcpu_tb_trans_cb(Id, void (*)(Id, Block *));
size_t qemu_plugin_tb_n_insns(const Block *);
void qemu_plugin_register_vcpu_tb_exec_inline(Block *, int, void *, uint64_t);
void qemu_plugin_register_atexit_cb(Id, void (*)(Id, void *), void *);
static uint64_t count;
static void translated(Id id, Block *b) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(b, 0, &count,
                                             qemu_plugin_tb_n_insns(b));
}
static void ended(Id id, void *none) {
    (void)id, (void)none;
    fprintf(stderr, "instructions %" PRIu64 "\\n", count);
}
int qemu_plugin_install(Id id, const void *info, int n, char **words) {
    (void)info, (void)n, (void)words;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, 0);
    return 0;
}
"""


class Machine:
    """A host that loads m.so, and the emulator that runs it."""

    def __init__(self, folder, name, cc, emulator):
        self.folder, self.emulator = folder, emulator
        self.host = os.path.join(folder, f"host-{name}")
        subprocess.run([cc, "-O1", "-w", '-DMODULE="./m.so"', f"-I{ROOT}/runtime", "-o",
                        self.host, f"{ROOT}/tests/support/portable_host.c", "-ldl"],
                       check=True)

    def count(self, steps):
        done = subprocess.run(
            [*self.emulator, "-plugin", "./count.so", self.host, str(steps)], check=True,
            cwd=self.folder, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return int(done.stderr.rsplit("instructions ", 1)[1])


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("ampc")
    p.add_argument("folder")
    p.add_argument("models", nargs="*")
    p.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    p.add_argument("--level", nargs="+", default=LEVELS)
    a = p.parse_args()
    folder = os.path.abspath(a.folder)
    os.makedirs(folder, exist_ok=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-xc", "-", "-o",
                    f"{folder}/count.so"], input=PLUGIN, text=True, check=True)
    machines = {
        "x": Machine(folder, "x86-64", "gcc", ["qemu-x86_64", "-cpu", "max"]),
        "a": Machine(folder, "arm", "aarch64-linux-gnu-gcc",
                     ["qemu-aarch64", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu"])}
    models = a.models or [f"{ROOT}/models/{m}.amp" for m in ("mlp", "cnn")]
    for model in models:
        for precision in a.precision:
            for level in a.level:
                subprocess.run([a.ampc, model, "--precision", precision, "--target",
                                f"cpu:{level}", "-o", f"{folder}/m.so"], check=True,
                               stderr=subprocess.DEVNULL)
                machine = machines[level[0]]
                step = (machine.count(4) - machine.count(2)) / 2
                print(f"{os.path.basename(model)} {precision} {level}: "
                      f"{step / 1e6:.2f} million instructions", flush=True)


if __name__ == "__main__":
    main()
