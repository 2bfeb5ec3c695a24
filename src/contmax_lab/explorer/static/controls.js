// Labelled controls that also work with the keyboard alone.

import { alphaAt, lowestAlpha, NAMED, nameOfAlpha, placeOfAlpha, readAlpha } from "./alpha_scale.js";
import { shown } from "./numbers.js";

/** An element with attributes, listeners (functions) and children. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** A slider in a row of its own: {id, label, min, max, step, get, set, text}. Returns a function that shows the state. */
export function sliderRow(parent, { id, label, min, max, step, get, set, text = shown }) {
  const input = element("input", { type: "range", id, min, max, step, input: () => set(Number(input.value)) });
  const value = element("output", { for: id });
  const row = element("div", { class: "row" }, element("label", { for: id }, label), input, value);
  parent.append(row);
  return visible => {
    row.hidden = visible === false;
    const now = text(get());
    input.value = get();
    input.setAttribute("aria-valuetext", now);
    value.textContent = now;
  };
}

/** The slider of α with a field to type it and buttons for members with a name: {id, label, dim, get, set}. */
export function alphaRow(parent, { id, label, dim, get, set }) {
  const slider = element("input", {
    type: "range", id, min: 0, max: 1, step: 0.005, input: () => set(settled(alphaAt(Number(slider.value), dim()))),
  });
  const typed = element("input", {
    type: "text", class: "short", inputmode: "text", id: `${id}-typed`, "aria-label": `${label}, typed`, autocomplete: "off",
    spellcheck: "false", "aria-describedby": `${id}-problem`, change: read,
    keydown: event => event.key === "Enter" && read(),
  });
  const problem = element("p", { class: "problem", id: `${id}-problem`, role: "alert" });
  const buttons = NAMED.map(({ alpha, label: short, title }) =>
    element("button", { type: "button", title, "aria-label": `α = ${short}, ${title}`, click: () => set(alpha) }, short));
  const name = element("span", { class: "name" });
  parent.append(
    element("div", { class: "row" }, element("label", { for: id }, label), slider, typed),
    element("div", { class: "chips" }, ...buttons, name), problem);

  function read() {
    const alpha = readAlpha(typed.value, lowestAlpha(dim()));
    typed.setAttribute("aria-invalid", alpha === null);
    if (alpha !== null) set(alpha);
    else {
      const lowest = shown(lowestAlpha(dim()), 3);
      problem.textContent = `“${typed.value.slice(0, 20)}” is no α: type a number from ${lowest}, or inf.`;
    }
  }

  return () => {
    const alpha = get(), text = alpha === Infinity ? "∞" : shown(alpha);
    slider.value = placeOfAlpha(alpha, dim());
    slider.setAttribute("aria-valuetext", `${text}, ${nameOfAlpha(alpha, dim())}`);
    typed.value = text;
    typed.removeAttribute("aria-invalid");
    problem.textContent = "";
    name.textContent = nameOfAlpha(alpha, dim());
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", NAMED[i].alpha === alpha));
  };
}

/** The slider stops at members with a name that are nearer than it can tell. */
function settled(alpha) {
  const near = NAMED.find(entry => Math.abs(entry.alpha - alpha) < 0.008);
  return near ? near.alpha : alpha;
}

/** Runs a function at the next frame, once however often it is asked for; each frame is measured as "frame". */
export function everyFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      const start = performance.now();
      draw();
      if (performance.getEntriesByName("frame").length > 500) performance.clearMeasures("frame");
      performance.measure("frame", { start, end: performance.now() });
    });
  };
}
