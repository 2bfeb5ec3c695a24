// softmax, entmax and sparsemax of a few scores, and their Jacobians: contmax.entmax in the page.

/** p = exp_{2−α}(x/T − A): softmax at α = 1, sparsemax at α = 2. */
export function entmax(scores, alpha, temperature = 1) {
  const top = Math.max(...scores), z = scores.map(score => (score - top) / temperature);
  if (alpha === 1) return normalized(z.map(Math.exp));
  const gap = alpha - 1;
  // p = [1 + ε(z − A)]₊^{1/ε}. The greatest score alone gives at most one: A ≥ 0; all alike give A ≤ log_{2−α} of 1/n.
  let low = 0, high = (1 - z.length ** -gap) / gap;
  const weights = shift => z.map(value => power(1 + gap * (value - shift), gap));
  for (let step = 0; step < 200; step++) {
    const middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) break;
    if (sum(weights(middle)) >= 1) low = middle;
    else high = middle;
  }
  return normalized(weights(low));
}

function power(base, gap) {
  return base > 0 ? Math.exp(Math.log(base) / gap) : 0;
}

const sum = values => values.reduce((total, value) => total + value, 0);

function normalized(values) {
  const total = sum(values);
  return values.map(value => value / total);
}

/** ∂p/∂x = (diag(s) − ssᵀ/Σs)/T with s = p^{2−α} where p > 0; row i holds the derivatives of pᵢ. */
export function entmaxJacobian(p, alpha, temperature = 1) {
  const s = p.map(value => (value > 0 ? value ** (2 - alpha) : 0)), total = sum(s);
  return s.map((row, i) => s.map((column, j) => ((i === j ? row : 0) - (row * column) / total) / temperature));
}

const SEPARATOR = /[\s,;]+/;

/** Numbers that somebody typed, or a sentence that says what is wrong. */
export function readScores(text, most) {
  const words = text.replaceAll("−", "-").split(SEPARATOR).filter(word => word !== "");
  if (!words.length) return { problem: "No scores yet: type some numbers, e.g. 2, 1.2, 0.3." };
  if (words.length > most) return { problem: `${words.length} scores are too many to show; type at most ${most}.` };
  const wrong = words.find(word => !Number.isFinite(Number(word)) || Math.abs(Number(word)) > 1e6);
  if (wrong !== undefined) {
    return { problem: `“${wrong.slice(0, 20)}” is no number between −10⁶ and 10⁶; separate numbers by commas.` };
  }
  return { scores: words.map(Number) };
}
