# SPDX-License-Identifier: Apache-2.0
"""A module that `ampc` compiled, from Python: ctypes over runtime/ampc.h.

    import ampc
    m = ampc.Module("train.so")
    s = m.session()                       # device="auto", threads=0
    print(s.step(x=images, target=labels)["loss"])
    y = s.predict(x=images)["logits"]
    s.save("w.safetensors")

One file, nothing but the standard library; arrays are whatever has the buffer
protocol (numpy, array.array, torch's .numpy()), dense and of the dtype that the
module wants.  What comes back is a numpy array where numpy is installed, else a
flat memoryview.  A call that fails raises ampc.Error with the session's message.
"""
import ctypes as c
import json
import operator
import os

__all__ = ["Error", "Module", "Session"]
__version__ = "0.1.0"
ABI_VERSION = 1
OK, ERR_ARGUMENT, ERR_UNSUPPORTED = 0, 1, 5
KINDS = ["parameter", "frozen", "buffer", "state", "hyper", "shadow",
         "gradient", "constant"]
# name, struct/buffer format, numpy's name; bf16 has neither
DTYPES = [("bool", "?", "bool"), ("u8", "B", "uint8"), ("i8", "b", "int8"),
          ("u16", "H", "uint16"), ("i16", "h", "int16"), ("u32", "I", "uint32"),
          ("i32", "i", "int32"), ("u64", "Q", "uint64"), ("i64", "q", "int64"),
          ("f16", "e", "float16"), ("bf16", "H", "uint16"),
          ("f32", "f", "float32"), ("f64", "d", "float64")]


