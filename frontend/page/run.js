// SPDX-License-Identifier: Apache-2.0
// The page of `ampc run --report`: curves of a run.
const H = 260, LEFT = 66, RIGHT = 12, TOP = 14, BOTTOM = 26;
const short = x => Math.abs(x) >= 1e5 || (x && Math.abs(x) < 1e-3) ? x.toExponential(2) : String(Number(x.toPrecision(4)));

// "train/loss" and "eval/loss" share a chart: groups of curves by their names.
function groups() {
  const all = new Map();
  for (const c of data.curves) {
    const [side, name] = c.tag.split("/");
    if (!all.has(name)) all.set(name, []);
    all.get(name).push({...c, side});
  }
  return all;
}

const constant = curves => curves.every(c => c.means.every(y => y === curves[0].means[0]));

// Exponential moving average without the bias of its first value.
function smoothed(means, weight) {
  let sum = 0, norm = 0;
  return means.map(y => {
    sum = weight * sum + (1 - weight) * y;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

function ticks(low, high) {
  const rough = (high - low) / 6, unit = 10 ** Math.floor(Math.log10(rough)), list = [];
  const step = [1, 2, 5, 10].map(k => k * unit).find(s => s >= rough) || rough;
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) list.push(t);
  return list;
}

// The nearest step of a curve.
function nearest(steps, x) {
  let best = 0;
  for (let i = 1; i < steps.length; i++) if (Math.abs(steps[i] - x) < Math.abs(steps[best] - x)) best = i;
  return best;
}

// "metric/f1" is measured in evaluation, too.
const kind = side => side === "train" ? side : "eval";
const colour = side => "var(--" + kind(side) + ")";

function chart(place, name, curves, weight, log) {
  const head = element(place, "h2", name + " "), W = Math.max(280, place.clientWidth), best = data.best && curves.some(c => c.tag === data.best.tag);
  for (const c of curves) element(head, "small", kind(c.side) + " ", {style: "color:" + colour(c.side)});
  if (best) element(head, "small", "best: epoch " + data.best.epoch, {class: "best"});
  const box = element(place, "div", undefined, {class: "chart"}), note = element(place, "p", "\u00a0", {"aria-live": "polite"});
  const svg = element(box, "svg", undefined, {viewBox: "0 0 " + W + " " + H, role: "img", "aria-label": name, tabindex: 0});
  const lines = curves.map(c => ({...c, means: c.side === "train" ? smoothed(c.means, weight) : c.means}));
  const scale = y => log ? Math.log10(y) : y, every = lines.flatMap(c => c.means).filter(y => !log || y > 0).map(scale);
  const steps = lines.flatMap(c => c.steps), first = Math.min(...steps), last = Math.max(...steps);
  let low = Math.min(...every), high = Math.max(...every);
  const margin = (high - low) * .04 || .5;
  low -= margin;
  high += margin;
  const px = s => LEFT + (last > first ? (s - first) / (last - first) : .5) * (W - LEFT - RIGHT);
  const py = y => TOP + (high - scale(y)) / (high - low) * (H - TOP - BOTTOM);
  const text = (x, y, words, anchor) => element(svg, "text", words, {x, y, "text-anchor": anchor, "font-size": 12});
  for (const t of ticks(low, high)) {
    const y = TOP + (high - t) / (high - low) * (H - TOP - BOTTOM);
    element(svg, "line", undefined, {x1: LEFT, x2: W - RIGHT, y1: y, y2: y, stroke: "var(--line)"});
    text(LEFT - 6, y + 4, short(log ? 10 ** t : t), "end");
  }
  text(LEFT, H - 6, "step " + count(first), "start");
  text(W - RIGHT, H - 6, count(last), "end");
  for (const c of lines) {
    const points = c.steps.map((s, k) => [s, c.means[k]]).filter(([, y]) => !log || y > 0).map(([s, y]) => [px(s).toFixed(1), py(y).toFixed(1)]);
    element(svg, "polyline", undefined, {points: points.map(p => p.join(",")).join(" "), fill: "none", stroke: colour(c.side), "stroke-width": 1.6});
    if (points.length <= 50) for (const [cx, cy] of points) element(svg, "circle", undefined, {cx, cy, r: 2.5, fill: colour(c.side)});
  }
  if (best) element(svg, "line", undefined, {x1: px(data.best.step), x2: px(data.best.step), y1: TOP, y2: H - BOTTOM, stroke: "var(--eval)", "stroke-dasharray": "4 3"});
  const cross = element(svg, "line", undefined, {y1: TOP, y2: H - BOTTOM, stroke: "var(--pale)", visibility: "hidden"});
  let at = last;
  const point = step => {
    at = Math.min(last, Math.max(first, step));
    const i = nearest(lines[0].steps, at);
    cross.setAttribute("x1", px(lines[0].steps[i]));
    cross.setAttribute("x2", px(lines[0].steps[i]));
    cross.setAttribute("visibility", "visible");
    note.textContent = "step " + count(lines[0].steps[i]) + lines.map(c => ", " + kind(c.side) + " " + short(c.means[nearest(c.steps, lines[0].steps[i])])).join("");
  };
  svg.onpointermove = e => {
    const r = svg.getBoundingClientRect();
    point(first + ((e.clientX - r.left) / r.width * W - LEFT) / (W - LEFT - RIGHT) * (last - first));
  };
  svg.onkeydown = e => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[e.key];
    if (!by) return;
    point(at + by * Math.max(1, (last - first) / 100));
    e.preventDefault();
  };
}

function draw() {
  const weight = Number(byId("smooth").value), place = byId("charts"), flat = [];
  place.replaceChildren();
  for (const [name, curves] of groups()) {
    if (constant(curves) && curves.every(c => c.side === "train")) flat.push(name + " " + short(curves[0].means[0]));
    else chart(place, name, curves, weight, byId("log").checked && name === "loss");
  }
  byId("constant").textContent = flat.length ? "Unchanged in the whole run: " + flat.join(", ") + "." : "";
}

const summary = data.text.trim().split("\n");
document.title = data.module + ": run";
byId("title").textContent = data.model || data.module;
byId("verdict").textContent = summary.shift();
byId("summary").textContent = summary.join("\n");
byId("summary").hidden = !summary.length;
facts(byId("facts"), [["module", data.module], ...recipe(data.info.options || {}),
  ["batch", data.info.batch && data.info.batch + (data.info.accumulate > 1 ? " x " + data.info.accumulate + " micro-batches" : "")], ["data", data.data], ["device", data.device]]);
byId("smooth").oninput = byId("log").onchange = window.onresize = draw;
draw();
