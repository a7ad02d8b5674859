# SPDX-License-Identifier: Apache-2.0
"""Values of Python as C takes them, or an exception."""
from __future__ import annotations

import operator
import os
from typing import Any, Union

Path = Union[str, "os.PathLike[str]"]


def whole(raw: bytes, what: str) -> bytes:
    """C would end at a byte of 0."""
    if b"\0" in raw:
        raise ValueError(f"{what}: embedded null byte")
    return raw


def text(name: str, what: str) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"{what} is a str, not {type(name).__name__}")
    return whole(name.encode(), what)


def path_bytes(path: Path) -> bytes:
    return whole(os.fsencode(path), "path")


def number(value: Any, least: int, most: int, what: str) -> int:
    """C would take a number of more bits for another one."""
    try:
        n = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is a whole number, not "
                        f"{type(value).__name__}") from None
    if isinstance(value, bool) or not least <= n <= most:
        raise ValueError(f"{what} is {value}, not in {least} .. {most}")
    return n
