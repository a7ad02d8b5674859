# SPDX-License-Identifier: Apache-2.0
# Trained weights as ONNX, of an imported model and of a text.
data.py array x.npy f4 16x784
data.py array t.npy i8 16
ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss cross_entropy --precision fp32
ampc run m.so --feed input=x.npy --feed target=t.npy --save w.safetensors --fetch before
ampc export m.so --load w.safetensors -o trained.onnx
ampc export m.so --load w.safetensors --module -o small.so
ampc run small.so --feed input=x.npy --fetch after
cmp before/logits.npy after/logits.npy
cat > net.amp <<'A'
dim B = 8
model net(x: f32[B,784]) { return logits = Linear(x, units=4, scope="fc") }
train net { loss = cross_entropy }
A
ampc net.amp -o net.so --precision fp32
ampc export net.so -o net.onnx
ampc inspect net.onnx --params | grep 'fc.weight'
# and in again, with another head
ampc check net.onnx --loss cross_entropy --replace-head logits=7
ampc net.amp -o none.so --loss none --emit-onnx half.onnx
ampc check half.onnx --loss cross_entropy --replace-head logits=7