class Error(RuntimeError):
    """`status` is the ampc_status of ampc.h."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


# ---- structs of ampc.h ------------------------------------------------------

class _Sized(c.Structure):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.size = c.sizeof(self)


def _struct(name, *fields):
    return type(name, (_Sized,), {"_fields_": [("size", c.c_size_t), *fields]})


_str, _ptr, _i32, _i64, _f64 = (c.c_char_p, c.c_void_p, c.c_int32, c.c_int64,
                                c.c_double)
_ModuleInfo = _struct(
    "_ModuleInfo", ("model", _str), ("info", _str), ("graph_hash", c.c_uint64),
    ("batch", _i64), ("accumulate", _i64), ("seed", _i64), ("trains", _i32),
    ("evaluates", _i32), ("predicts", _i32), ("nvariable", c.c_uint32),
    ("arena", c.c_uint64), ("parts", _i32), ("reserved0", _i32))
_Tensor = _struct("_Tensor", ("name", _str), ("dtype", _i32), ("rank", _i32),
                  ("shape", _i64 * 8), ("bytes", c.c_size_t))
_Variable = _struct("_Variable", ("name", _str), ("kind", _i32),
                    ("dtype", _i32), ("rank", _i32), ("shape", _i64 * 8),
                    ("bytes", c.c_size_t))
_Options = _struct("_Options", ("device", _str), ("threads", _i32),
                   ("reserved0", _i32), ("alloc", _ptr), ("free", _ptr),
                   ("alloc_ctx", _ptr), ("log", _ptr), ("log_ctx", _ptr),
                   ("stream", _ptr), ("comm", _ptr), ("max_skipped", _i32),
                   ("reserved1", _i32))
_Input = _struct("_Input", ("name", _str), ("data", _ptr),
                 ("bytes", c.c_size_t), ("dtype", _i32), ("rank", _i32),
                 ("shape", c.POINTER(_i64)))
_Output = _struct("_Output", ("name", _str), ("data", _ptr),
                  ("bytes", c.c_size_t), ("dtype", _i32), ("reserved0", _i32))
_Metrics = _struct("_Metrics", ("loss", _f64), ("grad_norm", _f64),
                   ("scale", _f64), ("lr", _f64), ("updated", _i32),
                   ("applied", _i32), ("step", _i64), ("tried", _i64),
                   ("skipped", _i64), ("bad_forward", _i64),
                   ("bad_data", _i64), ("skip_streak", _i64))
_Eval = _struct("_Eval", ("loss_num", _f64), ("loss_den", _f64),
                ("correct", _f64), ("count", _f64), ("samples", _i64),
                ("exact", _i32), ("top_k", _i32), ("correct_top", _f64))
_Weights = _struct("_Weights", ("paths", c.POINTER(_str)),
                   ("npath", c.c_size_t), ("renames", c.POINTER(_str)),
                   ("nrename", c.c_size_t), ("partial", _i32),
                   ("reserved0", _i32))


def _fn(*args, result=c.c_int):
    return c.CFUNCTYPE(result, *args)


def _table():
    """The functions of ampc_api in their order."""
    session, inputs = _ptr, (c.POINTER(_Input), c.c_size_t)
    path = _fn(session, _str)
    return [
        ("describe", _fn(_ptr, c.POINTER(_ModuleInfo))),
        ("program", _fn(_ptr, _str, _ptr)),
        ("input", _fn(_ptr, _str, c.c_uint32, c.POINTER(_Tensor))),
        ("output", _fn(_ptr, _str, c.c_uint32, c.POINTER(_Tensor))),
        ("variable", _fn(_ptr, c.c_uint32, c.POINTER(_Variable))),
        ("open", _fn(_ptr, c.POINTER(_Options), c.POINTER(_ptr), _str,
                     c.c_size_t)),
        ("close", _fn(session, result=None)),
        ("error", _fn(session, result=_str)),
        ("step", _fn(session, *inputs, c.POINTER(_Metrics))),
        ("sync", _fn(session, c.POINTER(_Metrics))),
        ("micro_step", _fn(session, *inputs, c.POINTER(_f64))),
        ("update", _fn(session, c.POINTER(_Metrics))),
        ("vjp", _fn(session, *inputs)),
        ("evaluate", _fn(session, *inputs, _i64, c.POINTER(_Eval))),
        ("predict", _fn(session, *inputs, _i64, c.POINTER(_Output),
                        c.c_size_t)),
        ("read_output", _fn(session, _str, c.POINTER(_Output))),
        ("get_hyper", _fn(session, _str, c.POINTER(_f64))),
        ("set_hyper", _fn(session, _str, _f64)),
        ("scaler", _fn(session, _ptr)),
        ("read_variable", _fn(session, _str, c.POINTER(_Output))),
        ("write_variable", _fn(session, _str, c.POINTER(_Input))),
        ("save", path), ("load", path), ("resume", path),
        ("set_cursor", path), ("get_cursor", _fn(session, result=_str)),
        ("profile", _fn(session, _ptr, _ptr)),
        ("notice", _fn(session, result=_str)),
        ("bad_data", _fn(session, _ptr)), ("nonfinite", _fn(session, _ptr)),
        ("load_weights", _fn(session, c.POINTER(_Weights))),
        ("save_weights", path),
        ("underflow", _fn(session, *inputs, _ptr, _ptr)),
        ("comm_open", _fn(_ptr, _ptr, _str, c.c_size_t)),
        ("comm_close", _fn(_ptr, result=None)),
        ("objective_name", _fn(_ptr, c.c_uint32, result=_str)),
        ("objective", path)]


class _Api(c.Structure):
    _fields_ = [("size", c.c_size_t), ("abi", c.c_uint32),
                ("reserved0", c.c_uint32), ("module", _ptr), ("version", _str),
                *_table()]


# ---- arrays -----------------------------------------------------------------

def _shape(t):
    return tuple(t.shape[:t.rank])


def _count(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def _new(t):
    """Room for a tensor: (what the caller gets, its address)."""
    _, code, numpy_name = DTYPES[t.dtype]
    try:
        import numpy
        a = numpy.empty(_shape(t), numpy_name)
        return a, a.ctypes.data
    except ImportError:
        raw = (c.c_char * max(t.bytes, 1))()
        view = memoryview(raw).cast("B")[:t.bytes]
        return view.cast(code), c.addressof(raw)


def _same_elements(a, b):
    """Whether one shape is the other with axes of 1, or with neighbouring axes
    as one: then the elements are the same in the same order."""
    a, b = [n for n in a if n != 1], [n for n in b if n != 1]
    while a and b:
        x, y, nx, ny = a.pop(0), b.pop(0), 1, 1
        while x != y:
            if x < y and a:
                x, nx = x * a.pop(0), nx + 1
            elif y < x and b:
                y, ny = y * b.pop(0), ny + 1
            else:
                return False
        if nx > 1 and ny > 1:
            return False
    return not a and not b


def _transposition(given, wanted):
    """The order of the axes of `given` in which it is `wanted`, or None."""
    if sorted(given) != sorted(wanted):
        return None
    left = list(range(len(given)))
    return tuple(left.pop(next(k for k, axis in enumerate(left)
                               if given[axis] == n)) for n in wanted)


def _check_shape(view, t):
    given, wanted = tuple(view.shape), _shape(t)
    if _same_elements(given, wanted):
        return
    axes = _transposition(given, wanted)
    hint = ": the order of its axes is another; this would fit: " \
        f"numpy.ascontiguousarray(x.transpose{axes})" if axes else ""
    raise Error(ERR_ARGUMENT,
                f"'{t.name.decode()}' takes {DTYPES[t.dtype][0]}"
                f"{list(wanted)}; given is shape {given}{hint}")


def _whole(raw, what):
    """C would end at a byte of 0."""
    if b"\0" in raw:
        raise ValueError(f"{what}: embedded null byte")
    return raw


def _text(name, what):
    return _whole(name.encode(), what)


def _path(path):
    return _whole(os.fsencode(path), "path")


def _number(value, least, most, what):
    """C would take a number of more bits for another one."""
    if isinstance(value, bool) or not least <= operator.index(value) <= most:
        raise ValueError(f"{what} is {value}, not in {least} .. {most}")
    return operator.index(value)


def _view(array, t):
    """The array's memory."""
    try:
        return memoryview(array)
    except TypeError:
        name, _, numpy_name = DTYPES[t.dtype]
        raise Error(ERR_ARGUMENT,
                    f"'{t.name.decode()}' takes {name}{list(_shape(t))}; given "
                    f"is a {type(array).__name__}, no array; this would fit: "
                    f"numpy.asarray(x, '{numpy_name}')") from None


