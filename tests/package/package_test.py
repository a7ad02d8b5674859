#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packages hold what script/install.py lists, say what they need, may stand
anywhere, and have the same bytes when they are made twice.

usage: package_test.py AMPC           in the root of the sources
       package_test.py AMPC --try     also tries them in bare roots (as root)"""
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile

sys.path.insert(0, "script")
import install  # noqa: E402
import package  # noqa: E402

failures = []


def check(holds, what):
    if not holds:
        failures.append(what)


def run(*words, **more):
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE,
                          **more).stdout


def check_glibc(ampc):
    """manylinux_2_28, and the libraries that glibc 2.28 keeps symbols in. A build
    with a sanitizer is for this machine alone."""
    libraries = run("objdump", "-p", ampc)
    if re.search(r"NEEDED +lib[at]san[.]", libraries):
        return
    needs = package.glibc_of(ampc)
    check(needs == (2, 28), "{} needs glibc {}.{}".format(ampc, *needs))
    for name in "libpthread.so.0", "libdl.so.2":
        check(re.search(rf"NEEDED +{re.escape(name)}$", libraries, re.M),
              f"{ampc} does not name {name}")


CONSTRUCTED = """\
#include <stdio.h>
static int runs, words;
__attribute__((constructor)) static void count(int argc) { runs++, words = argc; }
int main(void) { return printf("%d %d", runs, words) < 0; }
"""


def check_start(folder):
    """The start function of glibc.c runs constructors, once."""
    path = os.path.join(folder, "constructed")
    with open(path + ".c", "w") as f:
        f.write(CONSTRUCTED)
    run("cc", path + ".c", "frontend/cli/glibc.c", "-o", path, "-lm")
    check(package.glibc_of(path) == (2, 28), "glibc.c does not start the program")
    check(run(path, "word") == "1 2", f"constructors: {run(path, 'word')}")


def check_tar(path, build):
    with tarfile.open(path) as t:
        held = {m.name.split("/", 1)[1]: m for m in t.getmembers()}
        check(sorted(held) == sorted(build.contents), f"tar holds {sorted(held)}")
        for name, member in held.items():
            data, mode = build.contents[name]
            check(t.extractfile(member).read() == data and member.mode == mode,
                  f"tar: {name}")
            check(member.mtime == package.TIME and member.uid == 0, f"tar: {name}")


def check_deb(path, build):
    held = {line.split()[-1][2:]: line.split()[0] for line in
            run("dpkg-deb", "-c", path).splitlines() if not line.endswith("/")}
    wanted = {f"usr/{n}": stat.filemode(stat.S_IFREG | mode) for n, (_, mode) in
              build.contents.items() if not n.startswith("share/ampc/")}
    check(held == wanted, f"deb holds {held}")
    field = dict(re.findall(r"^(\S+): (.*)", run("dpkg-deb", "-f", path), re.M))
    glibc = "{}.{}".format(*build.glibc)
    for name, value in (("Package", "ampc"), ("Version", build.version),
                        ("Architecture", "amd64"),
                        ("Depends", f"libc6 (>= {glibc}), gcc | clang, libc6-dev")):
        check(field.get(name) == value, f"deb: {name} is {field.get(name)}")


def check_wheel(path, build):
    tag = "py3-none-manylinux_{}_{}_x86_64".format(*build.glibc)
    info = f"ampc-{build.version}.dist-info"
    check(os.path.basename(path) == f"ampc-{build.version}-{tag}.whl", path)
    with zipfile.ZipFile(path) as z:
        held = {i.filename: i for i in z.infolist()}
        for name, more in (("WHEEL", f"Tag: {tag}"),
                           ("METADATA", f"Version: {build.version}\n"),
                           ("METADATA", "Requires-External: C compiler"),
                           ("licenses/LICENSE", "Apache"),
                           ("licenses/NOTICE", "protobuf-c")):
            check(more in z.read(f"{info}/{name}").decode(), f"wheel: {name}")
        for name in "ampc/bin/ampc", f"ampc-{build.version}.data/scripts/ampc":
            check(held[name].external_attr >> 16 & 0o111, f"wheel: {name}")
        with open(build.ampc, "rb") as f:
            check(z.read("ampc/bin/ampc") == f.read(), "wheel: ampc")
        check("ampc/__init__.py" in held, "wheel: no package")
        record = z.read(f"{info}/RECORD").decode().split()
    check(sorted(held) == sorted(r.split(",")[0] for r in record),
          "wheel: RECORD is of other files")


def check_text(path, build):
    with open(path) as f:
        text = f.read()
    for name in re.findall(r"ampc[_-]\d[\w.-]*(?:deb|gz)", text):
        check(os.path.exists(os.path.join(os.path.dirname(path), name)),
              f"{path} needs {name}")
    check(build.version in text, f"{path} has another version")


CHECKS = {"tar": check_tar, "deb": check_deb, "wheel": check_wheel, "docker": check_text,
          "conda": check_text}


def check_moved(ampc, folder):
    """A prefix that moved, and what uninstalling leaves."""
    first, then = f"{folder}/first", f"{folder}/then"
    install.install(ampc, first)
    os.rename(first, then)
    os.makedirs(f"{then}/lib/other")
    open(f"{then}/lib/other/file", "w").close()
    flags = run("pkg-config", "--cflags", "ampc", env=dict(
        os.environ, PKG_CONFIG_PATH=f"{then}/lib/pkgconfig"))
    include = flags.split("-I")[1].strip()
    check(os.path.samefile(include, f"{then}/include"), f"ampc.pc says {flags}")
    run(f"{then}/share/ampc/uninstall")
    left = [os.path.join(d, n) for d, _, names in os.walk(then) for n in names]
    check(left == [f"{then}/lib/other/file"] and
          os.listdir(then) == ["lib"], f"uninstall leaves {left}")


def main():
    ampc, folder = os.path.abspath(sys.argv[1]), tempfile.mkdtemp()
    builds = []
    for turn in "one", "two":
        os.makedirs(f"{folder}/{turn}")
        builds.append(package.Build(ampc, f"{folder}/{turn}"))
    made = {}
    check(set(CHECKS) == set(package.KINDS), "kinds without a check")
    for kind, make in package.KINDS.items():
        made[kind], again = (make(b) for b in builds)
        with open(made[kind], "rb") as a, open(again, "rb") as b:
            check(a.read() == b.read(), f"{kind}: other bytes the second time")
    for kind, path in made.items():
        CHECKS[kind](path, builds[0])
    check_moved(ampc, folder)
    check_glibc(ampc)
    check_start(folder)
    if "--try" in sys.argv:
        done = subprocess.run(["script/try/run", f"{folder}/try", "bookworm"] + [
            p for p in made.values() if re.search(r"[.](gz|deb|whl)$", p)])
        check(not done.returncode, "a package does not work in a bare root")
    shutil.rmtree(folder)
    for failure in failures:
        print(failure)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
