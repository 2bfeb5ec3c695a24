// Two densities on the plane, drawn: the first as a map of heat, both with their support or the regions that hold half
// and nine tenths of them.

import { height, massRadius, profile } from "./beta_gaussian.js";
import { shown } from "./numbers.js";

export const PLANE = { low: -3, high: 3 };
// Cells of the map along a side; smoothed by the canvas.
const CELLS = 128;

const sheet = document.createElement("canvas");
sheet.width = sheet.height = CELLS;

/** The places of the picture, whose sides may differ: y upwards, the unit the same along both. */
export function planeView(stage) {
  const unit = Math.min(stage.width, stage.height) / (PLANE.high - PLANE.low);
  const left = stage.width / 2, top = stage.height / 2;
  return {
    unit,
    toPixels: ([x, y]) => [left + x * unit, top - y * unit],
    fromPixels: ([x, y]) => [(x - left) / unit, (top - y) / unit],
  };
}

/** Draw densities, the first as a map: each {density, role, samples}. */
export function drawPlane(stage, entries) {
  const pen = stage.pen(), view = planeView(stage);
  drawHeat(pen, stage, entries[0].density, stage.colours[`${entries[0].role}Numbers`]);
  drawGrid(pen, stage, view);
  for (const { density, role, samples } of entries) {
    const colour = stage.colours[role];
    if (samples) {
      pen.fillStyle = colour(0.75);
      for (const { point } of samples) {
        const [x, y] = view.toPixels(point);
        pen.fillRect(x - 1.1, y - 1.1, 2.2, 2.2);
      }
    }
    drawRegions(pen, view, density, colour);
  }
}

function drawHeat(pen, stage, density, [red, green, blue]) {
  const known = profile(density), peak = Math.exp(known.logPeak), view = planeView(stage);
  const [[a, b], [, d]] = density.scale, determinant = a * d - b * b, [mx, my] = density.loc;
  const paint = sheet.getContext("2d", { willReadFrequently: true });
  const image = paint.createImageData(CELLS, CELLS), bytes = image.data;
  const [xLow, yHigh] = view.fromPixels([0, 0]), [xHigh, yLow] = view.fromPixels([stage.width, stage.height]);
  let place = 0;
  for (let row = 0; row < CELLS; row++) {
    const y = yHigh + ((row + 0.5) / CELLS) * (yLow - yHigh) - my;
    for (let column = 0; column < CELLS; column++) {
      const x = xLow + ((column + 0.5) / CELLS) * (xHigh - xLow) - mx;
      const share = height(known, (d * x * x - 2 * b * x * y + a * y * y) / determinant) / peak;
      bytes[place] = red;
      bytes[place + 1] = green;
      bytes[place + 2] = blue;
      bytes[place + 3] = 215 * share;
      place += 4;
    }
  }
  paint.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = true;
  pen.imageSmoothingQuality = "high";
  pen.drawImage(sheet, 0, 0, stage.width, stage.height);
}

function drawGrid(pen, stage, view) {
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = stage.colours.soft;
  pen.strokeStyle = stage.colours.line;
  pen.lineWidth = 1;
  for (let t = PLANE.low + 1; t < PLANE.high; t++) {
    const [x, y] = view.toPixels([t, t]);
    pen.beginPath();
    pen.moveTo(x, 0);
    pen.lineTo(x, stage.height);
    pen.moveTo(0, y);
    pen.lineTo(stage.width, y);
    pen.stroke();
    pen.fillText(shown(t), x + 4, stage.height - 6);
    if (t !== PLANE.low + 1) pen.fillText(shown(t), 4, y - 4);
  }
}

/** Half-axes and angle of Δ = 1, from Σ. */
export function axesOf(scale) {
  const [[a, b], [, d]] = scale, middle = (a + d) / 2, spread = Math.hypot((a - d) / 2, b);
  const angle = spread ? 0.5 * Math.atan2(2 * b, a - d) : 0;
  return { long: Math.sqrt(middle + spread), short: Math.sqrt(Math.max(middle - spread, 0)), angle };
}

function drawRegions(pen, view, density, colour) {
  const { radius } = profile(density), { long, short, angle } = axesOf(density.scale);
  const [x, y] = view.toPixels(density.loc);
  const regions = radius < Infinity
    ? [[radius, [], 2.2], [massRadius(density, 0.5), [5, 4], 1.4]]
    : [[massRadius(density, 0.9), [2, 4], 1.6], [massRadius(density, 0.5), [5, 4], 1.4]];
  pen.strokeStyle = colour();
  for (const [size, dashes, width] of regions) {
    pen.setLineDash(dashes);
    pen.lineWidth = width;
    pen.beginPath();
    pen.ellipse(x, y, size * long * view.unit, size * short * view.unit, -angle, 0, 2 * Math.PI);
    pen.stroke();
  }
  pen.setLineDash([]);
}
