// β-Gaussians on the line and the plane: BetaGaussian and MultivariateBetaGaussian of contmax.densities in the page.
//
// A density is {alpha, loc: [...], scale: [[...]]}: loc has N = 1 or 2 numbers, and scale is the matrix Σ (on the line
// [[σ²]]). With ε = α − 1 and s = N/2, ln p = C + log1p(−εu)/ε, where u = Δ/2ρ and ρ = exp(εC).

import { logGammaRatio, logGammaRatioSlope } from "./gamma_ratio.js";

const LOG_2PI = Math.log(2 * Math.PI);

/** (e^x − 1)/x, 1 at 0. */
const expm1Over = x => (x ? Math.expm1(x) / x : 1);
/** ln(1 + x)/x, 1 at 0. */
const log1pOver = x => (x ? Math.log1p(x) / x : 1);

const determinant = scale => (scale.length === 1 ? scale[0][0] : scale[0][0] * scale[1][1] - scale[0][1] ** 2);

/** Everything that follows from α, N and |Σ|, under the names of the library. */
export function profile(density) {
  const { alpha, loc, scale } = density, dim = loc.length, s = dim / 2;
  const halfLogDet = 0.5 * Math.log(determinant(scale));
  return alpha === Infinity ? uniformProfile(dim, s, halfLogDet) : finiteProfile(alpha, dim, s, halfLogDet);
}

function finiteProfile(alpha, dim, s, halfLogDet) {
  const gap = alpha - 1;
  const logPeak = (logGammaRatio(gap, dim) - s * LOG_2PI - halfLogDet) / (1 + s * gap);
  const rho = Math.exp(gap * logPeak);
  const normalizer = -logPeak * expm1Over(gap * logPeak);
  const ratio = s / alpha, y = logPeak - ratio * log1pOver(gap * ratio);
  return {
    dim, halfLogDet, gap, logPeak, rho, normalizer,
    radius: gap > 0 ? Math.sqrt((2 * rho) / gap) : Infinity,
    threshold: gap ? -rho / gap : -Infinity,
    varianceFactor: rho / (1 + (s + 1) * gap),
    entropy: s - gap * logGammaRatioSlope(gap, dim) - logPeak,
    tsallisNegentropy: (y / alpha) * expm1Over(gap * y),
    conjugate: ((1 + gap * s) * normalizer - (gap * s) / alpha) / (1 + gap * (1 + s)),
  };
}

/** α = ∞: density one on the interval or ellipse of volume one. */
function uniformProfile(dim, s, halfLogDet) {
  // ln Γ(1 + N/2), of the volume of the unit ball.
  const logGamma = dim === 1 ? Math.log(Math.sqrt(Math.PI) / 2) : 0;
  const squareRadius = Math.exp((logGamma - s * Math.log(Math.PI) - halfLogDet) / s);
  const varianceFactor = squareRadius / (dim + 2);
  return {
    dim, halfLogDet, gap: Infinity, logPeak: 0, rho: squareRadius, normalizer: -squareRadius / 2,
    radius: Math.sqrt(squareRadius), threshold: -squareRadius / 2, varianceFactor,
    entropy: 0, tsallisNegentropy: 0, conjugate: -0.5 * dim * varianceFactor,
  };
}

/** Δ = (t−μ)ᵀΣ⁻¹(t−μ). */
export function squaredDistance(density, point) {
  const { loc, scale } = density, x = point[0] - loc[0];
  if (loc.length === 1) return (x * x) / scale[0][0];
  const y = point[1] - loc[1];
  return (scale[1][1] * x * x - 2 * scale[0][1] * x * y + scale[0][0] * y * y) / determinant(scale);
}

/** p at squared distance Δ, for a profile that is known. */
export function height(known, squared) {
  const { gap, logPeak, rho } = known;
  if (gap === Infinity) return squared < rho ? 1 : 0;
  const u = squared / (2 * rho);
  if (gap === 0) return Math.exp(logPeak - u);
  return gap * u >= 1 ? 0 : Math.exp(logPeak + Math.log1p(-gap * u) / gap);
}

/** p(t). */
export const densityAt = (density, point) => height(profile(density), squaredDistance(density, point));

/** The covariance matrix. */
export function covariance(density) {
  const factor = profile(density).varianceFactor;
  return density.scale.map(row => row.map(entry => factor * entry));
}

/** ln ∫p^γ, for γ > 0. */
export function logPowerIntegral(density, gamma) {
  const { gap, logPeak, dim } = profile(density);
  if (gap === Infinity) return 0;
  const moved = logGammaRatio(gap, dim) - logGammaRatio(gap / gamma, dim);
  return (gamma - 1) * logPeak + moved - (dim / 2) * Math.log(gamma);
}

/** Ω_α of a density, for any α: what the regulariser of one density costs another. */
export function negentropyOf(density, alpha) {
  const known = profile(density);
  if (alpha === density.alpha) return known.tsallisNegentropy;
  if (alpha === 1) return -known.entropy;
  // In the limit α = ∞ a density may be anything up to one.
  if (alpha === Infinity) return known.logPeak > 1e-6 ? Infinity : 0;
  return Math.expm1(logPowerIntegral(density, alpha)) / (alpha * (alpha - 1));
}

/** L(p; q) = Ω*(f) + Ω(q) − E_q[f], contmax.losses.fenchel_young(p, q): zero where they agree, never negative. */
export function fenchelYoung(prediction, target) {
  const negentropy = negentropyOf(target, prediction.alpha);
  if (negentropy === Infinity) return Infinity;
  const { scale } = prediction, spread = covariance(target);
  const trace = scale.length === 1
    ? spread[0][0] / scale[0][0]
    : (scale[1][1] * spread[0][0] - 2 * scale[0][1] * spread[0][1] + scale[0][0] * spread[1][1]) / determinant(scale);
  const meanScore = -0.5 * (squaredDistance(prediction, target.loc) + trace);
  return Math.max(0, profile(prediction).conjugate + negentropy - meanScore);
}

/** P(Δ ≤ d) by the radius that holds a share of the mass on the plane: Mahalanobis, in units of Σ. */
export function massRadius(density, share) {
  const { gap, rho, radius } = profile(density);
  if (gap === Infinity) return radius * Math.sqrt(share);
  // On the plane P(Δ > d) = (1 − εu)^{k+1}, exp(−u) for the Gaussian.
  const u = gap === 0 ? -Math.log1p(-share) : -Math.expm1((gap / (1 + gap)) * Math.log1p(-share)) / gap;
  return Math.sqrt(2 * rho * u);
}
