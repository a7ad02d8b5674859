#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ampc.torch.export refuses, and the words; the text of its functions: without
torch, over objects that have what it reads of torch's.

usage: torch_export_test.py     in the root of the sources"""
import contextlib
import operator
import os
import random
import re
import sys
import types
import unittest
import unittest.mock
from types import SimpleNamespace as Thing


class Tree(types.ModuleType):
    """torch.ops.aten.detach.default and the like: one object for each path."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        child = Tree(f"{self.__name__}.{name}")
        setattr(self, name, child)
        return child


class Tensor:
    requires_grad = True

    def __init__(self, floating=True):
        self.floating = floating
        self._backward_hooks = None

    def is_floating_point(self):
        return self.floating

    def is_complex(self):
        return self.floating is None

    def register_hook(self, hook):
        return hook

    def backward(self):
        pass


class Module:
    """A module with children and parameters by name."""
    training = True
    _backward_hooks = _backward_pre_hooks = ()

    def __init__(self, **parts):
        self.parts = parts

    def forward(self, x):
        return x

    def named_modules(self):
        yield "", self
        yield from ((k, v) for k, v in self.parts.items()
                    if isinstance(v, Module))

    def named_parameters(self):
        return ((k, v) for k, v in self.parts.items() if isinstance(v, Tensor))


class BatchNorm2d(Module):
    momentum, track_running_stats = 0.1, True


class ScriptModule(Module):
    pass


class OpOverload:
    """One that gives a view of its first operand, or writes to it."""

    def __init__(self, changes, views=False):
        alias = Thing(is_write=changes) if changes or views else None
        self._schema = Thing(is_mutable=changes, arguments=[
            Thing(name="self", alias_info=alias),
            Thing(name="other", alias_info=None)])


def tree_map(f, tree):
    if isinstance(tree, (tuple, list)):
        return type(tree)(tree_map(f, x) for x in tree)
    if isinstance(tree, dict):
        return {k: tree_map(f, x) for k, x in tree.items()}
    return f(tree)


def tree_leaves(tree):
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (tuple, list)):
        return [leaf for x in tree for leaf in tree_leaves(x)]
    return [tree]


torch = Tree("torch")
torch.Tensor = Tensor
torch.nn.Module = Module
torch.nn.modules.batchnorm._BatchNorm = BatchNorm2d
torch.jit.ScriptModule = ScriptModule
torch._ops.OpOverload = OpOverload
torch.SymInt = type("SymInt", (), {})
torch.fx.Node = Thing
torch.overrides.TorchFunctionMode = type("TorchFunctionMode", (), {})
torch.utils._pytree.tree_map = tree_map
torch.utils._pytree.tree_leaves = tree_leaves
sys.modules.update({"torch": torch, "torch.utils": torch.utils,
                    "torch.utils._pytree": torch.utils._pytree,
                    "torch._functorch": torch._functorch})
sys.path.insert(0, os.path.join(os.getcwd(), "runtime/python"))
sys.dont_write_bytecode = True
import ampc  # noqa: E402
import ampc.torch as exporter  # noqa: E402
from ampc import _torch_bodies as bodies  # noqa: E402
from ampc import _torch_body as body_of  # noqa: E402
from ampc import _torch_captured as captured  # noqa: E402
from ampc import _torch_differentiated as differentiated  # noqa: E402
from ampc import _torch_func as func  # noqa: E402
from ampc import _torch_functions as functions  # noqa: E402
from ampc import _torch_grad as grad  # noqa: E402
from ampc import _torch_ops as ops  # noqa: E402
from ampc import _torch_passed as passed  # noqa: E402
from ampc import _torch_reached as reached  # noqa: E402
from ampc import _torch_refusal as refusal  # noqa: E402
from ampc import _torch_undone as undone  # noqa: E402
from ampc import _torch_written as written  # noqa: E402

TRACE = '''  File "/usr/lib/python3/torch/nn/functional.py", line 9, in linear
    return f(x)
  File "/home/ann/net.py", line 7, in forward
    y = self.norm(x)
  File "/usr/lib/python3/torch/nn/modules/batchnorm.py", line 5, in forward
    return F.batch_norm(x)
'''