def _given(array, t):
    """An ampc_input for what has the buffer protocol."""
    view = _view(array, t)
    have = view.format.lstrip("@=<")
    dtype, count = t.dtype, t.bytes
    if t.name.split(b":")[0] == b"target" and DTYPES[dtype][0] == "i64":
        for fewer in (1, 6):  # u8, i32
            if have == DTYPES[fewer][1]:
                dtype, count = fewer, t.bytes // 8 * view.itemsize
    name, code, numpy_name = DTYPES[dtype]
    same = have == code or (have in "lq" and code == "q") or (
        have in "LQ" and code == "Q")
    if not same or view.nbytes != count or not view.c_contiguous:
        raise Error(ERR_ARGUMENT,
                    f"'{t.name.decode()}' takes {name}{list(_shape(t))}, dense;"
                    f" given is format '{view.format}', shape {view.shape}"
                    + (f"; this would fit: numpy.ascontiguousarray(x, "
                       f"'{numpy_name}')" if view.shape == _shape(t) else ""))
    _check_shape(view, t)
    if view.readonly:
        view = memoryview(bytearray(view.cast("B")))
    data = c.addressof(c.c_char.from_buffer(view.cast("B"))) if count else None
    return _Input(name=t.name, data=data, bytes=count, dtype=dtype,
                  rank=-1), view


def _rows(t, n, batch):
    """The tensor for n samples, if its first axis goes over the samples."""
    if n == batch or not t.rank or not batch or t.shape[0] % batch:
        return t
    some = _Tensor.from_buffer_copy(t)
    some.shape[0] = t.shape[0] // batch * n
    some.bytes = t.bytes // batch * n
    return some


