# SPDX-License-Identifier: Apache-2.0
"""The program that torch.export makes of a module for ampc.torch.export, and the names
of its sizes."""
from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import warnings
from typing import Any, Iterator, Mapping

import torch
import torch.utils._pytree as pytree

from . import _torch_func as func
from . import _torch_grad as grad
from . import _torch_ops as ops
from . import _torch_refusal as refusal
from . import _torch_undone as undone

# ---- arguments --------------------------------------------------------------

def batched(args: Any, kwargs: Any) -> tuple[Any, Any, bool]:
    """Arguments with a batch of at least 2, which torch takes for any number;
    whether they have a common batch."""
    sizes = {x.shape[0] if x.dim() else -1 for x in undone.tensors((args, kwargs))}
    if sizes == {1}:
        args, kwargs = pytree.tree_map(
            lambda x: torch.cat([x, x]) if isinstance(x, torch.Tensor) else x,
            (args, kwargs))
    return args, kwargs, len(sizes) == 1 and -1 not in sizes


def _shapes(module: Any, args: Any, kwargs: Any, batch: Any) -> Any:
    """dynamic_shapes by the names of forward's parameters; *args are a tuple."""
    given = inspect.signature(module.forward).bind(*args, **kwargs)
    return pytree.tree_map(
        lambda x: {0: batch} if isinstance(x, torch.Tensor) else None,
        dict(given.arguments))


# ---- the program ------------------------------------------------------------

@contextlib.contextmanager
def _reporting() -> Iterator[None]:
    """draft_export reads its report out of a log, and prints it, too."""
    level = logging.root.manager.disable
    loud = [logging.getLogger(f"torch.{name}") for name in
            ("export._draft_export", "fx.experimental.symbolic_shapes")]
    levels = [log.level for log in loud]
    for log in loud:
        log.setLevel(logging.ERROR)
    logging.disable(logging.NOTSET)
    try:
        with contextlib.redirect_stdout(io.StringIO()), \
                contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)
        for log, before in zip(loud, levels):
            log.setLevel(before)


@contextlib.contextmanager
def _unchecked() -> Iterator[None]:
    """torch.distributions do not check their arguments, which would depend on data."""
    kind: Any = torch.distributions.Distribution
    before = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)


@contextlib.contextmanager
def _masked() -> Iterator[None]:
    """Layers of a transformer do not look whether a mask is causal, which would depend
    on data; it masks all the same."""
    def detect(mask: Any, is_causal: Any = None, size: Any = None) -> bool:
        return bool(is_causal)

    with undone.replaced((torch.nn.modules.transformer, "_detect_is_causal_mask", detect)):
        yield


@contextlib.contextmanager
def _followed() -> Iterator[None]:
    """torch.export follows no_grad(), and forgets inference_mode()."""
    mode: Any = torch.inference_mode

    def begin(self: Any) -> None:
        self.before = torch.is_grad_enabled()
        torch.set_grad_enabled(self.before and not self.mode)

    def end(self: Any, *_: Any) -> None:
        torch.set_grad_enabled(self.before)

    with undone.replaced((mode, "__enter__", begin), (mode, "__exit__", end)):
        yield


@contextlib.contextmanager
def _left_alone() -> Iterator[None]:
    """torch leaves a hook on all buffers of the process where a capture fails."""
    hooks: Any = torch.nn.modules.module._global_buffer_registration_hooks
    before = dict(hooks)
    try:
        yield
    finally:
        hooks.clear()
        hooks.update(before)


def capture(module: Any, args: Any, kwargs: Any, any_batch: bool,
            given: Any) -> Any:
    """The exported program."""
    state = undone.numbers(list(module.buffers()))
    attributes = undone.attributes(module)
    try:
        return _capture(module, args, kwargs, any_batch, given, state)
    except grad.Unknown:
        undone.put_back(attributes)
        undone.restore(state)
    with grad.found_out(lambda: undone.run(module, args, kwargs)):
        return _capture(module, args, kwargs, any_batch, given, state)