class Node(Thing):
    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


def node(target, *args, name="node", value=None, users=()):
    return Node(op="call_function", target=target, args=args, kwargs={}, name=name,
                all_input_nodes=[a for a in args if isinstance(a, Thing)],
                users=list(users), meta={"stack_trace": TRACE, "val": value})


class GraphModule:
    def __init__(self, nodes):
        self.graph = Thing(nodes=nodes)

    def modules(self):
        return [self]


torch.fx.GraphModule = GraphModule


def program(nodes, buffers=None):
    module = GraphModule(nodes)
    return Thing(graph=module.graph, graph_module=module,
                 graph_signature=Thing(inputs_to_buffers=buffers or {}))


class Refusals(unittest.TestCase):
    def refused(self, kind, text, call, *args, **kwargs):
        with self.assertRaises(kind) as e:
            call(*args, **kwargs)
        self.assertIn(text, str(e.exception))
        return str(e.exception)

    def test_all_at_once(self):
        e = self.refused(ampc.Error, "the module cannot be exported:\n  one\n"
                         "  two", refusal.refuse, ["one", "two", "one"])
        self.assertEqual(e.count("one"), 1)
        refusal.refuse([])

    def test_the_line_is_the_users(self):
        self.assertEqual(refusal.line(TRACE),
                         "net.py, line 7: y = self.norm(x)")
        self.assertEqual(refusal.line(None),
                         "a line that torch does not tell")

    def test_modules(self):
        hooked, weight = Module(), Tensor()
        hooked._backward_hooks = (print,)
        weight._backward_hooks = (print,)
        net = Module(hooked=hooked, weight=weight, other=Tensor())
        self.assertEqual(refusal.unfit_modules(net), [
            "hooked (Module): a hook changes its backward, which the file does "
            "not have",
            "weight: a hook changes its gradient, which the file does not have"])

    def test_means_over_all_batches(self):
        """A number stands in for momentum=None during the export alone."""
        lazy, other, plain = BatchNorm2d(), BatchNorm2d(), BatchNorm2d()
        lazy.momentum, lazy.num_batches_tracked = None, 3
        plain.momentum, plain.track_running_stats = None, False
        net = Module(lazy=lazy, other=other, plain=plain)
        with written.with_momentum(net) as counts:
            self.assertEqual(counts, {"lazy.running_mean": 3})
            self.assertIsNotNone(lazy.momentum)
        self.assertIsNone(lazy.momentum)
        self.assertEqual(other.momentum, 0.1)

    def test_arguments(self):
        self.refused(TypeError, "give the torch.nn.Module that it was made from",
                     exporter.export, ScriptModule(), (1,), "n.onnx")
        self.refused(TypeError, "args are example inputs of forward: too many",
                     exporter.export, Module(), (1, 2), "n.onnx")
        self.refused(TypeError, "forward: missing a required argument: 'x'",
                     exporter.export, Module(), {"image": 1}, "n.onnx")

    def test_integer_buffers(self):
        """One that forward changes and reads; a counter that is only changed."""
        def of(reads):
            buffer = node("placeholder", name="b_steps", value=Tensor(False))
            change = node(OpOverload(True), buffer)
            buffer.users = [change] + [node(OpOverload(False), buffer)] * reads
            return refusal.unfit_program(
                program([buffer], {"b_steps": "steps"}))
        self.assertEqual(of(0), [])
        self.assertEqual(of(1), [
            "net.py, line 7: y = self.norm(x): reads the integer buffer steps, "
            "which forward changes; the file would keep its first value: make "
            "it a float"])

    def test_hooks_of_forward(self):
        with refusal.hooks() as found:
            Tensor().register_hook(print)
        self.assertEqual(len(found), 1)
        self.assertIn("a hook changes a gradient, which the file does not have",
                      found[0])
        Tensor().register_hook(print)
        self.assertEqual(len(found), 1)

    def test_no_grad_inside_of_autocast(self):
        class Mode:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

        for cast in False, True:
            with unittest.mock.patch.multiple(
                    torch, create=True, no_grad=Mode, is_grad_enabled=lambda: True,
                    is_autocast_enabled=lambda kind, on=cast: on and kind == "cpu"):
                with refusal.forgotten() as found:
                    with torch.no_grad():
                        pass
                with torch.no_grad():
                    pass
            self.assertEqual(len(found), cast)
        self.assertIn("with torch.no_grad():: torch.export drops no_grad() inside of "
                      "autocast()", found[0])

    def test_gradients_of_forward(self):
        with refusal.hooks() as found:
            with self.assertRaises(NotImplementedError):
                Tensor().backward()
            self.assertIn("backward is not exported: call torch.autograd.grad",
                          found[-1])

    def test_what_depends_on_values(self):
        kind = Thing(name="DATA_DEPENDENT_ERROR")
        self.assertTrue(refusal.decided(Thing(_report=Thing(
            failures=[Thing(failure_type=kind)]))))
        self.assertFalse(refusal.decided(Thing(_report=Thing(failures=[]))))
        self.assertFalse(refusal.decided(Thing()))


