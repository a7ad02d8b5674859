# SPDX-License-Identifier: Apache-2.0
"""Modules, as they were compiled, and communicators of ranks."""
from __future__ import annotations

import ctypes as c
import json
import os
from typing import (TYPE_CHECKING, Any, Dict, NoReturn, SupportsIndex,
                    Tuple)

from . import _c
from ._arrays import shape_of
from ._c import DTYPES, KINDS, Error, Status
from ._checks import Path, text

if TYPE_CHECKING:
    from ._session import Session

Tensors = Dict[str, Tuple[str, Tuple[int, ...]]]


class Single:
    """A thing of the module's library: neither copied nor pickled."""

    _another: str  # how to get a second one

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuses copies and pickles."""
        raise TypeError(f"an ampc.{type(self).__name__} is neither copied nor "
                        f"pickled: {self._another}")


class Communicator(Single):
    """Ranks that train one model together (ampc_comm): engine "mpi", "nccl" or
    "tcp", deadline in seconds.  All ranks make it at the same time, pass it to
    Module.session, and close it behind their sessions."""

    def __init__(self, module: Module, engine: str = "mpi",
                 deadline: float = 0) -> None:
        self._module = module  # as long as its code runs
        self._api, self._comm = module.api, c.c_void_p()
        why = c.create_string_buffer(512)
        options = _c.CommOptions(engine=text(engine, "engine"),
                                 deadline=deadline)
        status = self._api.comm_open(options, c.byref(self._comm), why,
                                     len(why))
        if status != Status.OK:
            raise Error(status, why.value.decode())

    _another = "every rank opens its own"

    def close(self) -> None:
        """Leaves the ranks; a second time nothing happens."""
        if self._comm:
            self._api.comm_close(self._comm)
            self._comm = c.c_void_p()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Module(Single):
    """A loaded module; `symbol` is what `ampc --symbol` named.

    batch, accumulate, seed   as compiled
    batch_sizes               those of --batch-sizes
    sizes                     {dimension: sizes} of --dim NAME=N|N
    trains, evaluates, predicts, parts   what it can do (ampc_module_info)
    objectives                the names of --objective, [] without
    model, info               the graph's name; a dict of what it was made from
    graph_hash, arena         a hash of what checkpoints depend on; bytes of
                              activations
    messages                  what `ampc` said when ampc.compile made it

    Error: the file is no module, or one of another version.
    """

    def __init__(self, path: Path, symbol: str = "ampc_module") -> None:
        path = os.fspath(path)
        self.path: str = path
        self.messages: str = ""
        self._tensors: dict[tuple[str, str], list[Any]] = {}
        self._keep: Any = None  # a folder that lives as long
        try:
            self._lib = _c.open_library(path)
            entry = getattr(self._lib, symbol)
        except OSError as e:
            raise Error(Status.FILE, str(e)) from None
        except AttributeError:
            raise Error(Status.FILE, f"{path}: not an ampc module (no symbol "
                        f"'{symbol}')") from None
        entry.restype, entry.argtypes = c.POINTER(_c.Api), [c.c_uint32]
        api = entry(_c.ABI_VERSION)
        if not api:
            raise Error(Status.UNSUPPORTED,
                        f"{path}: of another version of ampc")
        if api.contents.size < c.sizeof(_c.Api):
            raise Error(Status.UNSUPPORTED, f"{path}: of an older version of "
                        "ampc: compile it again")
        self.api: Any = api.contents
        info = _c.ModuleInfo()
        self.api.describe(self.api.module, info)
        self.batch: int = info.batch
        self.accumulate: int = info.accumulate
        self.seed: int = info.seed
        self.graph_hash: int = info.graph_hash
        self.arena: int = info.arena
        self.trains: bool = bool(info.trains)
        self.evaluates: bool = bool(info.evaluates)
        self.predicts: bool = bool(info.predicts)
        self.parts: bool = bool(info.parts)
        self.model: str = info.model.decode()
        self.info: dict[str, Any] = json.loads(info.info.decode())
        self._nvariable: int = info.nvariable
        self.batch_sizes: list[int] = self.info.get("options", {}).get(
            "batch_sizes", [])
        self.sizes: dict[str, list[int]] = self.info.get("options", {}).get(
            "dims", {})
        self.objectives: list[str] = []
        while True:
            name = self.api.objective_name(self.api.module,
                                           len(self.objectives))
            if not name:
                break
            self.objectives.append(name.decode())

    _another = "ampc.Module(PATH) loads another"

    def __repr__(self) -> str:
        does = [what for what, can in (("trains", self.trains),
                                       ("evaluates", self.evaluates),
                                       ("predicts", self.predicts)) if can]
        return f"<ampc.Module {self.path}: {self.model} of batch " \
            f"{self.batch}, {', '.join(does)}>"

    def tensors(self, side: str, program: str) -> list[Any]:
        """Those of a side, "input" or "output", without the metrics among
        them.  They are asked for once, and nobody changes them."""
        key = side, program
        if key not in self._tensors:
            call = {"input": self.api.input, "output": self.api.output}[side]
            found: list[Any] = []
            name, t = text(program, "program"), _c.TensorInfo()
            while call(self.api.module, name, len(found), t) == Status.OK:
                found.append(t)
                t = _c.TensorInfo()
            self._tensors[key] = [t for t in found
                                  if not t.name.startswith(b"ampc.")]
        return self._tensors[key]

    def inputs(self, program: str = "train") -> Tensors:
        """{name: (dtype, shape)}; {} if there is no such program."""
        return {t.name.decode(): (DTYPES[t.dtype][0], shape_of(t))
                for t in self.tensors("input", program)}

    def outputs(self, program: str = "predict") -> Tensors:
        """{name: (dtype, shape)}; {} if there is no such program."""
        return {t.name.decode(): (DTYPES[t.dtype][0], shape_of(t))
                for t in self.tensors("output", program)}

    def program(self, program: str = "train") -> dict[str, Any]:
        """ninput, noutput, nstep, and the FLOPs of its matrix products."""
        info = _c.ProgramInfo()
        status = self.api.program(self.api.module, text(program, "program"),
                                  info)
        if status != Status.OK:
            raise Error(status, f"no program '{program}'")
        return _c.plain(info)

    def variables(self) -> dict[str, tuple[str, str, tuple[int, ...]]]:
        """{name: (kind, dtype, shape)}; kind: "parameter", "frozen", "buffer",
        "state", "hyper", "shadow", "gradient" or "constant"."""
        found = {}
        for i in range(self._nvariable):
            v = _c.VariableInfo()
            self.api.variable(self.api.module, i, v)
            found[v.name.decode()] = (KINDS[v.kind], DTYPES[v.dtype][0],
                                      shape_of(v))
        return found

    def session(self, device: str = "auto", threads: int = 0, *,
                comm: Communicator | None = None, stream: int | None = None,
                max_skipped: int = 0) -> Session:
        """A session with the module's initial weights.  device: "auto", "cpu",
        "cuda" or "cuda:N"; threads: 0 for all; stream: a CUstream, torch's
        .cuda_stream; max_skipped: after so many skipped steps in a row step
        raises (0: 100, -1: never)."""
        from ._session import Session  # which needs Module
        return Session(self, device, threads, comm=comm, stream=stream,
                       max_skipped=max_skipped)
