# SPDX-License-Identifier: Apache-2.0
# One layer in fp32, by its name, and a look at what that did.
ampc inspect "$MODELS/mlp.onnx" --nodes --dim batch=8 | grep 'of fc3'
echo 'node fc3 fp32' > policy.txt
ampc inspect "$MODELS/mlp.onnx" --dim batch=8 --loss cross_entropy \
    --amp-policy policy.txt --ir policy | grep '!full' | grep fc3
echo 'node fc33 fp32' > typo.txt
refused ampc check "$MODELS/mlp.onnx" --dim batch=8 --loss cross_entropy --amp-policy typo.txt
grep "did you mean 'fc3'" said
