// Two densities on the line, drawn.

import { height, profile } from "./beta_gaussian.js";
import { clamp, shown } from "./numbers.js";

export const LINE = { low: -4, high: 4 };
const TOP = 14, BELOW = 62;

/** The places of the picture: pixels of a point (t, height), and back. */
export function lineView(stage, tallest) {
  const ground = stage.height - BELOW, unit = stage.width / (LINE.high - LINE.low);
  const rise = (ground - TOP) / tallest;
  return {
    ground,
    x: t => (t - LINE.low) * unit,
    y: value => ground - value * rise,
    t: x => LINE.low + x / unit,
  };
}

/** The top of the scale: the next of 1, 1.5, 2, 3, 5, 7 × 10ⁿ, so that it rests while a density moves. */
export function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 1.5, 2, 3, 5, 7, 10].find(step => step * power >= value) ?? 10);
}

/** Draw densities, the last on top: each {density, role, samples}. */
export function drawLine(stage, entries) {
  const pen = stage.pen(), known = entries.map(({ density }) => profile(density));
  const tallest = niceTop(1.05 * Math.max(...known.map(({ logPeak }) => Math.exp(logPeak))));
  const view = lineView(stage, tallest);
  drawAxes(pen, stage, view, tallest);
  entries.forEach((entry, i) => drawCurve(pen, stage, view, entry, known[i]));
}

function drawAxes(pen, stage, view, tallest) {
  const { colours } = stage;
  pen.font = "12px system-ui, sans-serif";
  pen.lineWidth = 1;
  pen.textAlign = "center";
  for (let t = LINE.low + 1; t < LINE.high; t++) {
    pen.strokeStyle = colours.line;
    line(pen, view.x(t), TOP, view.x(t), view.ground);
    pen.fillStyle = colours.soft;
    pen.fillText(shown(t), view.x(t), view.ground + 18);
  }
  pen.textAlign = "left";
  for (const share of [0.5, 1]) {
    pen.strokeStyle = colours.line;
    line(pen, 0, view.y(share * tallest), stage.width, view.y(share * tallest));
    pen.fillText(shown(share * tallest), 6, view.y(share * tallest) + 14);
  }
  pen.strokeStyle = colours.soft;
  line(pen, 0, view.ground, stage.width, view.ground);
}

function drawCurve(pen, stage, view, { density, role, samples }, known) {
  const colour = stage.colours[role], mu = density.loc[0], sigma = Math.sqrt(density.scale[0][0]);
  const half = known.radius * sigma;
  const low = clamp(mu - half, LINE.low, LINE.high), high = clamp(mu + half, LINE.low, LINE.high);
  const at = t => height(known, ((t - mu) / sigma) ** 2);
  // Points are dense where the curve is: a narrow peak keeps its top.
  const places = [low];
  const step = Math.max((high - low) / 400, 1e-5);
  for (let t = low + step; t < high; t += step) places.push(t);
  if (mu > low && mu < high) places.push(mu);
  for (let j = -40; j <= 40; j++) {
    const t = mu + (j / 10) * Math.min(sigma, half / 4);
    if (t > low && t < high) places.push(t);
  }
  places.push(high);
  places.sort((a, b) => a - b);
  pen.beginPath();
  pen.moveTo(view.x(low), view.ground);
  // The uniform member is as high at its edge as inside.
  const edge = density.alpha === Infinity ? 1 : 0;
  for (const t of places) pen.lineTo(view.x(t), view.y(Math.abs(t - mu) >= half ? edge : at(t)));
  pen.lineTo(view.x(high), view.ground);
  pen.fillStyle = colour(samples ? 0.1 : 0.18);
  pen.fill();
  pen.strokeStyle = colour();
  pen.lineWidth = 2;
  pen.stroke();
  if (half < Infinity) drawSupport(pen, view, colour, mu - half, mu + half);
  if (samples) {
    pen.fillStyle = colour(0.65);
    for (const { point: [t], share } of samples) pen.fillRect(view.x(t) - 1, view.y(share * at(t)) - 1, 2.2, 2.2);
  }
}

/** A thick line on the axis, from edge to edge. */
function drawSupport(pen, view, colour, low, high) {
  pen.lineWidth = 5;
  pen.strokeStyle = colour(0.55);
  line(pen, view.x(low), view.ground, view.x(high), view.ground);
}

function line(pen, x1, y1, x2, y2) {
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}
