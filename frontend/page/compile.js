// SPDX-License-Identifier: Apache-2.0
// The page of --report: what the compiler decided.
const dtype = type => type.split("[")[0];
const colour = type => {
  const d = dtype(type);
  return "var(--" + (/^(f32|bf16|f16|f64|bool)$/.test(d) ? d : /^f8/.test(d) ? "f8" : "int") + ")";
};
const low = type => dtype(type) === "bf16" || dtype(type) === "f16";

// A column shows a number by `text`; `type` shows a dtype's colour beside it.
function table(id, columns, rows, by) {
  const place = byId(id);
  const short = columns.map(c => c.type || rows.every(r => String(r[c.key]).length <= 14));
  let key = by, down = true;
  function draw() {
    place.replaceChildren();
    const head = element(element(place, "thead"), "tr"), body = element(place, "tbody");
    for (const c of columns) {
      const numeric = rows.length && typeof rows[0][c.key] === "number";
      const th = element(head, "th", undefined, {class: numeric ? "number" : ""});
      if (key === c.key) th.setAttribute("aria-sort", down ? "descending" : "ascending");
      element(th, "button", c.name + (key === c.key ? down ? " \u25bc" : " \u25b2" : "")).onclick = () => {
        down = key === c.key ? !down : true;
        key = c.key;
        draw();
        place.querySelectorAll("th button")[columns.indexOf(c)].focus();
      };
    }
    const sorted = key ? rows.slice().sort((a, b) => (a[key] < b[key] ? 1 : a[key] > b[key] ? -1 : 0) * (down ? 1 : -1)) : rows;
    for (const r of sorted) {
      const tr = element(body, "tr");
      columns.forEach((c, i) => {
        const value = r[c.key], numeric = typeof value === "number";
        const td = element(tr, "td", undefined, {class: numeric ? "number" : short[i] ? "short" : ""});
        if (c.type) element(td, "span", undefined, {class: "swatch", style: "--of:" + colour(value)});
        td.append(numeric ? (c.text || count)(value) : value);
      });
    }
  }
  draw();
}

