# SPDX-License-Identifier: Apache-2.0
"""ampc.torch.export: an ONNX file of a torch module from which it trains as in
PyTorch.  Needs torch 2.9 or newer, onnx and onnxscript.

The file is an ordinary one of torch.onnx.export(dynamo=True, optimize=False).
Before it is written, the exported program is changed where that exporter loses
what training needs: _prepare says what.  _torch_functions.py has autograd
Functions and operators that become several others, _torch_ops.py operators that
become one of domain ampc.  _torch_losses.py is for what torch.onnx fails at.
"""
from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import logging
import os
import re
import warnings
from typing import Any, Iterator, Mapping, Sequence

import torch
import torch.utils._pytree as pytree

from . import _torch_bodies as bodies
from . import _torch_functions as functions
from . import _torch_losses as losses
from . import _torch_ops as ops
from ._c import Error, Status
from ._checks import Path

# Key of the file's metadata: modes and gradients are those of the module.
MARK = "ampc.torch.export"


def _line(trace: str | None) -> str:
    """The user's last line in a stack trace, "net.py, line 7: y = f(x)"."""
    found = re.findall(r'File "([^"]+)", line (\d+), in .*\n\s*(.*)',
                       trace or "")
    here = os.path.dirname(__file__)
    own = [f for f in found if f"{os.sep}torch{os.sep}" not in f[0] and
           not f[0].startswith(here)]
    if not (own or found):
        return "a line that torch does not tell"
    file, number, text = (own or found)[-1]
    return f"{os.path.basename(file)}, line {number}: {text.strip()}"


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise Error(Status.UNSUPPORTED, "the module cannot be exported:\n" +
                    "\n".join(f"  {p}" for p in dict.fromkeys(problems)))


# ---- shapes -----------------------------------------------------------------

def _tensors(tree: Any) -> list[Any]:
    leaves: list[Any] = pytree.tree_leaves(tree)
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def _batched(args: Any, kwargs: Any) -> tuple[Any, Any, bool]:
    """Arguments with a batch of at least 2, which torch takes for any number;
    whether they have a common batch."""
    sizes = {x.shape[0] if x.dim() else -1 for x in _tensors((args, kwargs))}
    if sizes == {1}:
        args, kwargs = pytree.tree_map(
            lambda x: torch.cat([x, x]) if isinstance(x, torch.Tensor) else x,
            (args, kwargs))
    return args, kwargs, len(sizes) == 1 and -1 not in sizes


def _shapes(module: Any, args: Any, kwargs: Any, batch: Any) -> Any:
    """dynamic_shapes by the names of forward's parameters."""
    names = list(inspect.signature(module.forward).parameters)
    return pytree.tree_map(
        lambda x: {0: batch} if isinstance(x, torch.Tensor) else None,
        {**dict(zip(names, args)), **kwargs})


def _capture(module: Any, args: Any, kwargs: Any, any_batch: bool,
             given: Any) -> Any:
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
    state = [(b, b.detach().clone()) for b in module.buffers()]
    first: Exception | None = None
    for export, shape, options in tries:
        try:  # torch marks dynamic axes at the tensors themselves
            a, k = pytree.tree_map(
                lambda x: x.detach().clone() if isinstance(x, torch.Tensor)
                else x, (args, kwargs))
            with ops.Captured(), _reporting():
                program = export(module, a, k, dynamic_shapes=shape, **options)
        except Exception as e:  # torch has many kinds of them
            first = first or e
            for buffer, value in state:
                buffer.data.copy_(value)
            continue
        if _decided(program):
            _refuse([f"{_line(str(first))}: depends on the values of a tensor; "
                     "the file would keep what follows from the example's "
                     "(torch.cond keeps both branches)"])
        return program
    assert first is not None
    raise first


def _name_batch(model: Any) -> None:
    """The symbol of axis 0 is called batch; a warning where it is a number."""
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


def _rename(model: Any, names: Mapping[str, str]) -> None:
    """Gives symbols of shapes other names, in expressions, too."""
    for v in [*model.graph.inputs, *(y for n in model.graph
                                     for y in n.outputs)]:
        for k, d in enumerate(v.shape or ()):
            symbol = getattr(d, "value", None)
            if isinstance(symbol, str):
                v.shape[k] = re.sub(r"\w+", lambda m: names.get(m[0], m[0]),
                                    symbol)


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


