// Attention along a text as a strip: bars for weights, curves for densities.

import { height, profile } from "./beta_gaussian.js";

/** What of a density falls to each of some words, in units of the greatest. */
function heights(density, count) {
  const known = profile(density), [mu] = density.loc, variance = density.scale[0][0], top = Math.exp(known.logPeak);
  return Array.from({ length: count }, (_, i) => height(known, ((i + 0.5) / count - mu) ** 2 / variance) / top);
}

/** Shares of words from 0 to 1, the greatest being 1: of the weights, or else of the densities. */
export function strengths(lane, count) {
  if (lane.weights) {
    const top = Math.max(...lane.weights) || 1;
    return lane.weights.map(weight => weight / top);
  }
  const each = lane.densities.map(density => heights(density, count));
  return each[0].map((_, i) => Math.max(...each.map(one => one[i])));
}

/** Draw a lane over the whole stage. */
export function drawStrip(stage, lane, curveRole = "second") {
  // A stage that has just been made is drawn when it has a size.
  if (!stage.width) return;
  const pen = stage.pen(), { width } = stage, ground = stage.height - 5;
  if (lane.weights) drawWeights(pen, stage, lane.weights, ground);
  for (const density of lane.densities) {
    const colour = stage.colours[curveRole], points = heights(density, Math.max(2, Math.round(width)));
    const known = profile(density), half = known.radius * Math.sqrt(density.scale[0][0]), [mu] = density.loc;
    pen.beginPath();
    pen.moveTo(0, ground);
    points.forEach((value, x) => pen.lineTo(x + 0.5, ground - value * (ground - 6)));
    pen.lineTo(width, ground);
    pen.fillStyle = colour(0.16);
    pen.fill();
    pen.strokeStyle = colour();
    pen.lineWidth = 1.6;
    pen.stroke();
    if (half < Infinity) {
      pen.fillStyle = colour(0.55);
      pen.fillRect((mu - half) * width, ground, 2 * half * width, 4);
    }
  }
}

/** Bars; where there are more words than pixels, the greatest of each pixel. */
function drawWeights(pen, stage, weights, ground) {
  const top = Math.max(...weights) || 1, step = stage.width / weights.length, seen = new Map();
  weights.forEach((weight, i) => {
    const x = Math.floor(i * step);
    if (weight > 0) seen.set(x, Math.max(seen.get(x) ?? 0, weight));
  });
  pen.fillStyle = stage.colours.first();
  for (const [x, weight] of seen) {
    const tall = Math.max((weight / top) * (ground - 6), 1);
    pen.fillRect(x + 0.5, ground - tall, Math.max(step - 1, 1), tall);
  }
}
