# SPDX-License-Identifier: Apache-2.0
"""The ONNX file of a captured program, with what torch.onnx.export would lose."""
from __future__ import annotations

import contextlib
import itertools
from typing import Any, Iterator, Mapping, Sequence

import torch

from . import _torch_functions as functions
from . import _torch_losses as losses
from . import _torch_ops as ops
from . import _torch_passed as passed
from . import _torch_reached as reached
from . import _torch_refusal as refusal
from . import _torch_undone as undone

# ---- the program ------------------------------------------------------------

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


def stop_without_grad(graph_module: Any) -> None:
    """What torch.no_grad() computed passes no gradient: a detach behind it says
    so in the file, where no_grad itself leaves nothing."""
    aten, hop = torch.ops.aten, torch.ops.higher_order
    for graph in refusal.graphs(graph_module):
        for node in list(graph.nodes):
            if node.target is not hop.wrap_with_set_grad_enabled or \
                    node.args[0] is not False:
                continue
            for item in list(node.users):
                if not reached.has_gradient(item.meta.get("val")):
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
    present = {n.target for n in refusal.graph_nodes(program.graph_module)}
    table = {op: f for op, f in table.items() if op in present}
    return program.run_decompositions(table) if table else program


def _without_guards(program: Any) -> None:
    """Checks of inputs, which name those of **rest by what the program lacks."""
    program._guards_code = []
    for node in list(program.graph_module.graph.nodes):
        if node.target == "_guards_fn" and not node.users:
            program.graph_module.graph.erase_node(node)
    program.graph_module.recompile()


def _is_projected(node: Any) -> bool:
    """Of an LSTM with proj_size, which ONNX lacks: c and h have different sizes."""
    value = node.meta.get("val")
    return node.target is torch.ops.aten.lstm.input and \
        value[1].shape[-1] != value[2].shape[-1]


def _prepare(program: Any) -> Any:
    _without_guards(program)
    stop_without_grad(program.graph_module)
    table = functions.table()
    if any(map(_is_projected, refusal.graph_nodes(program.graph_module))):
        lstm = torch.ops.aten.lstm.input
        table[lstm] = torch.export.default_decompositions()[lstm]
    return _with(program, table)


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
        strange = {n.target for n in refusal.graph_nodes(program.graph_module)
                   if isinstance(n.target, torch._ops.OpOverload) and
                   not registry.is_registered(n.target)}
        if strange <= before:
            return program
        before |= strange
        program = program.run_decompositions({
            **{op: every[op] for op in strange if op in every}, **ours})


# ---- running statistics -----------------------------------------------------

@contextlib.contextmanager
def with_momentum(module: Any) -> Iterator[dict[str, int]]:
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


def mark_means(model: Any, counts: Mapping[str, int]) -> None:
    for node in model.graph:
        if node.op_type == "BatchNormalization" and \
                node.inputs[3].name in counts:
            node.metadata_props[_BATCHES] = str(counts[node.inputs[3].name])


# ---- what torch.onnx loses --------------------------------------------------

# What torch.onnx.export writes beside each initializer.
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


def _freeze(model: Any, names: Sequence[str]) -> None:
    """Parameters that do not train are marked as what they are to the file:
    buffers."""
    for name in names:
        if name in model.graph.initializers:
            model.graph.initializers[name].metadata_props[_KIND] = "BUFFER"


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

    with undone.replaced((Remove, "call", keep)):
        yield


@contextlib.contextmanager
def promoting() -> Iterator[None]:
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


def rename_results(model: Any) -> None:
    """torch.onnx calls results by their operators, also where a buffer has that
    name: the results get others."""
    taken = {v.name for v in model.graph.inputs} | set(model.graph.initializers)
    for node in model.graph.all_nodes():
        for y in node.outputs:
            if y.name in taken:
                y.name = f"{y.name}.result"
                while y.name in taken:
                    y.name += "_"


# ---- the file ---------------------------------------------------------------

def _output_names(program: Any) -> list[str] | None:
    """The keys of a dict that forward returns."""
    spec = program.call_spec.out_spec
    if spec.type is dict and len(spec.context) == spec.num_leaves:
        return [str(k) for k in spec.context]
    return None


def translate(program: Any, module: Any, output_names: Sequence[str] | None,
              options: Mapping[str, Any]) -> Any:
    """torch's ONNXProgram."""
    names = output_names or _output_names(program)
    frozen = _name_parameters(program, module)
    prepared = _prepare(program)
    lost = passed.lost(prepared, frozen)
    unreached, changed = reached.parameters(prepared, frozen)
    frozen += unreached
    refusal.refuse([
        f"{refusal.line(node.meta.get('stack_trace'))}: writes the parameter {name}, "
        "which trains: compute another tensor from it for what follows (for max_norm "
        "from the rows), or set requires_grad = False" for name, node in changed] + [
        f"{refusal.line(node.meta.get('stack_trace'))}: writes a tensor under no_grad() or "
        "through .data, and its gradient passes what is written: write y = h + (new - "
        "h).detach() in its place" for node in lost])

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


def untranslated(program: Any) -> list[str]:
    """Every operator that torch.onnx has no translation for, with its line."""
    try:
        from torch.onnx._internal.exporter import _core
        registry = _registry()
        done = _core._prepare_exported_program_for_export(
            _prepare_composites(_prepare(program)), registry=registry)
    except Exception:
        return []  # what fails here has a message of its own later
    found = []
    for node in refusal.graph_nodes(done.graph_module):
        if isinstance(node.target, torch._ops.OpOverload) and \
                not registry.is_registered(node.target):
            found.append(f"{refusal.line(node.meta.get('stack_trace'))}: no "
                         f"translation of {node.target}")
    return found