def _capture(module: Any, args: Any, kwargs: Any, any_batch: bool, given: Any,
             state: Any) -> Any:
    """The exported program; the batch is any where the module allows it.  torch
    takes the batch first as any number, then as a range that it finds, then as
    the number that it is, then with what has no shape rule."""
    dim = torch.export.Dim
    shapes: list[Any] = [given]
    if any_batch:
        shapes = [_shapes(module, args, kwargs, d)
                  for d in (dim("batch"), dim.AUTO)] + [None]
    tries: list[Any] = [(torch.export.export, s, {"strict": False}) for s in shapes]
    tries.append((torch.export.draft_export, shapes[-1], {}))
    first: Exception | None = None
    for export, shape, options in tries:
        try:  # torch marks dynamic axes at the tensors themselves
            a, k = pytree.tree_map(
                lambda x: x.detach().clone() if isinstance(x, torch.Tensor)
                else x, (args, kwargs))
            with ops.Captured(), _reporting(), _unchecked(), _masked(), \
                    _followed(), func.followed(), _left_alone():
                program = export(module, a, k, dynamic_shapes=shape, **options)
        except Exception as e:  # torch has many kinds of them
            first = first or e
            undone.restore(state)
            continue
        if refusal.decided(program):
            refusal.refuse([f"{refusal.line(str(first))}: depends on the values of a "
                            "tensor; the file would keep what follows from the "
                            "example's (torch.cond keeps both branches)"])
        return program
    assert first is not None
    raise first


# ---- names of sizes ---------------------------------------------------------

def _rename(model: Any, names: Mapping[str, str]) -> None:
    """Gives symbols of shapes other names, in expressions, too; digits are a
    number."""
    for v in [*model.graph.inputs, *(y for n in model.graph
                                     for y in n.outputs)]:
        for k, d in enumerate(v.shape or ()):
            symbol = getattr(d, "value", None)
            if isinstance(symbol, str):
                name = re.sub(r"\w+", lambda m: names.get(m[0], m[0]), symbol)
                v.shape[k] = int(name) if name.isdigit() else name


def name_batch(model: Any) -> None:
    """The symbol of axis 0 is called batch; a warning where it is a number."""
    _rename(model, {})  # torch writes numbers that it found late as symbols
    first = [v.shape[0] for v in model.graph.inputs if v.shape]
    names = {getattr(d, "value", d) for d in first}
    if len(names) != 1:
        return
    name = names.pop()
    if isinstance(name, int):
        warnings.warn(f"the batch is {name}, that of the example inputs, "
                      "because the module fixes it", stacklevel=3)
        return
    _rename(model, {str(name): "batch"})


def _given_names(value: Any, spec: Any) -> Iterator[dict[int, str]]:
    """Of each tensor, the names of axes that the user's Dims give it."""
    if isinstance(value, torch.Tensor):
        axes = spec if isinstance(spec, Mapping) else dict(enumerate(spec or ()))
        yield {k: d.__name__ for k, d in axes.items()
               if isinstance(getattr(d, "__name__", None), str)}
    elif isinstance(value, Mapping):
        for key, v in value.items():
            yield from _given_names(v, spec.get(key) if spec else None)
    elif isinstance(value, (list, tuple)):
        for k, v in enumerate(value):
            yield from _given_names(v, spec[k] if spec else None)


def name_dims(model: Any, module: Any, args: Any, kwargs: Any,
              given: Any) -> None:
    """Symbols have the names of the user's torch.export.Dim, which a program
    does not keep."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    if not isinstance(given, Mapping):
        given = dict(zip(bound, given))
    axes = list(_given_names(bound, given))
    names: dict[str, str] = {}
    if len(axes) != len(model.graph.inputs):
        return
    for v, dims in zip(model.graph.inputs, axes):
        for k, name in dims.items():
            symbol = getattr(v.shape[k], "value", None)
            if isinstance(symbol, str) and symbol.isidentifier():
                names[symbol] = name
    _rename(model, names)
