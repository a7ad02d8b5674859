# SPDX-License-Identifier: Apache-2.0
"""Writes that a gradient passes in PyTorch and not in a program of torch.export: under
no_grad() or through .data the value that was there has a gradient, what is written has
none."""
from __future__ import annotations

import operator
from typing import Any, Sequence

import torch

from . import _torch_reached as reached


class _Storage:
    """The memory of a tensor and its views; whether its values have a gradient."""

    def __init__(self, trains: bool = False, parameter: bool = False) -> None:
        self.trains, self.parameter = trains, parameter


_State = tuple[_Storage, bool]  # and whether a detach lies before this view


def _is_detach(node: Any) -> bool:
    return node.target is torch.ops.aten.detach.default


def _viewed(node: Any) -> Any:
    """The operand whose memory a node's result has."""
    if node.target is operator.getitem or _is_detach(node):
        return node.args[0]
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    for operand, _ in reached.shared(node):
        value, of = node.meta.get("val"), operand.meta.get("val")
        if getattr(value, "dtype", None) == getattr(of, "dtype", None) or \
                not isinstance(value, torch.Tensor):
            return operand
    return None


class _Walk:
    """Of a graph in the order of its operators."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def graph(self, graph: Any, given: Sequence[_State], stopped: bool) -> list[Any]:
        """The states of its results."""
        states: dict[Any, Any] = {}
        inputs = iter(given)
        for node in graph.nodes:
            if node.op == "placeholder":
                states[node] = next(inputs, (_Storage(), False))
            elif node.op == "output":
                return [states.get(n, (_Storage(), False)) for n in node.args[0]]
            else:
                states[node] = self._state(node, states, stopped)
        return []

    def _state(self, node: Any, states: dict[Any, Any], stopped: bool) -> Any:
        hop = torch.ops.higher_order
        if node.target in (hop.wrap_with_set_grad_enabled, hop.wrap_with_autocast):
            at = next(k for k, a in enumerate(node.args)
                      if getattr(a, "op", None) == "get_attr")
            inner = getattr(node.graph.owning_module, node.args[at].target)
            if node.target is hop.wrap_with_set_grad_enabled:
                stopped = not node.args[0]
            return self.graph(inner.graph, [states.get(a, (_Storage(), False))
                                            for a in node.args[at + 1:]], stopped)
        of = _viewed(node)
        if node.target is operator.getitem and isinstance(states.get(of), list):
            return states[of][node.args[1]]
        trains = not stopped and not _is_detach(node) and any(
            state[0].trains and not state[1] for n in node.all_input_nodes
            for state in (states[n] if isinstance(states[n], list) else [states[n]]))
        for operand, writes in reached.shared(node):
            if writes and isinstance(states[operand], tuple):
                self._write(node, states[operand], trains, stopped)
        if of is None or isinstance(states[of], list):
            return _Storage(trains and reached.result_has_gradient(node)), False
        storage, cut = states[of]
        written = any(w for _, w in reached.shared(node))
        return storage, cut or _is_detach(node) or (stopped and not written)

    def _write(self, node: Any, state: _State, trains: bool, stopped: bool) -> None:
        storage, cut = state
        if storage.trains and (cut or stopped):
            self.found += [] if storage.parameter else [node]
        elif trains:
            storage.trains = True


def lost(program: Any, frozen: Sequence[str]) -> list[Any]:
    """Operators that write to a tensor, not a parameter, whose gradient passes them."""
    names, walk = program.graph_signature.inputs_to_parameters, _Walk()
    inputs = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    given = [(_Storage(n in names and names[n] not in frozen, n in names), False)
             for n in inputs]
    walk.graph(program.graph, given, False)
    return walk.found
