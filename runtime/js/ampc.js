// SPDX-License-Identifier: Apache-2.0
/**
 * ampc.js: trains a module in a browser, in a worker or in node. The module is the C text
 * that `ampc --target c` writes, compiled as docs/guide/deploy.md says.
 *
 *   const module = await Module.load("train.wasm"), session = module.session();
 *   const { loss } = session.step({ x, target });
 *   const { y } = session.predict({ x });
 *
 * Inputs are typed arrays (Float32Array for f32, BigInt64Array for i64), or plain arrays of
 * numbers, which are converted. A call that fails throws AmpcError and changes nothing.
 */
const ABI_VERSION = 1, RANK_LIMIT = 8, TABLE = "__indirect_function_table";
const ARGUMENT = 1, MEMORY = 2, FILE = 3, FORMAT = 4, NO_SUCH_CALL = 52; // the last: of WASI
// ampc_dtype, in its order. Arrays of 16-bit and 8-bit floats hold their bits.
const DTYPES = Object.entries({ bool: Uint8Array, u8: Uint8Array, i8: Int8Array,
    u16: Uint16Array, i16: Int16Array, u32: Uint32Array, i32: Int32Array, u64: BigUint64Array,
    i64: BigInt64Array, f16: Uint16Array, bf16: Uint16Array, f32: Float32Array,
    f64: Float64Array, f8e4m3: Uint8Array, f8e5m2: Uint8Array, e8m0: Uint8Array });

// The structs of ampc.h behind their size, with 32-bit pointers. p: pointer, size_t or
// uint32_t; s: text; i: int32_t; d: double; q: int64_t; h: uint64_t; a: int64_t[RANK_LIMIT].
const KINDS = { p: "Uint32", s: "Uint32", i: "Int32", d: "Float64", q: "BigInt64",
    h: "BigUint64", a: "BigInt64" };
export const STRUCTS = layouts({
    module_info: "model:s info:s graph_hash:h batch:q accumulate:q seed:q trains:i " +
        "evaluates:i predicts:i nvariable:p arena:q parts:i reserved0:i",
    program_info: "ninput:p noutput:p nstep:p flops:d",
    tensor_info: "name:s dtype:i rank:i shape:a bytes:p sample_rows:q",
    variable_info: "name:s kind:i dtype:i rank:i shape:a bytes:p",
    input: "name:p data:p bytes:p dtype:i rank:i shape:p place:i reserved0:i",
    output: "name:p data:p bytes:p dtype:i place:i",
    metrics: "loss:d grad_norm:d scale:d lr:d updated:i applied:i step:q tried:q " +
        "skipped:q bad_forward:q bad_data:q skip_streak:q",
    eval: "loss_num:d loss_den:d correct:d count:d samples:q exact:i top_k:i correct_top:d",
    api: "abi:p reserved0:p module:p version:s describe:p program:p input:p output:p " +
        "variable:p open:p close:p error:p step:p sync:p micro_step:p update:p vjp:p " +
        "evaluate:p predict:p read_output:p get_hyper:p set_hyper:p scaler:p " +
        "read_variable:p write_variable:p",
});

function layouts(texts) {
    return Object.fromEntries(Object.entries(texts).map(([name, text]) => {
        let size = 0;
        const fields = `size:p ${text}`.split(" ").map((field) => {
            const [key, kind] = field.split(":"), width = KINDS[kind].endsWith("64") ? 8 : 4;
            const at = Math.ceil(size / width) * width;
            size = at + (kind === "a" ? RANK_LIMIT : 1) * width;
            return { key, kind, at };
        });
        return [name, { fields, size: /:[dqha]/.test(text) ? Math.ceil(size / 8) * 8 : size }];
    }));
}

/** A call failed: `status` is an ampc_status of ampc.h; the message tells why. */
export class AmpcError extends Error {
    constructor(status, message) {
        super(message);
        Object.assign(this, { name: "AmpcError", status });
    }
}

const tensor = ({ dtype, rank, shape, ...rest }) =>
    ({ ...rest, code: dtype, dtype: DTYPES[dtype][0], shape: shape.slice(0, rank) });
function named(what, tensors, name) {
    const found = tensors.find((t) => t.name === name);
    if (!found) throw new AmpcError(ARGUMENT, `there is no ${what} '${name}'; there are ` +
        tensors.map((t) => t.name).join(", "));
    return found;
}

/** An input as C takes it: its name, its array and that array's ampc_dtype. */
function typed({ name, code }, array) {
    const [dtype, Type] = DTYPES[code];
    if (Array.isArray(array) && /^(bool|[ui]\d+|f32|f64)$/.test(dtype))
        array = Type.from(array.flat(Infinity), Type.name.startsWith("Big") ? BigInt : Number);
    const own = DTYPES.findIndex(([other, type]) => other !== "bool" && array instanceof type);
    if (own < 0) throw new AmpcError(ARGUMENT, `${name}: give a ${Type.name}`);
    return { name, array, dtype: array instanceof Type ? code : own };
}

