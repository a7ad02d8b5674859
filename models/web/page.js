// SPDX-License-Identifier: Apache-2.0
// page.js: the page of `script/demo --web`. ampc.js and the data stand before it.
const PIXELS = 28 * 28, CLASSES = 10, EPOCHS = 8, SLICE_MS = 30;
const $ = (id) => document.getElementById(id);

async function unpacked(id) {
    const packed = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** "train" and "test" samples: a count of 4 bytes, labels, images. */
function samples(bytes, at) {
    const n = new DataView(bytes.buffer).getUint32(at, true);
    const labels = bytes.slice(at + 4, at + 4 + n), images = at + 4 + n;
    const end = images + n * PIXELS;
    const pixels = Float32Array.from(bytes.subarray(images, end), (p) => p / 255);
    return { n, labels, images: pixels, end };
}

class Training {
    constructor(module, train, test) {
        Object.assign(this, { module, train, test, drawn: [], losses: [], ms: 0, epoch: 0 });
        this.session = module.session();
        this.order = Uint32Array.from({ length: train.n }, (_, i) => i);
        this.next = train.n;
        this.seed = 1;
    }

    /** Below n; the same numbers on every machine, as all results here are. */
    random(n) {
        this.seed = (Math.imul(this.seed, 1664525) + 1013904223) >>> 0;
        return Math.floor(this.seed / 2 ** 32 * n);
    }

    get done() { return this.epoch >= EPOCHS && this.next >= this.train.n; }

    shuffle() {
        for (let i = this.train.n - 1; i > 0; i--) {
            const j = this.random(i + 1);
            [this.order[i], this.order[j]] = [this.order[j], this.order[i]];
        }
        this.next = 0;
        this.epoch++;
    }

    /** One step; digits of the user take the last places of each batch. */
    step() {
        const { batch } = this.module.info, input = new Float32Array(batch * PIXELS);
        const target = new BigInt64Array(batch), own = this.drawn.slice(-batch / 5);
        if (this.next + batch > this.train.n) this.shuffle();
        for (let i = 0; i < batch; i++) {
            const at = this.order[this.next + i], mine = own[batch - 1 - i];
            const image = mine?.image ??
                this.train.images.subarray(at * PIXELS, (at + 1) * PIXELS);
            input.set(image, i * PIXELS);
            target[i] = BigInt(mine?.label ?? this.train.labels[at]);
        }
        const begin = performance.now(), { loss } = this.session.step({ input, target });
        this.ms += performance.now() - begin;
        this.losses.push(loss);
        this.next += batch;
    }

    get accuracy() {
        return this.session.evaluate({ input: this.test.images, target: this.test.labels })
            .accuracy;
    }

    probabilities(image) {
        const { logits } = this.session.predict({ input: image }), most = Math.max(...logits);
        const e = Array.from(logits, (x) => Math.exp(x - most));
        const sum = e.reduce((a, b) => a + b);
        return e.map((x) => x / sum);
    }
}

// ---- what the page shows

function showTraining(t) {
    const recent = t.losses.slice(-20), mean = recent.reduce((a, b) => a + b, 0) / recent.length;
    $("epoch").textContent = `${t.epoch} of ${EPOCHS}, step ${t.losses.length}`;
    $("loss").textContent = recent.length ? mean.toFixed(4) : "–";
    $("time").textContent = recent.length ? `${(t.ms / t.losses.length).toFixed(1)} ms for ` +
        `${t.module.info.batch} digits` : "–";
    const y = (loss) => 60 - 25 * Math.log10(Math.min(Math.max(loss, 1e-2), 1e2));
    const width = Math.max(t.losses.length, 100);
    $("curve").setAttribute("points", t.losses.map((loss, i) =>
        `${(300 * i / width).toFixed(1)},${y(loss).toFixed(1)}`).join(" "));
}

function showAccuracy(t) {
    $("accuracy").textContent = `${(100 * t.accuracy).toFixed(1)} % of ${t.test.n} digits`;
}

function showPrediction(t) {
    const image = drawnImage(), p = image ? t.probabilities(image) : Array(CLASSES).fill(0);
    $("bars").replaceChildren(...p.flatMap((x, digit) => {
        const [name, bar, percent] = ["b", "i", "span"].map((e) => document.createElement(e));
        name.textContent = digit;
        bar.style.width = `${100 * x}%`;
        percent.textContent = image ? `${(100 * x).toFixed(1)} %` : "";
        return [name, bar, percent];
    }));
    $("labels").querySelectorAll("button").forEach((b) => { b.disabled = !image; });
}

function fail(error) {
    const old = error instanceof ReferenceError || error instanceof WebAssembly.CompileError;
    $("error").textContent = (old ? "This browser lacks WebAssembly with SIMD, " +
        "DecompressionStream or OffscreenCanvas: " : "") + error.message;
    $("train").disabled = $("again").disabled = true;
}

// ---- drawing: as in MNIST, a box of 20 x 20 pixels in the middle of 28 x 28

const pen = $("draw").getContext("2d", { willReadFrequently: true });

function clear() {
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, 280, 280);
}

