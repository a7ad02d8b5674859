# SPDX-License-Identifier: Apache-2.0
"""Sessions: every function of ampc_api as a method."""
from __future__ import annotations

import ctypes as c
import json
from typing import Any, Callable, Dict, Iterable, Mapping, Sequence

from . import _c, _fit
from ._arrays import Given, Returned
from ._c import DTYPES, ORIGINS, Error, Status
from ._checks import Path, number, path_bytes, text
from ._inputs import Call, Data, structs
from ._module import Communicator, Module, Single


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


class Session(Single):
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
        self.module: Module = module
        self._s = c.c_void_p()
        self._api = _c.Calls(module.api)
        self._raised: BaseException | None = None
        self._calls: dict[Sequence[str], Call] = {}
        self._objective = ":" + module.objectives[0] \
            if module.objectives else ""
        self._comm, self._profile = comm, _c.PROFILE()
        why = c.create_string_buffer(512)
        options = _c.Options(
            device=text(device, "device"), stream=stream,
            threads=number(threads, 0, 1024, "threads"),
            comm=comm._comm if comm else None,
            max_skipped=number(max_skipped, -1, 2**31 - 1, "max_skipped"))
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

    _another = "save and resume make two"
    __iter__ = None  # __getitem__ alone would make it a sequence

    def __repr__(self) -> str:
        state = f"on {self.device()['kind']}" if self._s else "closed"
        return f"<ampc.Session of {self.module.path}, {state}>"

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
        if not self._s:
            raise Error(status, "the session is closed")
        if status == Status.BUSY:
            raise Error(status, "another thread uses the session: one thread "
                        "at a time")
        text, details = self._api.error(self._s).decode(), {}
        if status == Status.DATA:
            details = self.bad_data()
        elif status == Status.DIVERGED:
            details = self.nonfinite()
        raise Error(status, text, details)

    # ---- inputs and outputs

    def _wanted(self, programs: Sequence[str]) -> list[Any]:
        """The inputs of the first program that there is."""
        for program in programs:
            wanted = self.module.tensors("input", program)
            if wanted:
                return wanted
        return []

    def _structs(self, programs: Sequence[str], data: Data,
                 arrays: Mapping[str, Any]) -> tuple[Call, list[Given]]:
        return structs(self.module.batch, self._wanted(programs), data, arrays,
                       bool(self.module.sizes), self._calls.pop(programs, None))

    def _training(self) -> tuple[str, str]:
        return "train" + self._objective, "micro" + self._objective

    def _batch(self, programs: Sequence[str], data: Data,
               arrays: Mapping[str, Any]) -> tuple[Any, int, Any]:
        """The inputs of a step: at most a batch of samples."""
        call, keep = self._structs(programs, data, arrays)
        if call.samples > self.module.batch:
            raise Error(Status.ARGUMENT, f"{call.samples} samples given: a step "
                        f"takes up to {self.module.batch}, as compiled")
        return call.inputs, len(call.inputs), keep

    def _some(self, n: int) -> None:
        if not n and self.module.batch:
            raise Error(Status.ARGUMENT, "0 samples given")

    @staticmethod
    def _like(given: Sequence[Given]) -> Any:
        return given[0].array if given else None

    @staticmethod
    def _of_samples(t: Any, n: int) -> Any:
        """What an output of a batch is for n samples."""
        if t.sample_rows < 1:
            return t
        part = _c.TensorInfo.from_buffer_copy(t)
        part.shape[0] = t.sample_rows * n
        part.bytes = t.bytes // t.shape[0] * part.shape[0]
        return part

    def _results(self, function: Any, data: Data,
                 arrays: Mapping[str, Any], some: bool = False
                 ) -> dict[str, Any]:
        """All outputs of "predict", which `function` computes.  some: of at
        least one sample."""
        programs = "predict",
        call, keep = self._structs(programs, data, arrays)
        program, nin, n = programs[0], len(call.inputs), call.samples
        if some:
            self._some(n)
        if self.module.sizes:
            name = c.c_char_p()
            self._check(self._api.fit(self._s, text(program, "program"),
                                      call.inputs, nin, c.byref(name)))
            program = (name.value or b"").decode()
        if call.program != program:
            call.program = program
            call.infos = [self._of_samples(t, n)
                          for t in self.module.tensors("output", program)]
            call.outputs = (_c.Output * len(call.infos))(*[
                _c.Output(name=t.name, bytes=t.bytes, dtype=t.dtype)
                for t in call.infos])
        room = [Returned(t, self._like(keep)) for t in call.infos]
        for out, r in zip(call.outputs, room):
            out.data = r.address
        self._check(function(self._s, call.inputs, nin, n, call.outputs,
                             len(room)))
        self._calls[programs] = call  # no other call writes them before this
        return {t.name.decode(): r.array() for t, r in zip(call.infos, room)}

    # ---- training

    def step(self, data: Data = None, /, **arrays: Any) -> dict[str, Any]:
        """One optimizer step of up to a batch of samples; its metrics by name:
        loss, grad_norm, scale, lr, updated, applied, step, tried, skipped,
        bad_forward, bad_data, skip_streak (ampc_metrics).  Of a module that
        accumulates, a micro-batch: `updated` is 1 with the last one."""
        m = _c.Metrics()
        inputs, n, keep = self._batch(self._training(), data, arrays)
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
        inputs, n, keep = self._batch(self._training()[::-1], data, arrays)
        self._check(self._api.micro_step(self._s, inputs, n, c.byref(loss)))
        return loss.value

    def update(self) -> dict[str, Any]:
        """The optimizer step behind `Module.accumulate` micro-steps or vjps."""
        m = _c.Metrics()
        self._check(self._api.update(self._s, m))
        return _c.plain(m)

    def outputs(self, data: Data = None, /, **arrays: Any) -> dict[str, Any]:
        """The outputs as the next vjp computes them (--loss host)."""
        return self._results(self._api.outputs, data, arrays)

    def vjp(self, data: Data = None, /, **arrays: Any) -> None:
        """Adds the gradients of a loss of the host's own (--loss host): the
        model's inputs and, as "gradient:OUTPUT", that loss's gradient with
        respect to each output, f32 of the output's shape."""
        inputs, n, keep = self._batch(self._training()[::-1], data, arrays)
        self._check(self._api.vjp(self._s, inputs, n))

    def objective(self, name: str) -> None:
        """Selects the objective for the next calls: one of
        Module.objectives."""
        self._check(self._api.objective(self._s, text(name, "objective")))
        self._objective = ":" + name

    def fit(self, data: Data, epochs: int = 1, *, validation: Data = None,
            callbacks: Iterable[_fit.Callback] | _fit.Callback = (),
            shuffle: bool = True,
            seed: int = 0) -> list[dict[str, Any]]:
        """Trains; returns a dict for each epoch: epoch, loss (mean over
        samples), samples, steps, skipped, seconds, lr and, with `validation`,
        val_loss, val_accuracy and val_samples.

        data        a dict {input: array} of all samples, cut into batches here;
                    or batches (dicts, tuples) in a list or another iterable
                    (a DataLoader)
        validation  the same, for evaluate, behind each epoch
        callbacks   a function (session, logs) or several, called behind each
                    epoch with its dict; one that returns True ends training
        shuffle     the order of samples of a dict, another in each epoch, by
                    `seed`

        Samples that fill no batch are trained, too, where Module.parts; else
        they are left out of that epoch.  Saving is yours: `save` in a callback.
        Ctrl-C ends it between two steps; the session keeps what it learned."""
        epochs = number(epochs, 0, 2**63 - 1, "epochs")
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
        call, keep = self._structs(("eval",), data, arrays)
        given = call.samples
        self._some(given)
        rows = given if valid is None else number(valid, 0, given, "valid")
        self._check(self._api.evaluate(self._s, call.inputs, len(call.inputs),
                                       rows, e))
        return Evaluation(e)

    def predict(self, data: Data = None, /, **arrays: Any) -> dict[str, Any]:
        """All outputs of the model by name, for any number of samples; arrays
        of the library whose arrays were given, else numpy's, else
        memoryviews."""
        return self._results(self._api.predict, data, arrays, some=True)

    def read_output(self, name: str, program: str = "predict") -> Any:
        """An output of the program that ran last, all rows of its batch."""
        for t in self.module.tensors("output", program):
            if t.name == text(name, "output"):
                return self._read(self._api.read_output, t)
        raise Error(Status.ARGUMENT, f"no output '{name}' of '{program}'")

    def underflow(self, data: Data = None, /,
                  **arrays: Any) -> dict[str, tuple[float, float]]:
        """{parameter: (elements of its gradient that fp16 flushes to zero,
        elements that are not zero)} (--count-underflow)."""
        found: dict[str, tuple[float, float]] = {}

        def put(_: Any, name: bytes, flushed: float, nonzero: float) -> None:
            found[name.decode()] = flushed, nonzero

        inputs, n, keep = self._batch(self._training()[::-1], data, arrays)
        self._check(self._api.underflow(self._s, inputs, n,
                                        _c.UNDERFLOW(put), None))
        return found

    # ---- variables

    def _variable(self, name: str) -> Any:
        for i in range(self.module._nvariable):
            v = _c.VariableInfo()
            self._api.variable(self._api.module, i, v)
            if v.name == text(name, "variable"):
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

    def __contains__(self, name: object) -> bool:
        """Whether there is such a variable."""
        return name in self.module.variables()

    def weights(self) -> dict[str, Any]:
        """Copies of what save_weights writes: parameters, frozen weights and
        buffers by name; numpy's arrays, else memoryviews."""
        kinds = "parameter", "frozen", "buffer"
        return {name: self[name] for name, (kind, _, _) in
                self.module.variables().items() if kind in kinds}

    def __setitem__(self, name: str, array: Any) -> None:
        """Writes a parameter, frozen weight, buffer or state."""
        given = Given(array, name)
        self._check(self._api.write_variable(
            self._s, text(name, "variable"),
            given.as_input(self._variable(name))))

    def hyper(self, name: str, value: float | None = None) -> float:
        """Reads a hyper-parameter ("lr"), or sets it."""
        key = text(name, "hyper-parameter")
        if value is not None:
            self._check(self._api.set_hyper(self._s, key, float(value)))
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
        self._check(call(self._s, path_bytes(path)))
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
        files = (c.c_char_p * len(paths))(*[path_bytes(p) for p in paths])
        maps = (c.c_char_p * len(renames))(*[text(r, "renames")
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

    def memory(self) -> dict[str, int]:
        """Bytes held: parameters, copies (16-bit), state, gradients,
        activations, workspace, total; host: pinned, beside a GPU."""
        info = _c.MemoryInfo()
        self._check(self._api.memory(self._s, info))
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
        self._check(self._api.stage(self._s, text(program, "program"),
                                    names.index(name), c.byref(at)))
        return at.value