class Gradients(unittest.TestCase):
    """torch.autograd.grad in forward."""

    def test_complex_numbers(self):
        real, other = (node(OpOverload(False), value=Tensor(kind))
                       for kind in (True, None))
        differentiated._are_real([real])
        with self.assertRaisesRegex(NotImplementedError, "complex numbers on the way "
                                    "from its inputs to its outputs .net.py, line 7"):
            differentiated._are_real([real, other])

    def test_gradients_that_are_none(self):
        """Of allow_unused=True, known when forward has run once; not of zeros."""
        x, call = Tensor(), grad.called
        x.numel = lambda: 1
        with unittest.mock.patch.object(torch, "ones_like", lambda y: y), \
                unittest.mock.patch.object(grad, "operator", lambda: lambda y, x, *_: x):
            with self.assertRaises(grad.Unknown):
                call(x, [x, x], allow_unused=True)
            with unittest.mock.patch.object(grad, "_nones", [[False, True]]):
                grad.restart()
                self.assertEqual(call(x, [x, x]), (x, x))
                self.assertEqual(call(x, [x, x], allow_unused=True), (x, None))
            self.assertEqual(call(x, [x, x], None, None, True, True, True, False, True),
                             (x, x))

    def test_the_run_that_finds_them_has_torchs_own_gradients(self):
        """Calls of torch.func, and zeros, are not among those that may be None."""
        transforms, seen = torch._functorch.eager_transforms, []
        mode = grad._Recorded()
        module = Thing(buffers=list, _parameters={}, _buffers={})
        module.modules = lambda: [module]

        def record(**kwargs):
            mode.__torch_function__(torch.autograd.grad, (), (), kwargs)

        def forward():
            seen.append(transforms._autograd_grad is func._gradients)
            record(allow_unused=False)
            record(allow_unused=True)
            transforms._autograd_grad()
            record(allow_unused=True, materialize_grads=True)

        def capture(*_):
            if grad._nones is None:
                module.b = "of torch.export"
                raise grad.Unknown
            return grad._nones
        null = contextlib.nullcontext
        with unittest.mock.patch.multiple(
                torch.autograd, grad=lambda **_: [1, None]), \
                unittest.mock.patch.multiple(
                    transforms, _autograd_grad=lambda: record(allow_unused=True)), \
                unittest.mock.patch.object(torch, "enable_grad", null), \
                unittest.mock.patch.object(grad._Recorded, "__enter__",
                                           lambda *_: None, create=True), \
                unittest.mock.patch.object(grad._Recorded, "__exit__",
                                           lambda *_: None, create=True), \
                unittest.mock.patch.object(captured, "_capture", capture), \
                unittest.mock.patch.object(undone, "run", lambda *_: forward()), \
                refusal.hooks():
            found = captured.capture(module, (), {}, True, None)
        self.assertEqual((found, seen), ([[False, True]], [False]))
        self.assertFalse(hasattr(module, "b"))

    def test_several_gradients(self):
        x = Tensor()
        x.numel = lambda: 1
        dy = type("Rows", (list,), {"shape": [2]})(["a", "b"])
        with unittest.mock.patch.object(torch, "stack", list), \
                unittest.mock.patch.object(
                    grad, "operator", lambda: lambda y, x, dy, again, zeros: dy):
            self.assertEqual(grad.called([x], [x], [dy], is_grads_batched=True),
                             (["a", "b"],))

    def test_bounds_of_two_kinds(self):
        seen = ops._clamp(lambda x, low, high: (low, high))
        self.assertEqual([type(b) for b in seen(Tensor(), 1e-6, 1)], [float, float])
        self.assertEqual([type(b) for b in seen(Tensor(False), 0.5, 1)], [float, float])
        self.assertEqual([type(b) for b in seen(Tensor(), -.25, True)], [float, float])
        self.assertEqual([type(b) for b in seen(Tensor(False), 0, 1)], [int, int])
        self.assertEqual(seen(Tensor(), max=3), (None, 3))

    def test_functions(self):
        """Their own gradient, of what they saved, and of complex numbers."""
        def defect(again, floating=True, **saved):
            context = Thing(dirty=False, saved_tensors=(), **saved)
            return functions._defect("F", Thing(
                ctx=context, inputs=[Tensor(floating)], out=(Tensor(),)), again)
        with unittest.mock.patch.object(functions, "_linear", lambda call: True):
            self.assertIsNone(defect(True, mask=Tensor(False)))
            self.assertIsNone(defect(False, x=Tensor()))
            for x in (Tensor(), [Tensor(None)]):
                self.assertIn("the backward of F reads what its forward saved",
                              defect(True, x=x))
            self.assertIn("F takes or gives complex numbers", defect(False, None))


