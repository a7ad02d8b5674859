#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch.export (not strict) of 2.11 and 2.15 drops no_grad() inside of autocast(): the program has
# the regions of autocast() alone, and what no_grad() computed requires a gradient.  no_grad()
# around autocast() or without it is a wrap_with_set_grad_enabled of the program.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import contextlib
import logging
import warnings

import torch

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
cast = lambda: torch.autocast("cpu", torch.bfloat16)


class Two(torch.nn.Module):
    """A layer under two contexts, the first outside."""

    def __init__(self, outer, inner):
        super().__init__()
        self.layer, self.contexts = torch.nn.Linear(3, 3), (outer, inner)

    def forward(self, x):
        outer, inner = self.contexts
        with outer():
            with inner():
                y = self.layer(x)
            return y * x


def kept(outer, inner):
    """Whether the program says that no gradient is made."""
    program = torch.export.export(Two(outer, inner), (torch.randn(2, 3),), strict=False)
    return any(n.target is torch.ops.higher_order.wrap_with_set_grad_enabled
               for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)
               for n in m.graph.nodes)


inside, around = kept(cast, torch.no_grad), kept(torch.no_grad, cast)
alone = kept(contextlib.nullcontext, torch.no_grad)
x = torch.randn(2, 3)
eager = Two(cast, torch.no_grad)
print("torch", torch.__version__, "no_grad inside of autocast is kept:", inside, "around it:",
      around, "alone:", alone, "- eager result requires a gradient:", eager(x).requires_grad)
assert not inside and around and alone and not eager(x).requires_grad, "the behaviour has changed"
PY
done
