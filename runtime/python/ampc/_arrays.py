# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries, without numpy: the buffer protocol and DLPack.

What a caller gives becomes a memoryview of the caller's memory; only an array
that is not dense is copied.  An array in a GPU's memory stays there.  What a
call returns is an array of the library whose arrays were given: numpy's, an
array of the array API, a torch tensor.
"""
from __future__ import annotations

import ctypes as c
import struct
import sys
from typing import Any, Sequence

from . import _c
from ._c import DTYPES, Error, Status


def count(shape: Sequence[int]) -> int:
    """Elements of an array of that shape."""
    n = 1
    for d in shape:
        n *= d
    return n


_SIZES = [struct.calcsize("=" + code) for _, code, _ in DTYPES]


def item_size(dtype: int) -> int:
    """Bytes of an element of that entry of DTYPES."""
    return _SIZES[dtype]


def shape_of(info: Any) -> tuple[int, ...]:
    """The shape in a struct of ampc.h."""
    return tuple(info.shape[:info.rank])


# ---- Python's memory --------------------------------------------------------

class _Buffer(c.Structure):
    """Py_buffer"""

    _fields_ = [("buf", c.c_void_p), ("obj", c.c_void_p),
                ("len", c.c_ssize_t), ("itemsize", c.c_ssize_t),
                ("readonly", c.c_int), ("ndim", c.c_int),
                ("format", c.c_char_p), ("shape", c.POINTER(c.c_ssize_t)),
                ("strides", c.POINTER(c.c_ssize_t)),
                ("suboffsets", c.POINTER(c.c_ssize_t)),
                ("internal", c.c_void_p)]


_python: Any = c.PyDLL(None)
_python.PyObject_GetBuffer.argtypes = [c.py_object, c.POINTER(_Buffer), c.c_int]
_python.PyMemoryView_FromBuffer.argtypes = [c.POINTER(_Buffer)]
_python.PyMemoryView_FromBuffer.restype = c.py_object
_python.PyCapsule_GetPointer.argtypes = [c.py_object, c.c_char_p]
_python.PyCapsule_GetPointer.restype = c.c_void_p
_python.PyCapsule_IsValid.argtypes = [c.py_object, c.c_char_p]
_python.PyCapsule_New.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p]
_python.PyCapsule_New.restype = c.py_object
_python.PyBuffer_Release.argtypes = [c.POINTER(_Buffer)]
_libc: Any = c.CDLL(None)
_libc.aligned_alloc.argtypes = [c.c_size_t, c.c_size_t]
_libc.aligned_alloc.restype = c.c_void_p
_libc.free.argtypes = [c.c_void_p]


def address(view: memoryview) -> int | None:
    """Where the elements are; the view keeps them there."""
    b = _Buffer()
    if not view.nbytes:
        return None
    _python.PyObject_GetBuffer(view, b, 0)
    at: int = b.buf
    _python.PyBuffer_Release(b)
    return at


def _memory(at: int, code: str, size: int, shape: Sequence[int],
            strides: Sequence[int]) -> memoryview:
    """A view of memory; strides in bytes."""
    n = len(shape)
    b = _Buffer(buf=at, len=count(shape) * size, itemsize=size, readonly=1,
                ndim=n, format=code.encode(),
                shape=(c.c_ssize_t * n)(*shape),
                strides=(c.c_ssize_t * n)(*strides))
    view: memoryview = _python.PyMemoryView_FromBuffer(b)
    return view


# ---- DLPack -----------------------------------------------------------------

class _DLTensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32),
                ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8),
                ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)),
                ("byte_offset", c.c_uint64)]


class _DLManagedTensor(c.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", c.c_void_p),
                ("deleter", c.c_void_p)]


_CPU, _CUDA = 1, 2  # DLDeviceType
_LEGACY_STREAM = 1  # of CUDA, in DLPack's words
# DLDataTypeCode of the entries of DTYPES, or of their names before the digits
_CODES = {"f8e4m3": 10, "f8e5m2": 12, "e8m0": 14, "bool": 6, "bf": 4, "f": 2,
          "i": 0, "u": 1}


def _dl_type(dtype: int) -> tuple[int, int]:
    """DLPack's code and bits of that entry of DTYPES."""
    name = DTYPES[dtype][0]
    kind = name if name in _CODES else name.rstrip("0123456789")
    return _CODES[kind], 8 * item_size(dtype)


def _on_cuda(array: Any, name: str) -> bool:
    kind, _ = array.__dlpack_device__()
    if int(kind) not in (_CPU, _CUDA):
        raise Error(Status.ARGUMENT, f"'{name}' is in the memory of another "
                    "device: give it from the CPU's or from a CUDA device's "
                    "(torch: x.cpu())")
    return int(kind) == _CUDA


