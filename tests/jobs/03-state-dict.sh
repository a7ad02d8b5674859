# SPDX-License-Identifier: Apache-2.0
# A state_dict in, trained, and back.
data.py array x.npy f4 32x784
data.py array t.npy i8 32
data.py tensors in.safetensors model.fc1.weight=64x784 model.fc1.bias=64 \
    model.fc2.weight=32x64 model.fc2.bias=32 model.fc3.weight=10x32 model.fc3.bias=10
ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss cross_entropy
# a prefix, as torch.compile and DDP write it: the message has the option that fits
refused ampc run m.so --feed input=x.npy --feed target=t.npy --load in.safetensors
grep "load-map 'model.=' would find 6" said
ampc run m.so --feed input=x.npy --feed target=t.npy --load in.safetensors \
    --load-map model.= --save-weights out.safetensors
python3 - <<'P'
import json, struct
data = open("out.safetensors", "rb").read()
head = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
names = sorted(n for n in head if n != "__metadata__")
assert names == sorted(f"fc{i}.{k}" for i in (1, 2, 3) for k in ("bias", "weight")), names
P
