// SPDX-License-Identifier: Apache-2.0
// What all pages share. Text is never markup: names are the model's.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").body.firstChild.namespaceURI;

function element(parent, name, text, attributes) {
  const e = parent.namespaceURI === SVG || name === "svg" ? document.createElementNS(SVG, name) : document.createElement(name);
  if (text !== undefined) e.textContent = text;
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  return parent.appendChild(e);
}

const count = n => Math.round(n).toLocaleString("en");

// 1,234 bytes are 1.2 kB, units of 1,000 as in the compiler's lines.
function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let k = 0, n = Math.abs(bytes);
  while (n >= 999.5 && k + 1 < units.length) { n /= 1000; k++; }
  return (bytes < 0 ? "\u2212" : "") + (k && n < 99.95 ? n.toFixed(n < 9.995 ? 2 : 1) : Math.round(n)) + " " + units[k];
}

function facts(place, rows) {
  for (const [name, value] of rows) {
    if (value === undefined || value === null || value === "") continue;
    element(place, "dt", name);
    element(place, "dd", value);
  }
}

// What a module keeps of its options, as rows of facts.
function recipe(o) {
  const name = o.optimizer && o.optimizer.name, keys = Object.entries(o.optimizer || {}).filter(([k, v]) => k !== "name" && v);
  return [["precision", o.precision], ["loss", o.loss], ["optimizer", name && [name, ...keys.map(([k, v]) => k + "=" + v)].join(", ")],
    ["schedule", o.lr_schedule]];
}
