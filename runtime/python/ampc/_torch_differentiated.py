# SPDX-License-Identifier: Apache-2.0
"""Programs without torch.autograd.grad: in place of each call stand the operators of
the backward from its outputs to its inputs, which torch's own autograd gives for each
node.  The file has ordinary nodes, of which the compiler takes gradients again."""
from __future__ import annotations

import operator
from typing import Any, Callable, Sequence

import torch
import torch.utils._pytree as pytree

from . import _torch_grad as grad
from . import _torch_refusal as refusal
from . import _torch_written as written
from ._torch_backward import backward_table, plain

# ---- the backward of one node -----------------------------------------------

def _floats(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


class _Backward:
    """The operators of a node's backward, traced from its operands, constants of the
    program, and gradients of its results to gradients of the operands in `of`."""

    def __init__(self, node: Any, of: set[Any], dys: Sequence[Any]) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx
        leaves, self._spec = pytree.tree_flatten((node.args, node.kwargs))
        self._leaves = leaves
        self.operands = [k for k, a in enumerate(leaves)
                         if isinstance(a, torch.fx.Node)]
        self.wanted = [k for k in self.operands if leaves[k] in of]
        self._call: Callable[..., Any] = plain(node.target) or node.target
        self._at = [k for k, dy in enumerate(dys) if dy is not None]
        values = [self._value(k) for k in self.operands]
        table = {op: f for op, f in backward_table().items() if op is not node.target}
        given = [dys[k].meta["val"] for k in self._at]
        with torch._guards.detect_fake_mode([*values, *given]):
            self.graph = make_fx(lambda x, dy: self._run(x, dy),
                                 decomposition_table=table)(values, given).graph

    def _value(self, k: int) -> Any:
        value = self._leaves[k].meta["val"]
        return value.detach().requires_grad_(True) if k in self.wanted else value

    def _run(self, values: Sequence[Any], dys: Sequence[Any]) -> Any:
        leaves = list(self._leaves)
        for k, v in zip(self.operands, values):
            leaves[k] = v
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        with torch.enable_grad():
            out = self._call(*args, **kwargs)
            out = list(out) if isinstance(out, (tuple, list)) else [out]
            pairs = [(out[k], dy) for k, dy in zip(self._at, dys)
                     if out[k].requires_grad]
            wanted = [leaves[k] for k in self.wanted]
            if not pairs:
                return [None] * len(wanted)
            return torch.autograd.grad([y for y, _ in pairs], wanted,
                                       [dy for _, dy in pairs], allow_unused=True)


def _constant(graph: Any, node: Any) -> Any:
    """A number that torch's tracing made a tensor of the module."""
    value = getattr(node.graph.owning_module, node.target)
    if value.numel() != 1:
        raise NotImplementedError("a tensor that is no number")
    made = graph.call_function(torch.ops.aten.full.default,
                               (list(value.shape), value.item()),
                               {"dtype": value.dtype})
    made.meta["val"] = node.meta["val"]
    return made


_STOPS = (torch.ops.aten.detach.default,)


def _copied(graph: Any, backward: Any, node: Any, inputs: Sequence[Any]) -> list[Any]:
    """The traced operators in the program; the first that is `node` is the program's
    own, also where it draws numbers."""
    at: dict[Any, Any] = {}
    given = iter(inputs)
    for n in backward.graph.nodes:
        if n.op == "placeholder":
            at[n] = next(given)
        elif n.op == "get_attr":
            at[n] = _constant(graph, n)
        elif n.op == "output":
            return [None if g is None else at[g] for g in n.args[0]]
        elif n.target in _STOPS:  # what a backward has saved
            at[n] = at[n.args[0]]
        else:
            args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda a: at[a])
            if n.target is node.target and args == node.args:
                at[n] = node
                continue
            at[n] = graph.call_function(n.target, args, kwargs)
            at[n].meta = {"val": n.meta.get("val"),
                          "stack_trace": node.meta.get("stack_trace")}
    raise AssertionError("a graph has an output")


# ---- from outputs to inputs -------------------------------------------------

def _between(ys: Sequence[Any], xs: Sequence[Any]) -> set[Any]:
    """The nodes on paths from xs to ys, both included."""
    after, before = set(xs), set()
    todo = list(xs)
    while todo:
        for user in todo.pop().users:
            if user not in after:
                after.add(user)
                todo.append(user)
    todo = [y for y in ys if y in after]
    while todo:
        n = todo.pop()
        if n in before:
            continue
        before.add(n)
        todo.extend(a for a in n.all_input_nodes if a in after)
    return before


