# SPDX-License-Identifier: Apache-2.0
# Optimizers that are asked for, and one of your own.
for o in rmsprop adagrad lion lamb adamax nadam adafactor muon; do
    ampc check "$MODELS/mlp.onnx" --dim batch=8 --loss cross_entropy --optimizer $o
done
ampc --list-optimizers lion | grep beta1
cat > signs.amp <<'A'
optimizer signs(p, g; lr = 0.001 "learning rate", decay = 0.9 from 0 below 1)
  source "Bernstein et al. 2018, signSGD with momentum"
  state mean
{
  mean = mean * decay + g * (1 - decay)
  p = p - sign(mean) * lr
}
A
data.py array x.npy f4 16x784
data.py array t.npy i8 16
ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss cross_entropy --optimizer signs.amp,lr=1e-4
ampc run m.so --feed input=x.npy --feed target=t.npy --save w.safetensors
rm signs.amp # the module keeps what export needs
ampc export m.so --load w.safetensors --module -o small.so
ampc export m.so --load w.safetensors -o trained.onnx
refused ampc check "$MODELS/mlp.onnx" --dim batch=8 --loss cross_entropy --optimizer rmspop
grep "did you mean 'rmsprop'" said
