# SPDX-License-Identifier: Apache-2.0
# A new head for 5 classes, the other layers frozen, weights from another run.
data.py array x.npy f4 32x784
data.py array t.npy i8 32 5
data.py tensors old.safetensors fc1.weight=64x784 fc1.bias=64 fc2.weight=32x64 \
    fc2.bias=32 fc3.weight=10x32 fc3.bias=10
ampc inspect "$MODELS/mlp.onnx" --params --dim batch=8
ampc "$MODELS/mlp.onnx" -o new.so --dim batch=8 --loss cross_entropy \
    --replace-head logits=5 --freeze 'fc[12].*'
ampc run new.so --feed input=x.npy --feed target=t.npy --load old.safetensors \
    --save-weights new.safetensors 2>&1 | tee said
grep 'fc3' said # its head in the file has another shape
# what is frozen comes back as it was
python3 - <<'P'
import json, struct
def read(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: (v["shape"], data[8 + n:][slice(*v["data_offsets"])])
            for k, v in head.items() if k != "__metadata__"}
old, new = read("old.safetensors"), read("new.safetensors")
assert new["fc1.weight"] == old["fc1.weight"], "a frozen weight has changed"
assert new["fc3.weight"][0] == [5, 32]
P
