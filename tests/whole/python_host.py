# SPDX-License-Identifier: Apache-2.0
"""Cases of hosts_test.c: arrays of other libraries, fit, the calls of the C API,
ampc.compile.  usage: python_host.py PACKAGE AMPC FOLDER CASE MODULE..

Needs nothing but Python: `Strided` stands for a library's array with DLPack.
"""
import array
import ctypes as c
import gc
import itertools
import json
import os
import pickle
import re
import signal
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import ampc
from ampc import _arrays

FOLDER = sys.argv[3]


# ---- a library of arrays, by DLPack's own header ----------------------------

class DLTensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device", c.c_int32 * 2),
                ("ndim", c.c_int32), ("code", c.c_uint8), ("bits", c.c_uint8),
                ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("offset", c.c_uint64)]


DELETER = c.CFUNCTYPE(None, c.c_void_p)


class Managed(c.Structure):
    _fields_ = [("t", DLTensor), ("context", c.c_void_p), ("deleter", DELETER)]


new = c.pythonapi.PyCapsule_New
new.argtypes, new.restype = [c.c_void_p, c.c_char_p, c.c_void_p], c.py_object
pointer = c.pythonapi.PyCapsule_GetPointer
pointer.argtypes, pointer.restype = [c.py_object, c.c_char_p], c.c_void_p
rename = c.pythonapi.PyCapsule_SetName
rename.argtypes = [c.py_object, c.c_char_p]


class Strided:
    """Floats (or int64) in an order of their own."""

    def __init__(self, values, shape, strides, offset=0, code=2, bits=32,
                 device=1):
        kind = {(2, 32): c.c_float, (0, 64): c.c_int64, (4, 16): c.c_uint16}[
            code, bits]
        self.data = (kind * len(values))(*values)
        self.shape = (c.c_int64 * len(shape))(*shape)
        self.strides = strides and (c.c_int64 * len(shape))(*strides)
        self.device = device
        self.managed = Managed(DLTensor(
            c.addressof(self.data), (device, 0), len(shape), code, bits, 1,
            self.shape, self.strides, offset))

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, stream=None):
        assert stream == (1 if self.device == 2 else None), stream
        return new(c.addressof(self.managed), b"dltensor", None)

    def __array_namespace__(self):
        return Library


class Library:
    """What the array API calls a namespace."""
    freed = 0
    __name__ = "library"

    @staticmethod
    def from_dlpack(x):
        assert x.__dlpack_device__() == (1, 0)
        capsule = x.__dlpack__()
        m = Managed.from_address(pointer(capsule, b"dltensor"))
        assert m.t.data % 64 == 0 and m.t.lanes == 1 and not m.t.strides
        shape = tuple(m.t.shape[:m.t.ndim])
        n = 1
        for d in shape:
            n *= d
        kind = {(2, 32): c.c_float}[m.t.code, m.t.bits]
        values = list((kind * n).from_address(m.t.data))
        rename(capsule, b"used_dltensor")
        m.deleter(c.addressof(m))
        Library.freed += 1
        return shape, values



class Shy(Strided):
    def __dlpack__(self, stream=None):
        raise BufferError("too shy")


def no_view(x):
    if isinstance(x, Strided):
        raise BufferError("of bf16")
    return memoryview(x)


def floats(values):
    return array.array("f", values)


def refused(kind, words, call):
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return e
    raise AssertionError(f"taken: {words}")


def interrupt_often(call, seconds):
    """Ctrl-C at any instruction of Python: how many came out of it."""
    def at(_, frame):
        if frame.f_code.co_filename.startswith(os.path.dirname(ampc.__file__)):
            raise KeyboardInterrupt  # elsewhere it would end this loop
    before = signal.signal(signal.SIGALRM, at)
    seen, end = 0, time.monotonic() + seconds
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1.3e-4)
    while time.monotonic() < end:
        try:
            call()
        except KeyboardInterrupt:
            seen += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return seen


def in_child(call):
    """What it returns in a process that this one forks."""
    ends = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        os.write(ends[1], json.dumps(call()).encode())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(os.read(ends[0], 1000))


# ---- cases ------------------------------------------------------------------

