# SPDX-License-Identifier: Apache-2.0
# ResNet-18 on a folder of pictures with augmentation; stopped in the middle of
# an epoch and resumed it ends with the bits of a run that was not stopped.
data.py photos photos ant=40 bee=40 cat=40 dog=40 elk=40
data.py photos others ant bee cat dog elk
ampc data photos others
ampc "$MODELS/resnet18.amp" -o net.so --dim B=16 --dim W=16 --dim CLASSES=5 --target cpu:x86-64-v3 \
    --optimizer sgd,lr=0.02,momentum=0.9 --lr-schedule cosine,total=48
normalize=normalize:0.49:0.48:0.45/0.25:0.24:0.26
train() {
    ampc run net.so --feed x=photos --feed target=photos --shuffle \
        --eval-feed x=others --eval-feed target=others \
        --augment x=flip,crop:4,$normalize "$@"
}
train --epochs 4 --save whole.safetensors --log whole.jsonl
train --steps 18 --save parts.safetensors --log parts.jsonl
train --epochs 4 --save parts.safetensors --log parts.jsonl --resume
cmp whole.safetensors parts.safetensors
python3 - <<'P'
import json
def lines(path, key):
    return [line[key] for line in map(json.loads, open(path)) if key in line]
whole, parts = lines("whole.jsonl", "loss"), lines("parts.jsonl", "loss")
assert len(whole) == 48 and whole == parts, (len(whole), len(parts))
assert whole[-1] < whole[0] / 2, (whole[0], whole[-1])
P