def _name_dims(model: Any, module: Any, args: Any, kwargs: Any,
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


# ---- what torch.onnx.export loses -------------------------------------------

def _paths(module: Any) -> dict[int, tuple[str, bool]]:
    """{address of a parameter's data: (its path, requires_grad)}, also of those
    in dicts, lists and modules that are not registered."""
    found: dict[int, tuple[str, bool]] = {}
    seen: set[int] = set()

    def walk(x: Any, path: str) -> None:
        if id(x) in seen:
            return
        seen.add(id(x))
        items: Iterator[tuple[Any, Any]] = iter(())
        if isinstance(x, torch.nn.Parameter):
            found.setdefault(x.data_ptr(), (path, x.requires_grad))
        elif isinstance(x, torch.nn.Module):
            items = itertools.chain(
                x.named_parameters(recurse=False), x.named_children(),
                ((k, v) for k, v in vars(x).items() if not k.startswith("_")))
        elif isinstance(x, Mapping):
            items = iter(x.items())
        elif isinstance(x, (list, tuple)):
            items = enumerate(x)
        for key, value in items:
            walk(value, f"{path}.{key}" if path else str(key))

    walk(module, "")
    return found


def _name_parameters(program: Any, module: Any) -> list[str]:
    """Parameters outside of modules' own get their names and are parameters.
    Names of those that do not train (requires_grad False)."""
    kinds = torch.export.graph_signature.InputKind
    paths, frozen = _paths(module), []
    for spec in program.graph_signature.input_specs:
        if spec.kind == kinds.CONSTANT_TENSOR:
            value = program.constants[spec.target]
            path, _ = paths.get(value.data_ptr(), ("", True))
            if not path or path in program.state_dict:
                continue
            del program.constants[spec.target]
            program.state_dict[path] = torch.nn.Parameter(value.detach())
            spec.kind, spec.target = kinds.PARAMETER, path
        if spec.kind == kinds.PARAMETER:
            at = program.state_dict[spec.target].data_ptr()
            if not paths.get(at, ("", True))[1]:
                frozen.append(spec.target)
    return frozen


def _graphs(graph_module: Any) -> list[Any]:
    """Its graph, and those of cond and while_loop inside."""
    return [m.graph for m in graph_module.modules()
            if isinstance(m, torch.fx.GraphModule)]


def _nodes(graph_module: Any) -> list[Any]:
    return [n for graph in _graphs(graph_module) for n in graph.nodes]


def _stop_without_grad(graph_module: Any) -> None:
    """What torch.no_grad() computed passes no gradient: a detach behind it says
    so in the file, where no_grad itself leaves nothing."""
    aten, hop = torch.ops.aten, torch.ops.higher_order
    for graph in _graphs(graph_module):
        for node in list(graph.nodes):
            if node.target is not hop.wrap_with_set_grad_enabled or \
                    node.args[0] is not False:
                continue
            for item in list(node.users):
                value = item.meta.get("val")
                if not isinstance(value, torch.Tensor) or \
                        not value.is_floating_point():
                    continue
                with graph.inserting_after(item):
                    stop = graph.call_function(aten.detach.default, (item,))
                stop.meta = {k: v for k, v in item.meta.items()
                             if k in ("val", "stack_trace", "nn_module_stack",
                                      "torch_fn")}
                item.replace_all_uses_with(
                    stop, delete_user_cb=lambda user, s=stop: user is not s)
    graph_module.recompile()


def _with(program: Any, table: Mapping[Any, Any]) -> Any:
    """The operators that the program has, by their formulas."""
    present = {n.target for n in _nodes(program.graph_module)}
    table = {op: f for op, f in table.items() if op in present}
    return program.run_decompositions(table) if table else program


def _prepare(program: Any) -> Any:
    _stop_without_grad(program.graph_module)
    return _with(program, functions.table())


def _registry() -> Any:
    """torch.onnx's translations."""
    from torch.onnx._internal.exporter import _registration
    return _registration.ONNXRegistry().from_torchlib(opset_version=18)


def _prepare_composites(program: Any) -> Any:
    """Also operators inside of those without a translation, which torch composes
    of others."""
    registry, ours = _registry(), functions.table()
    program = _with(program, losses.table())
    every = torch.export.default_decompositions()
    before: set[Any] = set()
    while True:
        strange = {n.target for n in _nodes(program.graph_module)
                   if isinstance(n.target, torch._ops.OpOverload) and
                   not registry.is_registered(n.target)}
        if strange <= before:
            return program
        before |= strange
        program = program.run_decompositions({
            **{op: every[op] for op in strange if op in every}, **ours})


# What torch.onnx.export writes beside each initializer.
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


@contextlib.contextmanager
def _with_momentum(module: Any) -> Iterator[dict[str, int]]:
    """{name of the running mean: number of batches} of every BatchNorm with
    momentum=None, which gets a number: torch computes 1 / count in Python, and
    ONNX has no such mean."""
    norm = torch.nn.modules.batchnorm._BatchNorm
    own = {name: m for name, m in module.named_modules()
           if isinstance(m, norm) and m.momentum is None and m.track_running_stats}
    counts = {f"{name}.running_mean" if name else "running_mean":
              int(m.num_batches_tracked) for name, m in own.items()}
    for m in own.values():
        m.momentum = 0.1
    try:
        yield counts
    finally:
        for m in own.values():
            m.momentum = None


# Marks a BatchNormalization whose running statistics are means over all batches,
# with the number of those before the first step.
_BATCHES = "ampc.batches"


def _mark_means(model: Any, counts: Mapping[str, int]) -> None:
    for node in model.graph:
        if node.op_type == "BatchNormalization" and \
                node.inputs[3].name in counts:
            node.metadata_props[_BATCHES] = str(counts[node.inputs[3].name])


def _freeze(model: Any, names: Sequence[str]) -> None:
    """Parameters that do not train are marked as what they are to the file:
    buffers."""
    for name in names:
        if name in model.graph.initializers:
            model.graph.initializers[name].metadata_props[_KIND] = "BUFFER"


# ---- what cannot be exported ------------------------------------------------

def _unfit_modules(module: Any) -> list[str]:
    found = [f"{name} ({type(m).__name__}): a hook changes its backward, which "
             "the file does not have" for name, m in module.named_modules()
             if m._backward_hooks or m._backward_pre_hooks]
    found += [f"{name}: a hook changes its gradient, which the file does not "
              "have" for name, p in module.named_parameters()
              if p._backward_hooks]
    return found


def _decided(program: Any) -> bool:
    """Whether draft_export took a number out of the example's data."""
    report = getattr(program, "_report", None)
    return report is not None and any(
        f.failure_type.name == "DATA_DEPENDENT_ERROR" for f in report.failures)


def _unfit_program(program: Any) -> list[str]:
    """What torch.onnx would write as something else."""
    found, signature = [], program.graph_signature
    for node in _nodes(program.graph_module):
        if node.target is torch.ops.aten.embedding_bag.padding_idx and \
                node.args[3]:
            found.append(f"{_line(node.meta.get('stack_trace'))}: "
                         "scale_grad_by_freq=True, which the file does not keep")
        buffer = signature.inputs_to_buffers.get(node.name)
        value = node.meta.get("val")
        if buffer and value is not None and not value.is_floating_point():
            found += [f"{_line(u.meta.get('stack_trace'))}: reads the integer "
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
def _hooks() -> Iterator[list[str]]:
    """Hooks that forward gives to tensors, which the file does not have."""
    found: list[str] = []
    register = torch.Tensor.register_hook

    def record(tensor: Any, hook: Any) -> Any:
        found.append(f"{_line(functions.trace())}: a hook changes a gradient, "
                     "which the file does not have")
        return register(tensor, hook) if tensor.requires_grad else None

    torch.Tensor.register_hook = record
    try:
        yield found
    finally:
        torch.Tensor.register_hook = register


def _untranslated(program: Any) -> list[str]:
    """Every operator that torch.onnx has no translation for, with its line."""
    try:
        from torch.onnx._internal.exporter import _core
        registry = _registry()
        done = _core._prepare_exported_program_for_export(
            _prepare_composites(_prepare(program)), registry=registry)
    except Exception:
        return []  # what fails here has a message of its own later
    found = []
    for node in _nodes(done.graph_module):
        if isinstance(node.target, torch._ops.OpOverload) and \
                not registry.is_registered(node.target):
            found.append(f"{_line(node.meta.get('stack_trace'))}: no "
                         f"translation of {node.target}")
    return found


def _updates(model: Any) -> list[Any]:
    """Floats that forward writes to buffers and parameters, but for statistics of
    BatchNormalization, whose node tells."""
    kind = "pkg.torch.export.graph_signature.OutputSpec.kind"
    return [y for n in model.graph if "batch_norm" not in
            n.metadata_props.get("pkg.torch.onnx.fx_node", "")
            for y in n.outputs
            if y.metadata_props.get(kind, "").endswith("_MUTATION")
            and y.dtype is not None and y.dtype.is_floating_point()]


@contextlib.contextmanager
def _keeping_updates(program: Any) -> Iterator[None]:
    """torch.onnx drops what forward writes to a buffer and does not read again."""
    written = set(program.graph_signature.buffers_to_mutate.values())
    from onnx_ir.passes.common import RemoveUnusedNodesPass as Remove
    call: Any = Remove.call

    def keep(self: Any, model: Any) -> Any:
        kept = [y for y in _updates(model) if y not in model.graph.outputs]
        before = dict(model.graph.initializers)
        model.graph.outputs.extend(kept)
        try:
            done = call(self, model)
        finally:
            for y in kept:
                model.graph.outputs.remove(y)
        for name, x in before.items():
            if name in written and x.dtype is not None and \
                    x.dtype.is_floating_point():
                model.graph.initializers[name] = x
        return done

    setattr(Remove, "call", keep)
    try:
        yield
    finally:
        setattr(Remove, "call", call)


def _rename_results(model: Any) -> None:
    """torch.onnx calls results by their operators, also where a buffer has that
    name: the results get others."""
    taken = {v.name for v in model.graph.inputs} | set(model.graph.initializers)
    for node in model.graph.all_nodes():
        for y in node.outputs:
            if y.name in taken:
                y.name = f"{y.name}.result"
                while y.name in taken:
                    y.name += "_"


def _translate(program: Any, module: Any, output_names: Sequence[str] | None,
               options: Mapping[str, Any]) -> Any:
    """torch's ONNXProgram."""
    names = output_names or _output_names(program)
    frozen = _name_parameters(program, module)
    prepared = _prepare(program)

    def write(p: Any) -> Any:
        with _keeping_updates(p):
            return torch.onnx.export(p, (), dynamo=True, optimize=False,
                                     verbose=False, output_names=names, **options)
    try:
        done: Any = write(prepared)
    except Exception as e:
        try:
            done = write(_prepare_composites(prepared))
        except Exception:
            raise e from None
    _freeze(done.model, frozen)
    return done


# ---- the whole --------------------------------------------------------------

def _output_names(program: Any) -> list[str] | None:
    """The keys of a dict that forward returns."""
    spec = program.call_spec.out_spec
    if spec.type is dict and len(spec.context) == spec.num_leaves:
        return [str(k) for k in spec.context]
    return None


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
def _promoting() -> Iterator[None]:
    """torch 2.11 fails at a parameter beside an integer (p * 2): it asks which
    overload runs, and takes another operator, prim.device, for the answer."""
    try:
        from torch.onnx._internal.fx.passes import type_promotion as module
        find = module.find_compatible_op_overload
    except (ImportError, AttributeError):  # another version
        yield
        return

    def resolve(op: Any, args: Any, kwargs: Any) -> Any:
        try:
            return find(op, args, kwargs)
        except AssertionError:
            name = torch._C._jit_resolve_packet(op._qualified_op_name, *args,
                                                **kwargs)
            return getattr(op, name)

    module.find_compatible_op_overload = resolve
    try:
        yield
    finally:
        module.find_compatible_op_overload = find


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
    problems = _unfit_modules(module)
    with _quiet(), _promoting(), _with_momentum(module) as counts:
        any_batch = False
        if dynamic_shapes is None:
            args, kwargs, any_batch = _batched(args, kwargs)
        with _hooks() as hooks:
            try:
                with functions.traced() as calls:
                    program = _capture(module, args, kwargs, any_batch,
                                       dynamic_shapes)
            except Exception:
                _refuse(problems + hooks)
                raise
            problems += functions.defects(calls, module, args, kwargs, _line)
        problems += hooks + _unfit_program(program)
        _refuse(problems and problems + _untranslated(program))
        options: dict[str, Any] = {"input_names": input_names}
        if opset_version is not None:
            options["opset_version"] = opset_version
        try:
            model = _translate(program, module, output_names, options)
        except Exception as e:
            _refuse(_untranslated(program))
            if not any_batch:
                raise
            try:  # some translations want numbers
                with functions.traced():
                    program = _capture(module, args, kwargs, False, None)
                model = _translate(program, module, output_names, options)
            except Exception:
                raise e from None
        if dynamic_shapes is None:
            _name_batch(model.model)
        else:
            _name_dims(model.model, module, args, kwargs, dynamic_shapes)
        _rename_results(model.model)
        _mark_means(model.model, counts)
        bodies.add_bodies(model.model)
        model.model.metadata_props[MARK] = "1"
        model.save(os.fspath(path), external_data=external_data)