def orders():
    """Every order of three axes, in every grouping of neighbours, with an axis
    of 1 anywhere: the input's own order alone fits."""
    from ampc._arrays import same_elements
    right = ((2, 3, 4), (6, 4), (2, 12), (24,))
    for order in itertools.permutations((2, 3, 4)):
        for cuts in range(4):
            shape = [order[0]]
            for i, n in enumerate(order[1:]):
                if cuts >> i & 1:
                    shape.append(n)
                else:
                    shape[-1] *= n
            for at in range(len(shape) + 1):
                given = (*shape[:at], 1, *shape[at:])
                assert same_elements(given, (2, 3, 4)) == (tuple(shape) in right), given


def arrays(path):
    orders()
    """x: f32[4,3]; y = x @ w"""
    x, t = floats(i / 8 for i in range(12)), floats(i % 3 for i in range(8))
    s = ampc.Module(path).session("cpu", 1)
    y = bytes(s.predict(x=x)["y"])
    dense = Strided(x, (4, 3), None)
    shape, values = s.predict(x=dense)["y"]
    assert shape == (4, 2) and bytes(floats(values)) == y
    # columns first; every second element of a wider one; a later start
    columns = [x[r * 3 + k] for k in range(3) for r in range(4)]
    assert s.predict(x=Strided(columns, (4, 3), (1, 4)))["y"][1] == values
    wide = [v for e in x for v in (e, 99)]
    assert s.predict(x=Strided(wide, (4, 3), (6, 2)))["y"][1] == values
    late = Strided([7, 7, *x], (4, 3), (3, 1), offset=8)
    assert s.predict(x=late)["y"][1] == values
    # one sample and seven of them
    assert s.predict(x=Strided(x[3:6], (1, 3), None))["y"] == (
        (1, 2), values[2:4])
    seven = s.predict(x=Strided([*x, *x[:9]], (7, 3), None))["y"]
    assert seven == ((7, 2), values + values[:6])
    assert s.predict([dense])["y"] == s.predict(dense)["y"] == (
        s.predict({"x": dense})["y"])
    assert Library.freed == 9, Library.freed
    s.step(x=dense, target=Strided(t, (4, 2), None))
    s["w"] = Strided(range(6), (3, 2), None)
    assert list(floats(memoryview(s["w"]).cast("B").cast("f"))) == [
        0, 1, 2, 3, 4, 5]
    E = ampc.Error
    refused(E, "'x' is in the memory of another device",
            lambda: s.predict(x=Strided(x, (4, 3), None, device=10)))
    refused(E, "'x' lies in the memory of a device, but the session runs on "
            "the CPU", lambda: s.predict(x=Strided(x, (4, 3), None, device=2)))
    refused(E, "'x' is in a GPU's memory and not dense",
            lambda: s.predict(x=Strided(columns, (4, 3), (1, 4), device=2)))
    refused(E, "'x': dtype i64 given, f32[4,3] needed",
            lambda: s.predict(x=Strided(range(12), (4, 3), None, 0, 0, 64)))
    refused(E, "0 samples given", lambda: s.predict(x=Strided([], (0, 3), None)))
    refused(E, "'target': dtype i64 given, f32[4,2] needed", # not the samples of x
            lambda: s.evaluate(x=Strided([*x, *x[:9]], (7, 3), None),
                               target=Strided(range(28), (7, 4), None, 0, 0, 64)))
    refused(E, "dtype bf16 given, f32[4,3] needed",
            lambda: s.predict(x=Strided(range(12), (4, 3), None, 0, 4, 16)))
    refused(E, "its axes in the order (1, 0) would fit",
            lambda: s.predict(x=Strided(x, (3, 4), None)))
    refused(E, "its axes in the order (1, 0) would fit",
            lambda: s.__setitem__("w", Strided(range(6), (2, 3), None)))
    masked = Strided(x, (4, 3), None)
    masked.mask, masked.filled = True, None
    refused(E, "x.filled(VALUE)", lambda: s.predict(x=masked))
    minus = Strided([-v for v in x], (4, 3), None)
    minus.resolve_neg = lambda: dense  # as torch's imag(x.conj())
    assert s.predict(x=minus)["y"] == s.predict(x=dense)["y"]
    refused(E, "the data given differ: i64",
            lambda: s.__setitem__("w", Strided(range(6), (3, 2), None, 0, 0, 64)))
    refused(E, "'x' is a object; arrays have", lambda: s.predict(x=object()))
    dense.__class__ = Shy
    refused(E, "'x' has no elements in memory that can be read: too shy",
            lambda: s.predict(x=dense))
    dense.__class__ = Strided
    # JAX's arrays of bf16 have a buffer that cannot be had
    same = s.predict(x=dense)["y"]
    _arrays.memoryview = no_view
    assert s.predict(x=dense)["y"] == same
    _arrays.memoryview = memoryview
    refused(E, "'x': elements of format", lambda: s.predict(x=b"".join([
        b"abc"]) and memoryview(b"abc").cast("c")))
    refused(E, "inputs are ['x'], given are []", lambda: s.predict())
    refused(E, "2 arrays given", lambda: s.predict([x, x]))
    e = refused(E, "no variable 'v'", lambda: s["v"])
    assert e.status is ampc.Status.ARGUMENT and e.details == {}
    del seven, shape, values
    gc.collect()


