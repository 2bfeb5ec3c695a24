// What a model says: bars of probabilities, or a number.

import { element } from "./controls.js";
import { percent, shown } from "./numbers.js";

/** One line: the likeliest class, or the number. */
export function inWords(answer, classes) {
  if (!classes.length) return shown(answer[0]);
  const best = answer.indexOf(Math.max(...answer));
  return `${classes[best]}, ${percent(answer[best])}`;
}

/** Bars of the likeliest classes, in the order of the classes. */
export function verdictBars(answer, classes, most = 10) {
  if (!classes.length) return element("p", { class: "answer" }, shown(answer[0]));
  const least = [...answer].sort((a, b) => b - a)[Math.min(most, answer.length) - 1];
  const best = Math.max(...answer);
  const items = classes.flatMap((name, i) => (answer[i] < least ? [] : [bar(name, answer[i], answer[i] === best)]));
  return element("div", { class: "bars", role: "list" }, ...items.slice(0, most));
}

function bar(name, share, best) {
  const filled = element("span", { class: "share" });
  filled.style.width = `${100 * share}%`;
  const span = (kind, inside) => element("span", { class: kind }, inside);
  const parts = [span("score", name), span("track", filled), span("value", percent(share))];
  return element("div", { class: best ? "item best" : "item", role: "listitem" }, ...parts);
}
