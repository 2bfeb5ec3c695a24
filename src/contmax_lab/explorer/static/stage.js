// A canvas with handles on it: sharp on every screen, in the colours of the page, moved by pointer and by arrow keys.

import { element } from "./controls.js";

/** The stage in an element: {width, height, canvas, pen()}; changed() is called when its size or the colours change. */
export function makeStage(parent, changed) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  parent.prepend(canvas);
  const stage = {
    parent, width: 0, height: 0, colours: {},
    pen() {
      const pen = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, stage.width, stage.height);
      return pen;
    },
  };
  function measure() {
    const ratio = window.devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
    stage.width = parent.clientWidth;
    stage.height = parent.clientHeight;
    canvas.width = Math.round(stage.width * ratio);
    canvas.height = Math.round(stage.height * ratio);
    for (const role of ["paper", "plate", "ink", "soft", "line"]) stage.colours[role] = style.getPropertyValue(`--${role}`);
    for (const role of ["first", "second"]) {
      const numbers = style.getPropertyValue(`--${role}`).trim();
      stage.colours[role] = (strength = 1) => `rgb(${numbers} / ${strength})`;
      stage.colours[`${role}Numbers`] = numbers.split(" ").map(Number);
    }
    changed();
  }
  new ResizeObserver(measure).observe(parent);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", measure);
  return Object.assign(stage, { measure });
}

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/**
 * A handle: {className, at, move, toPixels, fromPixels, step, words}.
 * at() is its place and move(x, y) asks for another, both in the units of the picture; words() says what it stands for.
 */
export function addHandle(stage, { className, at, move, toPixels, fromPixels, step, words }) {
  const handle = element("button", {
    type: "button", class: `handle ${className}`, "aria-roledescription": "handle", "aria-label": words(),
  });
  let held = null;
  handle.addEventListener("pointerdown", event => {
    const box = stage.parent.getBoundingClientRect(), [x, y] = toPixels(at());
    held = [event.clientX - box.left - x, event.clientY - box.top - y];
    handle.setPointerCapture(event.pointerId);
  });
  handle.addEventListener("pointermove", event => {
    if (!held) return;
    const box = stage.parent.getBoundingClientRect();
    move(...fromPixels([event.clientX - box.left - held[0], event.clientY - box.top - held[1]]));
  });
  for (const end of ["pointerup", "pointercancel"]) handle.addEventListener(end, () => (held = null));
  handle.addEventListener("keydown", event => {
    const direction = DIRECTIONS[event.key];
    if (!direction || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const length = typeof step === "function" ? step(event.shiftKey) : step * (event.shiftKey ? 5 : 1);
    const [x, y] = at();
    move(x + direction[0] * length, y + direction[1] * length);
  });
  stage.parent.append(handle);
  return visible => {
    handle.hidden = visible === false;
    const [x, y] = toPixels(at());
    handle.style.transform = `translate(${x}px, ${y}px)`;
    handle.setAttribute("aria-label", words());
  };
}
