#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documentation is whole and true: links resolve, generated pages are those
that `ampc manual` prints, nothing public is left out, and the listings run.

usage: docs_test.py AMPC [PAGE...]     in the root of the sources; with pages
                                       their listings alone
environment: DOCS_PYTHON, a Python with torch, onnx and PIL, also runs the
listings that need these

Listings of a page run in one folder, in their order:
  ```sh                    is run with `sh -e`; a first line `# not run: WHY` says
                           that it is not, `# needs: MODULE` that it wants Python
                           with that module, `# needs: nvrtc` GPU code
  ```c title="NAME"        is a file, which a later sh listing has to use; so are
  ```python, and ```text title="NAME.amp"
"""
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = os.getcwd()
FENCE = re.compile(r'^( *)```(\w*)(?: title="([^"]+)")?$')
failures = []


def failed(where, what):
    failures.append(f"{where}: {what}")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def pages():
    found = [f for f in os.listdir(ROOT) if f.endswith(".md")]
    found.append("models/README.md")
    for folder, _, names in os.walk(os.path.join(ROOT, "docs")):
        found += [os.path.relpath(os.path.join(folder, n), ROOT)
                  for n in names if n.endswith(".md")]
    return sorted(found)


def listings(path):
    """(line, language, title, text) of each fenced part."""
    found, open_ = [], None
    for number, line in enumerate(read(path).split("\n"), 1):
        m = FENCE.match(line)
        if open_ and line.strip() == "```":
            found.append((*open_[:3], "\n".join(open_[3]) + "\n"))
            open_ = None
        elif open_:
            open_[3].append(line[open_[4]:])
        elif m:
            open_ = (number, m[2], m[3], [], len(m[1]))
    if open_:
        failed(f"{path}:{open_[0]}", "a listing without an end")
    return found


def prose(path):
    """The text without listings."""
    out, inside = [], False
    for line in read(path).split("\n"):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            out.append(line)
    return "\n".join(out)


# ---- links ------------------------------------------------------------------

def anchors(path):
    """The names that GitHub gives to the headings."""
    found = set()
    for line in prose(path).split("\n"):
        if re.match(r"#+ ", line):
            text = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add(text.replace(" ", "-"))
    return found


def check_links(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = os.path.normpath(os.path.join(os.path.dirname(path), name)) \
            if name else path
        if not os.path.exists(os.path.join(ROOT, there)):
            failed(path, f"link to {target}: no such file")
        elif anchor and there.endswith(".md") and anchor not in anchors(there):
            failed(path, f"link to {target}: no such heading")


# ---- completeness -----------------------------------------------------------

def check_size():
    lines = read("README.md").count("\n")
    if lines > 200:
        failed("README.md", f"{lines} lines, at most 200")


def check_generated(ampc):
    for page in "cli", "functions", "ops":
        path = f"docs/reference/{page}.md"
        now = subprocess.run([ampc, "manual", page], text=True, check=True,
                             stdout=subprocess.PIPE).stdout
        if now != read(path):
            failed(path, f"is stale: script/docs --reference writes what "
                         f"`ampc manual {page}` prints")


def check_named(what, names, path):
    text = read(path)
    for name in sorted(names):
        if not re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text):
            failed(path, f"does not mention the {what} {name}")


def source_text():
    """All C sources."""
    source = ""
    for top in "codegen", "frontend", "ir", "passes", "runtime":
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            source += "".join(read(os.path.relpath(os.path.join(folder, n), ROOT))
                              for n in names if n.endswith((".c", ".h", ".def")))
    return source


def check_complete():
    models = os.listdir(os.path.join(ROOT, "models"))
    check_named("example", [m for m in models if m.endswith((".amp", ".onnx"))],
                "models/README.md")
    header = read("runtime/ampc.h")
    table = header[header.index("typedef struct ampc_api {"):
                   header.index("} ampc_api;")]
    check_named("function", re.findall(r"\(\*(\w+)\)\(", table),
                "docs/reference/c-api.md")
    check_named("status", re.findall(r"(AMPC_ERR_\w+) =", header),
                "docs/reference/c-api.md")
    known = set(re.findall(r"AMPC_(?:LIB\w+|ISA|TUNE|CUDA_GRAPH|CACHE_DIR)\b",
                           header))
    known |= set(re.findall(r'getenv\("(\w+)"\)', source_text()))
    check_named("variable", known - {"HOME", "PATH"}, "docs/reference/env.md")
    index = read("docs/index.md")
    for path in pages():
        name = os.path.relpath(path, "docs")
        if path.startswith("docs/") and name not in index and \
                not name.startswith("benchmarks/") and name != "index.md":
            failed("docs/index.md", f"does not lead to {path}")