class Numbered:
    """Samples by number."""
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return floats([i] * 3), floats([i] * 2)


def fit(path, accumulating, classes):
    """The same model; losses fall, and each sample is seen once an epoch."""
    m = ampc.Module(path)
    x = floats((i * 7 % 13) / 13 for i in range(30))
    w = [1, -1, 0.5, 2, -1, 0]
    t = floats(sum(x[r * 3 + k] * w[k * 2 + o] for k in range(3))
               for r in range(10) for o in range(2))
    seen = []
    with m.session("cpu", 1) as s:
        h = s.fit({"x": x, "target": t}, epochs=300, validation=[x, t],
                  callbacks=[lambda session, logs: seen.append(logs["epoch"]),
                             lambda session, logs: logs["val_loss"] < 1e-4])
        assert h[-1]["val_loss"] < 1e-4 < h[0]["val_loss"], h[-1]
        assert seen == list(range(1, len(h) + 1)) and len(h) < 300
        assert h[0]["samples"] == h[0]["val_samples"] == 10, h[0]
        assert h[0]["steps"] == 3 and h[0]["skipped"] == 0
        assert h[0]["val_accuracy"] is None and h[0]["seconds"] > 0
    def weights(**options):
        with m.session("cpu", 1) as s:
            s.fit(epochs=2, **options)
            return bytes(s["w"])
    data = {"x": x, "target": t}
    assert weights(data=data, seed=1) == weights(data=data, seed=1)
    assert weights(data=data, seed=1) != weights(data=data, seed=2)
    batches = [(x[i * 3:i * 3 + 12], t[i * 2:i * 2 + 8]) for i in (0, 4)]
    batches.append((x[24:], t[16:]))

    class Loader:
        def __iter__(self):
            return iter(batches)
    assert weights(data=data, shuffle=False) == weights(data=Loader())
    assert weights(data=batches) == weights(data=Loader())
    # what fills no batch, where samples cannot be masked
    m.parts = False
    assert weights(data=batches) == weights(data=batches[:2])
    m.parts = True
    with m.session("cpu", 1) as s:
        assert len(s.fit(data, epochs=9, callbacks=lambda *_: True)) == 1
        refused(ampc.Error, "data is a Numbered: give batches of it",
                lambda: s.fit(Numbered()))
        refused(ampc.Error, "a array given; inputs are ['x', 'target']: a dict",
                lambda: s.fit(x))
        refused(TypeError, "epochs is a whole number, not array",
                lambda: s.fit(x, t))
        refused(ampc.Error, "samples: 'x' has 4, 'target' has 3",
                lambda: s.step(x=x[:12], target=t[:6]))
        refused(ampc.Error, "10 samples given: a step takes up to 4",
                lambda: s.step(x=x, target=t))
        n = s.scaler()["step"]
        refused(KeyboardInterrupt, "", lambda: s.fit(
            data, 9, callbacks=lambda *_: signal.raise_signal(signal.SIGINT)))
        assert s.scaler()["step"] == n + 3 and s.step(x=x[:12], target=t[:8])
    with m.session("cpu", 1) as s:
        e = s.evaluate(Loader())
        assert e["samples"] == 10 and e["exact"] == 1
        assert abs(e["loss"] - s.evaluate(x=x, target=t)["loss"]) < 1e-6
        refused(ampc.Error, "'x': shape [3, 10] given, [10, 3] needed",
                lambda: s.fit({"x": Strided(x, (3, 10), None), "target": t}))
        refused(ampc.Error, "'x': dtype f64 given, f32[4,3] needed",
                lambda: s.fit({"x": array.array("d", x), "target": t}))
        refused(ampc.Error, "data is an iterator",
                lambda: s.fit(iter(batches), epochs=2))
        refused(ampc.Error, "validation is an iterator",
                lambda: s.fit(data, epochs=2, validation=iter(batches)))
        refused(ValueError, "epochs is -1", lambda: s.fit(data, epochs=-1))
        refused(ampc.Error, "samples: 'x' has 10, 'target' has 9",
                lambda: s.fit({"x": x, "target": t[:18]}))
    # micro-batches that are left over make a step with fewer of them
    with ampc.Module(accumulating).session("cpu", 1) as s:
        h = s.fit({"x": x, "target": t}, epochs=2)
        assert s.scaler()["tried"] == 4 and h[1]["steps"] == 3, s.scaler()
    with ampc.Module(classes).session("cpu", 1) as s:
        labels = array.array("B", [0, 1] * 5)
        h = s.fit({"x": x, "target": labels}, validation=(x, labels))
        assert 0 <= h[0]["val_accuracy"] <= 1


