# SPDX-License-Identifier: Apache-2.0
"""Training modules that `ampc` compiles, from Python.

    import ampc
    m = ampc.compile("model.onnx", dim={"batch": 64}, loss="cross_entropy")
    s = m.session()                       # device="auto", threads=0
    s.fit({"x": images, "target": labels}, epochs=3)
    print(s.evaluate(x=more, target=their)["accuracy"])
    y = s.predict(x=images)["logits"]
    s.save("w.safetensors")

Nothing but the standard library is needed; arrays are numpy's, torch's, those of
the array API, or whatever has the buffer protocol.  A call that fails raises
ampc.Error with the message of the C library.
"""
from ._c import DTYPES, Error, Status
from ._compile import compile, find_compiler, options
from ._module import Communicator, Module
from ._session import Evaluation, Session

__all__ = ["Communicator", "DTYPES", "Error", "Evaluation", "Module",
           "Session", "Status", "compile", "find_compiler", "options"]
__version__ = "0.1.0"

for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = "ampc"  # as messages and help show it
