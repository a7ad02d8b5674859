# SPDX-License-Identifier: Apache-2.0
"""Runs of the user's module of which nothing stays: ampc.torch.export finds out by
them what torch does not tell."""
from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Iterator

import torch
import torch.utils._pytree as pytree


def _tensors(tree: Any) -> list[Any]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _copied(x: Any) -> Any:
    return x.detach().clone().requires_grad_(x.requires_grad) \
        if isinstance(x, torch.Tensor) else x


@contextlib.contextmanager
def _generators(tensors: Any) -> Iterator[None]:
    """Random numbers go on from where they were: of torch, Python and numpy."""
    gpus = {x.device for x in tensors if x.device.type == "cuda"}
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


@contextlib.contextmanager
def _module(module: Any) -> Iterator[None]:
    """It has its attributes again afterwards, and they their numbers."""
    state = [(x, x.detach().clone())
             for x in [*module.parameters(), *module.buffers()]]
    places = attributes(module)
    try:
        yield
    finally:
        put_back(places)
        for x, value in state:
            x.data.copy_(value)


def run(module: Any, args: Any, kwargs: Any) -> None:
    """Arguments are copies."""
    with _generators([*module.parameters(), *_tensors((args, kwargs))]), \
            _module(module):
        args, kwargs = pytree.tree_map(_copied, (args, kwargs))
        module(*args, **kwargs)
