# SPDX-License-Identifier: Apache-2.0
# A schedule with a warm-up in parts, clipping, accumulation; changed later.
data.py array x.npy f4 64x784
data.py array t.npy i8 64
ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss cross_entropy \
    --optimizer adamw,lr=2e-3 --lr-schedule cosine,warmup=10%,total=100,min=1e-5 \
    --clip-norm 1 --accumulate 2
ampc run m.so --feed input=x.npy --feed target=t.npy --epochs 5 --hyper total=100% \
    --log log.jsonl
test "$(wc -l < log.jsonl)" = 20
tail -1 log.jsonl | grep '"lr":[0-9.e-]*' # near `min`, not beyond it
refused ampc run m.so --feed input=x.npy --feed target=t.npy --hyper totl=100%
grep "did you mean 'total'" said
