// The room of texts: a model reads one, and looks where it is told to.

import { ask, latest, listModels } from "./ask.js";
import { element, everyFrame } from "./controls.js";
import { clamp, shown } from "./numbers.js";
import { addHandle, makeStage } from "./stage.js";
import { drawStrip, strengths } from "./strips.js";
import { inWords, verdictBars } from "./verdict.js";
import { wordMap } from "./words.js";

const EXAMPLES = [
  "The trailer promised a thriller. What we got is a dull, badly written mess with wooden dialogue and no tension at all. "
    + "Even the fine cast cannot save it.",
  "I expected little, and the first half hour is slow, but then it turns into one of the most moving and beautifully "
    + "acted films I have seen in years.",
  "Great costumes, a famous director, lovely music, and still I was bored to tears: the plot makes no sense.",
];
const find = id => document.getElementById(id);
const state = { seen: null, low: 0.3, high: 0.6, question: null };
const words = wordMap(find("words"), find("said"));
let lanes = [], shade = 0;

/** The least width of the interval: one word. */
const least = () => 1 / Math.max(state.seen?.words.length ?? 10, 3);

const stage = makeStage(find("stage"), () => frame());
const frame = everyFrame(() => {
  if (!state.seen || !stage.width) return;
  for (const lane of lanes) drawStrip(lane.stage, lane);
  const half = (state.high - state.low) / 2;
  // Of the truncated parabola with this support, σ² = ⅔a³.
  const yours = { alpha: 2, loc: [state.low + half], scale: [[(2 / 3) * half ** 3]] };
  drawStrip(stage, { weights: null, densities: [yours] }, "first");
  for (const show of handles) show();
  words.underline(state.low, state.high);
});

const toPixels = ([t]) => [t * stage.width, stage.height - 5], fromPixels = ([x]) => [x / stage.width, 0];
const step = far => Math.max(least(), 0.01) * (far ? 5 : 1);
const part = share => `${shown(100 * share, 3)} %`;
const handles = [
  {
    className: "first", at: () => [(state.low + state.high) / 2, 0],
    words: () => `Your interval: ${part(state.low)} to ${part(state.high)} of the text`,
    move: middle => {
      const half = (state.high - state.low) / 2, inside = clamp(middle, half, 1 - half);
      look(inside - half, inside + half);
    },
  },
  {
    className: "first small", at: () => [state.low, 0], words: () => `Beginning of your interval: ${part(state.low)}`,
    move: low => look(clamp(low, 0, state.high - least()), state.high),
  },
  {
    className: "first small", at: () => [state.high, 0], words: () => `End of your interval: ${part(state.high)}`,
    move: high => look(state.low, clamp(high, state.low + least(), 1)),
  },
].map(handle => addHandle(stage, { ...handle, toPixels, fromPixels, step }));

function look(low, high) {
  Object.assign(state, { low, high });
  frame();
  probe();
}

const probe = latest(async () => {
  const { look: key, classes } = state.seen;
  try {
    const answer = await ask("/api/interval", { look: key, low: state.low, high: state.high });
    if (state.seen.look === key) find("yours").replaceChildren(verdictBars(answer, classes));
  } catch (error) {
    find("problem").textContent = error.message;
  }
});

const read = latest(async () => {
  const text = find("text").value;
  find("problem").textContent = "";
  if (!text.trim()) {
    find("problem").textContent = "There is no text yet: paste one, or take an example.";
    return;
  }
  find("read").disabled = true;
  find("form").setAttribute("aria-busy", "true");
  try {
    await ready;
    show(await ask("/api/text", { model: find("model").value, text }));
  } catch (error) {
    find("result").hidden = true;
    find("problem").textContent = error.message;
  }
  find("read").disabled = false;
  find("form").removeAttribute("aria-busy");
});

function show(seen) {
  state.seen = seen;
  find("result").hidden = false;
  find("verdict").textContent = `The model says: ${inWords(seen.lanes[0].answer, seen.classes)}`;
  lanes = seen.lanes.map(lane => {
    const panel = element("div", { class: "stage strip", role: "img", "aria-label": `Where ${lane.name} looks` });
    return { ...lane, panel };
  });
  find("lanes").replaceChildren(...lanes.map(lane => element("div", { class: "lane" },
    element("div", {}, element("h3", {}, lane.name, lane.own && lane !== lanes[0] ? " (the model's own)" : ""), lane.panel),
    verdictBars(lane.answer, seen.classes))));
  for (const lane of lanes) lane.stage = makeStage(lane.panel, () => frame());
  find("shade").replaceChildren(...lanes.map((lane, i) => new Option(lane.name, i)));
  find("shade").value = shade;
  words.show(seen.words);
  words.shade(strengths(lanes[shade], seen.words.length));
  const density = lanes[3].densities[0], half = Math.cbrt(1.5 * density.scale[0][0]);
  const low = clamp(density.loc[0] - half, 0, 1 - least());
  look(low, clamp(density.loc[0] + half, low + least(), 1));
}

find("form").addEventListener("submit", event => {
  event.preventDefault();
  read();
});
find("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) read();
});
find("shade").addEventListener("change", () => {
  shade = Number(find("shade").value);
  words.shade(strengths(lanes[shade], state.seen.words.length));
});
find("model").addEventListener("change", () => find("text").value.trim() && read());
EXAMPLES.forEach((text, i) => find("examples").append(element("button", { type: "button", click: () => {
  find("text").value = text;
  read();
} }, `example ${i + 1}`)));
const ready = listModels(find("model"), "text");
ready.catch(error => (find("problem").textContent = error.message));
