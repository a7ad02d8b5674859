# SPDX-License-Identifier: Apache-2.0
"""Session.fit: epochs over arrays or over an iterable of batches."""
from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, Mapping

from ._arrays import Given, same_elements, shape_of
from ._c import Error, Status
from ._inputs import (as_long, count_samples, different, given_arrays,
                      has_dtype, sample_bytes)

if TYPE_CHECKING:
    from ._session import Evaluation, Session

Callback = Callable[["Session", Dict[str, Any]], Any]


def is_loader(data: Any) -> bool:
    """Whether it gives batches one after the other: no dict, no arrays; a list
    of batches does."""
    if isinstance(data, (list, tuple)):
        return len(data) > 0 and all(isinstance(batch, (Mapping, list, tuple))
                                     for batch in data)
    return not isinstance(data, Mapping) and hasattr(data, "__iter__") and \
        not hasattr(data, "__dlpack__") and not _is_buffer(data)


def _is_dataset(data: Any) -> bool:
    """Samples by number, torch's Dataset: neither batches nor arrays."""
    return not isinstance(data, (Mapping, list, tuple)) and \
        hasattr(data, "__getitem__") and not hasattr(data, "__iter__") and \
        not hasattr(data, "__dlpack__") and not _is_buffer(data)


def _is_buffer(data: Any) -> bool:
    try:
        memoryview(data)
        return True
    except TypeError:
        return False


class _Arrays:
    """All samples, in arrays."""

    def __init__(self, session: Session, data: Any) -> None:
        wanted = session._wanted(session._training())
        self.given = given_arrays(wanted, data, {})
        batch = session.module.batch
        if session.module.sizes:
            wanted = [as_long(batch, t, a) for t, a in zip(wanted, self.given)]
        self.each = [sample_bytes(batch, t, a)
                     for t, a in zip(wanted, self.given)]
        self.n = count_samples(batch, wanted, self.given)
        if not all(map(has_dtype, wanted, self.given)):
            session.step(data)  # C's message says which one is wrong
        sizes = {a.name: a.bytes / each
                 for a, each in zip(self.given, self.each) if each}
        if len(set(sizes.values())) > 1:
            raise different(sizes)
        for t, a, each in zip(wanted, self.given, self.each):
            shape = (self.n, *shape_of(t)[1:])
            if each and same_elements(a.shape, shape):
                a.shape = shape
            elif each and a.shape[:1] != (self.n,):
                raise Error(Status.ARGUMENT,
                            f"input '{a.name}': shape {list(a.shape)} given, "
                            f"{list(shape)} needed")

    def batches(self, size: int, order: list[int] | None,
                parts: bool) -> Iterator[tuple[int, dict[str, Given]]]:
        for first in range(0, self.n, size):
            last = min(first + size, self.n)
            if last - first < size and not parts:
                return
            yield last - first, {
                a.name: a if not each
                else a.taken(order[first:last], each) if order
                else a.rows(first, last, each)
                for a, each in zip(self.given, self.each)}

    def empty(self) -> dict[str, Given]:
        return {a.name: a.rows(0, 0, each) if each else a
                for a, each in zip(self.given, self.each)}


class _Sums:
    """What an epoch adds up to."""

    def __init__(self) -> None:
        self.loss, self.samples, self.steps = 0.0, 0, 0
        self.last: dict[str, Any] = {"updated": 1}

    def add(self, metrics: dict[str, Any], n: int) -> None:
        self.steps += 1
        self.last = metrics
        if metrics["loss"] == metrics["loss"] or metrics["applied"]:
            self.loss += metrics["loss"] * n
            self.samples += n


def _from_arrays(session: Session, data: _Arrays, shuffle: bool, seed: str,
                 sums: _Sums) -> None:
    order = None
    if shuffle:
        order = list(range(data.n))
        random.Random(seed).shuffle(order)
    m = session.module
    for n, batch in data.batches(m.batch or data.n, order, m.parts):
        sums.add(session.step(batch), n)
    while m.parts and not sums.last["updated"]:
        sums.last = session.step(data.empty())


def _from_loader(session: Session, loader: Iterable[Any], sums: _Sums) -> None:
    wanted, m = session._wanted(session._training()), session.module
    for batch in loader:
        given = given_arrays(wanted, batch, {})
        n = count_samples(m.batch, wanted, given)
        if n >= m.batch or m.parts:
            sums.add(session.step({a.name: a for a in given}), n)


def _logs(epoch: int, sums: _Sums, skipped: int, seconds: float,
          validation: Evaluation | None) -> dict[str, Any]:
    logs = {"epoch": epoch,
            "loss": sums.loss / sums.samples if sums.samples else None,
            "samples": sums.samples, "steps": sums.steps,
            "skipped": sums.last.get("skipped", skipped) - skipped,
            "lr": sums.last.get("lr"), "seconds": seconds}
    if validation is not None:
        logs.update(val_loss=validation["loss"],
                    val_accuracy=validation["accuracy"],
                    val_samples=validation["samples"])
    return logs


def fit(session: Session, data: Any, epochs: int, validation: Any,
        callbacks: Iterable[Callback] | Callback, shuffle: bool,
        seed: int) -> list[dict[str, Any]]:
    loader = is_loader(data)
    for what, given in (("data", data), ("validation", validation)):
        if _is_dataset(given):
            raise Error(Status.ARGUMENT, f"{what} is a {type(given).__name__}: "
                        "give batches of it (torch.utils.data.DataLoader)")
        if epochs > 1 and is_loader(given) and iter(given) is given:
            raise Error(Status.ARGUMENT, f"{what} is an iterator, which gives "
                        "one epoch; give a list, or an object whose __iter__ "
                        "begins again")
    arrays = None if loader else _Arrays(session, data)
    history: list[dict[str, Any]] = []
    callbacks = [callbacks] if callable(callbacks) else list(callbacks)
    for epoch in range(1, epochs + 1):
        sums, begin = _Sums(), time.monotonic()
        skipped = session.scaler()["skipped"]
        if arrays is None:
            _from_loader(session, data, sums)
        else:
            _from_arrays(session, arrays, shuffle, f"{seed}/{epoch}", sums)
        if not sums.steps:
            raise Error(Status.ARGUMENT, "data has no whole batch: "
                        f"{session.module.batch} samples make one")
        seconds = time.monotonic() - begin
        seen = None if validation is None else session.evaluate(validation)
        history.append(_logs(epoch, sums, skipped, seconds, seen))
        # all are called, whichever ends it
        if any([f(session, history[-1]) is True for f in callbacks]):
            break
    return history
