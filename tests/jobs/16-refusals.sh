# SPDX-License-Identifier: Apache-2.0
# First mistakes and the words that they get: says TEXT COMMAND..
says() {
    text=$1
    shift
    refused "$@"
    grep -qF -e "$text" said || { echo "no '$text' in that"; exit 1; }
}
mlp=$MODELS/mlp.onnx
bound="--dim batch=8 --loss cross_entropy"
data.py array x.npy f4 16x784
data.py array t.npy i8 16
data.py array three.npy i8 64 3
data.py array last.npy u1 64x32x32x3
data.py photos photos ant bee
data.py tensors own.safetensors fc1.weight=64x784
printf 'name,label\na,1\n' > names.csv
cat > net.amp <<'A'
dim B = 8
model net(x: f32[B,3,32,32]) {
  h = relu(Conv2d(x, channels=4, size=3, stride=2, pad=1, scope="conv"))
  return logits = Linear(reshape(h, shape=[B, 4 * 16 * 16]), units=3, scope="fc")
}
train net { loss = cross_entropy }
A
ampc net.amp -o fixed.so --loss none --emit-onnx fixed.onnx
ampc net.amp -o net.so
ampc "$mlp" -o m.so $bound
feeds="--feed input=x.npy --feed target=t.npy"

# commands, models and files
says "did you mean 'run'?" ampc rum m.so
says "ampc run and ampc inspect take a module" ampc m.so
says "No such file or directory" ampc none.onnx -o n.so
says "ampc MODEL -o OUT.so makes one" ampc export net.amp -o net.onnx
says "did you mean '--epochs'?: use ampc run OUT.so --epochs N" ampc check "$mlp" $bound --epoch 3
says "use --optimizer O,lr=X; ampc run has --lr" ampc check "$mlp" $bound --lr 0.1
says "did you mean '--nodes'?" ampc inspect "$mlp" --dim batch=8 --nodez
says "did you mean '--epochs'?" ampc run m.so $feeds --epoch 3
says "--batch: is fixed when the model is compiled: ampc MODEL -o OUT.so --dim NAME=N" ampc run m.so $feeds --batch 8
says "is fixed when the model is compiled: ampc MODEL -o OUT.so --precision" ampc run m.so $feeds --precision fp32
says "a module or another library, not a model" ampc m.so -o n.so
says "data, not a model: ampc run OUT.so --feed INPUT=FILE" ampc x.npy -o n.so
says "weights, not a model: ampc run OUT.so --load FILE" ampc own.safetensors -o n.so
says "did you mean 'lion'?" ampc --list-optimizers lionn
says "did you mean 'gelu'?" ampc --list-ops Gelu_
says "c is C11 for every machine" ampc check "$mlp" $bound --target aarch64

# dimensions, heads and trained parameters
says "have no value: 'batch' (input:0); bind them, for example --dim batch=64" ampc check "$mlp" --loss mse
says "symbolic dimensions are: 'batch'; did you mean 'batch'?" ampc check "$mlp" --dim bach=8 --loss mse
says "exported with the fixed batch 8; export it again" ampc check fixed.onnx --dim batch=32 --loss mse
says "exported with the fixed batch 8; export it again" ampc check fixed.onnx --batch-sizes 32 --loss mse
says "'linear' is not an output of the model; its outputs: logits" ampc check "$mlp" $bound --replace-head linear=5
says "ampc inspect MODEL --params lists them" ampc check "$mlp" $bound --freeze 'fx*'
says "ampc inspect MODEL --params lists them" ampc check "$mlp" $bound --lora 'fx*,rank=4'

# losses, optimizers, schedules, precision
says "or --loss none for an inference module" ampc check "$mlp" --dim batch=8
says "did you mean 'cross_entropy'?" ampc check "$mlp" --dim batch=8 --loss crossentropy
says "did you mean 'mse'?" ampc check "$mlp" --dim batch=8 --loss "cross_entropy:logits + 0.5*msee:fc1"
says "did you mean 'logits'?" ampc check "$mlp" --dim batch=8 --loss cross_entropy:logitz
says 'a sum is --loss "A:OUTPUT + 0.5*B:OUTPUT"' ampc check "$mlp" $bound --loss mse
says "NAME,loss=L,params=GLOB" ampc check "$mlp" --dim batch=8 --objective "a=mse"
says "or add the losses up: --loss" ampc check "$mlp" --dim batch=8 \
    --objective "a,loss=cross_entropy,params=fc*" --objective "b,loss=mse,params=fc1*"
