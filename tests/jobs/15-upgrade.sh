# SPDX-License-Identifier: Apache-2.0
# A checkpoint beside a module of other options, and of another build.
data.py array x.npy f4 16x784
data.py array t.npy i8 16
ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss cross_entropy
ampc run m.so --feed input=x.npy --feed target=t.npy --save w.safetensors
ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss cross_entropy --clip-norm 1
refused ampc run m.so --feed input=x.npy --feed target=t.npy --save w.safetensors --resume
grep -e '--clip-norm' said
ampc run m.so --feed input=x.npy --feed target=t.npy --load w.safetensors
