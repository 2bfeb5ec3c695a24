// G(ε), the logarithm of the gamma ratio in the normaliser of a β-Gaussian, and its slope: contmax.numerics in the page.
// Nothing large is subtracted, so it is smooth and exact through ε = α − 1 = 0, where the β-Gaussian is the Gaussian.

const SHIFT = 8;
const EULER = [1, 5, 61, 1385, 50521, 2702765, 199360981];
const HALF_STEP = EULER.map((euler, j) => ((-1) ** j * euler) / ((j + 1) * 4 ** (2 * j + 3)));

/** G in 1 or 2 dimensions. */
export function logGammaRatio(gap, dim) {
  return dim === 2 ? Math.log1p(gap) : halfStep(gap);
}

/** dG/dε. */
export function logGammaRatioSlope(gap, dim) {
  return dim === 2 ? 1 / (1 + gap) : halfStepSlope(gap);
}

function halfStep(gap) {
  const sign = gap < 0 ? -1 : 1, size = sign * gap, offset = SHIFT + 0.75 * sign;
  const inverse = size / (1 + offset * size), square = inverse * inverse;
  let value = HALF_STEP.reduceRight((sum, coefficient) => (sum + coefficient) * square, 0);
  value += 0.5 * Math.log1p(offset * size);
  for (let j = 1; j <= SHIFT; j++) {
    value -= sign * Math.log1p((0.5 * sign * size) / (1 + (j - (1 - sign) / 2) * size));
  }
  return value;
}

function halfStepSlope(gap) {
  const sign = gap < 0 ? -1 : 1, size = sign * gap, offset = SHIFT + 0.75 * sign;
  const scale = 1 / (1 + offset * size), inverse = size * scale, square = inverse * inverse;
  const series = HALF_STEP.reduceRight((sum, coefficient, j) => sum * square + 2 * (j + 1) * coefficient, 0);
  let slope = series * inverse * scale * scale + 0.5 * offset * scale;
  for (let j = 1; j <= SHIFT; j++) {
    const below = j - (1 - sign) / 2;
    slope -= 0.5 / ((1 + below * size) * (1 + (below + 0.5 * sign) * size));
  }
  return sign * slope;
}