class _Gradients:
    """Of the nodes of a graph, added up as they are found."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._of: dict[Any, Any] = {}

    def add(self, node: Any, dy: Any) -> None:
        if node in self._of:
            both = self._graph.call_function(torch.ops.aten.add.Tensor,
                                             (self._of[node], dy))
            both.meta = dict(dy.meta)
            dy = both
        self._of[node] = dy

    def get(self, node: Any) -> Any:
        return self._of.get(node)

    def of_results(self, node: Any) -> list[Any]:
        """None: no gradient comes to that result."""
        value = node.meta.get("val")
        if not isinstance(value, (tuple, list)):
            return [self.get(node)]
        found: list[Any] = [None] * len(value)
        for user in node.users:
            if user.target is operator.getitem and self.get(user) is not None:
                found[user.args[1]] = self.get(user)
        return found


def _line(node: Any) -> str:
    return refusal.line(node.meta.get("stack_trace"))


def _passes(node: Any) -> bool:
    """False where torch's autograd stops."""
    hop = torch.ops.higher_order
    stops = node.target in _STOPS or (
        node.target is hop.wrap_with_set_grad_enabled and node.args[0] is False)
    return node.op == "call_function" and not stops and \
        node.target is not operator.getitem


def _are_real(path: Sequence[Any]) -> None:
    for n in path:
        value = n.meta.get("val")
        if isinstance(value, torch.Tensor) and value.is_complex():
            raise NotImplementedError("complex numbers on the way from its inputs to "
                                      f"its outputs ({_line(n)})")


def _differentiate(graph: Any, call: Any) -> None:
    """The gradients of one call, in its place."""
    ys, xs, dys, again, zeros = call.args
    path = _between(ys, xs)
    order = [n for n in graph.nodes if n in path]
    _are_real(order)
    of = {n for n in path if _floats(n.meta.get("val"))}
    found = _Gradients(graph)
    with graph.inserting_before(call):
        for y, dy in zip(ys, dys):
            if y in path:
                found.add(y, dy)
        for node in reversed(order):
            dy = found.of_results(node)
            if not _passes(node) or all(g is None for g in dy):
                continue
            leaves = pytree.tree_leaves((node.args, node.kwargs))
            if not any(a in of for a in leaves if isinstance(a, torch.fx.Node)):
                continue
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                raise NotImplementedError(
                    f"a branch or a loop on the way ({_line(node)})")
            backward = _Backward(node, of, dy)
            inputs = [leaves[k] for k in backward.operands] + \
                [g for g in dy if g is not None]
            grads = _copied(graph, backward, node, inputs)
            for k, g in zip(backward.wanted, grads):
                if g is not None:
                    found.add(leaves[k], g)
        for item in list(call.users):
            x = xs[item.args[1]]
            dx = found.get(x)
            if dx is None and zeros:
                dx = graph.call_function(torch.ops.aten.zeros_like.default, (x,))
                dx.meta = dict(item.meta)
            if dx is None:
                raise RuntimeError("the outputs do not depend on an input: leave it "
                                   "out, or materialize_grads=True gives zeros")
            if not again:
                stopped = graph.call_function(torch.ops.aten.detach.default, (dx,))
                stopped.meta = dict(dx.meta)
                dx = stopped
            item.replace_all_uses_with(dx)
            graph.erase_node(item)
    graph.erase_node(call)


def _any_strides(graph: Any) -> None:
    """A view says how its operand lies in memory, which a backward changes."""
    aten = torch.ops.aten
    for node in graph.nodes:
        if node.target is aten.view.default:
            node.target = aten.reshape.default


def _calls(program: Any) -> list[Any]:
    return [n for n in refusal.graph_nodes(program.graph_module)
            if n.target is grad.operator()]


def expand(program: Any) -> Any:
    """The program without calls of torch.autograd.grad."""
    if not _calls(program):
        return program
    written.stop_without_grad(program.graph_module)  # which the next line forgets
    program = program.run_decompositions({})  # nothing writes to its operands
    graph = program.graph_module.graph
    refusal.refuse([f"{_line(n)}: torch.autograd.grad in a branch or a loop"
                    for n in _calls(program) if n.graph is not graph])
    for node in _calls(program):
        line = _line(node)
        try:  # an LSTM in its steps, not as a routine of the processor's library
            with torch.backends.mkldnn.flags(enabled=False):
                _any_strides(graph)
                _differentiate(graph, node)
        except Exception as e:  # torch has many kinds of them
            refusal.refuse([f"{line}: torch.autograd.grad: {e}"])
    _any_strides(graph)
    graph.eliminate_dead_code()
    graph.lint()
    program.graph_module.recompile()
    return program
