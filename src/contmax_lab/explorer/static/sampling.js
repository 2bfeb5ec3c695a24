// Exact draws from β-Gaussians. With z normal and w chi-square, u = z/√(‖z‖²+w) has the law of a β-Gaussian with α > 1
// on the unit ball (2k + 2 degrees of freedom); Lz·c/√w is a Student-t, α < 1.

import { profile } from "./beta_gaussian.js";

/** A generator of uniform numbers in (0, 1) with a seed, so that draws move smoothly with the parameters. */
export function generator(seed) {
  let state = (seed * 2654435761) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return (((mixed ^ (mixed >>> 14)) >>> 0) + 0.5) / 4294967296;
  };
}

function normal(uniform) {
  return Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
}

/** Gamma draws, Marsaglia & Tsang (2000). */
function gammaDraw(shape, uniform) {
  if (shape < 1) return gammaDraw(shape + 1, uniform) * uniform() ** (1 / shape);
  const d = shape - 1 / 3, c = 1 / Math.sqrt(9 * d);
  for (;;) {
    const x = normal(uniform), v = (1 + c * x) ** 3;
    if (v > 0 && Math.log(uniform()) < 0.5 * x * x + d - d * v + d * Math.log(v)) return d * v;
  }
}

/** Draws, each a point of N numbers. */
export function draws(density, count, seed) {
  const { loc, scale, alpha } = density, { gap, radius, dim, rho } = profile(density);
  const [a, b, c] = factor(scale), points = [];
  for (let i = 0; i < count; i++) {
    // Each draw has a stream of its own: a rejection in one does not move the others.
    const uniform = generator(seed * 100003 + i);
    const z = [normal(uniform), dim === 2 ? normal(uniform) : 0];
    let stretch = 1;
    if (alpha > 1) {
      const w = 2 * gammaDraw((alpha === Infinity ? 0 : 1 / gap) + 1, uniform);
      stretch = radius / Math.sqrt(z[0] ** 2 + z[1] ** 2 + w);
    } else if (alpha < 1) {
      // c² = −R² of the formulas for α > 1, and ν = 2/(1−α) − N degrees of freedom.
      stretch = Math.sqrt((-2 * rho) / gap / (2 * gammaDraw(-1 / gap - dim / 2, uniform)));
    }
    const x = loc[0] + stretch * a * z[0];
    points.push(dim === 1 ? [x] : [x, loc[1] + stretch * (b * z[0] + c * z[1])]);
  }
  return points;
}

/** The entries of L with LLᵀ = Σ. */
function factor(scale) {
  const a = Math.sqrt(scale[0][0]);
  if (scale.length === 1) return [a, 0, 0];
  const b = scale[0][1] / a;
  return [a, b, Math.sqrt(scale[1][1] - b * b)];
}
