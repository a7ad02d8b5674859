# SPDX-License-Identifier: Apache-2.0
"""Prints tests/onnx/defaults.txt: what ONNX's schemas say that an attribute is
where a node has none.  With the packages of requirements.txt:

    python3 tests/onnx/make_defaults.py > tests/onnx/defaults.txt
"""

import onnx.defs
from onnx import AttributeProto

KINDS = {AttributeProto.INT: ("i", lambda a: str(a.i)),
         AttributeProto.FLOAT: ("f", lambda a: repr(a.f)),
         AttributeProto.STRING: ("s", lambda a: a.s.decode() or "-"),
         AttributeProto.INTS: ("I", lambda a: ",".join(map(str, a.ints)) or "-")}

print("# OP SINCE-OPSET ATTRIBUTE KIND DEFAULT, of ONNX's schemas (make_defaults.py)")
for schema in sorted(onnx.defs.get_all_schemas_with_history(),
                     key=lambda s: (s.name, s.since_version)):
    for name, attribute in sorted(schema.attributes.items()):
        default = attribute.default_value
        if not schema.domain and default.type in KINDS:
            kind, text = KINDS[default.type]
            print(schema.name, schema.since_version, name, kind, text(default))
