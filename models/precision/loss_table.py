# SPDX-License-Identifier: Apache-2.0
"""The table of losses.py: losses of losses.py and of the loss_*.py."""
BATCH = 32
LOSSES = {}  # name: (outputs, {input: shape}, {parameter: shape}, samples,
#                     random runs, function)


def loss(outs, inputs=None, params=None, batch=BATCH, draws=5):
    def add(f):
        LOSSES[f.__name__] = (outs, inputs or {}, params or {}, batch, draws, f)
        return f
    return add