def _from_dlpack(array: Any, name: str, cuda: bool) -> \
        tuple[int, memoryview, Any]:
    if getattr(array, "requires_grad", False):
        array = array.detach()
    if hasattr(array, "resolve_neg"):  # torch's lazy minus, which DLPack loses
        array = array.resolve_neg()
    # What made the array is done before what follows on the legacy stream.
    capsule = array.__dlpack__(stream=_LEGACY_STREAM) if cuda \
        else array.__dlpack__()
    t = _DLManagedTensor.from_address(
        _python.PyCapsule_GetPointer(capsule, b"dltensor")).tensor
    found = [i for i in range(len(DTYPES))
             if _dl_type(i) == (t.code, t.bits) and t.lanes == 1]
    if not found:
        raise Error(Status.ARGUMENT, f"'{name}': elements of DLPack's type "
                    f"{t.code}, {t.bits} bits, are not known")
    size, shape = t.bits // 8, t.shape[:t.ndim]
    strides: list[int] = []
    dense = size
    for n in reversed(shape):
        strides.insert(0, dense)
        dense *= n
    if t.strides:
        strides = [n * size for n in t.strides[:t.ndim]]
    if not count(shape):
        return found[0], memoryview(b""), (shape, None)
    view = _memory(t.data + t.byte_offset, DTYPES[found[0]][1], size, shape,
                   strides)
    return found[0], view, (shape, capsule)


