# SPDX-License-Identifier: Apache-2.0
"""ampc.torch.export: an ONNX file of a torch module from which it trains as in
PyTorch.  Needs torch 2.9 or newer, onnx and onnxscript.

The file is an ordinary one of torch.onnx.export(dynamo=True, optimize=False).
_torch_captured.py makes the program, _torch_refusal.py says what cannot be
exported, _torch_differentiated.py has gradients that forward takes, and
_torch_written.py changes the program where that exporter loses what
training needs, _torch_reached.py tells which parameters train, _torch_passed.py
which writes a gradient would pass.
_torch_functions.py has autograd Functions and operators that become several
others, _torch_ops.py operators that become one of domain ampc.
_torch_losses.py is for what torch.onnx fails at, _torch_bodies.py for other
runtimes.
"""
from __future__ import annotations

import contextlib
import inspect
import logging
import os
import warnings
from typing import Any, Iterator, Mapping, Sequence

import torch
import torch.utils._pytree as pytree

from . import _torch_bodies as bodies
from . import _torch_captured as captured
from . import _torch_differentiated as differentiated
from . import _torch_functions as functions
from . import _torch_grad as grad
from . import _torch_refusal as refusal
from . import _torch_written as written
from ._c import Error
from ._checks import Path

# Key of the file's metadata: modes and gradients are those of the module.
MARK = "ampc.torch.export"


def _examples(module: Any, args: Any,
              kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments of forward, arrays as tensors."""
    if isinstance(args, Mapping):
        args, kwargs = (), {**args, **kwargs}
    if not isinstance(args, (tuple, list)):
        args = args,
    args, named = pytree.tree_map(
        lambda x: torch.as_tensor(x) if hasattr(x, "__array__") else x,
        (tuple(args), dict(kwargs)))
    try:
        inspect.signature(module.forward).bind(*args, **named)
    except TypeError as e:
        raise TypeError(f"args are example inputs of forward: {e}") from None
    return args, named


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's hints are for inference."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(torch|onnxscript)\b")
            warnings.filterwarnings("ignore", message="Exporting a model while")
            yield
    finally:
        logging.disable(level)


def export(module: Any, args: Any, path: Path, *,
           kwargs: Mapping[str, Any] | None = None,
           input_names: Sequence[str] | None = None,
           output_names: Sequence[str] | None = None,
           dynamic_shapes: Any = None, opset_version: int | None = None,
           external_data: bool = False) -> None:
    """Writes `module`, in the mode that it is in, as an ONNX file.

    module         a torch.nn.Module; .train() for dropout and for the batch's
                   statistics, module by module
    args, kwargs   example inputs of its forward: a tensor, a tuple of them, or
                   a dict by the names of its parameters
    input_names    by default those of forward's parameters
    output_names   by default the keys of a dict, else torch's
    dynamic_shapes as of torch.export.export; by default axis 0 of all inputs
                   is "batch" if they agree in it and the module allows it
    external_data  weights in a file beside PATH, above 2 GiB

    The file keeps what training needs: names of parameters, also of those in
    dicts, lists and unregistered modules; requires_grad; weight sharing; the
    mode of each BatchNorm and dropout; updates of buffers; detach and no_grad;
    the backward of autograd Functions that is linear in its gradient.

    ampc.Error names all that cannot be exported at once, with its line of
    Python."""
    module = getattr(module, "_orig_mod", module)  # torch.compile's
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("a ScriptModule is not exported: give the "
                        "torch.nn.Module that it was made from")
    args, kwargs = _examples(module, args, kwargs or {})
    problems = refusal.unfit_modules(module)
    with _quiet(), written.promoting(), written.with_momentum(module) as counts:
        any_batch = False
        if dynamic_shapes is None:
            args, kwargs, any_batch = captured.batched(args, kwargs)
        calls: list[Any] = []
        with refusal.hooks() as hooks, refusal.forgotten() as lost:
            try:
                with functions.traced(calls):
                    program = captured.capture(module, args, kwargs, any_batch,
                                               dynamic_shapes)
            except Exception:
                refusal.refuse(problems + hooks)
                refusal.refuse(functions.defects(calls, module, args, kwargs,
                                                 refusal.line, False))
                raise
            problems += functions.defects(calls, module, args, kwargs, refusal.line,
                                          grad.again(program.graph_module))
        try:
            program = differentiated.expand(program)
        except Error:
            refusal.refuse(problems + hooks)
            if not any_batch:
                raise
            any_batch = False
            with functions.traced([]):
                program = differentiated.expand(captured.capture(
                    module, args, kwargs, False, None))
        problems += hooks + refusal.unfit_program(program)
        refusal.refuse(problems and problems + written.untranslated(program))
        options: dict[str, Any] = {"input_names": input_names}
        if opset_version is not None:
            options["opset_version"] = opset_version
        try:
            model = written.translate(program, module, output_names, options)
        except Exception as e:
            refusal.refuse(written.untranslated(program))
            if not any_batch:
                raise
            try:  # some translations want numbers
                with functions.traced([]):
                    program = differentiated.expand(captured.capture(
                        module, args, kwargs, False, None))
                model = written.translate(program, module, output_names, options)
            except Exception:
                raise e from None
        if dynamic_shapes is None:
            captured.name_batch(model.model)
        else:
            captured.name_dims(model.model, module, args, kwargs, dynamic_shapes)
        written.rename_results(model.model)
        written.mark_means(model.model, counts)
        bodies.add_bodies(model.model)
        model.model.metadata_props[MARK] = "1"
        model.save(os.fspath(path), external_data=external_data)
    for text in dict.fromkeys(lost):
        warnings.warn(text, stacklevel=2)