class Undone(unittest.TestCase):
    def test_run(self):
        """A run that writes parameters, buffers, attributes and its input."""
        class Numbers(Tensor):
            def __init__(self, n):
                super().__init__()
                self.n, self.data, self.device = n, self, Thing(type="cpu")

            def detach(self):
                return self

            def clone(self):
                return Numbers(self.n)

            def requires_grad_(self, _):
                return self

            def copy_(self, other):
                self.n = other.n

        class Writes:
            def __init__(self):
                self._parameters, self._buffers = {"w": Numbers(1)}, {"b": Numbers(2)}
                self.steps = 0

            def parameters(self):
                return self._parameters.values()

            def buffers(self):
                return self._buffers.values()

            def modules(self):
                return [self]

            def __call__(self, x):
                self.steps += 1
                random.random()
                for v in self._parameters["w"], self._buffers["b"], x:
                    v.n += 5
                self._buffers["b"] = Numbers(9)

        module, x, place = Writes(), Numbers(3), random.getstate()
        weight, buffer = module._parameters["w"], module._buffers["b"]
        with unittest.mock.patch.object(torch.random, "fork_rng",
                                        lambda devices: contextlib.nullcontext()):
            undone.run(module, (x,), {})
        self.assertEqual((weight.n, buffer.n, x.n, module.steps), (1, 2, 3, 0))
        self.assertIs(module._buffers["b"], buffer)
        self.assertEqual(random.getstate(), place)


class Written(unittest.TestCase):
    def test_projected_lstm(self):
        """c has more units than h where the LSTM projects."""
        y, h, c = (Thing(shape=[3, 2, n]) for n in (4, 4, 6))
        lstm = torch.ops.aten.lstm.input
        self.assertTrue(written._is_projected(node(lstm, value=(y, h, c))))
        self.assertFalse(written._is_projected(node(lstm, value=(y, h, h))))
        self.assertFalse(written._is_projected(node(OpOverload(False), value=y)))


class Captures(unittest.TestCase):
    def test_masks_are_not_looked_at(self):
        layers = torch.nn.modules.transformer
        before = layers._detect_is_causal_mask
        with captured._masked():
            self.assertFalse(layers._detect_is_causal_mask("mask", None, 5))
            self.assertTrue(layers._detect_is_causal_mask("mask", is_causal=True))
        self.assertIs(layers._detect_is_causal_mask, before)

    def test_hooks_of_torch_end(self):
        hooks = {1: "the user's"}
        with unittest.mock.patch.object(
                torch.nn.modules.module, "_global_buffer_registration_hooks", hooks):
            with self.assertRaises(grad.Unknown), captured._left_alone():
                hooks[2] = "torch's"
                raise grad.Unknown
        self.assertEqual(hooks, {1: "the user's"})


