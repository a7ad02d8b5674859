# SPDX-License-Identifier: Apache-2.0
# Low-rank adapters and an average of the weights, over an ONNX model.
data.py array x.npy f4 16x784
data.py array t.npy i8 16
ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss cross_entropy \
    --lora 'fc*,rank=4,alpha=8' --ema 0.99
ampc run m.so --feed input=x.npy --feed target=t.npy --save w.safetensors
ampc run m.so --feed input=x.npy --feed target=t.npy --load w.safetensors --averaged --eval
ampc export m.so --load w.safetensors --adapter -o adapter
ls adapter/adapter_config.json adapter/adapter_model.safetensors
ampc export m.so --load w.safetensors -o merged.onnx