export class Module {
    /** From a URL, or from the bytes of a .wasm file. */
    static async load(from) {
        const answer = typeof from === "string" || from instanceof URL ? await fetch(from) : null;
        if (answer && !answer.ok) throw new AmpcError(FILE, `${from}: status ${answer.status}`);
        const compiled = await WebAssembly.compile(answer ? await answer.arrayBuffer() : from);
        // The C library asks the system for nothing that training needs.
        const calls = Object.fromEntries(WebAssembly.Module.imports(compiled).map(({ name }) =>
            [name, () => NO_SUCH_CALL]));
        const instance = await WebAssembly.instantiate(compiled, { wasi_snapshot_preview1: calls });
        return new Module(instance.exports);
    }

    constructor(exports) {
        for (const name of ["memory", "malloc", "free", "ampc_module", TABLE])
            if (!exports[name]) throw new AmpcError(FORMAT, `the module does not export ${name}: ` +
                "compile it as docs/guide/deploy.md says");
        exports._initialize?.();
        this.exports = exports;
        const at = exports.ampc_module(ABI_VERSION);
        this.api = at ? this.get("api", at) : { size: 0 };
        if (this.api.size < STRUCTS.api.size)
            throw new AmpcError(FORMAT, "the module was made for another version of ampc.js");
        this.info = this.ask("module_info", "describe"); // ampc_module_info
        this.variables = Array.from({ length: this.info.nvariable }, // kind: ampc_kind
            (_, i) => tensor(this.ask("variable_info", "variable", i)));
    }

    /** Of program "train", "eval", "predict" ..: [{name, dtype, shape, bytes}]. */
    inputs(program = "train") { return this.tensors("input", program); }
    outputs(program = "predict") { return this.tensors("output", program); }
    /** Training that begins with the module's initial weights. */
    session() { return new Session(this); }

    // ---- for Session: C's functions and memory

    tensors(which, program) {
        const info = this.ask("program_info", "program", program);
        if (!info) throw new AmpcError(ARGUMENT, `there is no program '${program}'`);
        return Array.from({ length: info[`n${which}`] },
            (_, i) => tensor(this.ask("tensor_info", which, program, i)));
    }

    call(name, ...args) { return this.exports[TABLE].get(this.api[name])(...args); }

    // Made anew: when memory grows, earlier views of it are empty.
    bytes(at, n) { return new Uint8Array(this.exports.memory.buffer, at, n); }
    view() { return new DataView(this.exports.memory.buffer); }

    /** Returns what `use` returns, and frees the memory that `use` takes. */
    scratch(use) {
        const taken = [];
        try {
            return use((bytes) => {
                const at = this.exports.malloc(bytes + 8); // never of 0 bytes
                if (!at) throw new AmpcError(MEMORY, `there is no memory for ${bytes} bytes`);
                taken.push(at);
                return at;
            });
        } finally {
            taken.forEach((at) => this.exports.free(at));
        }
    }

    text(at) {
        return new TextDecoder().decode(this.bytes(at, at && this.bytes(at).indexOf(0)).slice());
    }

    putBytes(take, bytes) {
        const at = take(bytes.length);
        this.bytes(at, bytes.length).set(bytes);
        return at;
    }

    putText(take, text) {
        if (text.includes("\0")) throw new AmpcError(ARGUMENT, `'${text}' has a null byte`);
        return this.putBytes(take, new TextEncoder().encode(`${text}\0`));
    }

    put(struct, to, values) {
        const { fields, size } = STRUCTS[struct], view = this.view();
        this.bytes(to, size).fill(0);
        for (const { key, kind, at } of fields.filter((f) => f.key in values))
            view[`set${KINDS[kind]}`](to + at,
                kind === "q" ? BigInt(values[key]) : values[key], true);
        view.setUint32(to, size, true);
    }

    get(struct, from) {
        const one = (kind, at) => {
            const value = this.view()[`get${KINDS[kind]}`](at, true);
            return kind === "s" ? this.text(value) : kind === "h" ? value : Number(value);
        };
        return Object.fromEntries(STRUCTS[struct].fields.map(({ key, kind, at }) => [key,
            kind !== "a" ? one(kind, from + at)
                : Array.from({ length: RANK_LIMIT }, (_, i) => one("q", from + at + 8 * i))]));
    }

    /** The struct that `run` fills at the address that it is given; null if that fails. */
    filled(take, struct, values, run) {
        const at = take(STRUCTS[struct].size);
        this.put(struct, at, values);
        return run(at) ? null : this.get(struct, at);
    }