class Module:
    """A loaded module; `symbol` is what `ampc --symbol` named."""

    def __init__(self, path, symbol="ampc_module"):
        path = os.fspath(path)
        self._lib = c.CDLL(path if os.sep in path else "./" + path)
        entry = getattr(self._lib, symbol)
        entry.restype, entry.argtypes = c.POINTER(_Api), [c.c_uint32]
        api = entry(ABI_VERSION)
        if not api:
            raise Error(ERR_UNSUPPORTED, f"{path}: of another version of ampc")
        if api.contents.size < c.sizeof(_Api):
            raise Error(ERR_UNSUPPORTED, f"{path}: of an older version of ampc")
        self.api = api.contents
        info = _ModuleInfo()
        self.api.describe(self.api.module, info)
        self.batch, self.accumulate = info.batch, info.accumulate
        self.model, self.info = info.model.decode(), info.info.decode()
        self._nvariable = info.nvariable
        options = json.loads(self.info).get("options", {})
        self.batch_sizes = options.get("batch_sizes", [])

    def _tensors(self, call, program):
        """Without the metrics among them."""
        found, i = [], 0
        while True:
            t = _Tensor()
            if call(self.api.module, _text(program, "program"), i, t) != OK:
                return [t for t in found if not t.name.startswith(b"ampc.")]
            found.append(t)
            i += 1

    def inputs(self, program="train"):
        """{name: (dtype, shape)}"""
        return {t.name.decode(): (DTYPES[t.dtype][0], _shape(t))
                for t in self._tensors(self.api.input, program)}

    def outputs(self, program="predict"):
        return {t.name.decode(): (DTYPES[t.dtype][0], _shape(t))
                for t in self._tensors(self.api.output, program)}

    def variables(self):
        """{name: (kind, dtype, shape)}"""
        all_ = {}
        for i in range(self._nvariable):
            v = _Variable()
            self.api.variable(self.api.module, i, v)
            all_[v.name.decode()] = (KINDS[v.kind], DTYPES[v.dtype][0],
                                     _shape(v))
        return all_

    def session(self, device="auto", threads=0):
        return Session(self, device, threads)


