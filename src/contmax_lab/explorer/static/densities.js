// The room of densities: what is shown, and what each control changes.

import { alphaAt, lowestAlpha, placeOfAlpha } from "./alpha_scale.js";
import { alphaRow, everyFrame, sliderRow } from "./controls.js";
import { showNumbers } from "./density_numbers.js";
import { drawLine, LINE, lineView } from "./line.js";
import { clamp, shown } from "./numbers.js";
import { drawPlane, PLANE, planeView } from "./plane.js";
import { draws, generator } from "./sampling.js";
import { addHandle, makeStage } from "./stage.js";

const SAMPLES = 400, LEAST = 0.15, MOST = 3;
const state = {
  dim: 1, seed: 1, samples: true, second: true,
  p: { alpha: 2, x: -0.6, y: 0.2, long: 0.9, short: 0.5, angle: 0.5 },
  q: { alpha: 1, x: 1.1, y: -0.5, long: 0.6, short: 0.9, angle: 0 },
};
const find = id => document.getElementById(id);

/** A member as the mathematics takes it. */
function densityOf({ alpha, x, y, long, short, angle }) {
  if (state.dim === 1) return { alpha, loc: [x], scale: [[long * long]] };
  const c = Math.cos(angle), s = Math.sin(angle), a = long * long, b = short * short;
  const mixed = (a - b) * c * s;
  return { alpha, loc: [x, y], scale: [[a * c * c + b * s * s, mixed], [mixed, a * s * s + b * c * c]] };
}

const stage = makeStage(find("stage"), () => frame());
const shows = [];
const frame = everyFrame(draw);

function draw() {
  if (!stage.width) return;
  const p = densityOf(state.p), q = densityOf(state.q), uniform = generator(state.seed + 7);
  const samples = state.samples && draws(p, SAMPLES, state.seed).map(point => ({ point, share: uniform() }));
  const entries = [{ density: p, role: "first", samples }];
  if (state.second) entries.push({ density: q, role: "second" });
  (state.dim === 1 ? drawLine : drawPlane)(stage, entries);
  for (const show of shows) show();
  showNumbers(p, state.second ? q : null);
  find("drawn").textContent = state.dim === 1
    ? "The thick line on the axis is the support; dots are samples of p, at random heights below its curve."
    : "A solid ellipse is the support; the dashed one holds half of the density; where it never ends, the dotted one "
      + "holds nine tenths.";
}

/** Change a member, within what can be shown. */
function change(name, changes) {
  const member = Object.assign(state[name], changes), { low, high } = state.dim === 1 ? LINE : PLANE;
  member.x = clamp(member.x, low, high);
  member.y = clamp(member.y, PLANE.low, PLANE.high);
  member.long = clamp(member.long, LEAST, MOST);
  member.short = clamp(member.short, LEAST, MOST);
  // The same ellipse again after half a turn.
  member.angle -= Math.PI * Math.round(member.angle / Math.PI);
  member.alpha = Math.max(member.alpha, lowestAlpha(state.dim));
  frame();
}

function addControls(name, parent, role) {
  const member = state[name], visible = show => () => show(state.dim === 2);
  const slider = (key, label, min, max, step, text) =>
    sliderRow(parent, {
      id: `${name}-${key}`, label, min, max, step, text, get: () => member[key], set: value => change(name, { [key]: value }),
    });
  shows.push(alphaRow(parent, {
    id: `${name}-alpha`, label: "α", dim: () => state.dim, get: () => member.alpha, set: alpha => change(name, { alpha }),
  }));
  shows.push(slider("x", "μ, the centre", LINE.low, LINE.high, 0.01));
  shows.push(visible(slider("y", "μ, upwards", PLANE.low, PLANE.high, 0.01)));
  shows.push(slider("long", "σ, the scale", LEAST, MOST, 0.01));
  shows.push(visible(slider("short", "σ, across", LEAST, MOST, 0.01)));
  shows.push(visible(slider("angle", "angle", -1.57, 1.57, 0.01, angle => `${Math.round((angle * 180) / Math.PI)}°`)));
  addLineHandles(name, member, role);
  addPlaneHandles(name, member, role);
}

