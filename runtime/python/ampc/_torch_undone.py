# SPDX-License-Identifier: Apache-2.0
"""What ampc.torch.export changes for a while, of torch's and of the user's; runs of the
module of which nothing stays, which find out what torch does not tell."""
from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Iterator, Sequence

import torch
import torch.utils._pytree as pytree


@contextlib.contextmanager
def replaced(*patches: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes (of, name, value) have that value meanwhile."""
    before = [(of, name, getattr(of, name)) for of, name, _ in patches]
    for of, name, value in patches:
        setattr(of, name, value)
    try:
        yield
    finally:
        for of, name, value in before:
            setattr(of, name, value)


def tensors(tree: Any) -> list[Any]:
    leaves: list[Any] = pytree.tree_leaves(tree)
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def _copied(x: Any) -> Any:
    return x.detach().clone().requires_grad_(x.requires_grad) \
        if isinstance(x, torch.Tensor) else x


@contextlib.contextmanager
def _generators(used: Sequence[Any]) -> Iterator[None]:
    """Random numbers go on from where they were: of torch, Python and numpy."""
    gpus = {x.device for x in used if x.device.type == "cuda"}
    numpy: Any = sys.modules.get("numpy")
    python, of_numpy = random.getstate(), numpy and numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=list(gpus)):
            yield
    finally:
        random.setstate(python)
        if numpy:
            numpy.random.set_state(of_numpy)


def attributes(module: Any) -> list[Any]:
    """What put_back() takes."""
    return [(of, dict(of)) for m in module.modules()
            if not isinstance(m, torch.jit.ScriptModule)
            for of in (vars(m), m._parameters, m._buffers)]


def put_back(places: Any) -> None:
    for of, before in places:
        of.clear()
        of.update(before)


def numbers(of: Sequence[Any]) -> list[Any]:
    """What restore() takes."""
    return [(x, x.detach().clone()) for x in of]


def restore(state: Sequence[Any]) -> None:
    for x, value in state:
        x.data.copy_(value)


@contextlib.contextmanager
def _module(module: Any) -> Iterator[None]:
    """It has its attributes again afterwards, and they their numbers."""
    state = numbers([*module.parameters(), *module.buffers()])
    places = attributes(module)
    try:
        yield
    finally:
        put_back(places)
        restore(state)


def run(module: Any, args: Any, kwargs: Any) -> None:
    """Arguments are copies."""
    with _generators([*module.parameters(), *tensors((args, kwargs))]), \
            _module(module):
        args, kwargs = pytree.tree_map(_copied, (args, kwargs))
        module(*args, **kwargs)
