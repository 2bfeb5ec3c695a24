// The words of a text, shaded by attention, and walked through with the keyboard.

import { element } from "./controls.js";
import { clamp, shown } from "./numbers.js";

const LEVELS = 9;

/** The list of words in an element: {show(words), shade(strengths), underline(low, high)}. */
export function wordMap(parent, said) {
  let tokens = [], strength = [], here = -1, marked = [0, 0];

  function show(words) {
    tokens = words.map(word => element("b", {}, word));
    here = -1;
    marked = [0, 0];
    parent.replaceChildren(...tokens.flatMap(token => [token, " "]));
    said.textContent = "";
  }

  function shade(shares) {
    strength = shares;
    tokens.forEach((token, i) => {
      const level = shares[i] > 0 ? Math.max(1, Math.ceil(LEVELS * Math.sqrt(shares[i]) - 1e-9)) : 0;
      const name = level ? `l${level}` : "none";
      if (token.dataset.level === name) return;
      token.classList.remove(token.dataset.level);
      token.classList.add(name);
      token.dataset.level = name;
    });
  }

  /** Words whose middles lie between low and high, both parts of the text; only what changes is touched. */
  function underline(low, high) {
    const count = tokens.length, now = [Math.ceil(low * count - 0.5), Math.floor(high * count - 0.5) + 1];
    now.forEach((end, i) => (now[i] = clamp(end, 0, count)));
    const [begin, end] = [Math.min(now[0], marked[0]), Math.max(now[1], marked[1])];
    for (let i = begin; i < end; i++) tokens[i].classList.toggle("inside", i >= now[0] && i < now[1]);
    marked = now;
  }

  function go(place, scroll = true) {
    if (!(place >= 0 && place < tokens.length)) return;
    tokens[here]?.classList.remove("here");
    here = place;
    tokens[here].classList.add("here");
    if (scroll) tokens[here].scrollIntoView({ block: "nearest" });
    const share = strength[here] ? `${shown(100 * strength[here], 3)} % of the greatest attention` : "no attention";
    said.textContent = `“${tokens[here].textContent}”, word ${here + 1} of ${tokens.length}: ${share}`;
  }

  const keys = {
    ArrowRight: () => Math.min(here + 1, tokens.length - 1),
    ArrowLeft: () => Math.max(here - 1, 0),
    ArrowDown: () => strength.findIndex((share, i) => i > here && share > 0),
    ArrowUp: () => strength.findLastIndex((share, i) => i < here && share > 0),
    Home: () => 0,
    End: () => tokens.length - 1,
  };
  parent.addEventListener("keydown", event => {
    if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
    event.preventDefault();
    go(keys[event.key]());
  });
  parent.addEventListener("click", event => {
    const token = event.target.closest("b");
    if (token) go(tokens.indexOf(token), false);
  });
  return { show, shade, underline };
}
