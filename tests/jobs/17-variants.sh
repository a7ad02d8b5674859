# SPDX-License-Identifier: Apache-2.0
# Jobs like the fifteen, with other losses, data, layers and optimizers.
# Two inputs and a number to predict: pictures in an array, a table by a range of
# its columns; the loss names keys behind its output.
cat > houses.amp <<'M'
dim B = 8
model houses(image: f32[B,3,8,8], table: f32[B,3]) {
  h = relu(Linear(reshape(image, shape=[B, 192]), units=8, scope="left"))
  price = Linear(concat(h, table, axis=1), units=1, scope="price")
  return price = price, places = h
}
M
data.py array image.npy u1 24x3x8x8
python3 - <<'P'
with open("houses.csv", "w") as f:
    print("rooms,age,size,price", file=f)
    for i in range(24):
        print(f"{i % 5},{i * 7 % 24},{i / 24},{i % 5 + i / 24}", file=f)
P
ampc houses.amp -o houses.so --loss "huber:price,delta=0.5"
ampc data table=houses.csv houses.so | grep 'by 3 columns, such as rooms-size'
ampc run houses.so --feed image=image.npy --feed table=houses.csv:rooms-size \
    --feed target=houses.csv:price --epochs 2 --eval-feed image=image.npy \
    --eval-feed table=houses.csv:0-2 --eval-feed target=houses.csv:price --metric rmse:price
# An own optimizer with two states, and labels of 0 and 1 whose scores need no
# explanation, even if all of them look like probabilities.
cat > centred.amp <<'M'
optimizer centred(p, g; lr = 0.001 "learning rate", alpha = 0.99 from 0 below 1)
  source "Graves 2013, Generating Sequences With Recurrent Neural Networks"
  state square, mean
{
  square = alpha * square + (1 - alpha) * g * g
  mean = alpha * mean + (1 - alpha) * g
  p = p - lr * g / sqrt(square - mean * mean + 1e-4)
}
M
cat > yes.amp <<'M'
dim B = 8
model yes(x: f32[B,3]) { return score = sigmoid(Linear(x, units=1, scope="fc")) * 0.5 + 0.25 }
train yes { loss = bce_with_logits }
M
python3 - <<'P'
with open("yes.csv", "w") as f:
    print("yes", file=f)
    for i in range(24):
        print(i % 2, file=f)
P
ampc yes.amp -o yes.so --optimizer centred.amp,lr=0.01
ampc run yes.so --feed x=houses.csv:rooms-size --feed target=yes.csv --epochs 1 \
    --eval-feed x=houses.csv:rooms-size --eval-feed target=yes.csv --metric accuracy
# A layer's class where the graph rearranges its weights.
cat > rows.amp <<'M'
dim B = 8
model rows(x: f32[B,16]) {
  scope "rnn" {
    param weight: f32[8,16] = normal(0.1)
  }
  a, b = split(weight, axis=0, sizes=[4, 4])
  return logits = matmul(x, transpose(concat(b, a, axis=0), perm=[1, 0]))
}
train rows { loss = cross_entropy }
M
echo 'node rnn fp32' > policy
ampc inspect rows.amp --amp-policy policy --ir policy | grep '= matmul' | grep '!full'