class _Exported:
    """An array in memory that the next owner frees, for from_dlpack."""

    def __init__(self, info: Any) -> None:
        shape = shape_of(info)
        head = c.sizeof(_DLManagedTensor) + 8 * len(shape)
        head = (head + 63) // 64 * 64
        room = head + max((info.bytes + 63) // 64 * 64, 64)
        # One block, which begins with what is freed: free() is the deleter.
        self._at: int | None = _libc.aligned_alloc(64, room)
        if not self._at:
            raise MemoryError(f"{room} bytes")
        self.address = self._at + head
        dims = (c.c_int64 * len(shape)).from_address(
            self._at + c.sizeof(_DLManagedTensor))
        dims[:] = list(shape)
        code, bits = _dl_type(info.dtype)
        m = _DLManagedTensor.from_address(self._at)
        m.tensor = _DLTensor(
            data=self.address, device_type=_CPU, device_id=0, ndim=len(shape),
            code=code, bits=bits, lanes=1,
            shape=c.cast(dims, c.POINTER(c.c_int64)), strides=None,
            byte_offset=0)
        m.context, m.deleter = None, c.cast(_libc.free, c.c_void_p).value
        self._capsule: Any = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0

    def __dlpack__(self, **_: Any) -> Any:
        self._capsule = _python.PyCapsule_New(self._at, b"dltensor", None)
        self._at = None
        return self._capsule

    def __del__(self) -> None:
        unused = self._capsule is not None and _python.PyCapsule_IsValid(
            self._capsule, b"dltensor")
        if unused:
            self._at = _python.PyCapsule_GetPointer(self._capsule, b"dltensor")
        if self._at:
            _libc.free(self._at)


# ---- given ------------------------------------------------------------------

class Given:
    """An array that was given: its dtype (an index into DTYPES), its shape and
    its elements, dense and in the order of C."""

    def __init__(self, array: Any, name: str) -> None:
        keep: Any = None
        self.cuda = False  # in the memory of a GPU: its view is not for Python
        if hasattr(array, "mask") and hasattr(array, "filled"):
            raise Error(Status.ARGUMENT,
                        f"'{name}' is a masked array: choose what its masked "
                        "elements are with x.filled(VALUE)")
        try:
            view = memoryview(array)
            shape: Sequence[int] = view.shape or ()
            dtype = self._format(view, name)
        except (BufferError, TypeError):  # JAX's bf16: a BufferError
            if not hasattr(array, "__dlpack__"):
                raise Error(
                    Status.ARGUMENT,
                    f"'{name}' is a {type(array).__name__}; arrays have "
                    "Python's buffer protocol or DLPack: numpy.asarray(x, "
                    "'float32') makes one") from None
            try:
                self.cuda = _on_cuda(array, name)
                dtype, view, (shape, keep) = _from_dlpack(array, name,
                                                          self.cuda)
            except (BufferError, TypeError, ValueError, AttributeError) as e:
                raise Error(Status.ARGUMENT, f"'{name}' has no elements in "
                            f"memory that can be read: {e}") from None
        if not view.c_contiguous:
            if self.cuda:
                raise Error(Status.ARGUMENT,
                            f"'{name}' is in a GPU's memory and not dense "
                            "(torch: x.contiguous())")
            view = memoryview(view.tobytes())
        self.name, self.dtype, self.shape = name, dtype, tuple(shape)
        self.array, self._keep = array, (view, keep)
        self.bytes, self.address = view.nbytes, address(view)

    def _view(self) -> memoryview:
        """Its bytes."""
        return _memory(self.address, "B", 1, [self.bytes], [1]) \
            if self.address else memoryview(b"")

    @staticmethod
    def _format(view: memoryview, name: str) -> int:
        code = view.format.lstrip("@=<")
        code = {"l": "q", "L": "Q"}.get(code, code)
        for i, row in enumerate(DTYPES):
            if row[1] == code and row[0] != "bf16":
                return i
        swapped = view.format[:1] in (">", "!") and view.format[1:] in "hHiIlLqQefd"
        raise Error(Status.ARGUMENT,
                    f"'{name}': elements of format '{view.format}' are "
                    + ("big-endian: x.astype(x.dtype.newbyteorder('<')) "
                       "swaps them" if swapped else "not known"))

    def rows(self, first: int, last: int, each: int) -> Given:
        """Samples first to last, of `each` bytes."""
        part = object.__new__(Given)
        part.name, part.dtype, part._keep = self.name, self.dtype, self._keep
        part.array, part.cuda = self.array, self.cuda
        part.shape = (last - first, *self.shape[1:])
        part.bytes = (last - first) * each
        part.address = None
        if self.address and part.bytes:
            part.address = self.address + first * each
        return part

    def taken(self, order: Sequence[int], each: int) -> Given:
        """The samples of those numbers, copied."""
        if self.cuda:
            raise Error(Status.ARGUMENT,
                        f"'{self.name}' is in a GPU's memory, where its "
                        "samples are not put in another order: give batches, "
                        "or shuffle=False")
        room, view = bytearray(len(order) * each), self._view()
        for k, i in enumerate(order):
            room[k * each:(k + 1) * each] = view[i * each:(i + 1) * each]
        part = self.rows(0, 0, each)
        part.shape = (len(order), *self.shape[1:])
        part._keep = memoryview(room), None
        part.address, part.bytes = address(part._keep[0]), len(room)
        return part

    def as_input(self, info: Any, n: int | None = None) -> Any:
        """An ampc_input for that tensor, which holds n samples here.  C is told
        the shape unless the elements are those of the tensor's shape, which may
        have other axes of 1."""
        dtype = self.dtype
        if DTYPES[info.dtype][0] == "bf16" and DTYPES[dtype][0] == "u16":
            dtype = info.dtype
        wanted = shape_of(info)
        if n is not None:
            wanted = (n, *wanted[1:])
        s = _c.Input(name=info.name, data=self.address, bytes=self.bytes,
                     dtype=dtype, rank=-1, place=int(self.cuda))
        if not same_elements(self.shape, wanted):
            s.rank = len(self.shape)
            s.shape = (c.c_int64 * s.rank)(*self.shape)
        return s


def same_elements(given: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether one shape is the other with axes of 1, or with neighbouring axes
    as one: then the elements are the same in the same order."""
    if given == wanted:
        return True
    a, b = [n for n in given if n != 1], [n for n in wanted if n != 1]
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


# ---- returned ---------------------------------------------------------------

def _library_of(array: Any) -> Any:
    """What makes arrays of the same kind from DLPack; None: numpy or views."""
    if hasattr(array, "__array_namespace__"):
        space = array.__array_namespace__()
        return None if space.__name__ == "numpy" else space
    top = type(array).__module__.split(".")[0]
    module = sys.modules.get(top)
    return module if top != "numpy" and hasattr(module, "from_dlpack") else None


class Returned:
    """Room for a tensor that a call fills: `address`, then `array()`."""

    def __init__(self, info: Any, like: Any = None) -> None:
        self._library = None if like is None else _library_of(like)
        _, self._code, numpy_name = DTYPES[info.dtype]
        self._shape = shape_of(info)
        self._room: Any
        if self._library is not None:
            self._room = _Exported(info)
            self.address: int | None = self._room.address
            return
        try:
            import numpy
        except ImportError:
            self._room = bytearray(info.bytes)
            self.address = address(memoryview(self._room))
            return
        self._room = numpy.empty(self._shape, numpy_name)
        self.address = self._room.__array_interface__["data"][0]

    def array(self) -> Any:
        """An array of that library, else numpy's, else a memoryview."""
        if self._library is not None:
            return self._library.from_dlpack(self._room)
        if isinstance(self._room, bytearray):
            view = memoryview(self._room)
            code = self._code.replace("e", "H")  # Python's views lack halves
            return view.cast(code, self._shape) if view.nbytes \
                else view.cast(code)
        return self._room
