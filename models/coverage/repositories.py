#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the folder of public ONNX files that folder.py reads (maintainers).

usage: repositories.py FOLDER [--from URL]

Brings the .onnx files of each repository of docs/coverage/repositories.csv, at its commit,
to FOLDER/OWNER+NAME, and says which have another number of files than the list.  Git fetches
these files alone, and of files in Git LFS the pointers.  --from: where the repositories
are, URL/OWNER/NAME; by default GitHub.  Those of FOLDER stay as they are.
"""
import argparse
import csv
import os
import subprocess
import sys
import tempfile

from folder import onnx_files

LIST = os.path.join(os.path.dirname(__file__), "../../docs/coverage/repositories.csv")
os.environ.update(GIT_LFS_SKIP_SMUDGE="1", GIT_TERMINAL_PROMPT="0")


def bring(url, commit, folder):
    """A checkout of the .onnx files, made beside folder first: half of one is none."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as work:
        for command in (["init", "-q"],
                        ["remote", "add", "origin", url],
                        ["config", "remote.origin.promisor", "true"],
                        ["config", "remote.origin.partialclonefilter", "blob:none"],
                        ["sparse-checkout", "set", "--no-cone", "*.onnx"],
                        ["fetch", "-q", "--depth", "1", "--filter=blob:none", "origin", commit],
                        ["checkout", "-q", commit]):
            subprocess.run(["git", "-C", work, *command], check=True)
        os.makedirs(folder)
        for name in os.listdir(work):
            os.rename(os.path.join(work, name), os.path.join(folder, name))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=os.path.abspath)
    p.add_argument("--from", dest="url", default="https://github.com", metavar="URL")
    a = p.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    failed = 0
    with open(LIST, encoding="utf-8") as f:
        for row in csv.DictReader(f):
            name = row["repository"]
            folder = os.path.join(a.folder, name.replace("/", "+"))
            try:
                if not os.path.exists(folder):
                    bring(f"{a.url}/{name}", row["commit"], folder)
                count = len(onnx_files(folder))
                if count != int(row["files"]):
                    print(f"{name}: {count} files, the list says {row['files']}")
            except subprocess.CalledProcessError as e:
                print(f"{name}: {e}")
                failed += 1
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
