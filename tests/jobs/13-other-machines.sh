# SPDX-License-Identifier: Apache-2.0
# Another machine, no compiler on the target, none where one compiles.
refused ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss cross_entropy --target aarch64
grep "c is C11 for every machine" said
ampc "$MODELS/mlp.onnx" -o m.c --dim batch=8 --loss cross_entropy --target c
ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss cross_entropy
data.py array x.npy f4 16x784
run=$(command -v ampc)
PATH=/nonexistent "$run" run m.so --feed input=x.npy --fetch out
refused env PATH=/nonexistent "$run" "$MODELS/mlp.onnx" -o n.so --dim batch=8 --loss cross_entropy
grep 'gcc or clang' said
