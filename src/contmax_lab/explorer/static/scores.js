// The room of scores: softmax, entmax and sparsemax of the same scores, with their Jacobians.

import { element, everyFrame, sliderRow } from "./controls.js";
import { entmax, entmaxJacobian, readScores } from "./entmax.js";
import { clamp, inPython, percent, shown } from "./numbers.js";

const MOST = 16;
const state = { scores: [], alpha: 1.5, temperature: 1 };
const find = id => document.getElementById(id);
const frame = everyFrame(draw);

const MAPS = [
  { name: "softmax", alpha: () => 1, title: () => "softmax (α = 1)" },
  { name: "entmax", alpha: () => state.alpha, title: () => `entmax (α = ${shown(state.alpha, 3)})` },
  { name: "sparsemax", alpha: () => 2, title: () => "sparsemax (α = 2)" },
];

// The temperature has a logarithmic slider: 1 lies in the middle.
const shows = [
  sliderRow(find("sliders"), {
    id: "alpha", label: "α of entmax", min: 0.25, max: 4, step: 0.01, get: () => state.alpha,
    set: alpha => update({ alpha }), text: value => shown(value, 3),
  }),
  sliderRow(find("sliders"), {
    id: "temperature", label: "temperature T", min: -1, max: 1, step: 0.01, get: () => Math.log10(state.temperature),
    set: power => update({ temperature: 10 ** power }), text: power => shown(10 ** power, 3),
  }),
];

function update(changes) {
  Object.assign(state, changes);
  frame();
}

for (const map of MAPS) {
  map.heading = element("h2");
  map.bars = element("div", { class: "bars", role: "list" });
  map.summary = element("p", { class: "note" });
  map.grid = element("div", {
    class: "jacobian", tabindex: "0", role: "img",
    keydown: event => walk(map, event), pointermove: event => point(map, event),
  });
  map.here = null;
  const parts = [map.heading, map.bars, map.summary, map.grid];
  find("maps").append(element("section", { class: "map", "data-map": map.name }, ...parts));
}

function draw() {
  for (const show of shows) show();
  const read = readScores(find("scores").value, MOST);
  find("scores-problem").textContent = read.problem ?? "";
  find("scores").setAttribute("aria-invalid", read.problem !== undefined);
  if (read.problem) return;
  state.scores = read.scores;
  for (const map of MAPS) drawMap(map);
  find("code").textContent = [
    "import torch, contmax", "", `scores = torch.tensor([${state.scores.map(inPython).join(", ")}])`,
    `contmax.entmax(scores, alpha=${inPython(state.alpha)}, temperature=${inPython(state.temperature)})`,
  ].join("\n");
}

function drawMap(map) {
  const alpha = map.alpha(), p = entmax(state.scores, alpha, state.temperature);
  map.p = p;
  map.jacobian = entmaxJacobian(p, alpha, state.temperature);
  map.heading.textContent = map.title();
  fill(map.bars, p.length, emptyBar);
  p.forEach((share, i) => {
    const [score, track, value] = map.bars.children[i].children;
    score.textContent = shown(state.scores[i], 3);
    track.firstChild.style.width = `${100 * share}%`;
    value.textContent = percent(share);
    map.bars.children[i].classList.toggle("zero", share === 0);
  });
  const zeros = p.filter(share => share === 0).length;
  map.summary.textContent = zeros ? `${zeros} of ${p.length} exactly 0` : "none is exactly 0";
  drawJacobian(map);
}

function emptyBar() {
  const span = (name, ...inside) => element("span", { class: name }, ...inside);
  return element("div", { class: "item", role: "listitem" }, span("score"), span("track", span("share")), span("value"));
}

function fill(parent, count, make) {
  while (parent.children.length > count) parent.lastChild.remove();
  while (parent.children.length < count) parent.append(make());
}

function drawJacobian(map) {
  const size = map.p.length, strongest = Math.max(...map.jacobian.flat().map(Math.abs)) || 1;
  map.grid.style.gridTemplateColumns = `repeat(${size}, 1fr)`;
  fill(map.grid, size * size, () => element("span"));
  map.jacobian.flat().forEach((value, place) => {
    const cell = map.grid.children[place], role = value > 0 ? "first" : "second";
    cell.style.background = value ? `rgb(var(--${role}) / ${0.12 + 0.88 * Math.sqrt(Math.abs(value) / strongest)})` : "";
  });
  map.grid.setAttribute("aria-label", `Jacobian of ${map.title()}, ${size} by ${size}; arrow keys read its numbers`);
  if (map.here) say(map, ...map.here);
}

function say(map, row, column) {
  const last = map.p.length - 1;
  map.here = [clamp(row, 0, last), clamp(column, 0, last)];
  const [i, j] = map.here;
  [...map.grid.children].forEach((cell, place) => cell.classList.toggle("here", place === i * map.p.length + j));
  find("said").textContent = `${map.name}: ∂p${i + 1}/∂x${j + 1} = ${shown(map.jacobian[i][j])}`;
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function walk(map, event) {
  const step = STEPS[event.key];
  if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const [row, column] = map.here ?? [-step[0], -step[1]];
  say(map, row + step[0], column + step[1]);
}

function point(map, event) {
  const place = [...map.grid.children].indexOf(event.target);
  if (place >= 0) say(map, Math.floor(place / map.p.length), place % map.p.length);
}

find("scores").addEventListener("input", frame);
frame();
