// SPDX-License-Identifier: Apache-2.0
// portable_host.mjs AMPC.JS TRAIN.WASM STEPS: what portable_host.c does, by ampc.js. Then
// it tries the other functions and some mistakes; the last line is "ok".
import assert from "node:assert";
import { readFileSync } from "node:fs";

const [script, wasm, steps] = process.argv.slice(2);
const { AmpcError, Module, STRUCTS } = await import(script);
const module = await Module.load(readFileSync(wasm));

// Sizes as C has them, which the test has linked in.
const at = module.exports.struct_sizes();
for (const [i, [name, { size }]] of Object.entries(STRUCTS).entries()) {
    const [whole, last] = [0, 4].map((k) => module.view().getUint32(at + 8 * i + k, true));
    assert.equal(STRUCTS[name].fields.at(-1).at, last, `the last field of ${name}`);
    if (name !== "api") assert.equal(size, whole, `the size of ${name}`);
}

let seed = 1;
function draw() {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed >>> 8;
}

const elements = ({ shape }) => shape.reduce((a, b) => a * b, 1);
function random(tensor) {
    return tensor.dtype === "f32"
        ? Float32Array.from({ length: elements(tensor) }, () => draw() / 16777216)
        : BigInt64Array.from({ length: elements(tensor) }, () => BigInt(draw() % 10));
}

const hex = (n, digits) => n.toString(16).padStart(digits, "0");
function hash(h, bytes) {
    for (const byte of bytes) h = BigInt.asUintN(64, (h ^ BigInt(byte)) * 1099511628211n);
    return h;
}

const session = module.session();
let arrays;
for (let k = 0; k < Number(steps); k++) {
    arrays = Object.fromEntries(module.inputs().map((t) => [t.name, random(t)]));
    const bits = new Uint32Array(Float32Array.of(session.step(arrays).loss).buffer)[0];
    console.log(`${k} ${hex(bits, 8)}`);
}
const STATE = 3;
let h = 14695981039346656037n;
for (const { name } of module.variables.filter((v) => v.kind <= STATE)) {
    const { buffer, byteOffset, byteLength } = session.read(name);
    h = hash(h, new Uint8Array(buffer, byteOffset, byteLength));
}
console.log(`variables ${hex(h, 16)}`);

// ---- the other functions

const { batch } = module.info, [x, target] = module.inputs();
const [output] = module.outputs(), width = elements(output) / batch;
const some = arrays[x.name].subarray(0, 3 * elements(x) / batch);
const all = session.predict({ [x.name]: arrays[x.name] })[output.name];
const three = session.predict({ [x.name]: some })[output.name];
assert.deepEqual([...three], [...all.subarray(0, 3 * width)]);
const labels = [...arrays[target.name].subarray(0, 3)];
let sums = session.evaluate({ [x.name]: some, [target.name]: Uint8Array.from(labels, Number) });
assert.equal(sums.samples, 3);
assert(sums.loss > 0 && sums.accuracy >= 0 && sums.accuracy <= 1);
sums = session.evaluate(arrays, sums);
assert.equal(sums.samples, 3 + batch);
const best = labels.filter((label, i) => {
    const row = [...three.subarray(i * width, (i + 1) * width)];
    return row.indexOf(Math.max(...row)) === Number(label);
});
assert.equal(session.evaluate({ [x.name]: [...some], [target.name]: labels }).correct, best.length);

const [weight] = module.variables.filter((v) => v.kind === 0), before = session.read(weight.name);
session.write(weight.name, new Float32Array(before.length));
assert(session.read(weight.name).every((w) => w === 0));
session.write(weight.name, before);
assert.deepEqual(session.read(weight.name), before);
assert.equal(session.hyper("lr", 0.25), 0.25);
assert.equal(session.hyper("lr"), 0.25);

// ---- mistakes

function refused(status, words, call) {
    assert.throws(call, (e) => e instanceof AmpcError && e.status === status &&
        e.message.includes(words));
}
refused(1, `there is no input 'nothing'; there are ${x.name}, ${target.name}`,
    () => session.step({ nothing: some }));
refused(1, "1 inputs given, 2 needed", () => session.step({ [x.name]: some }));
refused(1, "give a Float32Array", () => session.predict({ [x.name]: "text" }));
refused(1, "f64", () => session.predict({ [x.name]: new Float64Array(some.length) }));
refused(9, "", () => session.step({ ...arrays, [target.name]:
    BigInt64Array.from(arrays[target.name], () => 99n) }));
refused(1, "there is no variable 'w\0'", () => session.read("w\0"));
refused(1, "null byte", () => session.hyper("lr\0x"));
refused(1, "there is no program 'fly'", () => module.inputs("fly"));
await assert.rejects(WebAssembly.compile(new Uint8Array(8)));
session.close();
refused(1, "the session is closed", () => session.step(arrays));
refused(1, "the session is closed", () => session.close());
console.log("ok");
