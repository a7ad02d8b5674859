#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""package.py AMPC FOLDER KIND...: packages of the program AMPC in FOLDER, the
same bytes whenever they are made.  KINDS has a row for each kind.  Prints the
files that it wrote."""
import functools
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import typing

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import install  # noqa: E402

TIME = 315532800  # 1980, the first year that a zip file knows
SUMMARY = "compiles models into libraries that train them"
DESCRIPTION = """\
ampc compiles an ONNX model, or a model in its own language, into one shared
library that trains the model in mixed precision: forward and backward pass,
loss scaling, clipping and the optimizer. The library needs libc, libm and
pthreads alone.
"""


OLDEST = 2, 28  # the oldest glibc that packages promise, as manylinux_2_28


def glibc_of(program):
    """The least glibc, from OLDEST on, that has the symbols of a program."""
    symbols = subprocess.run(["objdump", "-T", program], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    return max(OLDEST, *(tuple(map(int, m)) for m in
                         re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)))


class Machine(typing.NamedTuple):
    """How packages call a kind of processor."""
    name: str    # Linux, and wheels
    debian: str
    conda: str   # the end of its compiler's name
    selector: str  # conda's, of a recipe


MACHINES = {  # by the field e_machine of an ELF file
    62: Machine("x86_64", "amd64", "64", "linux64"),
    183: Machine("aarch64", "arm64", "aarch64", "aarch64"),
}


def machine_of(program):
    with open(program, "rb") as f:
        head = f.read(20)
    return MACHINES[int.from_bytes(head[18:20], "little")]


class Build:
    """The program and what packages say of it."""

    def __init__(self, ampc, folder):
        self.ampc, self.folder = ampc, folder
        self.version = install.version_of(ampc)
        self.glibc = glibc_of(ampc)
        self.machine = machine_of(ampc)
        self.contents = install.contents(ampc)

    def write(self, name, data):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as f:
            f.write(data)
        return path


# ---- kinds ------------------------------------------------------------------

@functools.lru_cache(maxsize=None)
def tar(build):
    """One folder that may stand anywhere."""
    top, out = f"ampc-{build.version}", io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as t:
        for name, (data, mode) in build.contents.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size, info.mode, info.mtime = len(data), mode, TIME
            t.addfile(info, io.BytesIO(data))
    return build.write(f"{top}-linux-{build.machine.name}.tar.gz",
                       gzip.compress(out.getvalue(), 6, mtime=TIME))


def deb_name(build):
    return f"ampc_{build.version}_{build.machine.debian}.deb"


def deb(build):
    """For Debian and Ubuntu; dpkg-deb makes it."""
    glibc = "{}.{}".format(*build.glibc)
    skipped = ("share/ampc/",)  # dpkg knows how to remove files
    files = {n: d for n, d in build.contents.items() if not n.startswith(skipped)}
    control = (f"Package: ampc\nVersion: {build.version}\n"
               f"Architecture: {build.machine.debian}\n"
               "Section: devel\nPriority: optional\n"
               "Maintainer: the ampc authors <ampc@localhost>\n"
               f"Installed-Size: {sum(len(d) for d, _ in files.values()) >> 10}\n"
               f"Depends: libc6 (>= {glibc}), gcc | clang, libc6-dev\n"
               "Suggests: pkg-config, cmake\n"
               f"Description: {SUMMARY}\n" +
               "".join(f" {line}\n" for line in DESCRIPTION.splitlines()))
    with tempfile.TemporaryDirectory() as root:
        files = {f"usr/{n}": d for n, d in files.items()}
        files["DEBIAN/control"] = control.encode(), 0o644
        files["DEBIAN/md5sums"] = "".join(
            f"{hashlib.md5(d).hexdigest()}  {n}\n"
            for n, (d, _) in files.items() if n.startswith("usr/")
        ).encode(), 0o644
        os.chmod(root, 0o755)
        for name, (data, mode) in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            with open(path, "wb") as f:
                f.write(data)
            os.chmod(path, mode)
        path = os.path.join(build.folder, deb_name(build))
        subprocess.run(["dpkg-deb", "-Zxz", "-z1", "--root-owner-group",
                        "--build", root, path], check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, SOURCE_DATE_EPOCH=str(TIME)))
    return path


def wheel(build):
    """For pip; the Python package's own backend makes it."""
    sys.path.insert(0, os.path.join(install.ROOT, "runtime/python"))
    import wheel as backend
    platform = "manylinux_{}_{}_{}".format(*build.glibc, build.machine.name)
    return os.path.join(build.folder, backend.build_wheel(
        build.folder, {"compiler": build.ampc, "platform": platform}))


def docker(build):
    """The text of an image that has the .deb; needs it beside the file."""
    return build.write("Dockerfile", f"""\
# docker build -t ampc .
FROM debian:12-slim
COPY {deb_name(build)} /tmp/
RUN apt-get update \\
    && apt-get install -y --no-install-recommends /tmp/{deb_name(build)} \\
    && rm -rf /var/lib/apt/lists/* /tmp/*.deb
WORKDIR /models
ENTRYPOINT ["ampc"]
""".encode())


def conda(build):
    """The text of a recipe that repacks the tarball; needs it beside the file."""
    with open(tar(build), "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    glibc = "{}.{}".format(*build.glibc)
    return build.write("meta.yaml", f"""\
# conda build .
package:
  name: ampc
  version: "{build.version}"
source:
  url: ampc-{build.version}-linux-{build.machine.name}.tar.gz
  sha256: {digest}
build:
  number: 0
  skip: true  # [not {build.machine.selector}]
  binary_relocation: false
  script: cp -R bin include lib share "$PREFIX"
requirements:
  run:
    - __glibc >={glibc}
    - gcc_linux-{build.machine.conda}
test:
  commands:
    - ampc --version
about:
  summary: {SUMMARY}
  license: Apache-2.0
  license_file: share/doc/ampc/copyright
""".encode())


KINDS = {"tar": tar, "deb": deb, "wheel": wheel, "docker": docker, "conda": conda}


def main():
    if len(sys.argv) < 4 or not set(sys.argv[3:]) <= set(KINDS):
        sys.exit(f"usage: package.py AMPC FOLDER {'|'.join(KINDS)}...")
    os.makedirs(sys.argv[2], exist_ok=True)
    build = Build(os.path.abspath(sys.argv[1]), sys.argv[2])
    for kind in sys.argv[3:]:
        print(KINDS[kind](build))


if __name__ == "__main__":
    main()
