# SPDX-License-Identifier: Apache-2.0
"""Whether ampc's output says where a file and its framework's model part (exporters.py)."""
import re
import numpy as np
import onnx
from onnx import numpy_helper


class Parted:
    """What differs: tensors that are lost or frozen, tensors that train and must not, and, of the
    first step, whether the loss differs and which parameters got another gradient."""
    def __init__(self, lost, trains, loss, gradients):
        self.lost, self.trains, self.loss, self.gradients = lost, trains, loss, gradients

    def __str__(self):
        first = ["another loss"] * self.loss + ["another gradient of " + ", ".join(self.gradients)] * bool(self.gradients)
        return "first step: " + (" and ".join(first) or "equal")


def inner(node):
    """A node and those of its branches and bodies."""
    yield node
    for a in node.attribute:
        for g in [a.g, *a.graphs]:
            for n in g.node: yield from inner(n)


class Places:
    """The nodes of a file by what a message may call them, and what each is computed from."""
    def __init__(self, path):
        self.graph = onnx.load(path, load_external_data=False).graph
        self.nodes = [n for top in self.graph.node for n in inner(top)]
        self.made = {o: n for n in self.graph.node for o in n.output}
        self.held = {i.name: np.sort(numpy_helper.to_array(i), None) for i in self.graph.initializer}

    def copy_of(self, name, names):
        """Whether a tensor of the file has the elements of one of names, in any order, as a folded transpose has."""
        a = self.held.get(name)
        return a is not None and any(n != name and np.array_equal(a, self.held.get(n)) for n in names)

    def named(self, name):
        """Nodes of that name or layer ("m/dense/"), and those that read or make a tensor of that name."""
        layer = lambda n: name.endswith("/") and n.name.startswith(name)
        return [n for n in self.nodes if name == n.name or layer(n) or name in n.output or name in n.input]

    def at_line(self, file, line):
        ends = f'{file}", line {line},'
        traces = lambda n: [p.value for p in n.metadata_props if p.key == "pkg.torch.onnx.stack_trace"] + [n.doc_string]
        return [n for n in self.nodes if any(ends in t for t in traces(n))]

    def read_by(self, nodes):
        """All names that values of nodes are computed from."""
        seen, left = set(), [i for n in nodes for part in inner(n) for i in part.input]
        while left:
            name = left.pop()
            if name in seen: continue
            seen.add(name)
            if name in self.made: left += [i for part in inner(self.made[name]) for i in part.input]
        return seen


def quoted(text):
    """The names of a message; the apostrophe of "the model's" begins none."""
    return re.findall(r"(?<!\w)'([^']+)'", text)


def listed(out, intro):
    """Names in a list of the line of what trains, as "by guess 2: 'a', 'b'"."""
    return set(quoted("".join(re.findall(intro + r" \d+: (.*?)(?:; |$)", out, re.M))))


def of_gradient(line):
    """Whether a message speaks of the backward alone."""
    return bool(re.search("gradient|backward", line)) and not re.search("value|forward|computes|statistics|epsilon|evaluat", line)


def counts(line, parted, places):
    """Whether a message about a node, a tensor or a line speaks of this difference: it names what is lost; or a
    node that every parameter with another gradient goes into, unless the loss differs, which no stop explains."""
    names = quoted(line)
    if any(n in parted.lost or n in parted.trains or places.copy_of(n, parted.gradients) for n in names): return True
    at = [n for name in names for n in places.named(name)]
    at += [n for f, k in re.findall(r'File "?([^"\s,]+?)"?, line (\d+)', line) for n in places.at_line(f, k)]
    if not at: return False
    if parted.loss: return not of_gradient(line)
    known = [g for g in parted.gradients if g in places.held]
    return set(known) <= places.read_by(at)


def judged(case, parted, out):
    """The state of a case that differs, and the messages that say it."""
    lists = [f"{intro} {name}" for intro, names in (("by guess", parted.trains), ("; not", parted.lost))
             for name in sorted(listed(out, intro) & set(names))]
    places = Places(case.path)
    lines = [l for l in out.splitlines() if re.match("(warning: |note: )?FILE: ", l) or "warning" in l]
    said = lists + [l for l in lines if counts(l, parted, places)]
    if said: return "differs, named", " || ".join(said)
    general = [l for l in out.splitlines() if re.search("keeps no |does not write ", l)]
    return ("differs, general", " || ".join(general)) if general else ("WRONG", "")
