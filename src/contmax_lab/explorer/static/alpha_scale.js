// The slider of α: from just above N/(N+2), below which the variance is infinite, to ∞.

import { clamp } from "./numbers.js";

const MARGIN = 0.01;
// Where α = 1 and α = 2 lie on the slider, which goes from 0 to 1.
const GAUSSIAN = 0.25, PARABOLA = 0.5;

/** The least α that the page shows in N dimensions. */
export const lowestAlpha = dim => dim / (dim + 2) + MARGIN;

/** α at a place of the slider. */
export function alphaAt(place, dim) {
  const low = lowestAlpha(dim);
  if (place >= 1) return Infinity;
  if (place <= GAUSSIAN) return low + ((1 - low) * place) / GAUSSIAN;
  if (place <= PARABOLA) return 1 + (place - GAUSSIAN) / (PARABOLA - GAUSSIAN);
  return 1 + (1 - PARABOLA) / (1 - place);
}

/** The opposite of alphaAt. */
export function placeOfAlpha(alpha, dim) {
  const low = lowestAlpha(dim);
  if (alpha === Infinity) return 1;
  if (alpha <= 1) return clamp((GAUSSIAN * (alpha - low)) / (1 - low), 0, GAUSSIAN);
  if (alpha <= 2) return GAUSSIAN + (alpha - 1) * (PARABOLA - GAUSSIAN);
  return 1 - (1 - PARABOLA) / (alpha - 1);
}

/** What somebody typed for α, or null: "inf" and "∞" are ∞, and fractions such as 4/3 are understood. */
export function readAlpha(text, lowest) {
  const word = text.trim().toLowerCase();
  if (["inf", "infinity", "∞", "math.inf"].includes(word)) return Infinity;
  const [over, under = "1", ...more] = word.split("/");
  const value = more.length || !over.trim() || !under.trim() ? NaN : Number(over) / Number(under);
  return Number.isFinite(value) && value >= lowest - 1e-12 ? value : null;
}

/** Members of the family that have a name. */
export const NAMED = [
  { alpha: 1, label: "1", title: "Gaussian" },
  { alpha: 4 / 3, label: "4⁄3", title: "triweight" },
  { alpha: 1.5, label: "3⁄2", title: "biweight" },
  { alpha: 2, label: "2", title: "truncated parabola" },
  { alpha: Infinity, label: "∞", title: "uniform" },
];

/** What the member with this α is called. */
export function nameOfAlpha(alpha, dim) {
  const named = NAMED.find(entry => Math.abs(entry.alpha - alpha) < 1e-9 || entry.alpha === alpha);
  if (named && !(dim === 2 && named.alpha === 2)) return named.title;
  if (alpha === 2) return "truncated paraboloid";
  return alpha < 1 ? "Student-t, heavy tails" : "bounded";
}