def table():
    """Every function of ampc_api stands in the class, and is called."""
    folder = sys.argv[1]
    with open(os.path.join(folder, "..", "ampc.h")) as f:
        body = re.search(r"struct ampc_api \{(.*?)\n\}", f.read(), re.S)[1]
    inside = [name for name, kind in ampc._c.Api._fields_
              if issubclass(kind, c._CFuncPtr)]
    assert inside == re.findall(r"\(\*(\w+)\)\(", body), inside
    package = os.path.join(folder, "ampc")
    text = "".join(open(os.path.join(package, name)).read()
                   for name in os.listdir(package) if name.endswith(".py"))
    unused = {name for name in inside if not re.search(rf"api\.{name}\b", text)}
    assert unused == {"load"}, unused  # load_weights of one file


def calls(path, host, accumulating, classes):
    """Every function of the table does what its name says."""
    table()
    x, t = floats(i / 8 for i in range(12)), floats(i % 3 for i in range(8))
    m = ampc.Module(path)
    assert m.trains and m.evaluates and m.predicts and m.parts
    assert m.program()["ninput"] == 2 and m.program("eval")["noutput"] >= 1
    assert m.objectives == [] and m.info["options"]
    assert m.api.version.decode() == ampc.__version__
    with m.session("cpu", 1, max_skipped=-1) as s:
        assert s.device() == {"kind": "cpu", "name": ""}
        assert s.stage("x") is None and s.notice() == ""
        metrics = s.step(x=x, target=t)
        assert s.sync() == metrics and s.scaler()["tried"] == 1
        assert s.bad_data() == {} or s.bad_data()["count"] == 0
        assert s.cursor is None
        s.cursor = {"epoch": 2}
        path = os.path.join(FOLDER, "calls.safetensors")
        s.save(path)
        s.cursor = [1]
        s.resume(path)
        assert s.cursor == {"epoch": 2}
        y = s.predict(x=x)["y"]
        assert bytes(s.read_output("y")) == bytes(y)
        steps = []
        s.profile(lambda program, step, begin, end: steps.append(
            (program, step, begin <= end)))
        s.step(x=x, target=t)
        assert steps and all(ok for _, _, ok in steps)
        n = len(steps)
        # what it raises comes out of the call; it cannot close what runs
        s.profile(lambda *_: 1 / 0)
        refused(ZeroDivisionError, "", lambda: s.step(x=x, target=t))
        s.profile(lambda *_: s.close())
        e = refused(ampc.Error, "while a call of it runs",
                    lambda: s.step(x=x, target=t))
        copied = pickle.loads(pickle.dumps(e))
        assert (copied.status, str(copied)) == (ampc.Status.BUSY, str(e))
        refused(TypeError, "takes a function", lambda: s.profile(3))
        busy = []

        def other(*_):
            def step():
                try:
                    s.step(x=x, target=t)
                except ampc.Error as error:
                    busy.append(str(error))
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
        s.profile(other)
        s.step(x=x, target=t)
        assert "another thread uses the session" in busy[0], busy
        s.profile(None)
        # a prediction within one is refused and writes nothing of the other's
        y, zeros = bytes(s.predict(x=x)["y"]), floats([0] * 12)
        s.profile(lambda *_: refused(ampc.Error, "uses the session",
                                     lambda: s.predict(x=zeros)))
        assert bytes(s.predict(x=x)["y"]) == y != bytes(len(y))
        s.profile(None)
        s.step(x=x, target=t)
        assert len(steps) == n
        refused(ampc.Error, "", lambda: s.peek(0, 4))
        refused(ampc.Error, "", lambda: s.underflow(x=x, target=t))
        refused(ampc.Error, "", lambda: s.objective("none"))
        refused(ampc.Error, "no input 'z'", lambda: s.stage("z"))
        refused(ampc.Error, "no output 'z'", lambda: s.read_output("z"))
        assert "w" in s and "v" not in s and 3 not in s
        refused(TypeError, "not iterable", lambda: list(s))
        refused(TypeError, "variable is a str, not int", lambda: s[3])
        s.save_weights(path)
        with open(path, "rb") as f:
            head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        assert set(s.weights()) == set(head) - {"__metadata__"}, head
        assert bytes(s.weights()["w"]) == bytes(s["w"])
        assert " of batch 4, trains" in repr(m) and "on cpu" in repr(s)
        refused(TypeError, "ampc.Module(PATH) loads another",
                lambda: pickle.dumps(m))
        s.save(path)
        there = in_child(lambda: s.step(x=x, target=t))
        assert there == s.step(x=x, target=t)
        seen = interrupt_often(lambda: s.step(x=x, target=t), 0.5)
        assert seen > 5, seen
    refused(ampc.Error, "the session is closed", lambda: s.step(x=x, target=t))
    assert "closed" in repr(s)
    with ampc.Module(accumulating).session("cpu", 1) as s:
        one = s.micro_step(x=x, target=t)
        two = s.micro_step(x=x, target=t)
        done = s.update()
        assert one == two and done["applied"] == 1 and done["step"] == 1
    with ampc.Module(host).session("cpu", 1) as s:
        w = memoryview(s["w"]).cast("B").cast("f").tolist()
        y = s.outputs(x=x)["y"]
        s.vjp({"x": x, "gradient:y": y})  # the loss is half the squares' sum
        s.update()
        g = memoryview(y).cast("B").cast("f").tolist()
        want = w[0] - 0.1 * sum(x[r * 3] * g[r * 2] for r in range(4))
        got = memoryview(s["w"]).cast("B").cast("f").tolist()[0]
        assert abs(got - want) < 1e-5, (got, want)
    with ampc.Module(classes).session("cpu", 1) as s:
        labels = array.array("q", [0, 1, 7, 0])
        e = refused(ampc.Error, "", lambda: s.step(x=x, target=labels))
        assert e.status is ampc.Status.DATA, e.status
        assert e.details["input"] == "target" and e.details["value"] == 7


