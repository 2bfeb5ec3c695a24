// The room of images: a model looks at one, and then where it is told to.

import { ask, latest, listModels } from "./ask.js";
import { massRadius, profile } from "./beta_gaussian.js";
import { element, everyFrame } from "./controls.js";
import { clamp, shown } from "./numbers.js";
import { axesOf } from "./plane.js";
import { paint } from "./pixels.js";
import { addHandle, makeStage } from "./stage.js";
import { inWords, verdictBars } from "./verdict.js";

const LEAST = 0.03, MOST = 1;
const find = id => document.getElementById(id);
// Places are (x, y) from the upper left corner of the unit square; the server's are (row, column).
const state = { seen: null, lane: 0, x: 0.5, y: 0.5, long: 0.3, short: 0.2, angle: 0 };
let sheet = null;

const stage = makeStage(find("stage"), () => frame());
const frame = everyFrame(() => {
  if (!state.seen || !stage.width) return;
  const pen = stage.pen(), side = stage.width;
  pen.imageSmoothingEnabled = false;
  pen.globalAlpha = 0.75;
  pen.drawImage(sheet, 0, 0, side, stage.height);
  pen.globalAlpha = 1;
  const lane = state.seen.lanes[state.lane];
  if (lane.weights) drawCells(pen, lane.weights, state.seen.grid);
  for (const density of lane.densities) drawDensity(pen, density);
  outline(pen, [state.x, state.y], state.long, state.short, state.angle, stage.colours.first, [], 3);
  for (const show of handles) show();
});

/** Squares in the middle of their cells; their area grows with the weight. */
function drawCells(pen, weights, [rows, columns]) {
  const top = Math.max(...weights) || 1, width = stage.width / columns, high = stage.height / rows;
  pen.fillStyle = stage.colours.second(0.75);
  weights.forEach((weight, i) => {
    const size = Math.sqrt(weight / top), x = (i % columns) + 0.5, y = Math.floor(i / columns) + 0.5;
    pen.fillRect(width * (x - size / 2), high * (y - size / 2), width * size, high * size);
  });
}

/** A density over (row, column) as one over (x, y). */
function acrossAndDown({ alpha, loc, scale }) {
  return { alpha, loc: [loc[1], loc[0]], scale: [[scale[1][1], scale[1][0]], [scale[0][1], scale[0][0]]] };
}

function drawDensity(pen, given) {
  const density = acrossAndDown(given);
  const { long, short, angle } = axesOf(density.scale), { radius } = profile(density), colour = stage.colours.second;
  const half = massRadius(density, 0.5), outer = radius < Infinity ? radius : massRadius(density, 0.9);
  outline(pen, density.loc, outer * long, outer * short, angle, colour, radius < Infinity ? [] : [2, 4], 2.5);
  outline(pen, density.loc, half * long, half * short, angle, colour, [6, 4], 2);
}

function outline(pen, [x, y], long, short, angle, colour, dashes, width) {
  const trace = () => {
    pen.beginPath();
    pen.ellipse(x * stage.width, y * stage.height, long * stage.width, short * stage.width, angle, 0, 2 * Math.PI);
    pen.stroke();
  };
  // A pale edge below the line keeps it visible on any image.
  pen.setLineDash(dashes);
  pen.lineWidth = width + 2.5;
  pen.strokeStyle = "rgb(255 255 255 / .75)";
  trace();
  pen.lineWidth = width;
  pen.strokeStyle = colour();
  trace();
  pen.setLineDash([]);
}

const common = {
  // Upwards is towards smaller rows.
  toPixels: ([x, y]) => [x * stage.width, -y * stage.height],
  fromPixels: ([x, y]) => [x / stage.width, -y / stage.height],
  step: 0.02,
};
const handles = [
  addHandle(stage, {
    ...common, className: "first", at: () => [state.x, -state.y], move: (x, y) => look({ x, y: -y }),
    words: () => `Centre of your ellipse: ${shown(state.x, 2)} from the left, ${shown(state.y, 2)} from the top`,
  }),
  ...[["long", 0], ["short", Math.PI / 2]].map(([key, quarter]) => addHandle(stage, {
    ...common, className: "first small",
    at: () => {
      const angle = state.angle + quarter;
      return [state.x + state[key] * Math.cos(angle), -state.y - state[key] * Math.sin(angle)];
    },
    move: (x, y) => {
      const right = x - state.x, down = -y - state.y;
      look({ [key]: Math.hypot(right, down), angle: Math.atan2(down, right) - quarter });
    },
    words: () => `${key === "long" ? "First" : "Second"} axis of your ellipse: ${shown(state[key], 2)}, stretch and rotate`,
  })),
];

