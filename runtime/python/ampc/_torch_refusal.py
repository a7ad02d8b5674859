# SPDX-License-Identifier: Apache-2.0
"""What ampc.torch.export refuses, with the user's line of Python."""
from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any, Iterator, Sequence

import torch

from . import _torch_functions as functions
from . import _torch_undone as undone
from ._c import Error, Status


def line(trace: str | None) -> str:
    """The user's last line in a stack trace, "net.py, line 7: y = f(x)"."""
    found = re.findall(r'File "([^"]+)", line (\d+), in .*\n\s*(.*)',
                       trace or "")
    here = os.path.dirname(__file__)
    own = [f for f in found if f"{os.sep}torch{os.sep}" not in f[0] and
           not f[0].startswith((here, "<"))]
    if not (own or found):
        return "a line that torch does not tell"
    file, number, text = (own or found)[-1]
    return f"{os.path.basename(file)}, line {number}: {text.strip()}"


def refuse(problems: Sequence[str]) -> None:
    if problems:
        raise Error(Status.UNSUPPORTED, "the module cannot be exported:\n" +
                    "\n".join(f"  {p}" for p in dict.fromkeys(problems)))


# ---- the program ------------------------------------------------------------

def graphs(graph_module: Any) -> list[Any]:
    """Its graph, and those of cond and while_loop inside."""
    return [m.graph for m in graph_module.modules()
            if isinstance(m, torch.fx.GraphModule)]


def graph_nodes(graph_module: Any) -> list[Any]:
    return [n for graph in graphs(graph_module) for n in graph.nodes]


# ---- what does not fit ------------------------------------------------------

def unfit_modules(module: Any) -> list[str]:
    found = [f"{name} ({type(m).__name__}): a hook changes its backward, which "
             "the file does not have" for name, m in module.named_modules()
             if m._backward_hooks or m._backward_pre_hooks]
    found += [f"{name}: a hook changes its gradient, which the file does not "
              "have" for name, p in module.named_parameters()
              if p._backward_hooks]
    return found


def decided(program: Any) -> bool:
    """Whether draft_export took a number out of the example's data."""
    report = getattr(program, "_report", None)
    return report is not None and any(
        f.failure_type.name == "DATA_DEPENDENT_ERROR" for f in report.failures)


def unfit_program(program: Any) -> list[str]:
    """What torch.onnx would write as something else."""
    found, signature = [], program.graph_signature
    for node in graph_nodes(program.graph_module):
        buffer = signature.inputs_to_buffers.get(node.name)
        value = node.meta.get("val")
        if buffer and value is not None and not value.is_floating_point():
            found += [f"{line(u.meta.get('stack_trace'))}: reads the integer "
                      f"buffer {buffer}, which forward changes; the file would "
                      "keep its first value: make it a float"
                      for u in _readers(node)]
    return found


def _readers(buffer: Any) -> list[Any]:
    """What reads a buffer that forward changes, but for the change itself."""
    states, readers = [buffer], []
    for state in states:
        for user in state.users:
            op = user.target
            if isinstance(op, torch._ops.OpOverload) and \
                    op._schema.is_mutable and user.args[0] is state:
                states.append(user)
            else:
                readers.append(user)
    return [r for r in readers if len(states) > 1 and r not in states and
            not (r.users and all(u in states for u in r.users))]


@contextlib.contextmanager
def hooks() -> Iterator[list[str]]:
    """Hooks that forward gives to tensors, which the file does not have, and calls
    for gradients that cannot be followed."""
    found: list[str] = []
    register = torch.Tensor.register_hook

    def record(tensor: Any, hook: Any) -> Any:
        found.append(f"{line(functions.trace())}: a hook changes a gradient, "
                     "which the file does not have")
        return register(tensor, hook) if tensor.requires_grad else None

    def backward(*_: Any, **__: Any) -> Any:
        found.append(f"{line(functions.trace())}: backward is not exported: call "
                     "torch.autograd.grad(outputs, inputs, create_graph=True)")
        raise NotImplementedError(found[-1])

    with undone.replaced((torch.Tensor, "register_hook", record),
                         (torch.Tensor, "backward", backward)):
        yield found


@contextlib.contextmanager
def forgotten() -> Iterator[list[str]]:
    """Calls of no_grad() inside of autocast(), which torch.export drops: gradients pass
    what they compute (findings/torch_export_no_grad_in_autocast.sh)."""
    found: list[str] = []
    mode: Any = torch.no_grad
    enter, here = mode.__enter__, os.path.dirname(__file__)

    def begin(self: Any) -> Any:
        cast = any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
        caller = sys._getframe(1).f_code.co_filename
        if cast and torch.is_grad_enabled() and not caller.startswith(here):
            found.append(f"{line(functions.trace())}: torch.export drops no_grad() inside "
                         "of autocast(), so gradients pass: put no_grad() around autocast(), "
                         "or detach() what it computes")
        return enter(self)

    with undone.replaced((mode, "__enter__", begin)):
        yield found
