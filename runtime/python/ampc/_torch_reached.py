# SPDX-License-Identifier: Apache-2.0
"""Parameters of a program that a gradient reaches."""
from __future__ import annotations

from typing import Any, Iterator, Sequence

import torch

# Results that have nothing but the shape of an operand.
_SHAPED = {f"{what}_like" for what in ("ones", "zeros", "full", "empty", "rand",
                                       "randn", "randint")} | {
    f"new_{what}" for what in ("ones", "zeros", "full", "empty")}


def has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (
        value.is_floating_point() or value.is_complex())


def result_has_gradient(node: Any) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or has_gradient(value)


def shared(node: Any) -> Iterator[tuple[Any, bool]]:
    """Operands whose memory a node's results may have, or writes to; whether it
    writes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        yield from ((n, False) for n in node.all_input_nodes)
        return
    for k, argument in enumerate(node.target._schema.arguments):
        given = node.args[k] if k < len(node.args) else \
            node.kwargs.get(argument.name)
        if argument.alias_info is not None:
            for n in given if isinstance(given, (list, tuple)) else (given,):
                if isinstance(n, torch.fx.Node):
                    yield n, argument.alias_info.is_write


class _Memory:
    """Which nodes of a graph write to the memory of which others: y[:, 0] = p writes
    to a view whose result nobody reads."""

    def __init__(self, graph: Any) -> None:
        self._parent: dict[Any, Any] = {}
        writes = []
        for node in graph.nodes:
            for operand, written in shared(node):
                self._parent[self._first(operand)] = self._first(node)
                writes += [node] if written else []
        self._writes: dict[Any, list[Any]] = {}
        for node in writes:
            self._writes.setdefault(self._first(node), []).append(node)

    def _first(self, node: Any) -> Any:
        while self._parent.get(node, node) is not node:
            node = self._parent[node]
        return node

    def writes(self, node: Any) -> list[Any]:
        return self._writes.get(self._first(node), [])


def _writers(program: Any) -> list[Any]:
    """Operators that write to a parameter, or to anything under no_grad()."""
    memory = _Memory(program.graph)
    names = program.graph_signature.inputs_to_parameters
    return [n for m in program.graph_module.modules()
            if isinstance(m, torch.fx.GraphModule) and m.graph is not program.graph
            for n in m.graph.nodes if any(w for _, w in shared(n))] + [
        w for n in program.graph.nodes if n.name in names for w in memory.writes(n)]


def _versions(program: Any, target: str) -> list[Any]:
    """Nodes of the values of a parameter that forward writes, the last one first.
    Their gradient is that of the parameter."""
    found: list[Any] = []
    node_of = {n.name: n for n in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        if spec.kind.name == "PARAMETER_MUTATION" and spec.target == target:
            node = node_of[spec.arg.name]
            while isinstance(node, torch.fx.Node):
                found.append(node)
                node = node.args[0] if node.args else None
    return found


def _reached(program: Any) -> set[Any]:
    """Nodes from which a gradient reaches an output, and those that stop it."""
    hop, signature = torch.ops.higher_order, program.graph_signature
    results, seen = set(signature.user_outputs), set()
    shaped = {getattr(torch.ops.aten, name) for name in _SHAPED}
    memory = _Memory(program.graph)
    todo = [n for n in program.graph.nodes if n.name in results]
    while todo:
        node = todo.pop()
        value = node.meta.get("val")
        if node in seen or isinstance(value, (torch.SymInt, int)) or (
                isinstance(value, torch.Tensor) and not has_gradient(value)):
            continue
        seen.add(node)
        todo.extend(memory.writes(node))
        stops = node.target is torch.ops.aten.detach.default or (
            node.target is hop.wrap_with_set_grad_enabled and not node.args[0]
        ) or getattr(node.target, "overloadpacket", None) in shaped
        todo.extend(() if stops else node.all_input_nodes)
    return seen


def parameters(program: Any, frozen: Sequence[str]) -> tuple[list[str], list[Any]]:
    """Names of parameters that no gradient reaches from any output, whose grad is None
    in PyTorch; and (name, node that writes it) of those that forward writes and that
    train as well, unless they are frozen."""
    writers = _writers(program)
    if writers:  # their values as results
        program = program.run_decompositions({})
    seen = _reached(program)
    detach = torch.ops.aten.detach.default
    unreached, written = [], []
    for name, target in program.graph_signature.inputs_to_parameters.items():
        node = next((n for n in program.graph.nodes if n.name == name), None)
        values = _versions(program, target)
        reached = any(v in seen or any(u in seen and u.target is detach for u in v.users)
                      for v in values)
        if node is not None and node.users and not reached and node not in seen:
            unreached.append(target)
        if values and reached and target not in frozen:
            own = [w for w in writers if name in [n.name for n in w.all_input_nodes]]
            written.append((target, (own or values)[0]))
    return unreached, written