function look(changes) {
  Object.assign(state, changes);
  for (const key of ["x", "y"]) state[key] = clamp(state[key], 0, 1);
  for (const key of ["long", "short"]) state[key] = clamp(state[key], LEAST, MOST);
  state.angle -= Math.PI * Math.round(state.angle / Math.PI);
  frame();
  probe();
}

const probe = latest(async () => {
  const { look: key, classes } = state.seen, { x, y, long, short, angle } = state;
  try {
    // From rows downwards to columns, the angle turns the other way.
    const answer = await ask("/api/ellipse", { look: key, centre: [y, x], axes: [long, short], angle: Math.PI / 2 - angle });
    if (state.seen.look === key) find("yours").replaceChildren(verdictBars(answer, classes));
  } catch (error) {
    find("problem").textContent = error.message;
  }
});

const see = latest(async (address, question, type) => {
  find("problem").textContent = "";
  find("form").setAttribute("aria-busy", "true");
  try {
    show(await ask(address, question, type));
  } catch (error) {
    find("problem").textContent = error.message;
  }
  find("form").removeAttribute("aria-busy");
});

function show(seen) {
  state.seen = seen;
  sheet = paint(document.createElement("canvas"), seen.image);
  find("result").hidden = false;
  find("verdict").textContent = `The model says: ${inWords(seen.lanes[0].answer, seen.classes)}`;
  find("shown").replaceChildren(...seen.lanes.map((lane, i) => {
    const checked = i === state.lane;
    const radio = element("input", { type: "radio", name: "lane", value: i, checked, change: () => choose(i) });
    return element("label", {}, radio, ` ${lane.name}`);
  }));
  choose(state.lane);
  // Begin with what the continuous sparsemax looks at.
  const density = acrossAndDown(seen.lanes[3].densities[0]), { radius } = profile(density);
  const { long, short, angle } = axesOf(density.scale);
  look({ x: density.loc[0], y: density.loc[1], long: radius * long, short: radius * short, angle });
}

function choose(i) {
  state.lane = i;
  find("answer").replaceChildren(verdictBars(state.seen.lanes[i].answer, state.seen.classes));
  frame();
}

const MOST_BYTES = 8_000_000;

find("file").addEventListener("change", () => {
  const [file] = find("file").files;
  if (!file) return;
  if (file.size > MOST_BYTES) {
    find("problem").textContent = `${file.name} has ${shown(file.size / 1e6, 2)} MB; choose an image of at most 8 MB.`;
    return;
  }
  see(`/api/image?model=${encodeURIComponent(find("model").value)}`, file, file.type || "application/octet-stream");
});

const list = latest(async () => {
  const model = find("model").value;
  find("problem").textContent = "";
  find("result").hidden = true;
  find("gallery").replaceChildren();
  find("form").setAttribute("aria-busy", "true");
  try {
    const examples = await ask(`/api/examples?model=${encodeURIComponent(model)}`);
    const shownOnes = examples.map(({ number, image }) => element("button", {
      type: "button", "aria-label": `Example ${number + 1}`, click: () => see("/api/example", { model, number }),
    }, paint(document.createElement("canvas"), image)));
    const none = element("p", { class: "note" }, "This model has no examples with it; choose an image of your own.");
    find("gallery").replaceChildren(...(shownOnes.length ? shownOnes : [none]));
  } catch (error) {
    find("problem").textContent = error.message;
  }
  find("form").removeAttribute("aria-busy");
});

find("form").addEventListener("submit", event => event.preventDefault());
find("model").addEventListener("change", () => list());
listModels(find("model"), "image").then(any => any && list(), error => (find("problem").textContent = error.message));
