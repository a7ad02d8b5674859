# SPDX-License-Identifier: Apache-2.0
# Focal loss over an ONNX model; evaluation still has the accuracy.
data.py array x.npy f4 32x784
data.py array t.npy i8 32
ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss focal,gamma=2
ampc run m.so --feed input=x.npy --feed target=t.npy --eval-feed input=x.npy \
    --eval-feed target=t.npy --metric f1 --log log.jsonl
grep '"accuracy":0' log.jsonl
grep '"f1":' log.jsonl
