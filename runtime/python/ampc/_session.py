# SPDX-License-Identifier: Apache-2.0
"""Modules and sessions: every function of ampc_api as a method."""
from __future__ import annotations

import ctypes as c
import json
import operator
import os
from typing import (Any, Callable, Dict, Iterable, Mapping, Sequence, Tuple,
                    Union)

from . import _c, _fit
from ._arrays import Given, Returned, count, item_size, shape_of
from ._c import DTYPES, KINDS, ORIGINS, Error, Status

Path = Union[str, "os.PathLike[str]"]
# Arrays by the names of inputs, in the order of inputs, or one for one input.
Data = Any
Tensors = Dict[str, Tuple[str, Tuple[int, ...]]]


def _whole(raw: bytes, what: str) -> bytes:
    """C would end at a byte of 0."""
    if b"\0" in raw:
        raise ValueError(f"{what}: embedded null byte")
    return raw


def _text(name: str, what: str) -> bytes:
    return _whole(name.encode(), what)


def _path(path: Path) -> bytes:
    return _whole(os.fsencode(path), "path")


def _number(value: Any, least: int, most: int, what: str) -> int:
    """C would take a number of more bits for another one."""
    if isinstance(value, bool) or not least <= operator.index(value) <= most:
        raise ValueError(f"{what} is {value}, not in {least} .. {most}")
    return operator.index(value)


class Evaluation(Dict[str, Any]):
    """loss, accuracy (None: the model is no classifier), accuracy_top (None
    without --top-k), samples, and exact: 0 where the loss is over whole batches
    only.  Given to the next Session.evaluate it adds up."""

    def __init__(self, sums: Any) -> None:
        super().__init__(
            loss=sums.loss_num / sums.loss_den if sums.loss_den else None,
            accuracy=sums.correct / sums.count if sums.count else None,
            accuracy_top=(sums.correct_top / sums.count
                          if sums.count and sums.top_k else None),
            samples=sums.samples, exact=sums.exact)
        self._sums = sums


