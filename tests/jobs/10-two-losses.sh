# SPDX-License-Identifier: Apache-2.0
# Two inputs, two outputs, a weighted sum of their losses.
cat > two.amp <<'A'
dim B = 8
model two(x: f32[B,16], y: f32[B,4]) {
  h = relu(Linear(x, units=8, scope="a") + Linear(y, units=8, scope="b"))
  return cls = Linear(h, units=4, scope="cls"), reg = Linear(h, units=1, scope="reg")
}
A
ampc two.amp -o none.so --loss none --precision fp32 --emit-onnx two.onnx
data.py array x.npy f4 20x16
data.py array y.npy f4 20x4
data.py array a.npy i8 20 4
data.py array b.npy f4 20x1
ampc two.onnx -o two.so --loss "cross_entropy:cls + 0.5*mse:reg"
ampc run two.so --feed x=x.npy --feed y=y.npy --feed target:cls=a.npy \
    --feed target:reg=b.npy --epochs 2 --log log.jsonl
test "$(wc -l < log.jsonl)" = 6