// /layer1/0/conv1/Conv belongs to layer1/0, h.3.attn.c_attn to h.3, conv1 to
// conv1, Conv_3_output_0 to Conv_3.
function region(of, value) {
  const name = (of || value).replace(/^\//, "").replace(/_output_.*/, "");
  const two = name.match(/^[^/.]+([/.])[^/.]+/), part = name.split(/[/.]/);
  return two && (/^\d+$/.test(part[1]) || two[1] === "/" && part.length > 2) ? two[0] : part[0];
}

function regions(values, casts) {
  const all = new Map();
  const part = (of, value) => {
    const r = region(of, value);
    if (!all.has(r)) all.set(r, {region: r, low: 0, wide: 0, lowBytes: 0, wideBytes: 0, roundings: 0});
    return all.get(r);
  };
  for (const v of values.filter(v => v.part !== "update")) {
    const r = part(v.of, v.value), is = low(v.type);
    r[is ? "low" : "wide"]++;
    r[is ? "lowBytes" : "wideBytes"] += v.bytes;
    r.roundings += is;
  }
  for (const c of casts) if (c.part !== "update") part(c.of, c.value).roundings += low(c.to);
  table("regions", [{name: "part", key: "region"}, {name: "in 16 bits", key: "low"}, {name: "in more", key: "wide"},
    {name: "moved in 16 bits", key: "lowBytes", text: size}, {name: "moved in more", key: "wideBytes", text: size}, {name: "roundings", key: "roundings"}], [...all.values()]);
}

// parts: [name, bytes, colour]
function bar(place, title, parts, total) {
  element(place, "div", title);
  const row = element(place, "div", undefined, {class: "bar"});
  for (const [name, bytes, of] of parts) {
    if (!bytes) continue;
    const text = name + " " + size(bytes);
    element(row, "div", text, {title: text, style: "width:" + 100 * bytes / total + "%;--of:" + of});
  }
}

function memory(program, target) {
  const place = byId("memory"), m = data.memory;
  place.replaceChildren();
  const p = m.programs.find(q => q.program === program && q.target === target);
  const greys = ["#3f4a56", "#6a7784", "#4d6a85", "#565f69", "#5d7391"]; // no dtypes
  const uses = object => Object.entries(object).map(([name, n], i) => [name, n, greys[i % greys.length]]);
  const sum = list => list.reduce((a, [, n]) => a + n, 0);
  const fullest = uses(p.fullest), variables = uses(m.variables);
  const kept = Object.entries(p.kept).map(([d, k]) => [d + ", " + k.values + " values,", k.bytes, colour(d)]);
  const most = Math.max(p.arena, sum(variables), sum(fullest), 1);
  bar(place, "arena, " + size(p.arena) + ", when it is fullest", fullest, most);
  if (kept.length) bar(place, "kept for backward, by dtype, " + size(sum(kept)), kept, most);
  bar(place, "variables, " + size(sum(variables)), variables, most);
}

// What the tip says is kept after a click or Enter until Escape.
const tip = {
  kept: false,
  show(text) { if (!tip.kept) byId("tip").textContent = text; },
  keep(text) { byId("tip").textContent = text; tip.kept = true; },
};

function line(svg, from, to, v, name) {
  const side = from.x === to.x ? (from.x < 100 ? -1 : 1) * Math.min(50, 6 + Math.abs(from.y - to.y) / 8) : 0;
  const x0 = from.x + (side < 0 ? 0 : side > 0 || from.x < to.x ? 400 : 0), x1 = to.x + (side > 0 ? 400 : 0);
  const path = element(svg, "path", undefined, {fill: "none", "stroke-width": 1.3, stroke: v ? colour(v.type) : "var(--line)", opacity: .6,
    d: "M" + x0 + " " + from.y + " C" + (side ? x0 + side : 560) + " " + from.y + " " + (side ? x1 + side : 560) + " " + to.y + " " + x1 + " " + to.y});
  path.onmouseenter = () => tip.show(name + (v ? " " + v.type + (v.saved ? ", kept for backward" : "") + "\n" + size(v.bytes) + " a step" + (v.why ? "; f32: " + v.why : "") : ""));
}

function graph(kernels, values) {
  const place = byId("graph"), width = 1120, step = 19, types = new Map(values.map(v => [v.value, v]));
  const forward = kernels.filter(k => k.part === "forward").length;
  const height = (Math.max(forward, kernels.length - forward) + 2) * step;
  place.replaceChildren();
  const svg = element(place, "svg", undefined, {width, height, role: "group", "aria-label": "kernels"});
  let down = 0, up = 0;
  const at = kernels.map(k => k.part === "forward" ? {x: 60, y: ++down * step} : {x: 660, y: height - ++up * step});
  const made = new Map();
  kernels.forEach((k, i) => k.writes.forEach(w => made.set(w, i)));
  kernels.forEach((k, i) => k.reads.forEach(name => {
    const j = made.get(name);
    if (j === undefined || (i === j + 1 && at[i].x === at[j].x)) return; // the next row needs no line
    line(svg, at[j], at[i], types.get(name), name);
  }));
  const boxes = kernels.map((k, i) => {
    const text = k.name + "\n" + k.part + ", " + k.kind + ": " + k.ops.join(" ") + "\nwrites " + (k.writes.join(", ") || k.result) + " " + k.type + "\nreads " + k.reads.join(", ");
    const box = element(svg, "rect", undefined, {x: at[i].x, y: at[i].y - 8, width: 400, height: 16, rx: 3, fill: colour(k.type), tabindex: i ? -1 : 0, role: "button", "aria-label": k.name});
    element(svg, "text", k.name.length > 58 ? k.name.slice(0, 57) + "\u2026" : k.name, {x: at[i].x + 6, y: at[i].y + 4, class: "label"});
    box.onmouseenter = box.onfocus = () => tip.show(text);
    box.onclick = () => tip.keep(text);
    box.onkeydown = e => {
      const to = e.key === "ArrowDown" || e.key === "ArrowRight" ? i + 1 : e.key === "ArrowUp" || e.key === "ArrowLeft" ? i - 1 : -1;
      if (e.key === "Escape") tip.kept = false;
      if (e.key === "Enter" || e.key === " ") tip.keep(text);
      if (boxes[to]) { tip.kept = false; boxes[to].focus(); boxes[to].scrollIntoView({block: "nearest", inline: "nearest"}); }
      if (boxes[to] || e.key === " ") e.preventDefault();
    };
    return box;
  });
}

function key(types) {
  const place = byId("key");
  place.replaceChildren();
  for (const d of new Set(types.map(dtype))) {
    const item = element(place, "span");
    element(item, "span", undefined, {class: "swatch", style: "--of:" + colour(d)});
    item.append(d);
  }
}

function show(i) {
  const p = data.casts[i], kernels = data.kernels[i].kernels, bytes = new Map(p.values.map(v => [v.value, v.bytes]));
  const values = p.values.map(v => ({...v, saved: v.saved ? "kept for backward" : ""}));
  tip.kept = false;
  key(kernels.map(k => k.type).concat(values.map(v => v.type)));
  memory(p.program, p.target);
  regions(values, p.casts);
  graph(kernels, p.values);
  table("kernels", [{name: "", key: "n"}, {name: "kernel", key: "name"}, {name: "part", key: "part"}, {name: "kind", key: "kind"}, {name: "stores", key: "type", type: true}, {name: "moved", key: "bytes", text: size}],
    kernels.map((k, n) => ({...k, n: n + 1, bytes: k.writes.reduce((a, w) => a + (bytes.get(w) || 0), 0)})));
  table("casts", [{name: "value", key: "value"}, {name: "from", key: "from", type: true}, {name: "to", key: "to", type: true}, {name: "read by", key: "for"},
    {name: "why", key: "why"}, {name: "part", key: "part"}, {name: "in the kernel of", key: "kernel"}, {name: "moved", key: "bytes", text: size}, {name: "without", key: "without", text: size}],
    p.casts.map(c => ({...c, kernel: c.kernel || "(alone)"})));
  const columns = [{name: "value", key: "value"}, {name: "op", key: "op"}, {name: "type", key: "type", type: true}, {name: "part", key: "part"},
    {name: "moved", key: "bytes", text: size}, {name: "kept", key: "saved"}, {name: "f32 because", key: "why"}];
  const filtered = () => {
    const want = byId("filter").value.toLowerCase();
    table("values", columns, values.filter(v => (v.value + " " + v.op + " " + v.type + " " + v.why).toLowerCase().includes(want)), "bytes");
  };
  byId("filter").oninput = filtered;
  filtered();
}

const lines = data.text.trim().split("\n");
document.title = data.module + ": compile report";
byId("title").textContent = data.module;
byId("verdict").textContent = lines.pop();
byId("summary").textContent = lines.join("\n");
byId("summary").hidden = !lines.length;
facts(byId("facts"), [...recipe(data.summary.options), ["options", data.said], ["targets", data.summary.targets.join(", ")], ["compiled by", "ampc " + data.version]]);
data.casts.forEach((p, i) => element(byId("program"), "option", p.program + " on " + p.target, {value: i}));
byId("program").onchange = e => show(Number(e.target.value));
table("params", [{name: "name", key: "name"}, {name: "kind", key: "kind"}, {name: "type", key: "type", type: true}, {name: "why", key: "why"}], data.params);
const first = Math.max(0, data.casts.findIndex(p => p.program === "train"));
byId("program").value = first;
show(first);