class Indices(unittest.TestCase):
    def test_an_ellipsis_is_whole_slices(self):
        """x[..., mask] of x with four axes and a mask of two."""
        x, mask, every = Tensor(), Tensor(), slice(None)
        x.dim, mask.dim, mask.dtype = lambda: 4, lambda: 2, torch.bool
        for key, keys in ((mask, (mask,)), ((..., mask), (every, every, mask)),
                          ((every, mask, ...), (every, mask, every)),
                          ((mask, ..., None, 0), (mask, every, None, 0)),
                          ((..., every, every, mask), (every, every, mask))):
            self.assertEqual(ops._keys(x, key), keys)


class Reached(unittest.TestCase):
    """Parameters that no gradient reaches do not train."""

    def unreached(self, *between):
        """Of p, which the last of these reads or which they write somewhere."""
        p, x = (node(n, name=n, value=Tensor(), users=[1]) for n in "px")
        nodes = [p, x]
        for make in between:
            nodes.append(make(p, nodes[2] if len(nodes) > 2 else x, nodes[-1]))
        nodes[-1].name = "y"
        made = program(nodes)
        made.graph = made.graph_module.graph
        made.graph_signature.user_outputs = ["y"]
        made.graph_signature.inputs_to_parameters = {"p": "net.p"}
        made.graph_signature.output_specs = []
        return reached.parameters(made, [])[0]

    def test_written(self):
        """A parameter is written, and its value read behind the stop of no_grad."""
        detach = torch.ops.aten.detach.default
        for stopped, frozen, found in ((False, [], True), (True, [], True),
                                       (False, ["net.p"], False), (None, [], False)):
            p = node("p", name="p", value=Tensor(), users=[1])
            value = node(OpOverload(False), p, name="clamp", value=Tensor())
            stop = node(detach, value, value=Tensor())
            value.users.append(stop)
            used = node(OpOverload(False), stop if stopped else value, value=Tensor())
            last = node(detach if stopped is None else OpOverload(False), used,
                        name="y", value=Tensor())
            made = program([p, value, stop, used, last])
            made.graph = made.graph_module.graph
            made.graph_signature.user_outputs = ["y"]
            made.graph_signature.inputs_to_parameters = {"p": "net.p"}
            made.graph_signature.output_specs = [Thing(
                kind=Thing(name="PARAMETER_MUTATION"), target="net.p",
                arg=Thing(name="clamp"))]
            unreached, written = reached.parameters(made, frozen)
            self.assertEqual(written, [("net.p", value)] if found else [])
            self.assertEqual(unreached, ["net.p"] if stopped is None else [])

    def test_values(self):
        for floating, found in ((True, []), (None, []), (False, ["net.p"])):
            self.assertEqual(self.unreached(
                lambda p, y, last: node(OpOverload(False), p,
                                        value=Tensor(floating)),
                lambda p, y, last: node(OpOverload(False), last,
                                        value=Tensor())), found)

    def test_views(self):
        """y[:, 0] = p: nobody reads the result of the write."""
        def copied(p, y, last): return node(OpOverload(False), y, value=Tensor())
        def view(p, y, last): return node(OpOverload(False, True), y, value=Tensor())
        def write(p, y, last): return node(OpOverload(True), last, p, value=Tensor())
        def read(p, y, last): return node(OpOverload(False), y, value=Tensor())
        self.assertEqual(self.unreached(copied, view, write, read), [])
        self.assertEqual(self.unreached(copied, copied, write, read), ["net.p"])