def whole_numbers(rows):
    """int64 of shape [rows, their length]."""
    flat = array.array("q", itertools.chain(*rows))
    return memoryview(flat).cast("B").cast("q", [len(rows), len(rows[0])])


def sizes(path, one_size):
    """A module of several sizes takes arrays of any length, in every call."""
    m, one = ampc.Module(path), ampc.Module(one_size)
    assert m.sizes == {"T": [3, 6]} and one.sizes == {}

    def data(n, t, width):
        fill = [0] * (width - t)
        return {"x": whole_numbers([[(i + k) % 9 for k in range(t)] + fill
                                    for i in range(n)]),
                "place": floats([1.0] * t + fill),
                "target": whole_numbers([[(i * k) % 3 for k in range(t)] +
                                         [-100] * (width - t)
                                         for i in range(n)])}

    def inputs(d):
        return {"x": d["x"], "place": d["place"]}

    def flat(d):
        return {name: memoryview(a).cast("B").cast(a.format if isinstance(
            a, memoryview) else a.typecode) for name, a in d.items()}

    with m.session("cpu") as s, one.session("cpu") as o:
        for t in (2, 3, 5, 6):
            d, full = data(10, t, t), data(10, t, 6)
            wide = 3 if t <= 3 else 6
            assert s.predict(inputs(d))["y"].shape == (10, wide, 3)
            logs, want = (session.fit(given, epochs=2, seed=t, validation=given)
                          for session, given in ((s, d), (o, full)))
            for a, b in zip(logs, want):
                assert abs(a["loss"] - b["loss"]) < 1e-5, (t, a, b)
                assert abs(a["val_loss"] - b["val_loss"]) < 1e-5, (t, a, b)
        # 12 numbers are 2 samples of the module's own size
        d = data(2, 6, 6)
        y, want = s.predict(inputs(flat(d)))["y"], o.predict(inputs(d))["y"]
        assert y.shape == want.shape == (2, 6, 3)
        assert abs(s.step(flat(d))["loss"] - o.step(d)["loss"]) < 1e-5
        refused(ampc.Error, "smaller sizes of this module: T=3",
                lambda: s.fit(data(10, 7, 7)))


