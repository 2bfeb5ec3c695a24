// Numbers for people.

/** Four significant digits; ∞ and a true minus sign. */
export function shown(value, digits = 4) {
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  if (Number.isNaN(value)) return "–";
  const text = Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-4)
    ? value.toExponential(digits - 1)
    : String(Number(value.toPrecision(digits)));
  return text.replaceAll("-", "−");
}

/** A share as a percentage; an exact zero is told from a small number. */
export function percent(share) {
  if (!share) return "0 %";
  return share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;
}

/** A number as Python writes a float, not an int. */
export function inPython(value) {
  if (value === Infinity) return "math.inf";
  const text = String(Number(value.toPrecision(6)));
  return /^-?\d+$/.test(text) ? `${text}.0` : text;
}

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