class Session:
    def __init__(self, module, device="auto", threads=0):
        self.module, self._api, self._s = module, module.api, _ptr()
        known = self._api.size >= c.sizeof(_Api)
        first = known and self._api.objective_name(self._api.module, 0)
        self._objective = ":" + first.decode() if first else ""
        why = c.create_string_buffer(512)
        options = _Options(device=_text(device, "device"),
                           threads=_number(threads, 0, 1024, "threads"))
        status = self._api.open(self._api.module, options, c.byref(self._s),
                                why, len(why))
        if status != OK:
            raise Error(status, why.value.decode())

    def close(self):
        if self._s:
            self._api.close(self._s)
            self._s = None

    __del__ = close

    def __reduce_ex__(self, _):
        raise TypeError("an ampc.Session is neither copied nor pickled: it has "
                        "one session of the module (save and resume make two)")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _check(self, status):
        if status != OK:
            raise Error(status, self._api.error(self._s).decode())

    @staticmethod
    def _samples(wanted, arrays, batch):
        """How many samples the arrays hold; a batch where they do not agree."""
        found = set()
        for t in wanted:
            if t.rank and batch and t.shape[0] == batch:
                view = _view(arrays[t.name.decode()], t)
                each = _count(_shape(t)) // batch
                n = view.nbytes // view.itemsize
                found.add(n // each if each and n % each == 0 else None)
        return found.pop() if len(found) == 1 and None not in found else batch

    def _inputs(self, programs, arrays, batch=None):
        """The arrays in the order of the first program that there is."""
        for program in programs:
            wanted = self.module._tensors(self._api.input, program)
            if wanted:
                break
        names = {t.name.decode() for t in wanted}
        if names != set(arrays):
            raise Error(ERR_ARGUMENT, f"inputs are {sorted(names)}, given are "
                                      f"{sorted(arrays)}")
        batch = self.module.batch if batch is None else batch
        n = self._samples(wanted, arrays, batch)
        pairs = [_given(arrays[t.name.decode()],
                        _rows(t, n, batch) if t.rank and t.shape[0] == batch
                        else t) for t in wanted]
        keep = [view for _, view in pairs]
        return (_Input * len(pairs))(*[i for i, _ in pairs]), len(pairs), keep

    def _sized(self, program, arrays):
        """That program, or the one of --batch-sizes whose inputs are as large
        as these."""
        for n in self.module.batch_sizes:
            name = f"{program}@{n}"
            wanted = self.module._tensors(self._api.input, name)
            if wanted and all(
                    t.name.decode() in arrays and t.bytes == _view(
                        arrays[t.name.decode()], t).nbytes for t in wanted):
                return name, n
        return program, self.module.batch

    def step(self, objective=None, /, **arrays):
        """One optimizer step of up to a batch of samples, of that objective
        where the module has several; its metrics by name."""
        m = _Metrics()
        if objective is not None:
            self._check(self._api.objective(self._s, _text(objective,
                                                           "objective")))
            self._objective = ":" + objective
        inputs, n, keep = self._inputs(
            ("train" + self._objective, "micro" + self._objective), arrays)
        self._check(self._api.step(self._s, inputs, n, m))
        return {name: getattr(m, name) for name, _ in m._fields_[1:]}

    def evaluate(self, valid=None, sums=None, **arrays):
        """Loss, accuracy (None: no classifier) and samples, of any number of
        them, added to `sums`, the result of an earlier call."""
        e = sums["_sums"] if sums else _Eval()
        program, batch = self._sized("eval", arrays)
        inputs, n, keep = self._inputs((program,), arrays, batch)
        given = self._samples(
            self.module._tensors(self._api.input, program), arrays, batch)
        rows = given if valid is None else _number(valid, 0, given, "valid")
        self._check(self._api.evaluate(self._s, inputs, n, rows, e))
        return {"loss": e.loss_num / e.loss_den if e.loss_den else None,
                "accuracy": e.correct / e.count if e.count else None,
                "accuracy_top": (e.correct_top / e.count
                                 if e.count and e.top_k else None),
                "samples": e.samples, "_sums": e}

    def predict(self, **arrays):
        """All outputs of the model by name, of any number of samples."""
        program, batch = self._sized("predict", arrays)
        inputs, n, keep = self._inputs((program,), arrays, batch)
        batch_of = self.module._tensors(self._api.input, program)
        rows = self._samples(batch_of, arrays, batch)
        wanted = [_rows(t, rows, batch) for t in
                  self.module._tensors(self._api.output, program)]
        room = [_new(t) for t in wanted]
        outs = (_Output * len(wanted))(*[
            _Output(name=t.name, data=at, bytes=t.bytes, dtype=t.dtype)
            for t, (_, at) in zip(wanted, room)])
        self._check(self._api.predict(self._s, inputs, n, rows, outs,
                                      len(wanted)))
        return {t.name.decode(): a for t, (a, _) in zip(wanted, room)}

    def _variable(self, name):
        for i in range(self.module._nvariable):
            v = _Variable()
            self._api.variable(self._api.module, i, v)
            if v.name == _text(name, "variable"):
                return v
        raise Error(ERR_ARGUMENT, f"no variable '{name}'")

    def __getitem__(self, name):
        v = self._variable(name)
        a, at = _new(v)
        out = _Output(name=v.name, data=at, bytes=v.bytes, dtype=v.dtype)
        self._check(self._api.read_variable(self._s, v.name, out))
        return a

    def __setitem__(self, name, array):
        v = self._variable(name)
        given, keep = _given(array, v)
        self._check(self._api.write_variable(self._s, v.name, given))

    def hyper(self, name, value=None):
        """Reads a hyper-parameter ("lr"), or sets it."""
        key = _text(name, "hyper-parameter")
        if value is not None:
            self._check(self._api.set_hyper(self._s, key, value))
        x = _f64()
        self._check(self._api.get_hyper(self._s, key, x))
        return x.value

    def _path(self, call, path):
        self._check(call(self._s, _path(path)))
        return self._api.notice(self._s).decode()

    def save(self, path):
        return self._path(self._api.save, path)

    def resume(self, path):
        return self._path(self._api.resume, path)

    def save_weights(self, path):
        return self._path(self._api.save_weights, path)

    def load(self, *paths, renames=(), partial=False):
        """Weights by name from safetensors files; renames are "OLD=NEW" of
        prefixes.  Returns what was missing and left over, or ""."""
        files = (_str * len(paths))(*[_path(p) for p in paths])
        maps = (_str * len(renames))(*[_text(r, "renames") for r in renames])
        self._check(self._api.load_weights(self._s, _Weights(
            paths=files, npath=len(paths), renames=maps,
            nrename=len(renames), partial=partial)))
        return self._api.notice(self._s).decode()