class Communicator:
    """Ranks that train one model together (ampc_comm): engine "mpi", "nccl" or
    "tcp", deadline in seconds.  All ranks make it at the same time, pass it to
    Module.session, and close it behind their sessions."""

    def __init__(self, module: Module, engine: str = "mpi",
                 deadline: float = 0) -> None:
        self._api, self._comm = module.api, c.c_void_p()
        why = c.create_string_buffer(512)
        options = _c.CommOptions(engine=_text(engine, "engine"),
                                 deadline=deadline)
        status = self._api.comm_open(options, c.byref(self._comm), why,
                                     len(why))
        if status != Status.OK:
            raise Error(status, why.value.decode())

    def close(self) -> None:
        if self._comm:
            self._api.comm_close(self._comm)
            self._comm = c.c_void_p()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Module:
    """A loaded module; `symbol` is what `ampc --symbol` named.

    batch, accumulate, seed   as compiled
    batch_sizes               those of --batch-sizes
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
        self.path, self.messages = path, ""
        self._keep: Any = None  # a folder that lives as long
        try:
            self._lib = _c.library(path)
            entry = getattr(self._lib, symbol)
        except (OSError, AttributeError) as e:
            raise Error(Status.FILE, str(e)) from None
        entry.restype, entry.argtypes = c.POINTER(_c.Api), [c.c_uint32]
        api = entry(_c.ABI_VERSION)
        if not api:
            raise Error(Status.UNSUPPORTED,
                        f"{path}: of another version of ampc")
        if api.contents.size < c.sizeof(_c.Api):
            raise Error(Status.UNSUPPORTED, f"{path}: of an older version of "
                        "ampc: compile it again")
        self.api = api.contents
        info = _c.ModuleInfo()
        self.api.describe(self.api.module, info)
        self.batch: int = info.batch
        self.accumulate: int = info.accumulate
        self.seed: int = info.seed
        self.graph_hash: int = info.graph_hash
        self.arena: int = info.arena
        self.trains, self.evaluates = bool(info.trains), bool(info.evaluates)
        self.predicts, self.parts = bool(info.predicts), bool(info.parts)
        self.model: str = info.model.decode()
        self.info: dict[str, Any] = json.loads(info.info.decode())
        self._nvariable: int = info.nvariable
        self.batch_sizes: list[int] = self.info.get("options", {}).get(
            "batch_sizes", [])
        self.objectives: list[str] = []
        while True:
            name = self.api.objective_name(self.api.module,
                                           len(self.objectives))
            if not name:
                break
            self.objectives.append(name.decode())

    def _tensors(self, call: Any, program: str) -> list[Any]:
        """Without the metrics among them."""
        found: list[Any] = []
        while True:
            t = _c.TensorInfo()
            if call(self.api.module, _text(program, "program"), len(found),
                    t) != Status.OK:
                return [t for t in found if not t.name.startswith(b"ampc.")]
            found.append(t)

    def inputs(self, program: str = "train") -> Tensors:
        """{name: (dtype, shape)}; {} if there is no such program."""
        return {t.name.decode(): (DTYPES[t.dtype][0], shape_of(t))
                for t in self._tensors(self.api.input, program)}

    def outputs(self, program: str = "predict") -> Tensors:
        """{name: (dtype, shape)}; {} if there is no such program."""
        return {t.name.decode(): (DTYPES[t.dtype][0], shape_of(t))
                for t in self._tensors(self.api.output, program)}

    def program(self, program: str = "train") -> dict[str, Any]:
        """ninput, noutput, nstep, and the FLOPs of its matrix products."""
        info = _c.ProgramInfo()
        status = self.api.program(self.api.module, _text(program, "program"),
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
        return Session(self, device, threads, comm=comm, stream=stream,
                       max_skipped=max_skipped)


class Session:
    """Weights, optimizer state and threads; a context manager.

    Arrays are whatever has Python's buffer protocol or DLPack: numpy's,
    array.array, torch tensors, arrays of the array API.  They are dense and of
    the input's dtype (others are refused: Error), in the CPU's memory, and are
    read where they lie; one that is not contiguous is copied.  Elements in
    another shape fit if their order is the same (flattened, axes of 1).

    `data` is a dict {input: array}, a list or tuple in the order of the inputs,
    or the array of the only input; or arrays are keywords: step(x=.., target=..).

    All methods raise Error with the message of the C library."""

    def __init__(self, module: Module, device: str = "auto", threads: int = 0,
                 *, comm: Communicator | None = None,
                 stream: int | None = None, max_skipped: int = 0) -> None:
        self.module, self._s = module, c.c_void_p()
        self._api = _c.Calls(module.api)
        self._raised: BaseException | None = None
        self._objective = ":" + module.objectives[0] \
            if module.objectives else ""
        self._comm, self._profile = comm, _c.PROFILE()
        why = c.create_string_buffer(512)
        options = _c.Options(
            device=_text(device, "device"), stream=stream,
            threads=_number(threads, 0, 1024, "threads"),
            comm=comm._comm if comm else None,
            max_skipped=_number(max_skipped, -1, 2**31 - 1, "max_skipped"))
        status = self._api.open(self._api.module, options, c.byref(self._s),
                                why, len(why))
        if status != Status.OK:
            raise Error(status, why.value.decode())

    def close(self) -> None:
        """Ends the session; a second time nothing happens.  Error of
        Status.BUSY while a call of it runs."""
        if self._s:
            self._api.end(self._s)

    __del__ = close

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError("an ampc.Session is neither copied nor pickled: it has "
                        "one session of the module (save and resume make two)")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _check(self, status: int) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        if status == Status.OK:
            return
        if status == Status.BUSY:
            raise Error(status, "another thread uses the session: one thread "
                        "at a time")
        text, details = self._api.error(self._s).decode(), {}
        if status == Status.DATA:
            details = self.bad_data()
        elif status == Status.DIVERGED:
            details = self.nonfinite()
        raise Error(status, text, details)

    # ---- inputs

    def _wanted(self, programs: Sequence[str]) -> list[Any]:
        """The inputs of the first program that there is."""
        for program in programs:
            wanted = self.module._tensors(self._api.input, program)
            if wanted:
                return wanted
        return []

    def _training(self) -> tuple[str, str]:
        return "train" + self._objective, "micro" + self._objective

    @staticmethod
    def _by_name(wanted: Sequence[Any], data: Data,
                 arrays: Mapping[str, Any]) -> dict[str, Any]:
        """`data` and keywords as one dict of exactly these inputs."""
        names = [t.name.decode() for t in wanted]
        if isinstance(data, Mapping):
            arrays = {**data, **arrays}
        elif isinstance(data, (list, tuple)):
            if len(data) > len(names):
                raise Error(Status.ARGUMENT, f"{len(data)} arrays given; "
                            f"inputs are {names}")
            arrays = {**dict(zip(names, data)), **arrays}
        elif data is not None:
            arrays = {names[0] if names else "": data, **arrays}
        if set(names) != set(arrays):
            raise Error(Status.ARGUMENT, f"inputs are {sorted(names)}, given "
                                         f"are {sorted(arrays)}")
        return dict(arrays)

    def _given(self, wanted: Sequence[Any], data: Data,
               arrays: Mapping[str, Any]) -> list[Given]:
        named = self._by_name(wanted, data, arrays)
        return [a if isinstance(a, Given) else Given(a, name)
                for name, a in ((t.name.decode(), named[t.name.decode()])
                                for t in wanted)]

    def _each(self, t: Any, a: Given) -> int:
        """Bytes of one sample as C counts them; 0: no sample axis."""
        batch = self.module.batch
        if not batch or not t.rank or t.shape[0] != batch:
            return 0
        dtype = a.dtype if self._has_dtype(t, a) else t.dtype
        return item_size(dtype) * count(shape_of(t)[1:])

    @staticmethod
    def _has_dtype(t: Any, a: Given) -> bool:
        """As C takes it; classes of a loss may have fewer bits."""
        pair = DTYPES[t.dtype][0], DTYPES[a.dtype][0]
        label = t.name.split(b":")[0] == b"target"
        return t.dtype == a.dtype or pair == ("bf16", "u16") or (
            label and pair in (("i64", "i32"), ("i64", "u8")))

    def _samples(self, wanted: Sequence[Any], given: Sequence[Given]) -> int:
        """How many samples were given; a batch where the arrays differ, so that
        C says which one is wrong."""
        found = set()
        for t, a in zip(wanted, given):
            each = self._each(t, a)
            if each:
                found.add(a.bytes // each if a.bytes % each == 0 else -1)
        n = found.pop() if len(found) == 1 else -1
        return self.module.batch if n < 0 else n

    def _structs(self, programs: Sequence[str], data: Data,
                 arrays: Mapping[str, Any]) -> tuple[Any, int, int, Any]:
        """ampc_input[], their number, the number of samples, and what must live
        until the call ends."""
        wanted = self._wanted(programs)
        given = self._given(wanted, data, arrays)
        n = self._samples(wanted, given)
        structs = (_c.Input * len(wanted))(*[
            a.as_input(t, n if self._each(t, a) else None)
            for t, a in zip(wanted, given)])
        if any(s.rank != -1 for s in structs) or not all(
                map(self._has_dtype, wanted, given)):
            n = self.module.batch  # C refuses it, by its shape or dtype
        return structs, len(wanted), n, given

    @staticmethod
    def _like(given: Sequence[Given]) -> Any:
        return given[0].array if given else None

    def _results(self, program: str, call: Any, inputs: Any, nin: int, n: int,
                 like: Any) -> dict[str, Any]:
        """All outputs of that program, which `call` computes, for n samples."""
        infos = self.module._tensors(self._api.output, program)
        for t in infos:
            if t.rank and self.module.batch and \
                    t.shape[0] % self.module.batch == 0:
                t.bytes = t.bytes // self.module.batch * n
                t.shape[0] = t.shape[0] // self.module.batch * n
        room = [Returned(t, like) for t in infos]
        outs = (_c.Output * len(infos))(*[
            _c.Output(name=t.name, data=r.address, bytes=t.bytes,
                      dtype=t.dtype) for t, r in zip(infos, room)])
        self._check(call(self._s, inputs, nin, n, outs, len(infos)))
        return {t.name.decode(): r.array() for t, r in zip(infos, room)}

    # ---- training

    def step(self, data: Data = None, /, **arrays: Any) -> dict[str, Any]:
        """One optimizer step of up to a batch of samples; its metrics by name:
        loss, grad_norm, scale, lr, updated, applied, step, tried, skipped,
        bad_forward, bad_data, skip_streak (ampc_metrics).  Of a module that
        accumulates, a micro-batch: `updated` is 1 with the last one."""
        m = _c.Metrics()
        inputs, n, _, keep = self._structs(self._training(), data, arrays)
        self._check(self._api.step(self._s, inputs, n, m))
        return _c.plain(m)

    def sync(self) -> dict[str, Any]:
        """Waits for the device; the metrics of the last step."""
        m = _c.Metrics()
        self._check(self._api.sync(self._s, m))
        return _c.plain(m)

    def micro_step(self, data: Data = None, /, **arrays: Any) -> float:
        """Adds the gradients of a micro-batch; its loss.  `update` follows."""
        loss = c.c_double()
        inputs, n, _, keep = self._structs(self._training()[::-1], data, arrays)
        self._check(self._api.micro_step(self._s, inputs, n, c.byref(loss)))
        return loss.value

    def update(self) -> dict[str, Any]:
        """The optimizer step behind `Module.accumulate` micro-steps or vjps."""
        m = _c.Metrics()
        self._check(self._api.update(self._s, m))
        return _c.plain(m)

    def outputs(self, data: Data = None, /, **arrays: Any) -> dict[str, Any]:
        """The outputs as the next vjp computes them (--loss host)."""
        inputs, nin, n, keep = self._structs(("predict",), data, arrays)
        return self._results("predict", self._api.outputs, inputs, nin, n,
                             self._like(keep))

    def vjp(self, data: Data = None, /, **arrays: Any) -> None:
        """Adds the gradients of a loss of the host's own (--loss host): the
        model's inputs and, as "gradient:OUTPUT", that loss's gradient with
        respect to each output, f32 of the output's shape."""
        inputs, n, _, keep = self._structs(self._training()[::-1], data, arrays)
        self._check(self._api.vjp(self._s, inputs, n))

    def objective(self, name: str) -> None:
        """Selects the objective for the next calls: one of
        Module.objectives."""
        self._check(self._api.objective(self._s, _text(name, "objective")))
        self._objective = ":" + name

    def fit(self, data: Data, epochs: int = 1, *, validation: Data = None,
            callbacks: Iterable[_fit.Callback] = (), shuffle: bool = True,
            seed: int = 0) -> list[dict[str, Any]]:
        """Trains; returns a dict for each epoch: epoch, loss (mean over
        samples), samples, steps, skipped, seconds, lr and, with `validation`,
        val_loss, val_accuracy and val_samples.

        data        a dict {input: array} of all samples, cut into batches here;
                    or an iterable of batches (dicts, tuples; a DataLoader)
        validation  the same, for evaluate, behind each epoch
        callbacks   functions (session, logs), called behind each epoch with its
                    dict; one that returns True ends training
        shuffle     the order of samples of a dict, another in each epoch, by
                    `seed`

        Samples that fill no batch are trained, too, where Module.parts; else
        they are left out of that epoch.  Saving and the schedule are yours:
        `save` in a callback."""
        epochs = _number(epochs, 0, 2**63 - 1, "epochs")
        return _fit.fit(self, data, epochs, validation, callbacks, shuffle,
                        seed)

    # ---- evaluation and prediction

    def evaluate(self, data: Data = None, /, *, valid: int | None = None,
                 sums: Evaluation | None = None, **arrays: Any) -> Evaluation:
        """Loss and accuracy of any number of samples, of which the first
        `valid` count, added to `sums`, the result of an earlier call.  An
        iterable of batches is evaluated whole."""
        if _fit.is_loader(data):
            for batch in data:
                sums = self.evaluate(batch, sums=sums)
            return sums if sums is not None else Evaluation(_c.Eval())
        e = _c.Eval.from_buffer_copy(sums._sums) if sums else _c.Eval()
        inputs, nin, given, keep = self._structs(("eval",), data, arrays)
        rows = given if valid is None else _number(valid, 0, given, "valid")
        self._check(self._api.evaluate(self._s, inputs, nin, rows, e))
        return Evaluation(e)

    def predict(self, data: Data = None, /, **arrays: Any) -> dict[str, Any]:
        """All outputs of the model by name, for any number of samples; arrays
        of the library whose arrays were given, else numpy's, else
        memoryviews."""
        inputs, nin, n, keep = self._structs(("predict",), data, arrays)
        return self._results("predict", self._api.predict, inputs, nin, n,
                             self._like(keep))

    def read_output(self, name: str, program: str = "predict") -> Any:
        """An output of the program that ran last, all rows of its batch."""
        for t in self.module._tensors(self._api.output, program):
            if t.name == _text(name, "output"):
                return self._read(self._api.read_output, t)
        raise Error(Status.ARGUMENT, f"no output '{name}' of '{program}'")

    def underflow(self, data: Data = None, /,
                  **arrays: Any) -> dict[str, tuple[float, float]]:
        """{parameter: (elements of its gradient that fp16 flushes to zero,
        elements that are not zero)} (--count-underflow)."""
        found: dict[str, tuple[float, float]] = {}

        def put(_: Any, name: bytes, flushed: float, nonzero: float) -> None:
            found[name.decode()] = flushed, nonzero

        inputs, n, _, keep = self._structs(self._training()[::-1], data, arrays)
        self._check(self._api.underflow(self._s, inputs, n,
                                        _c.UNDERFLOW(put), None))
        return found

    # ---- variables

    def _variable(self, name: str) -> Any:
        for i in range(self.module._nvariable):
            v = _c.VariableInfo()
            self._api.variable(self._api.module, i, v)
            if v.name == _text(name, "variable"):
                return v
        raise Error(Status.ARGUMENT, f"no variable '{name}'")

    def _read(self, call: Any, info: Any) -> Any:
        room = Returned(info)
        out = _c.Output(name=info.name, data=room.address, bytes=info.bytes,
                        dtype=info.dtype)
        self._check(call(self._s, info.name, out))
        return room.array()

    def __getitem__(self, name: str) -> Any:
        """A copy of a variable (Module.variables): numpy's array, else a
        memoryview."""
        return self._read(self._api.read_variable, self._variable(name))

    def __setitem__(self, name: str, array: Any) -> None:
        """Writes a parameter, frozen weight, buffer or state."""
        given = Given(array, name)
        self._check(self._api.write_variable(
            self._s, _text(name, "variable"),
            given.as_input(self._variable(name))))

    def hyper(self, name: str, value: float | None = None) -> float:
        """Reads a hyper-parameter ("lr"), or sets it."""
        key = _text(name, "hyper-parameter")
        if value is not None:
            self._check(self._api.set_hyper(self._s, key, value))
        x = c.c_double()
        self._check(self._api.get_hyper(self._s, key, x))
        return x.value

    def scaler(self) -> dict[str, Any]:
        """The loss scaler: scale, good, hysteresis, step, tried, skipped,
        bad_forward, micro."""
        state = _c.Scaler()
        self._check(self._api.scaler(self._s, state))
        return _c.plain(state)

    # ---- files

    def _file(self, call: Any, path: Path) -> str:
        self._check(call(self._s, _path(path)))
        return self.notice()

    def save(self, path: Path) -> str:
        """A checkpoint of everything; the one before it stays as PATH.prev."""
        return self._file(self._api.save, path)

    def resume(self, path: Path) -> str:
        """All of a checkpoint, or of PATH.prev if it is damaged (then the
        result says so)."""
        return self._file(self._api.resume, path)

    def save_weights(self, path: Path) -> str:
        """Parameters, frozen weights and buffers as safetensors."""
        return self._file(self._api.save_weights, path)

    def load(self, *paths: Path, renames: Sequence[str] = (),
             partial: bool = False) -> str:
        """Weights by name from safetensors files; renames are "OLD=NEW" of
        prefixes.  Returns what was missing and left over, or ""."""
        files = (c.c_char_p * len(paths))(*[_path(p) for p in paths])
        maps = (c.c_char_p * len(renames))(*[_text(r, "renames")
                                             for r in renames])
        self._check(self._api.load_weights(self._s, _c.Weights(
            paths=files, npath=len(paths), renames=maps,
            nrename=len(renames), partial=partial)))
        return self.notice()

    @property
    def cursor(self) -> Any:
        """The host's place in its data, anything that JSON can hold, which
        checkpoints carry; None until one is set or resumed."""
        return json.loads(self._api.get_cursor(self._s).decode())

    @cursor.setter
    def cursor(self, value: Any) -> None:
        self._check(self._api.set_cursor(self._s, json.dumps(value).encode()))

    # ---- looking

    def notice(self) -> str:
        """A note of the last call, though it succeeded, or ""."""
        text: str = self._api.notice(self._s).decode()
        return text

    def device(self) -> dict[str, str]:
        """kind ("cpu" or "cuda") and name (of the GPU)."""
        info = _c.DeviceInfo()
        self._check(self._api.device(self._s, info))
        return _c.plain(info)

    def bad_data(self) -> dict[str, Any]:
        """Behind Status.DATA: input, index, value, least, most, count."""
        info = _c.BadData()
        status = self._api.bad_data(self._s, info)
        return _c.plain(info) if status == Status.OK else {}

    def nonfinite(self) -> dict[str, Any]:
        """Behind Status.DIVERGED: origin, dtype, name, index, value, tried,
        op, source, advice."""
        info = _c.Nonfinite()
        if self._api.nonfinite(self._s, info) != Status.OK:
            return {}
        found = _c.plain(info)
        return {**found, "origin": ORIGINS[info.origin],
                "dtype": DTYPES[info.dtype][0]}

    def profile(self, function: Callable[[str, str, int, int], None] | None
                ) -> None:
        """Calls function(program, step, begin_ns, end_ns) behind every step of
        a program; None ends that.  What it raises, the method raises that
        ran the program."""
        if function is not None and not callable(function):
            raise TypeError("profile takes a function or None")

        def call(_: Any, program: bytes, step: bytes, begin: int,
                 end: int) -> None:
            assert function is not None
            try:
                function(program.decode(), step.decode(), begin, end)
            except BaseException as e:  # ctypes would print and forget it
                self._raised = self._raised or e

        self._profile = _c.PROFILE(call) if function else _c.PROFILE()
        self._check(self._api.profile(self._s, self._profile, None))

    def peek(self, offset: int, size: int) -> bytes:
        """Bytes of the memory that programs compute in, for a function of
        `profile` to call, on the CPU."""
        room = c.create_string_buffer(size)
        self._check(self._api.peek(self._s, offset, room, size))
        return room.raw

    def stage(self, name: str, program: str = "train") -> int | None:
        """The address of memory that a GPU reads, for the next batch of that
        input; None on the CPU."""
        at = c.c_void_p()
        names = list(self.module.inputs(program))
        if name not in names:
            raise Error(Status.ARGUMENT, f"no input '{name}' of '{program}'; "
                        f"inputs are {names}")
        self._check(self._api.stage(self._s, _text(program, "program"),
                                    names.index(name), c.byref(at)))
        return at.value