const isShown = (name, dim) => state.dim === dim && (name === "p" || state.second);

function addLineHandles(name, member, role) {
  // The handles of q have a track of their own, lest those of p cover them.
  const below = name === "p" ? 0 : 34;
  const view = () => lineView(stage, 1);
  const common = {
    toPixels: ([t]) => [view().x(t), view().ground + below], fromPixels: ([x]) => [view().t(x), 0], step: 0.05,
  };
  const centre = addHandle(stage, {
    ...common, className: role, at: () => [member.x, 0], move: x => change(name, { x }),
    words: () => `Centre of ${name}: ${shown(member.x, 3)}`,
  });
  const width = addHandle(stage, {
    ...common, className: `${role} small`, at: () => [member.x + member.long, 0],
    move: x => change(name, { long: x - member.x }),
    words: () => `Scale σ of ${name}: ${shown(member.long, 3)}`,
  });
  shows.push(() => centre(isShown(name, 1)), () => width(isShown(name, 1)));
}

function addPlaneHandles(name, member, role) {
  const view = () => planeView(stage);
  const common = { toPixels: point => view().toPixels(point), fromPixels: point => view().fromPixels(point), step: 0.05 };
  const centre = addHandle(stage, {
    ...common, className: role, at: () => [member.x, member.y], move: (x, y) => change(name, { x, y }),
    words: () => `Centre of ${name}: ${shown(member.x, 3)}, ${shown(member.y, 3)}`,
  });
  shows.push(() => centre(isShown(name, 2)));
  for (const [key, quarter] of [["long", 0], ["short", Math.PI / 2]]) {
    const turned = () => member.angle + quarter, ordinal = key === "long" ? "First" : "Second";
    const end = addHandle(stage, {
      ...common, className: `${role} small`,
      at: () => [member.x + member[key] * Math.cos(turned()), member.y + member[key] * Math.sin(turned())],
      move: (x, y) => change(name, {
        [key]: Math.hypot(x - member.x, y - member.y), angle: Math.atan2(y - member.y, x - member.x) - quarter,
      }),
      words: () => `${ordinal} axis of ${name}: length ${shown(member[key], 3)}, stretch and rotate`,
    });
    shows.push(() => end(isShown(name, 2)));
  }
}

/** α of p from its least value to ∞ and back, until the button is pressed again. */
function play() {
  const button = find("play");
  const playing = button.getAttribute("aria-pressed") === "true";
  button.setAttribute("aria-pressed", !playing);
  if (playing) return;
  let place = placeOfAlpha(state.p.alpha, state.dim), direction = 1, before = performance.now();
  const advance = now => {
    if (button.getAttribute("aria-pressed") !== "true") return;
    place += (direction * (now - before)) / 6000;
    before = now;
    if (place >= 1 || place <= 0) direction = place >= 1 ? -1 : 1;
    place = clamp(place, 0, 1);
    change("p", { alpha: alphaAt(place, state.dim) });
    requestAnimationFrame(advance);
  };
  requestAnimationFrame(advance);
}

addControls("p", find("first"), "first");
addControls("q", find("second"), "second");
for (const radio of document.querySelectorAll("input[name=dim]")) {
  radio.addEventListener("change", () => {
    state.dim = Number(radio.value);
    find("stage").classList.toggle("square", state.dim === 2);
    change("p", {});
    change("q", {});
    stage.measure();
  });
}
find("with-samples").addEventListener("change", event => {
  state.samples = event.target.checked;
  frame();
});
find("with-second").addEventListener("change", event => {
  state.second = event.target.checked;
  find("second").hidden = !state.second;
  frame();
});
find("redraw").addEventListener("click", () => {
  state.seed += 1;
  frame();
});
find("play").addEventListener("click", play);
stage.measure();
