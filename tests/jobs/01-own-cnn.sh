# SPDX-License-Identifier: Apache-2.0
# A CNN of your own, trained on .npy files of your own.
data.py array x.npy f4 40x1x28x28
data.py array t.npy i8 40
cp "$MODELS/mnist_cnn.onnx" net.onnx
ampc inspect net.onnx --dim batch=16 | grep 'conv1.weight'
ampc data x.npy
ampc net.onnx -o net.so --dim batch=16 --loss cross_entropy
ampc run net.so --feed input=x.npy --feed target=t.npy --epochs 2 --shuffle \
    --save w.safetensors --log log.jsonl
test "$(wc -l < log.jsonl)" = 4 # 40 samples, a BatchNorm: 2 whole batches an epoch
ampc run net.so --feed input=x.npy --feed target=t.npy --load w.safetensors --eval 2>&1 |
    grep 'evaluation: loss'
