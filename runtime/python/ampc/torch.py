# SPDX-License-Identifier: Apache-2.0
"""x"""
from typing import Any
def export(*a: Any) -> None: ...
