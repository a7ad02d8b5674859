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