def compiling(_):
    """Options as keywords, from the list that `ampc` prints."""
    program = sys.argv[2]
    source = os.path.join(FOLDER, "linear.amp")
    with open(source, "w") as f:
        f.write("dim B\nmodel m(x: f32[B,3]) {\n"
                "  return y = Linear(x, units=2)\n}\n")
    known = ampc.options(program)
    assert known["lr_schedule"].startswith("S[") and known["dim"]
    assert not {"model", "args", "output", "compiler"} & set(known)
    fast = dict(target="cpu:x86-64-v2", compiler=program, loss="mse")
    m = ampc.compile(source, dim={"B": 4}, precision="fp32",
                     batch_sizes="1,2", debug_nonfinite=True, **fast)
    assert m.batch == 4 and m.batch_sizes == [1, 2] and "trains" in m.messages
    x, t = floats(range(12)), floats(range(8))
    with m.session("cpu", 1) as s:
        s.step(x=x, target=t)
    gone = m.path
    assert os.path.exists(gone)
    del s, m
    gc.collect()
    assert not os.path.exists(gone)
    stays = os.path.join(FOLDER, "stays.so")
    m = ampc.compile(source, dim=["B=4"], output=stays, freeze=["*.bias"],
                     symbol="other", **fast)
    assert os.path.exists(stays) and m.path == stays
    assert [v[0] for k, v in m.variables().items()
            if k.endswith("bias")] == ["frozen"]
    # another module at the path of one that is loaded
    again = ampc.compile(source, dim=["B=2"], output=stays, **fast)
    assert (m.batch, again.batch, ampc.Module(stays).batch) == (4, 2, 2)
    E = ampc.Error
    refused(TypeError, "no option 'o': output=PATH",
            lambda: ampc.compile(source, o="x", **fast))
    refused(E, "--dim", lambda: ampc.compile(source, **fast))
    refused(TypeError, "no option 'precison': did you mean '--precision'?",
            lambda: ampc.compile(source, precison="fp32", **fast))
    refused(TypeError, "no option 'lr': use --optimizer O,lr=X",
            lambda: ampc.compile(source, lr=0.1, **fast))
    refused(TypeError, "no option 'batch': use --dim NAME=N",
            lambda: ampc.compile(source, batch=4, **fast))
    refused(TypeError, "a path or a torch.nn.Module, not <class 'list'>",
            lambda: ampc.compile([source], **fast))
    refused(E, "compiler /nowhere: No such file",
            lambda: ampc.compile(source, compiler="/nowhere"))
    refused(E, "not an ampc module (no symbol 'none')",
            lambda: ampc.Module(stays, "none"))
    refused(TypeError, "debug_nonfinite is True or False",
            lambda: ampc.compile(source, debug_nonfinite="yes", **fast))
    refused(TypeError, "precision is a text",
            lambda: ampc.compile(source, precision=["fp32"], **fast))
    refused(TypeError, "args are the example inputs",
            lambda: ampc.compile(source, args=(1,), **fast))
    # outputs with a multiple of the batch in axis 0, but not of samples
    with open(source, "w") as f:
        f.write("dim B = 4\nmodel m(x: f32[B,3]) {\n  param w: f32[8,2] = "
                "normal(1)\n  return y = x * 2, w = w * 2\n}\n")
    m = ampc.compile(source, batch_sizes="1,2", loss="none", compiler=program,
                     target="cpu:x86-64-v2")
    with m.session("cpu", 1) as s:
        for n in 1, 2, 3, 4, 7:
            out = s.predict(x=Strided(range(3 * n), (n, 3), None))
            shapes = [out[k][0] for k in "yw"]
            assert shapes == [(n, 3), (8, 2)], shapes
            assert len(set(out["w"][1])) == 16 and 0 not in out["w"][1]
    os.environ["PATH"] = FOLDER
    refused(E, "there is no program 'ampc'", lambda: ampc.compile(source))


globals()[sys.argv[4]](*sys.argv[5:])
print("ok")
