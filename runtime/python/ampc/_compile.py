# SPDX-License-Identifier: Apache-2.0
"""ampc.compile: the program `ampc`, its options as keywords."""
from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import warnings
from typing import Any, Mapping

from ._c import Error, Status
from ._checks import Path
from ._module import Module


def find_compiler(path: Path | None = None) -> str:
    """The program `ampc`: `path`, else the one in this package, else the one on
    PATH.  Error: there is none."""
    if path is not None:
        return os.fspath(path)
    inside = os.path.join(os.path.dirname(__file__), "bin", "ampc")
    found = inside if os.access(inside, os.X_OK) else shutil.which("ampc")
    if not found:
        raise Error(Status.FILE, "there is no program 'ampc' in this package "
                    "or on PATH: build it with script/build, or give "
                    "compiler=PATH")
    return found


@functools.lru_cache(maxsize=None)
def _options(program: str) -> dict[str, tuple[str, str, bool]]:
    """{keyword: (flag, form of its value, may be repeated)}, as `ampc manual
    options` lists them."""
    try:
        done = subprocess.run([program, "manual", "options"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, check=False)
    except OSError as e:
        raise Error(Status.FILE, f"compiler {program}: {e.strerror}") from None
    if done.returncode:
        raise Error(Status.UNSUPPORTED, f"{program} is of another version: "
                    f"{done.stderr.strip()}")
    found = {}
    for line in done.stdout.splitlines():
        flag, form, many = line.split("\t")
        found[flag.lstrip("-").replace("-", "_")] = flag, form, many == "many"
    return found


def options(compiler: Path | None = None) -> dict[str, str]:
    """The keywords of `compile` and the forms of their values."""
    return {name: form for name, (_, form, _) in
            _options(find_compiler(compiler)).items()}


def _words(name: str, flag: str, form: str, many: bool,
           value: Any) -> list[str]:
    """The arguments of one option."""
    if not form:
        if not isinstance(value, bool):
            raise TypeError(f"{name} is True or False")
        return [flag] if value else []
    if isinstance(value, Mapping) and many:
        value = [f"{k}={v}" for k, v in value.items()]
    if isinstance(value, (list, tuple)) and many:
        return [w for v in value for w in (flag, str(v))]
    if isinstance(value, (Mapping, list, tuple, bool)):
        raise TypeError(f"{name} is a text, {form}" + (
            ", or a list or dict of such" if many else ""))
    return [flag, str(value)]


def _unknown(program: str, name: str) -> TypeError:
    """With what `ampc` says to that option: one of the same meaning or alike."""
    flag = "--" + name.replace("_", "-")
    said = subprocess.run([program, "check", flag], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    hint = "output=PATH" if name == "o" else \
        said.stdout.partition("unknown option")[2].strip("; \n") or \
        "ampc.options() lists them"
    return TypeError(f"ampc has no option '{name}': {hint}")


def _arguments(program: str, given: Mapping[str, Any]) -> list[str]:
    known, words = _options(program), []
    for name, value in given.items():
        if name not in known or name == "o":
            raise _unknown(program, name)
        if value is not None:
            words += _words(name, *known[name], value)
    return words


def _is_torch_module(model: Any) -> bool:
    return hasattr(model, "named_parameters") and not isinstance(model, type)


def compile(model: Any, args: Any = None, *, output: Path | None = None,
            compiler: Path | None = None, **options: Any) -> Module:
    """Compiles a model and loads the module.

    model     the path of an ONNX or .amp file, or a torch.nn.Module, which
              ampc.torch.export writes first
    args      example inputs of a torch module, as of its forward
    output    where the module stays; without it, a file that is gone with the
              Module
    compiler  the program `ampc`; by default the one in this package or on PATH
    options   those of `ampc`, without dashes: precision="fp32",
              lr_schedule="cosine,total=100", dim={"batch": 64}, freeze=["l.*"],
              accept_folded=True

    Error with the messages of `ampc` if it refuses the model; its warnings
    become Python's (UserWarning) and stay in Module.messages.  TypeError: no
    such option, or not in its form."""
    program = find_compiler(compiler)
    words = _arguments(program, options)
    torch = _is_torch_module(model)
    if not torch and not isinstance(model, (str, os.PathLike)):
        raise TypeError("model is a path or a torch.nn.Module, not "
                        f"{model if isinstance(model, type) else type(model)}")
    folder = tempfile.TemporaryDirectory(prefix="ampc-")
    if torch:
        from .torch import export
        path = os.path.join(folder.name, type(model).__name__ + ".onnx")
        export(model, () if args is None else args, path)
        model = path
    elif args is not None:
        raise TypeError("args are the example inputs of a torch module")
    so = os.path.join(folder.name, "module.so") if output is None \
        else os.fspath(output)
    done = subprocess.run([program, os.fspath(model), "-o", so, *words],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", check=False)
    if done.returncode:
        raise Error(Status.ARGUMENT if done.returncode < 3
                    else Status.INTERNAL, done.stdout.strip())
    for line in done.stdout.splitlines():
        if "warning: " in line:
            warnings.warn(line, stacklevel=2)
    module = Module(so, options.get("symbol", "ampc_module"))
    module.messages = done.stdout
    module._keep = folder if output is None else None
    return module