function drawnImage() {
    const { data } = pen.getImageData(0, 0, 280, 280);
    let [left, top, right, bottom] = [280, 280, -1, -1];
    for (let i = 0; i < 280 * 280; i++) {
        if (data[4 * i] < 32) continue;
        const x = i % 280, y = Math.floor(i / 280);
        [left, right] = [Math.min(left, x), Math.max(right, x)];
        [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
    }
    if (right < 0) return null;
    const small = new OffscreenCanvas(28, 28).getContext("2d");
    const w = right - left + 1, h = bottom - top + 1, scale = 20 / Math.max(w, h);
    small.imageSmoothingQuality = "high";
    small.drawImage($("draw"), left, top, w, h, 14 - w * scale / 2, 14 - h * scale / 2,
        w * scale, h * scale);
    const pixels = small.getImageData(0, 0, 28, 28).data;
    return Float32Array.from({ length: PIXELS }, (_, i) => pixels[4 * i] / 255);
}

function draws(whenChanged) {
    const place = (e) => {
        const box = $("draw").getBoundingClientRect();
        return [(e.clientX - box.left) * 280 / box.width, (e.clientY - box.top) * 280 / box.height];
    };
    $("draw").addEventListener("pointerdown", (e) => {
        $("draw").setPointerCapture(e.pointerId);
        Object.assign(pen, { strokeStyle: "#fff", lineWidth: 22, lineCap: "round",
            lineJoin: "round" });
        pen.beginPath();
        pen.moveTo(...place(e));
        pen.lineTo(...place(e));
        pen.stroke();
    });
    $("draw").addEventListener("pointermove", (e) => {
        if (!e.buttons) return;
        pen.lineTo(...place(e));
        pen.stroke();
    });
    $("draw").addEventListener("pointerup", whenChanged);
    $("clear").addEventListener("click", () => { clear(); whenChanged(); });
}

// ---- the page's life

async function run() {
    const module = await Module.load(await unpacked("wasm")), bytes = await unpacked("digits");
    const train = samples(bytes, 0), test = samples(bytes, train.end);
    let t = new Training(module, train, test), running = false;

    const slice = () => {
        if (!running) return;
        const { epoch } = t, end = performance.now() + SLICE_MS;
        do t.step(); while (performance.now() < end && !t.done);
        showTraining(t);
        if (t.epoch !== epoch || t.done) showAccuracy(t), showPrediction(t);
        if (t.done) pause();
        else setTimeout(guarded(slice));
    };
    const pause = () => {
        running = false;
        $("train").textContent = "Train";
        $("train").disabled = t.done;
        showAccuracy(t);
        showPrediction(t);
    };
    $("train").addEventListener("click", guarded(() => {
        running = !running;
        $("train").textContent = "Pause";
        if (running) slice();
        else pause();
    }));
    $("again").addEventListener("click", guarded(() => {
        t.session.close();
        t = new Training(module, train, test);
        pause();
        showTraining(t);
    }));
    for (let label = 0; label < CLASSES; label++) {
        const button = document.createElement("button");
        button.textContent = label;
        button.addEventListener("click", guarded(() => {
            t.drawn.push({ image: drawnImage(), label });
            for (let i = 0; i < 5; i++) t.step();
            showTraining(t);
            showPrediction(t);
        }));
        $("labels").append(button);
    }
    draws(guarded(() => showPrediction(t)));
    $("again").disabled = false;
    pause();
    showTraining(t);
}

function guarded(call) {
    return () => {
        try {
            call();
        } catch (error) {
            fail(error);
        }
    };
}

clear();
run().catch(fail);
