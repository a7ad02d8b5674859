# SPDX-License-Identifier: Apache-2.0
# A folder of PNG pictures with augmentation; a run that is resumed in the middle
# has the bits of one that is not.
data.py photos photos ant bee cat
cat > net.amp <<'A'
dim B = 8
model net(x: f32[B,3,32,32]) {
  x = relu(Conv2d(x, channels=4, size=3, stride=2, pad=1, scope="conv"))
  return logits = Linear(reshape(x, shape=[B, 4 * 16 * 16]), units=3, scope="fc")
}
train net { loss = cross_entropy }
A
ampc data photos
ampc net.amp -o net.so
train() {
    ampc run net.so --feed x=photos --feed target=photos --shuffle \
        --augment x=flip,crop:4,normalize:0.49:0.48:0.45/0.25:0.24:0.26 "$@"
}
train --epochs 2 --save whole.safetensors --log whole.jsonl
train --steps 2 --save parts.safetensors --log parts.jsonl
train --epochs 2 --save parts.safetensors --log parts.jsonl --resume
python3 - <<'P'
import json
def losses(path):
    return [json.loads(line)["loss"] for line in open(path)]
assert len(losses("whole.jsonl")) == 6 and losses("whole.jsonl") == losses("parts.jsonl")
P
cmp whole.safetensors parts.safetensors
# mixup wants probabilities; the folder's class numbers become them
refused ampc run net.so --feed x=photos --feed target=photos --augment x=mixup:0.2
grep 'soft_cross_entropy' said
ampc net.amp -o soft.so --loss soft_cross_entropy
ampc run soft.so --feed x=photos --feed target=photos --augment x=mixup:0.2 --shuffle \
    --eval-feed x=photos --eval-feed target=photos 2>&1 | tee said
grep 'class numbers as probabilities' said
# a table names the same pictures and their labels
python3 - <<'P'
with open("labels.csv", "w") as f:
    print("file,kind", file=f)
    for kind in ("ant", "bee", "cat"):
        for i in range(8):
            print(f"photos/{kind}/{i}.png,{kind}", file=f)
P
ampc data labels.csv | grep '24 words, 3 classes: 0 ant (8), 1 bee (8), 2 cat (8)'
ampc data labels.csv net.so | tee said
grep 'for x f32\[8,3,32,32\]: by part: file' said
grep 'for target i64\[8\]: by part: file, kind' said
ampc run net.so --feed x=photos --feed target=photos --log folder.jsonl
ampc run net.so --feed x=labels.csv:file --feed target=labels.csv:kind --log table.jsonl
# evaluation has the class numbers of training, though it has one class of three
data.py photos some cat
mkdir -p all/ant all/bee
cp -r some/cat all/
for other in some all; do
    ampc run net.so --feed x=photos --feed target=photos --eval-feed x=$other \
        --eval-feed target=$other --log $other.jsonl
done
python3 - <<'P'
import json
def log(path, key):
    return [line[key] for line in map(json.loads, open(path)) if key in line]
assert len(log("folder.jsonl", "loss")) == 3
assert log("folder.jsonl", "loss") == log("table.jsonl", "loss")
assert len(log("some.jsonl", "eval_loss")) == 1
assert log("some.jsonl", "eval_loss") == log("all.jsonl", "eval_loss")
P
data.py photos others dog
refused ampc run net.so --feed x=photos --feed target=photos --eval-feed x=others \
    --eval-feed target=others
grep 'others/dog: error: is not one of the 3 classes that train: ant, bee, cat' said
# a later run has the numbers of the checkpoint, which holds their names
for other in some all; do
    ampc run net.so --load whole.safetensors --eval --feed x=$other --feed target=$other \
        --log later-$other.jsonl
done
python3 - <<'P'
import json
losses = [[json.loads(line)["eval_loss"] for line in open(f"later-{name}.jsonl")]
          for name in ("some", "all")]
assert losses[0] == losses[1] and len(losses[0]) == 1
P
refused ampc run net.so --load whole.safetensors --eval --feed x=others --feed target=others
grep 'others/dog: error: is not one of the 3 classes that train: ant, bee, cat' said
refused ampc run net.so --feed x=others --feed target=others --save whole.safetensors --resume
grep 'others/dog: error: is not one of the 3 classes' said
ampc run net.so --load whole.safetensors --feed x=some --fetch out --save-weights weights.safetensors
ampc run net.so --load weights.safetensors --eval --feed x=some --feed target=some 2>&1 | tee said
grep 'target: weights.safetensors has no names of classes' said
# labels that train as numbers say nothing of names
python3 - <<'P'
with open("numbers.csv", "w") as f:
    print("kind", file=f)
    for i in range(24):
        print(i // 8, file=f)
P
refused ampc run net.so --feed x=photos --feed target=numbers.csv:kind --eval-feed x=some \
    --eval-feed target=some
grep 'its classes have names, and those that train (numbers.csv:kind) are numbers' said
