# SPDX-License-Identifier: Apache-2.0
"""Arrays of a host as the inputs of a program."""
from __future__ import annotations

import ctypes as c
from typing import Any, Mapping, Sequence

from . import _c
from ._arrays import Given, count, item_size, shape_of
from ._c import DTYPES, Error, Status

# Arrays by the names of inputs, in the order of inputs, or one for one input.
Data = Any


def by_name(wanted: Sequence[Any], data: Data,
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
        if len(names) != 1 + len(arrays):
            raise Error(Status.ARGUMENT, f"a {type(data).__name__} given; "
                        f"inputs are {names}: a dict, or a list in that order")
        arrays = {next((n for n in names if n not in arrays), ""): data,
                  **arrays}
    if set(names) != set(arrays):
        raise Error(Status.ARGUMENT, f"inputs are {sorted(names)}, given "
                                     f"are {sorted(arrays)}")
    return dict(arrays)


def given_arrays(wanted: Sequence[Any], data: Data,
                 arrays: Mapping[str, Any]) -> list[Given]:
    named = by_name(wanted, data, arrays)
    return [a if isinstance(a, Given) else Given(a, name)
            for name, a in ((t.name.decode(), named[t.name.decode()])
                            for t in wanted)]


def has_dtype(t: Any, a: Given) -> bool:
    """As C takes it; classes of a loss may have fewer bits."""
    if t.dtype == a.dtype:
        return True
    pair = DTYPES[t.dtype][0], DTYPES[a.dtype][0]
    label = t.name.split(b":")[0] == b"target"
    return pair == ("bf16", "u16") or (
        label and pair in (("i64", "i32"), ("i64", "u8")))


def check_dtypes(wanted: Sequence[Any], given: Sequence[Given]) -> None:
    for t, a in zip(wanted, given):
        if not has_dtype(t, a):
            shape = ",".join(map(str, shape_of(t)))
            raise Error(Status.ARGUMENT, f"input '{a.name}': dtype "
                        f"{DTYPES[a.dtype][0]} given, "
                        f"{DTYPES[t.dtype][0]}[{shape}] needed")


def sample_bytes(batch: int, t: Any, a: Given) -> int:
    """Bytes of one sample; 0: no sample axis."""
    if not batch or not t.rank or t.shape[0] != batch:
        return 0
    return item_size(a.dtype) * count(shape_of(t)[1:])


def different(samples: Mapping[str, float]) -> Error:
    """Arrays with different numbers of samples."""
    return Error(Status.ARGUMENT, "samples: " + ", ".join(
        f"'{name}' has {n:g}" for name, n in samples.items()))


def count_samples(batch: int, wanted: Sequence[Any],
                  given: Sequence[Given]) -> int:
    """How many samples were given; a batch where an array is no whole number of
    samples, so that C says which one is wrong."""
    found = {}
    for t, a in zip(wanted, given):
        each = sample_bytes(batch, t, a)
        if each and a.bytes % each:
            return batch
        if each:
            found[a.name] = a.bytes // each
    if len(set(found.values())) > 1:
        raise different(found)
    return next(iter(found.values()), batch)


def as_long(batch: int, t: Any, a: Given) -> Any:
    """The tensor with the array's lengths behind the axis of samples; a flat
    array has the module's own lengths."""
    if len(a.shape) != t.rank:
        return t
    first = 1 if sample_bytes(batch, t, a) else 0
    long = _c.TensorInfo.from_buffer_copy(t)
    long.shape[first:t.rank] = a.shape[first:]
    return long


class Call:
    """The structs of a call, which a later call with arrays of the same dtypes
    and shapes takes again.

    inputs    ampc_input[]
    samples   in the inputs
    outputs   ampc_output[] of `program`, tensors of the infos"""

    def __init__(self, inputs: Any, samples: int, looks: Any) -> None:
        self.inputs, self.samples, self.looks = inputs, samples, looks
        self.program = ""
        self.infos: list[Any] = []
        self.outputs: Any = None


def looks_of(given: Sequence[Given]) -> list[Any]:
    """All that structs depend on, but where the elements are."""
    return [(a.dtype, a.shape, a.bytes, a.cuda) for a in given]


def structs(batch: int, wanted: Sequence[Any], data: Data,
            arrays: Mapping[str, Any], several: bool = False,
            last: Call | None = None) -> tuple[Call, list[Given]]:
    """What tells C of the arrays, and what must live until the call ends.
    several: of a module of several sizes, which are told by the arrays' shapes.
    last: an earlier call with these inputs."""
    given = given_arrays(wanted, data, arrays)
    looks = looks_of(given)
    if last and last.looks == looks:
        for s, a in zip(last.inputs, given):
            s.data = a.address
        return last, given
    check_dtypes(wanted, given)
    if several:
        wanted = [as_long(batch, t, a) for t, a in zip(wanted, given)]
    n = count_samples(batch, wanted, given)
    inputs = (_c.Input * len(wanted))(*[
        a.as_input(t, n if sample_bytes(batch, t, a) else None)
        for t, a in zip(wanted, given)])
    if n and any(s.rank != -1 for s in inputs):
        n = batch  # C refuses it, by its shape
    for s, t, a in zip(inputs, wanted, given):
        shape = a.shape
        if len(shape) != t.rank and s.rank == -1:
            shape = shape_of(t)
            if sample_bytes(batch, t, a):
                shape = (n, *shape[1:])
        if several and len(shape) == t.rank:
            s.rank = t.rank
            s.shape = (c.c_int64 * t.rank)(*shape)
    return Call(inputs, n, looks), given