def check_version(ampc):
    """Pages name this version and no other."""
    version = subprocess.run([ampc, "--version"], check=True, text=True,
                             stdout=subprocess.PIPE).stdout.split()[1]
    for path, form in (("README.md", r"\| Version \| ([\d.]+\d)"),
                       ("docs/install.md", r"`ampc[-_]([\d.]+\d)"),
                       ("CHANGELOG.md", r"(?:^## |The first version, )([\d.]+\d)")):
        with open(path) as f:
            found = re.findall(form, f.read(), re.M)
        if version not in found[:1] or path != "CHANGELOG.md" and \
                set(found) != {version}:
            failed(path, f"names versions {found}; this one is {version}")


def check_python():
    """python.md names everything that the package gives."""
    sys.path.insert(0, "runtime/python")
    sys.dont_write_bytecode = True
    import ampc
    names = set(ampc.__all__) - {"DTYPES"}
    for kind in (ampc.Module, ampc.Session, ampc.Communicator):
        names |= {name for name in vars(kind) if name[0] != "_"}
    with open("docs/reference/python.md") as f:
        said = set(re.findall(r"\w+", f.read()))
    for name in sorted(names - said):
        failed("docs/reference/python.md", f"has no word of {name}")


def check_sources(path):
    """Sources that a page names are there."""
    for name in re.findall(
            r"`((?:codegen|frontend|ir|passes|runtime)/[\w/]+\.(?:c|h|def))`",
            prose(path)):
        if not os.path.exists(os.path.join(ROOT, name)):
            failed(path, f"there is no {name}")


def check_messages():
    """What the page quotes stands in a source, where texts may be in parts."""
    source = re.sub(r'"\s*\n\s*"', "", source_text())
    page = "docs/reference/messages.md"
    for row in re.findall(r"^\| (`.*?) \|", read(page), re.M):
        for quoted in re.findall(r"`([^`]+)`", row):
            if quoted not in source:
                failed(page, f"no message holds '{quoted}'")


# ---- listings ---------------------------------------------------------------

def put_idx(path, rank, n, most):
    """An IDX file of bytes; the first axis has n entries."""
    count = n * (784 if rank == 3 else 1)
    head = struct.pack(">BBBB", 0, 0, 8, rank) + struct.pack(">i", n)
    if rank == 3:
        head += struct.pack(">ii", 28, 28)
    with open(path, "wb") as f:
        f.write(head + bytes((i * 2654435761 >> 16) % most
                             for i in range(count)))


def put_digits(folder):
    os.makedirs(folder)
    put_idx(f"{folder}/train-images-idx3-ubyte", 3, 128, 256)
    put_idx(f"{folder}/train-labels-idx1-ubyte", 1, 128, 10)
    put_idx(f"{folder}/t10k-images-idx3-ubyte", 3, 70, 256)
    put_idx(f"{folder}/t10k-labels-idx1-ubyte", 1, 70, 10)


def program(path, text):
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)


def put_folder(work, ampc):
    """Like a clone after script/demo, with other digits."""
    put_digits(f"{work}/out/demo/digits")
    for name in "models", "runtime":
        shutil.copytree(os.path.join(ROOT, name), f"{work}/{name}")
    os.makedirs(f"{work}/bin")
    program(f"{work}/bin/ampc", f'exec "{ampc}" "$@"')
    # the flags of lib/pkgconfig/ampc.pc
    program(f"{work}/bin/pkg-config",
            f'echo "-I{work}/runtime -I{work}/runtime/cpp -ldl"')
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        # what links an object of a sanitized ampc into a program
        program(f"{work}/bin/cc", 'case " $* " in *" -r "* | *" -c "*) ;; '
                                  '*) set -- "$@" -lasan -lubsan ;; esac\n'
                                  f'exec "{shutil.which("cc")}" "$@"')
    if os.environ.get("DOCS_PYTHON"):
        program(f"{work}/bin/python",
                f'exec "{os.environ["DOCS_PYTHON"]}" "$@"')