    ask(struct, name, ...args) {
        return this.scratch((take) => this.filled(take, struct, {}, (to) => this.call(name,
            this.api.module, ...args.map((a) => a.trim ? this.putText(take, a) : a), to)));
    }
}

class Session {
    #handle;

    constructor(module) {
        this.module = module;
        this.#handle = module.scratch((take) => {
            const out = take(4), why = take(256), args = [module.api.module, 0, out, why, 256];
            const status = module.call("open", ...args);
            if (status) throw new AmpcError(status, module.text(why));
            return module.view().getUint32(out, true);
        });
    }

    /** Frees the session's memory. */
    close() { this.#do("close"), this.#handle = 0; }

    /** Makes one optimizer step; returns ampc_metrics: loss, grad_norm, lr, step .. */
    step(arrays) {
        return this.#with("train", arrays, (take, given) => this.module.filled(take, "metrics",
            {}, (to) => this.#do("step", ...given, to)));
    }

    /** Loss and accuracy of any number of samples, added to `sums`, an earlier result. */
    evaluate(arrays, sums = {}) {
        return this.#with("eval", arrays, (take, given, n) => {
            const e = this.module.filled(take, "eval", sums, (to) =>
                this.#do("evaluate", ...given, BigInt(n), to));
            return { ...e, loss: e.loss_num / e.loss_den, accuracy: e.correct / e.count };
        });
    }

    /** All outputs of the model by name, for any number of samples. */
    predict(arrays) {
        return this.#with("predict", arrays, (take, given, n) => {
            const outputs = this.module.outputs().map((t) => t.sample_rows > 0
                ? { ...t, bytes: t.bytes / t.shape[0] * t.sample_rows * n } : t);
            return this.#results(take, outputs, (to) =>
                this.#do("predict", ...given, BigInt(n), to, outputs.length));
        });
    }

    /** A copy of one of Module.variables. */
    read(name) {
        const variable = named("variable", this.module.variables, name);
        return this.module.scratch((take) => this.#results(take, [variable], (to) =>
            this.#do("read_variable", this.module.putText(take, name), to)))[name];
    }

    /** Writes a parameter, a frozen weight, a buffer or a state. */
    write(name, array) {
        const variable = named("variable", this.module.variables, name);
        this.module.scratch((take) => this.#do("write_variable", this.module.putText(take, name),
            this.#given(take, [typed(variable, array)])));
    }

    /** Reads a hyper-parameter ("lr"), or sets it. */
    hyper(name, value) {
        return this.module.scratch((take) => {
            const key = this.module.putText(take, name), at = take(8);
            if (value !== undefined) this.#do("set_hyper", key, value);
            this.#do("get_hyper", key, at);
            return this.module.view().getFloat64(at, true);
        });
    }

    #do(name, ...args) {
        if (!this.#handle) throw new AmpcError(ARGUMENT, "the session is closed");
        const m = this.module, status = m.call(name, this.#handle, ...args);
        if (status) throw new AmpcError(status, m.text(m.call("error", this.#handle)));
    }

    /** Calls `use(take, [inputs, their number], samples)` with the arrays in C's memory. */
    #with(program, arrays, use) {
        const wanted = this.module.inputs(program), { batch } = this.module.info;
        const given = Object.entries(arrays).map(([name, array]) =>
            typed(named("input", wanted, name), array));
        const { name, shape } = wanted.find((t) => t.shape[0] === batch && t.name in arrays) ?? {};
        const n = name ? Math.floor(given.find((g) => g.name === name).array.length * batch /
            shape.reduce((a, b) => a * b)) : batch;
        return this.module.scratch((take) =>
            use(take, [this.#given(take, given), given.length], n));
    }

    /** ampc_input[] of what `typed` returns. */
    #given(take, inputs) {
        const m = this.module, at = take(inputs.length * STRUCTS.input.size);
        inputs.forEach(({ name, array, dtype }, i) => {
            const { buffer, byteOffset, byteLength } = array;
            const data = m.putBytes(take, new Uint8Array(buffer, byteOffset, byteLength));
            m.put("input", at + i * STRUCTS.input.size,
                { name: m.putText(take, name), data, bytes: byteLength, dtype, rank: -1 });
        });
        return at;
    }

    /** The tensors that `run` copies to the ampc_output[] that it is given, by name. */
    #results(take, tensors, run) {
        const m = this.module, at = take(tensors.length * STRUCTS.output.size);
        const places = tensors.map(({ name, bytes, code: dtype }, i) => {
            const to = { name: m.putText(take, name), data: take(bytes), bytes, dtype };
            m.put("output", at + i * STRUCTS.output.size, to);
            return to;
        });
        run(at);
        return Object.fromEntries(tensors.map(({ name, code, bytes }, i) =>
            [name, new DTYPES[code][1](m.bytes(places[i].data, bytes).slice().buffer)]));
    }
}