says "did you mean 'rmsprop'?" ampc check "$mlp" $bound --optimizer rmspop
says "its keys are lr, weight_decay, beta1, beta2, eps, amsgrad; did you mean 'beta2'?" ampc check "$mlp" $bound --optimizer adam,beta_2=0.9
says "ampc run --hyper total=100% makes it that of the run" ampc check "$mlp" $bound --lr-schedule cosine
says "a share of total= is warmup=10%" ampc check "$mlp" $bound --lr-schedule cosine,warmup=0.1,total=100
says "ampc run --hyper total=10epochs" ampc check "$mlp" $bound --lr-schedule cosine,total=10epochs
says "ampc run --reduce-on-plateau" ampc check "$mlp" $bound --lr-schedule plateau
says "did you mean 'total'?" ampc check "$mlp" $bound --lr-schedule cosine,totl=100
says "for one layer --amp-policy FILE with a line node LAYER fp32" ampc check "$mlp" $bound --fp32 fc1
says "use --dim NAME=N" ampc check "$mlp" $bound --batch 8
says "did you mean 'bf16'?" ampc check "$mlp" $bound --precision bf61
says "the decay 2 is not in [0, 1)" ampc check "$mlp" $bound --ema 2
printf 'node fcc full\n' > policy
says "did you mean 'fc1'? (ampc inspect MODEL --nodes)" ampc check "$mlp" $bound --amp-policy policy
printf 'op Gem fp32\n' > policy
says "did you mean 'Gemm'?" ampc check "$mlp" $bound --amp-policy policy
printf 'op Gemm fp33\n' > policy
says "is not a class: fp32 (full), bf16 or fp16 (low)" ampc check "$mlp" $bound --amp-policy policy

# texts: a line of a model that fails, behind it the words
text() {
    sed "s/^  h = .*/  $2/" net.amp > text.amp
    says "$1" ampc check text.amp
}
text "did you mean 'relu'?" 'h = Relu6_(x)'
text "Conv2d has no attribute 'channel'; there are" 'h = Conv2d(x, channel=4)'
text "gather and where read positions from data" \
    'h = slice(x, starts=[0, x, 0, 0], sizes=[B,4,16,16], steps=[1,1,1,1])'
cat > own.amp <<'A'
model net(x: f32[8,4]) {
  param w: f32[4,4] = normal(0.1)
  write w = w * 0.9
  return y = matmul(x, w)
}
train net { loss = mse }
A
says "an optimizer in a text (--optimizer FILE.amp)" ampc check own.amp
sed 's/param/buffer/' own.amp > none.amp
says "the model has none (in a text: param NAME: TYPE = ..; quantised weights of an ONNX file do not train)" ampc check none.amp
cat > flip.amp <<'A'
def flip(x) -> y class any {
  r = random_uniform(rng(), shape=[dim(x, 0), 1], salt=salt())
  y = where(r < 0.5, x, -x)
}
model net(x: f32[8,4]) { return y = Linear(flip(x), units=2) }
train net { loss = mse }
A
says "takes it: def f(x, rng: int; salt = 0), called f(x, rng(), salt=salt())" ampc check flip.amp

# data
says "its axes in the order (0, 3, 1, 2) would fit" ampc run net.so --feed x=last.npy --feed target=three.npy
says "element counts differ" ampc run net.so --feed x=x.npy --feed target=three.npy
says "input 'input' is not fed (--feed input=FILE)" ampc run m.so
says "did you mean 'input'?" ampc run m.so --feed inptu=x.npy --feed target=t.npy
says "a folder of pictures feeds inputs of the shape [batch, channels, height, width]" \
    ampc run m.so --feed input=photos --feed target=t.npy
says "an input takes a folder of pictures" ampc run net.so --feed x=photos/ant/0.png --feed target=three.npy
data.py tensors ddp.safetensors module.fc1.weight=64x784
data.py tensors other.safetensors fc1.weight=9x784
says "--load-map 'module.=' would find 1" ampc run m.so $feeds --load ddp.safetensors
says "is f32[9,784] in the file and f32[64,784] in this module" ampc run m.so $feeds --load other.safetensors
printf 'a,kind\n1,ant\n2,bee\n' > kinds.csv
says "classes in words are one column, chosen by its name" ampc run m.so --feed input=x.npy --feed target=kinds.csv:1
says "2 samples; the other inputs have 16" ampc run m.so --feed input=x.npy --feed target=kinds.csv:kind
printf 'colour\nred\n' > colours.csv
says "for classes in words: python3 -c" ampc run m.so --feed input=colours.csv:colour --feed target=t.npy
says "did you mean 'name'?" ampc run m.so --feed input=names.csv:nam --feed target=t.npy
says "no such input; did you mean 'x'?" ampc run net.so --feed x=photos --feed target=photos --augment X=flip
says "did you mean 'flip'?" ampc run net.so --feed x=photos --feed target=photos --augment x=flp
says "did you mean 'accuracy'?" ampc run m.so $feeds --metric acuracy

# weights and checkpoints
ampc run m.so $feeds --save w.safetensors
says "--save-weights would overwrite --load" ampc run m.so $feeds --load w.safetensors --save-weights w.safetensors
says "--log would overwrite the module" ampc run m.so $feeds --log m.so
says "--resume needs the checkpoint to go on from" ampc run m.so $feeds --resume
says "--resume takes no value, 'w.safetensors' was given: the checkpoint is that of --save" \
    ampc run m.so $feeds --resume w.safetensors
says "did you mean 'lr'?" ampc run m.so $feeds --hyper lrr=0.1
python3 -c 'import zipfile; zipfile.ZipFile("w.pt", "w").writestr("w/data.pkl", b"\x80")'
says "save_file" ampc run m.so $feeds --load w.pt
