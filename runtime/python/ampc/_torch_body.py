# SPDX-License-Identifier: Apache-2.0
"""A function in a file of ampc.torch.export, in ONNX's operators: its lines, and how
they are written; a formula over one input, as Python's operators compute it."""
from __future__ import annotations

import re
from typing import Any, Callable, NamedTuple, Sequence


class Body(NamedTuple):
    """Lines of ONNX's text.  An operand may be a number: 1 is an integer, [1] a list,
    1.0 has the type of the first input.  calls: other functions of domain ampc.
    opset: the first one that has what the lines call."""
    inputs: str
    outputs: str
    lines: str
    attributes: str = ""
    calls: tuple[str, ...] = ()
    opset: int = 18


_OPERANDS = re.compile(r"\([^()]*\)")
_NUMBER = re.compile(r"(?<=[(,])( ?)(\[?-?\d[\d.e-]*\]?)(?=[,)])")


def write(name: str, body: Body, opset: int) -> str:
    """The function in ONNX's text: a Constant for each number."""
    names: dict[str, str] = {}
    like = body.inputs.split(",")[0]

    def named(found: re.Match[str]) -> str:
        return found[1] + names.setdefault(found[2], f"number_{len(names)}")

    lines = _OPERANDS.sub(lambda found: _NUMBER.sub(named, found[0]),
                          body.lines.strip())
    constants = []
    for number, own in names.items():
        if "." in number:
            constants += [f"{own}_f = Constant <value_float = {number}> ()",
                          f"{own} = CastLike ({own}_f, {like})"]
        else:
            kind = "ints" if number[0] == "[" else "int"
            constants += [f"{own} = Constant <value_{kind} = {number}> ()"]
    start = "\n".join(constants)
    return (f'<domain: "ampc", opset_import: ["" : {opset}, "ampc" : 1]>\n'
            f"{name} {body.attributes} ({body.inputs}) => ({body.outputs}) "
            f"{{\n{start}\n{lines}\n}}")


# ---- formulas ---------------------------------------------------------------

class Value:
    """A value of a function; it computes as numbers do."""

    def __init__(self, formula: Formula, name: str) -> None:
        self.formula, self.name = formula, name

    def __add__(self, y: Any) -> Value:
        return self.formula.put("Add", self, y)

    def __sub__(self, y: Any) -> Value:
        return self.formula.put("Sub", self, y)

    def __mul__(self, y: Any) -> Value:
        return self.formula.put("Mul", self, y)

    def __truediv__(self, y: Any) -> Value:
        return self.formula.put("Div", self, y)

    def __neg__(self) -> Value:
        return self.formula.put("Neg", self)

    def __lt__(self, y: Any) -> Value:
        return self.formula.put("Less", self, y)

    def __pow__(self, y: Any) -> Value:
        return self.formula.put("Pow", self, y)


def _spelled(number: float) -> str:
    text = repr(float(number))
    return text if "." in text else text.replace("e", ".0e")


class Formula:
    """Lines of a body with one input, x; numbers have its type."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.x = Value(self, "x")

    def raw(self, text: str) -> Value:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return Value(self, name)

    def put(self, op: str, *operands: Any) -> Value:
        names = [v.name if isinstance(v, Value) else _spelled(v) for v in operands]
        return self.raw(f"{op} ({', '.join(names)})")

    def where(self, chosen: Value, a: Any, b: Any) -> Value:
        return self.put("Where", chosen, a, b)

    def polynomial(self, t: Value, factors: Sequence[float]) -> Value:
        """factors[0] is that of the highest power."""
        y = t * factors[0] + factors[1]
        for c in factors[2:]:
            y = y * t + c
        return y


def formula(make: Callable[[Formula], Value], attributes: str = "") -> Body:
    f = Formula()
    y = make(f).name
    return Body("x", "y", "\n".join([*f.lines, f"y = Identity ({y})"]), attributes)