def runs(text):
    """Whether a shell listing is for this machine; its first line says."""
    first = text.split("\n", 1)[0]
    if first.startswith("# not run: "):
        return False
    if first == "# needs: nvrtc":
        return os.environ.get("AMPC_LIBNVRTC", "none") != "none"
    return not first.startswith("# needs: ") or "DOCS_PYTHON" in os.environ


def check_listings(path, ampc, folder):
    parts = listings(path)
    if not any(lang == "sh" for _, lang, _, _ in parts):
        return
    work = os.path.join(folder, path.replace("/", "_"))
    os.makedirs(work)
    put_folder(work, ampc)
    env = dict(os.environ, PATH=f"{work}/bin:{os.environ['PATH']}",
               AMPC_CACHE_DIR=os.path.join(folder, "cache"))
    nvrtc = os.environ.get("AMPC_LIBNVRTC", "none")
    known = ""
    for line, lang, title, text in parts:
        where = f"{path}:{line}"
        if lang in ("c", "python") and not title:
            failed(where, f"a listing in {lang} without a title")
        if title:
            with open(os.path.join(work, title), "w") as f:
                f.write(text)
            if not any(l == "sh" and title in t and n > line
                       for n, l, _, t in parts):
                failed(where, f"no later listing uses {title}")
        if lang == "python":
            compile(text, where, "exec")
        if lang == "sh" and runs(text):
            env["AMPC_LIBNVRTC"] = nvrtc if "# needs: nvrtc" in text else "none"
            done = subprocess.run(["sh", "-e", "-c", known + text], cwd=work,
                                  env=env, text=True, errors="replace",
                                  stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            # as in one terminal
            known += "".join(re.findall(r"^[a-z]+=\S+\n", text, re.M))
            if done.returncode:
                failed(where, f"status {done.returncode}\n{done.stdout[-1500:]}")
                return


# ---- completions ------------------------------------------------------------

# What is typed, and a word that completes its end.
TYPED = (("ampc ru", "run"), ("ampc run --sav", "--save-best"),
         ("ampc --precision b", "bf16"), ("ampc --optimizer li", "lion"),
         ("ampc check m.onnx --loss cross", "cross_entropy"),
         ("ampc --weights s", "sidecar"), ("ampc manual z", "zsh"))
BASH = """. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ampc
printf '%s\\n' "${COMPREPLY[@]}" """
ZSH = r"""zmodload zsh/zpty || exit 3
typing() { while zpty -rt z part; do seen+=$part; done }
zpty z zsh -f -i
zpty -w z "fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; echo REA''DY"
repeat 100; do sleep 0.1; typing; [[ $seen = *READY* ]] && break; done
seen=; zpty -w -n z "$2"$'\t\t'
repeat 50; do sleep 0.1; typing; [[ $seen = *$3* ]] && exit 0; done
exit 1
"""


def check_completions(ampc, folder):
    os.makedirs(f"{folder}/zsh")
    for shell, name in ("bash", "bash"), ("zsh", "zsh/_ampc"):
        with open(f"{folder}/{name}", "wb") as f:
            subprocess.run([ampc, "manual", shell], check=True, stdout=f)
    for typed, word in TYPED:
        got = subprocess.run(["bash", "-c", BASH, "-", f"{folder}/bash"] +
                             typed.split(), text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT).stdout
        if word not in got.split("\n"):
            failed("bash", f"'{typed}' is not completed by {word}: {got[:300]}")
        if shutil.which("zsh") and subprocess.run(
                ["zsh", "-f", "-c", ZSH, "-", f"{folder}/zsh", typed, word]
                ).returncode:
            failed("zsh", f"'{typed}' is not completed by {word}")


def main():
    ampc = os.path.abspath(sys.argv[1])
    chosen = sys.argv[2:] or pages()
    if not sys.argv[2:]:
        check_size()
        check_generated(ampc)
        check_complete()
        check_messages()
        check_version(ampc)
        check_python()
    with tempfile.TemporaryDirectory() as folder:
        if not sys.argv[2:]:
            check_completions(ampc, folder)
        for path in chosen:
            check_links(path)
            check_sources(path)
            check_listings(path, ampc, folder)
    for f in failures:
        print(f)
    return 1 if failures else 0


sys.exit(main())
