#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The jobs that people begin with, each a script of commands, run as they stand
with what script/build installs.

usage: jobs_test.py AMPC [JOB..]     in the root of the sources; JOB: 01-own-cnn

A script runs with `sh -e` in an empty folder. On its PATH are ampc, data.py, and
`refused COMMAND..`, which wants a failure and leaves the command's words in the
file `said`. $MODELS, $PREFIX and $PYTHON_PACKAGE are folders.
To be quick, ampc compiles for one level of CPUs."""
import glob
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.getcwd()
JOBS = os.path.join(ROOT, "tests/jobs")
sys.path.insert(0, "script")
import install  # noqa: E402

REFUSED = """\
if "$@" > said 2>&1; then
    echo "not refused: $*"
    exit 1
fi
cat said
test "$(grep -c 'error: ' said)" = 1"""
# One level, unless a target is given; commands have none.
AMPC = """\
case "$1 $*" in
*--target* | "run "* | "inspect "* | "export "* | "data "* | -*) ;;
*.onnx* | *.amp*) set -- "$@" --target cpu:x86-64-v2 ;;
esac
exec "{}" "$@"
"""


def program(path, text):
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)


def tools(folder, prefix):
    os.makedirs(folder)
    program(f"{folder}/ampc", AMPC.format(f"{prefix}/bin/ampc"))
    program(f"{folder}/data.py", f'exec python3 "{JOBS}/data.py" "$@"')
    program(f"{folder}/refused", REFUSED)


def run(script, folder, env):
    work = os.path.join(folder, os.path.basename(script))
    os.makedirs(work)
    return subprocess.run(["sh", "-e", script], cwd=work, env=env, text=True,
                          errors="replace", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)


def main():
    ampc = os.path.abspath(sys.argv[1])
    scripts = sorted(glob.glob(f"{JOBS}/[0-9]*.sh"))
    if sys.argv[2:]:
        scripts = [f"{JOBS}/{name}.sh" for name in sys.argv[2:]]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"{folder}/prefix"
        install.install(ampc, prefix)
        tools(f"{folder}/bin", prefix)
        env = dict(os.environ, PREFIX=prefix, MODELS=f"{ROOT}/models",
                   PYTHON_PACKAGE=f"{ROOT}/runtime/python",
                   PATH=f"{folder}/bin:{os.environ['PATH']}",
                   PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig", LC_ALL="C",
                   PYTHONDONTWRITEBYTECODE="1", AMPC_LIBNVRTC="none",
                   AMPC_CACHE_DIR=f"{folder}/cache")
        with ThreadPoolExecutor(2) as pool:
            done = pool.map(lambda s: run(s, folder, env), scripts)
            for script, result in zip(scripts, done):
                if result.returncode:
                    failed += 1
                    print(f"{os.path.basename(script)}: status "
                          f"{result.returncode}\n{result.stdout[-3000:]}")
    return 1 if failed or not scripts else 0


sys.exit(main())
