// The table of numbers below the densities, and the Python that gives the same.

import { covariance, fenchelYoung, profile } from "./beta_gaussian.js";
import { element } from "./controls.js";
import { inPython, shown } from "./numbers.js";

const matrix = rows => rows.map(row => row.map(entry => shown(entry, 3)).join("  ")).join("\n");
const isLine = density => density.loc.length === 1;
const ROWS = [
  ["density(loc)", "height at the centre", (density, known) => shown(Math.exp(known.logPeak))],
  ["half_width", "half of the support, Rσ",
    (density, known) => (isLine(density) ? shown(known.radius * Math.sqrt(density.scale[0][0])) : null)],
  ["radius", "R: the support is Δ ≤ R²", (density, known) => shown(known.radius)],
  ["covariance_matrix", "its covariance; Σ itself only for α = 1",
    density => (isLine(density) ? null : matrix(covariance(density)))],
  ["variance", "its variance; σ² itself only for α = 1",
    density => (isLine(density) ? shown(covariance(density)[0][0]) : null)],
  ["threshold", "λ: the score below which the density is 0", (density, known) => shown(known.threshold)],
  ["entropy()", "Shannon entropy, nats", (density, known) => shown(known.entropy)],
  ["tsallis_negentropy()", "Ω_α(p), which the density makes small", (density, known) => shown(known.tsallisNegentropy)],
  ["conjugate()", "Ω*_α of the score", (density, known) => shown(known.conjugate)],
];
const LOSS = ["fenchel_young", "Fenchel–Young loss of p to the target q; of q to the target p"];

let cells = null;

function makeTable() {
  cells = [...ROWS, LOSS].map(([name, meaning]) => {
    const first = element("td", { class: "number" }), second = element("td", { class: "number" });
    const named = element("th", { scope: "row" }, element("code", {}, name));
    const row = element("tr", { "data-name": name }, named, first, second, element("td", { class: "note" }, meaning));
    document.getElementById("numbers").append(row);
    return { row, first, second };
  });
}

/** Show the numbers of p, and of q unless it is null. */
export function showNumbers(p, q) {
  if (!cells) makeTable();
  const known = [p, q].map(density => density && profile(density));
  ROWS.forEach(([, , value], i) => {
    const { row, first, second } = cells[i], text = value(p, known[0]);
    row.hidden = text === null;
    first.textContent = text ?? "";
    second.textContent = q ? value(q, known[1]) ?? "" : "";
  });
  const { row, first, second } = cells[ROWS.length];
  row.hidden = !q;
  first.textContent = q ? shown(fenchelYoung(p, q)) : "";
  second.textContent = q ? shown(fenchelYoung(q, p)) : "";
  document.getElementById("code").textContent = python(p, q);
}

const vector = values => `[${values.map(inPython).join(", ")}]`;

function constructor({ alpha, loc, scale }) {
  const index = `alpha=${inPython(alpha)}`;
  if (loc.length === 1) return `BetaGaussian(loc=${inPython(loc[0])}, scale=${inPython(Math.sqrt(scale[0][0]))}, ${index})`;
  const rows = scale.map(vector).join(", ");
  return `MultivariateBetaGaussian(torch.tensor(${vector(loc)}), torch.tensor([${rows}]), ${index})`;
}

function python(p, q) {
  const family = p.loc.length === 1 ? "BetaGaussian" : "MultivariateBetaGaussian";
  const lines = [`import math, torch, contmax`, `from contmax.densities import ${family}`, "", `p = ${constructor(p)}`];
  if (q) lines.push(`q = ${constructor(q)}`, "contmax.losses.fenchel_young(p, q)");
  else lines.push("p.entropy()");
  return lines.join("\n");
}
