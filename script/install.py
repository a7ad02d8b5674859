#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""install.py AMPC PREFIX: what script/build and script/package install, all of it
below PREFIX, which may be moved afterwards.  PREFIX/share/ampc/uninstall removes
it; share/ampc/files lists it."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# file below the prefix: file of the sources
COPIES = {
    "include/ampc.h": "runtime/ampc.h",
    "include/ampc.hpp": "runtime/cpp/ampc.hpp",
    "share/javascript/ampc/ampc.js": "runtime/js/ampc.js",
    "share/doc/ampc/CHANGELOG.md": "CHANGELOG.md",
    "share/doc/ampc/NOTICE": "NOTICE",
    "share/doc/ampc/copyright": "LICENSE",
}

# file below the prefix: arguments of `ampc manual`
MANUAL = {
    "share/man/man1/ampc.1": ["man"],
    "share/bash-completion/completions/ampc": ["bash"],
    "share/zsh/site-functions/_ampc": ["zsh"],
    "share/fish/vendor_completions.d/ampc.fish": ["fish"],
}

TEXTS = {
    "lib/pkgconfig/ampc.pc": """\
prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include

Name: ampc
Description: Loads training modules made by the ampc graph compiler
Version: {version}
Cflags: -I${{includedir}}
Libs: -ldl
""",
    "lib/cmake/ampc/ampcConfig.cmake": """\
# ampc::ampc, the header and its libraries; ampc::compiler, the program.
get_filename_component(_ampc "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
if(NOT TARGET ampc::ampc)
  add_library(ampc::ampc INTERFACE IMPORTED)
  set_target_properties(ampc::ampc PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${{_ampc}}/include"
    INTERFACE_LINK_LIBRARIES "${{CMAKE_DL_LIBS}}")
  add_executable(ampc::compiler IMPORTED)
  set_target_properties(ampc::compiler PROPERTIES
    IMPORTED_LOCATION "${{_ampc}}/bin/ampc")
endif()
unset(_ampc)
""",
    "lib/cmake/ampc/ampcConfigVersion.cmake": """\
# A release series, as {series}, keeps its promises (CONTRIBUTING.md).
set(PACKAGE_VERSION "{version}")
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION OR
   NOT "${{PACKAGE_FIND_VERSION}}." MATCHES "^{series}[.]")
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
""",
    "share/ampc/uninstall": """\
#!/bin/sh
# Removes the files of ampc {version}, and folders that are empty then.
set -e
cd "$(dirname "$0")/../.."
list=$(cat share/ampc/files)
for file in $list; do rm -f "$file"; done
for file in $list; do
    dir=$(dirname "$file")
    while [ "$dir" != . ]; do
        rmdir "$dir" 2>/dev/null || break
        dir=$(dirname "$dir")
    done
done
""",
}


def manual(ampc, *words):
    return subprocess.run([ampc, "manual", *words], check=True,
                          stdout=subprocess.PIPE).stdout


def version_of(ampc):
    return subprocess.run([ampc, "--version"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.split()[1]


def contents(ampc):
    """{file below the prefix: (its bytes, its mode)}"""
    version = version_of(ampc)
    words = {"version": version, "series": ".".join(version.split(".")[:2])}
    found = {}
    for name, source in {**COPIES, "bin/ampc": ampc}.items():
        with open(os.path.join(ROOT, source), "rb") as f:
            found[name] = f.read()
    for name, args in MANUAL.items():
        found[name] = manual(ampc, *args)
    for command in manual(ampc, "commands").decode().split():
        found[f"share/man/man1/ampc-{command}.1"] = manual(ampc, "man", command)
    for name, text in TEXTS.items():
        found[name] = text.format(**words).encode()
    names = sorted([*found, "share/ampc/files"])
    found["share/ampc/files"] = "".join(n + "\n" for n in names).encode()
    programs = ("bin/ampc", "share/ampc/uninstall")
    return {n: (found[n], 0o755 if n in programs else 0o644) for n in names}


def install(ampc, prefix):
    for name, (data, mode) in contents(ampc).items():
        path = os.path.join(prefix, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        new = path + ".new"  # a program that runs cannot be written over
        with open(new, "wb") as f:
            f.write(data)
        os.chmod(new, mode)
        os.replace(new, path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} AMPC PREFIX")
    install(os.path.abspath(sys.argv[1]), sys.argv[2])
