# SPDX-License-Identifier: Apache-2.0
"""runtime/ampc.h with ctypes: its structs, its table of functions, its errors."""
from __future__ import annotations

import ctypes as c
import enum
import os
import threading
from typing import Any

ABI_VERSION = 1
KINDS = ["parameter", "frozen", "buffer", "state", "hyper", "shadow",
         "gradient", "constant"]
ORIGINS = ["none", "input", "variable", "loss", "gradient", "forward",
           "backward"]
# name, struct/buffer format, numpy's name; bf16 and 8-bit floats have neither
DTYPES = [("bool", "?", "bool"), ("u8", "B", "uint8"), ("i8", "b", "int8"),
          ("u16", "H", "uint16"), ("i16", "h", "int16"), ("u32", "I", "uint32"),
          ("i32", "i", "int32"), ("u64", "Q", "uint64"), ("i64", "q", "int64"),
          ("f16", "e", "float16"), ("bf16", "H", "uint16"),
          ("f32", "f", "float32"), ("f64", "d", "float64"),
          ("f8e4m3", "B", "uint8"), ("f8e5m2", "B", "uint8"),
          ("e8m0", "B", "uint8")]


class Status(enum.IntEnum):
    """ampc_status of ampc.h."""

    OK = 0
    ARGUMENT = 1
    MEMORY = 2
    FILE = 3
    FORMAT = 4
    UNSUPPORTED = 5
    BUSY = 6
    INTERNAL = 7
    DEVICE = 8
    DATA = 9
    DIVERGED = 10
    COMM = 11