class Passed(unittest.TestCase):
    """Writes under no_grad() or through .data, which a gradient passes in PyTorch."""

    def lost(self, make, frozen=()):
        """Of a program that computes h of a parameter p; make gives what follows."""
        p = Node(op="placeholder", name="p", target="p", args=(), kwargs={},
                 all_input_nodes=[], meta={})
        h = node(OpOverload(False), p, value=Tensor())
        made = program([p, h, *make(h, p)])
        made.graph_signature.inputs_to_parameters = {"p": "net.p"}
        return passed.lost(made, frozen)

    def test_data(self):
        detach = torch.ops.aten.detach.default

        def write(h, p, views=True):
            cut = node(detach, h, value=Tensor())
            view = node(OpOverload(False, views), cut, value=Tensor())
            return [cut, view, node(OpOverload(True), view, name="write", value=Tensor())]
        self.assertEqual([n.name for n in self.lost(write)], ["write"])
        self.assertEqual(self.lost(write, ["net.p"]), [])
        # a copy; the parameter itself, of which reached.parameters tells; a plain view
        self.assertEqual(self.lost(lambda h, p: write(h, p, False)), [])
        self.assertEqual(self.lost(lambda h, p: write(p, p)), [])
        self.assertEqual(self.lost(lambda h, p: [node(OpOverload(True), h,
                                                      value=Tensor())]), [])

    def test_no_grad(self):
        def region(h, enabled, copied):
            x = Node(op="placeholder", name="x", args=(), meta={}, all_input_nodes=[])
            y = node(OpOverload(False), x, value=Tensor())
            last = node(OpOverload(True), y if copied else x, name="write", value=Tensor())
            end = Node(op="output", args=((last,),))
            outer = Thing(part=GraphModule([x, y, last, end]))
            part = Node(op="get_attr", target="part", args=(), meta={}, all_input_nodes=[])
            made = node(torch.ops.higher_order.wrap_with_set_grad_enabled, enabled, part, h)
            made.graph = Thing(owning_module=outer)
            got = node(operator.getitem, made, 0, value=Tensor())
            return [part, made, got, node(OpOverload(True), got, value=Tensor())]
        for enabled, copied, found in ((False, False, ["write"]), (True, False, []),
                                       (False, True, [])):
            self.assertEqual([n.name for n in self.lost(
                lambda h, p: region(h, enabled, copied))], found)


class Bodies(unittest.TestCase):
    """Functions for other runtimes; models/exporters/bodies.py computes them."""

    def test_calls(self):
        """A function comes with those that it calls; others have none, nor has one
        whose operators are newer than the file."""
        self.assertEqual(list(bodies.texts(["Inverse", "Other"], 20)),
                         ["Inverse", "Solve"])
        self.assertEqual(list(bodies.texts(["CtcLoss", "Svd"], 18)), ["Svd"])

    def test_gradients(self):
        y = Tensor()
        y.numel = lambda: 2
        with self.assertRaisesRegex(RuntimeError, "only for scalar outputs"):
            grad.called(y, [y])

    def test_operands_are_defined(self):
        for name, text in bodies.texts(bodies.BODIES, 20).items():
            inputs = re.search(r"\((.*?)\) => ", text)[1]
            known = set(inputs.split(", "))
            for line in text.splitlines()[2:]:
                step = re.search(r"= step \((.*?)\) =>", line)
                read = re.search(r"= [\w.]+ (?:<[^(]*> )?\(([^()]*)\)", line)
                for operand in filter(None, read[1].split(", ") if read else []):
                    self.assertIn(operand, known, f"{name}: {line}")
                known.update(line.split(" = ")[0].strip().split(", "))
                if step:
                    known.update(x.split()[-1] for x in step[1].split(", "))

    def test_numbers(self):
        """A number becomes one Constant; attributes stay."""
        body = body_of.Body("a", "y", "b = Trilu <upper = 0> (a, -1)\n"
                           "y = Where (c, 0.5, [1])\nz = Add (b, -1)")
        self.assertEqual(body_of.write("F", body, 20), """\
<domain: "ampc", opset_import: ["" : 20, "ampc" : 1]>
F  (a) => (y) {
number_0 = Constant <value_int = -1> ()
number_1_f = Constant <value_float = 0.5> ()
number_1 = CastLike (number_1_f, a)
number_2 = Constant <value_ints = [1]> ()
b = Trilu <upper = 0> (a, number_0)
y = Where (c, number_1, number_2)
z = Add (b, number_0)
}""")


if __name__ == "__main__":
    unittest.main()
