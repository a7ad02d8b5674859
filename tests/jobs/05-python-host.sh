# SPDX-License-Identifier: Apache-2.0
# Python without packages: fit, evaluate and predict any number of samples.
cat > train.py <<'P'
import array, os, random
import ampc
module = ampc.compile(os.environ["MODELS"] + "/mlp.onnx", dim={"batch": 8},
                      loss="cross_entropy")
x = array.array("f", (random.random() for _ in range(30 * 784)))
t = array.array("q", (random.randrange(10) for _ in range(30)))
with module.session(device="cpu") as s:
    history = s.fit({"input": x, "target": t}, epochs=2, validation=[x, t])
    assert history[1]["samples"] == 30 and history[1]["val_samples"] == 30
    assert s.predict(input=x)["logits"].shape == (30, 10)
    s.save("w.safetensors")
P
PYTHONPATH=$PYTHON_PACKAGE python3 train.py