class Error(RuntimeError):
    """A call failed.  The text is the message of the C library or of `ampc`.

    status   the ampc_status (Status.ARGUMENT, ..)
    details  of Status.DATA what Session.bad_data() gives, of Status.DIVERGED
             what Session.nonfinite() gives; else {}
    """

    def __init__(self, status: int, text: str,
                 details: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status: Status = Status(status)
        self.details: dict[str, Any] = details or {}

    def __reduce__(self) -> Any:
        return Error, (int(self.status), str(self), self.details)


# ---- structs ----------------------------------------------------------------

class _Sized(c.Structure):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.size = c.sizeof(self)


def _struct(name: str, *fields: tuple[str, Any]) -> Any:
    return type(name, (_Sized,), {"_fields_": [("size", c.c_size_t), *fields]})


_str, _ptr, _i32, _i64, _f64 = (c.c_char_p, c.c_void_p, c.c_int32, c.c_int64,
                                c.c_double)
_u32, _u64, _size = c.c_uint32, c.c_uint64, c.c_size_t
_dims = _i64 * 8
ModuleInfo = _struct(
    "ModuleInfo", ("model", _str), ("info", _str), ("graph_hash", _u64),
    ("batch", _i64), ("accumulate", _i64), ("seed", _i64), ("trains", _i32),
    ("evaluates", _i32), ("predicts", _i32), ("nvariable", _u32),
    ("arena", _u64), ("parts", _i32), ("reserved0", _i32))
ProgramInfo = _struct("ProgramInfo", ("ninput", _u32), ("noutput", _u32),
                      ("nstep", _u32), ("flops", _f64))
TensorInfo = _struct("TensorInfo", ("name", _str), ("dtype", _i32),
                     ("rank", _i32), ("shape", _dims), ("bytes", _size),
                     ("sample_rows", _i64))
VariableInfo = _struct("VariableInfo", ("name", _str), ("kind", _i32),
                       ("dtype", _i32), ("rank", _i32), ("shape", _dims),
                       ("bytes", _size))
DeviceInfo = _struct("DeviceInfo", ("kind", _str), ("name", _str))
MemoryInfo = _struct(
    "MemoryInfo", ("parameters", _u64), ("copies", _u64), ("state", _u64),
    ("gradients", _u64), ("activations", _u64), ("workspace", _u64),
    ("total", _u64), ("host", _u64))
CommOptions = _struct("CommOptions", ("engine", _str), ("deadline", _f64))
Options = _struct(
    "Options", ("device", _str), ("threads", _i32), ("reserved0", _i32),
    ("alloc", _ptr), ("free", _ptr), ("alloc_ctx", _ptr), ("log", _ptr),
    ("log_ctx", _ptr), ("stream", _ptr), ("comm", _ptr),
    ("max_skipped", _i32), ("reserved1", _i32))
Input = _struct("Input", ("name", _str), ("data", _ptr), ("bytes", _size),
                ("dtype", _i32), ("rank", _i32), ("shape", c.POINTER(_i64)),
                ("place", _i32), ("reserved0", _i32))
Output = _struct("Output", ("name", _str), ("data", _ptr), ("bytes", _size),
                 ("dtype", _i32), ("place", _i32))
Metrics = _struct(
    "Metrics", ("loss", _f64), ("grad_norm", _f64), ("scale", _f64),
    ("lr", _f64), ("updated", _i32), ("applied", _i32), ("step", _i64),
    ("tried", _i64), ("skipped", _i64), ("bad_forward", _i64),
    ("bad_data", _i64), ("skip_streak", _i64))
BadData = _struct("BadData", ("input", _str), ("index", _i64), ("value", _i64),
                  ("least", _i64), ("most", _i64), ("count", _i64))
Nonfinite = _struct(
    "Nonfinite", ("origin", _i32), ("dtype", _i32), ("name", _str),
    ("index", _i64), ("value", _f64), ("tried", _i64), ("op", _str),
    ("source", _str), ("advice", _str))
Eval = _struct("Eval", ("loss_num", _f64), ("loss_den", _f64),
               ("correct", _f64), ("count", _f64), ("samples", _i64),
               ("exact", _i32), ("top_k", _i32), ("correct_top", _f64))
Scaler = _struct("Scaler", ("scale", _f64), ("good", _i64),
                 ("hysteresis", _i64), ("step", _i64), ("tried", _i64),
                 ("skipped", _i64), ("bad_forward", _i64), ("micro", _i64))
Weights = _struct("Weights", ("paths", c.POINTER(_str)), ("npath", _size),
                  ("renames", c.POINTER(_str)), ("nrename", _size),
                  ("partial", _i32), ("reserved0", _i32))


# ---- functions --------------------------------------------------------------

def _fn(*args: Any, result: Any = c.c_int) -> Any:
    return c.CFUNCTYPE(result, *args)


PROFILE = c.CFUNCTYPE(None, _ptr, _str, _str, _u64, _u64)
UNDERFLOW = c.CFUNCTYPE(None, _ptr, _str, _f64, _f64)
_session, _p = _ptr, c.POINTER
_inputs = (_p(Input), _size)
_path = _fn(_session, _str)


class Api(c.Structure):
    """ampc_api: the functions in their order."""

    _fields_ = [
        ("size", _size), ("abi", _u32), ("reserved0", _u32), ("module", _ptr),
        ("version", _str),
        ("describe", _fn(_ptr, _p(ModuleInfo))),
        ("program", _fn(_ptr, _str, _p(ProgramInfo))),
        ("input", _fn(_ptr, _str, _u32, _p(TensorInfo))),
        ("output", _fn(_ptr, _str, _u32, _p(TensorInfo))),
        ("variable", _fn(_ptr, _u32, _p(VariableInfo))),
        ("open", _fn(_ptr, _p(Options), _p(_ptr), _str, _size)),
        ("close", _fn(_session, result=None)),
        ("error", _fn(_session, result=_str)),
        ("step", _fn(_session, *_inputs, _p(Metrics))),
        ("sync", _fn(_session, _p(Metrics))),
        ("micro_step", _fn(_session, *_inputs, _p(_f64))),
        ("update", _fn(_session, _p(Metrics))),
        ("vjp", _fn(_session, *_inputs)),
        ("evaluate", _fn(_session, *_inputs, _i64, _p(Eval))),
        ("predict", _fn(_session, *_inputs, _i64, _p(Output), _size)),
        ("read_output", _fn(_session, _str, _p(Output))),
        ("get_hyper", _fn(_session, _str, _p(_f64))),
        ("set_hyper", _fn(_session, _str, _f64)),
        ("scaler", _fn(_session, _p(Scaler))),
        ("read_variable", _fn(_session, _str, _p(Output))),
        ("write_variable", _fn(_session, _str, _p(Input))),
        ("save", _path), ("load", _path), ("resume", _path),
        ("set_cursor", _path), ("get_cursor", _fn(_session, result=_str)),
        ("profile", _fn(_session, PROFILE, _ptr)),
        ("notice", _fn(_session, result=_str)),
        ("bad_data", _fn(_session, _p(BadData))),
        ("nonfinite", _fn(_session, _p(Nonfinite))),
        ("load_weights", _fn(_session, _p(Weights))),
        ("save_weights", _path),
        ("underflow", _fn(_session, *_inputs, UNDERFLOW, _ptr)),
        ("comm_open", _fn(_p(CommOptions), _p(_ptr), _str, _size)),
        ("comm_close", _fn(_ptr, result=None)),
        ("objective_name", _fn(_ptr, _u32, result=_str)),
        ("objective", _path),
        ("outputs", _fn(_session, *_inputs, _i64, _p(Output), _size)),
        ("stage", _fn(_session, _str, _u32, _p(_ptr))),
        ("device", _fn(_session, _p(DeviceInfo))),
        ("peek", _fn(_session, _u64, _ptr, _size)),
        ("memory", _fn(_session, _p(MemoryInfo))),
        ("fit", _fn(_session, _str, *_inputs, _p(_str)))]


def plain(struct: Any) -> dict[str, Any]:
    """The fields behind `size`, texts as str, without the reserved ones."""
    found = {}
    for name, _ in struct._fields_[1:]:
        if not name.startswith("reserved"):
            value = getattr(struct, name)
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


# ---- a module's file, a session's calls ---------------------------------------

_files: dict[str, list[tuple[int, int]]] = {}


def open_library(path: str) -> Any:
    """The file that is there now.  dlopen takes a name that it knows for the
    file that it has loaded, so a later file gets another name."""
    path = os.path.abspath(path)
    if not os.path.exists(path):
        return c.CDLL(path)  # its message
    at = os.stat(path)
    seen = _files.setdefault(path, [])
    if (at.st_dev, at.st_ino) not in seen:
        seen.append((at.st_dev, at.st_ino))
    folder, name = os.path.split(path)
    return c.CDLL(os.path.join(
        folder, "./" * seen.index((at.st_dev, at.st_ino)) + name))


class Calls:
    """The functions of ampc_api for one session, which `close` ends only while
    none of them runs."""

    def __init__(self, api: Any) -> None:
        self._api, self._lock = api, threading.Lock()
        self._running: set[object] = set()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._api, name)
        if not callable(function):
            return function

        def call(*args: Any) -> Any:
            this = object()
            try:  # a KeyboardInterrupt anywhere leaves nothing running
                with self._lock:
                    self._running.add(this)
                return function(*args)
            finally:
                self._running.discard(this)
        return call

    def end(self, session: Any) -> None:
        """Closes it; calls that come later find no session."""
        with self._lock:
            if self._running:
                raise Error(Status.BUSY, "the session cannot be closed while "
                            "a call of it runs, in another thread or around "
                            "this one")
            self._api.close(session)
            session.value = None
