"""How far two supports agree: intersection over union, against closed forms, scipy and draws."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch.distributions import Categorical, Independent, Normal, Uniform
from torch.func import vmap

import contmax
from contmax.densities import (
    BetaGaussian,
    Empirical,
    LocationScale,
    Mixture,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)

F64 = torch.float64


def t(*values):
    return torch.tensor(values, dtype=F64)


def rotation(angle):
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=F64)


def ellipse(center, semi_axes, angle=0.0, alpha=2.0):
    turn = rotation(angle)
    shape = turn @ torch.diag(t(*semi_axes).square()) @ turn.mT
    return MultivariateBetaGaussian.from_support(t(*center), (shape + shape.mT) / 2, alpha)


def ball(center, radius):
    return MultivariateBetaGaussian.from_support(t(*center), radius**2 * torch.eye(3, dtype=F64))


def box(low, high):
    return Independent(Uniform(t(*low), t(*high), validate_args=False), 1)


def value(tensor):
    return float(tensor)


# The call as a user writes it


def test_how_much_of_a_true_interval_is_attended():
    attended = TruncatedParabola.from_support(torch.tensor([0.0, 0.2, 0.7]), torch.tensor([1.0, 0.4, 0.9]))
    truth = Uniform(torch.tensor([0.0, 0.2, 0.1]), torch.tensor([0.25, 0.4, 0.2]))
    torch.testing.assert_close(attended.iou(truth), torch.tensor([0.25, 1.0, 0.0]))
    torch.testing.assert_close(attended.area, torch.tensor([1.0, 0.2, 0.2]))


# The line


LINE = {
    "equal": ((0.0, 1.0), 1.0),
    "apart": ((2.0, 3.0), 0.0),
    "touching": ((1.0, 2.0), 0.0),
    "half": ((0.5, 1.5), 1 / 3),
    "inside": ((0.25, 0.5), 0.25),
    "around": ((-1.0, 4.0), 0.2),
    "a point": ((0.5, 0.5), 0.0),
    "reversed": ((0.8, 0.2), 0.0),
}


@pytest.mark.parametrize(("ends", "expected"), LINE.values(), ids=LINE)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_intervals(ends, expected, dtype):
    low, high = torch.tensor(ends[0], dtype=dtype), torch.tensor(ends[1], dtype=dtype)
    unit = torch.tensor([0.0, 1.0], dtype=dtype)
    families = (
        TruncatedParabola.from_support(*unit),
        BetaGaussian.from_support(*unit, alpha=1.3),
        Triangular.from_support(*unit),
        LocationScale(unit.mean(), 0.5 / LocationScale(unit.mean(), unit[1], "cosh").half_width, "cosh"),
    )
    for p in families:
        result = p.iou(Uniform(low, high, validate_args=False))
        assert result.dtype == dtype
        assert value(result) == pytest.approx(expected, abs=2e-6 if dtype == torch.float32 else 1e-12)
        if ends[0] < ends[1]:
            assert value(p.iou(contmax.domains.Interval(low, high))) == pytest.approx(value(result), abs=1e-7)
            other = Triangular.from_support(low, high)
            assert value(p.iou(other)) == pytest.approx(expected, abs=2e-6 if dtype == torch.float32 else 1e-12)
            torch.testing.assert_close(p.iou(other), other.iou(p))


def test_intervals_have_gradients():
    loc, scale = t(0.1, 0.5, 3.0).requires_grad_(), t(0.2, 0.3, 0.1).requires_grad_()
    low, high = t(0.0, 0.4, 0.0).requires_grad_(), t(0.4, 0.6, 1.0).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda m, s, a, b: TruncatedParabola(m, s).iou(Uniform(a, b, validate_args=False)), (loc, scale, low, high)
    )


# The plane


def test_two_circles():
    # The lens of two circles, by its two circular segments.
    for distance in (0.0, 0.3, 1.0, 1.9, 1.999999, 2.0, 2.5):
        lens = 2 * math.acos(distance / 2) - distance / 2 * math.sqrt(4 - distance**2) if distance < 2 else 0.0
        for angle in (0.0, 0.7, 2.0):
            other = ellipse((distance * math.cos(angle), distance * math.sin(angle)), (1.0, 1.0))
            result = value(ellipse((0.0, 0.0), (1.0, 1.0)).iou(other))
            assert result == pytest.approx(lens / (2 * math.pi - lens), abs=1e-10)


def chord_oracle(first, second):
    """The shared area by scipy: lengths of common chords over the common range of the first coordinate."""

    def chords(shape):
        if not isinstance(shape, MultivariateBetaGaussian):
            (left, low), (right, high) = shape.base_dist.low.tolist(), shape.base_dist.high.tolist()
            return (left, right), lambda x: (low, high)
        (p, _), (r, s) = (torch.linalg.inv(shape.scale_matrix) / shape.radius.square()).tolist()
        left, middle = shape.loc.tolist()
        reach = value(shape.radius) * math.sqrt(value(shape.scale_matrix[0, 0]))

        def chord(x):
            slope, rest = r * (x - left), p * (x - left) ** 2 - 1
            root = math.sqrt(max(slope * slope - s * rest, 0.0))
            return middle + (-slope - root) / s, middle + (-slope + root) / s

        return (left - reach, left + reach), chord

    ((a, b), first_chord), ((c, d), second_chord) = chords(first), chords(second)
    low, high = max(a, c), min(b, d)
    if low >= high:
        return 0.0

    def length(angle):
        x = 0.5 * (low + high) - 0.5 * (high - low) * math.cos(angle)
        (lo, hi), (lo_2, hi_2) = first_chord(x), second_chord(x)
        return max(0.0, min(hi, hi_2) - max(lo, lo_2)) * 0.5 * (high - low) * math.sin(angle)

    cuts = np.linspace(0, math.pi, 60)
    return sum(quad(length, *ends, epsabs=1e-10)[0] for ends in itertools.pairwise(cuts))


ROUND = ellipse((0.1, -0.2), (1.0, 0.6), 0.4)
PLANE = {
    "crossing twice": ellipse((0.8, 0.3), (0.7, 0.5), 1.0),
    "crossing four times": ellipse((0.1, -0.2), (1.4, 0.4), 1.9),
    "thin across": ellipse((0.2, 0.0), (3.0, 1e-3), 0.9),
    "thin inside": ellipse((0.1, -0.2), (0.4, 1e-4), 0.4),
    "box over a corner": box((0.0, 0.0), (2.0, 3.0)),
    "box across": box((-3.0, -0.3), (3.0, 0.1)),
    "box inside": box((0.0, -0.3), (0.2, 0.0)),
    "box around": box((-5.0, -5.0), (5.0, 5.0)),
    "thin box": box((-3.0, 0.0), (3.0, 1e-3)),
}


@pytest.mark.parametrize("other", PLANE.values(), ids=PLANE)
def test_ellipses_and_boxes_against_chords(other):
    shared = chord_oracle(ROUND, other)
    area = (
        value(other.area) if isinstance(other, MultivariateBetaGaussian) else value(other.variance.prod().sqrt()) * 12
    )
    union = value(ROUND.area) + area - shared
    assert value(ROUND.iou(other)) == pytest.approx(shared / union, abs=1e-8)
    if isinstance(other, MultivariateBetaGaussian):
        assert value(other.iou(ROUND)) == pytest.approx(shared / union, abs=1e-8)


def test_equal_contained_disjoint():
    torch.testing.assert_close(ROUND.iou(ROUND), torch.ones((), dtype=F64), rtol=0, atol=1e-12)
    inside = ellipse((0.1, -0.2), (0.5, 0.3), 0.4)  # the same at half the size
    torch.testing.assert_close(ROUND.iou(inside), t(0.25)[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(inside.iou(ROUND), t(0.25)[0], rtol=1e-12, atol=0)
    assert ROUND.iou(ellipse((3.0, 3.0), (1.0, 0.5))) == 0
    assert ROUND.iou(box((2.0, 2.0), (3.0, 3.0))) == 0
    speck = ellipse((0.2, -0.2), (1e-7, 2e-7), 0.2)
    assert value(ROUND.iou(speck)) == pytest.approx(value(speck.area / ROUND.area), rel=1e-9)
    grain = box((0.2, -0.2), (0.2 + 1e-7, -0.2 + 1e-7))
    assert value(ROUND.iou(grain)) == pytest.approx(1e-14 / value(ROUND.area), rel=1e-6)


@pytest.mark.parametrize("aspect", [1.0, 1e2, 1e4, 1e6])
def test_needles(aspect):
    needle = ellipse((0.3, 0.7), (1.0, 1 / aspect), 0.6)
    assert value(needle.iou(needle)) == pytest.approx(1.0, abs=1e-9)
    # Moved along itself by half its length: an affine map makes two circles of it.
    moved = ellipse((0.3 + math.cos(0.6), 0.7 + math.sin(0.6)), (1.0, 1 / aspect), 0.6)
    lens = 2 * math.acos(0.5) - 0.5 * math.sqrt(3)
    assert value(needle.iou(moved)) == pytest.approx(lens / (2 * math.pi - lens), abs=1e-6)
    crossed = ellipse((0.3, 0.7), (1.0, 1 / aspect), 0.6 + math.pi / 2)
    assert value(needle.iou(crossed)) == pytest.approx(value(crossed.iou(needle)), abs=1e-9)
    for turn in (0.1, 0.9, 1.7, 2.3, 3.0):
        slanted = ellipse((0.3 + 0.2 * math.sin(turn), 0.6), (1.3, 0.7 / aspect), 0.6 + turn)
        assert value(needle.iou(slanted)) == pytest.approx(value(slanted.iou(needle)), abs=1e-12, rel=1e-3)
    if aspect > 1:
        # The overlap of two long needles that cross at right angles is nearly a square.
        assert value(needle.iou(crossed)) == pytest.approx(
            4 / (2 * math.pi * aspect), rel=1 / aspect + 1e-16 * aspect**2
        )


@pytest.mark.parametrize(
    ("low", "high"), [((0.0, 0.0), (0.0, 1.0)), ((0.1, 0.1), (0.1, 0.1)), ((0.5, 0.5), (0.0, 1.0))]
)
def test_boxes_without_area(low, high):
    assert ROUND.iou(box(low, high)) == 0


def test_affine_maps_change_nothing():
    generator = torch.Generator().manual_seed(3)
    first, second = (torch.randn(20, 2, 2, generator=generator, dtype=F64) for _ in range(2))
    centers = torch.randn(2, 20, 2, generator=generator, dtype=F64) * 0.7
    change, shift = torch.tensor([[3.0, 1.0], [0.0, 0.01]], dtype=F64), t(5.0, -2.0)

    def supports(matrix, shift):
        return [
            MultivariateBetaGaussian.from_support(
                center @ matrix.mT + shift, matrix @ factor @ factor.mT @ matrix.mT, validate_args=False
            )
            for center, factor in zip(centers, (first, second), strict=True)
        ]

    plain, mapped = supports(torch.eye(2, dtype=F64), torch.zeros(2, dtype=F64)), supports(change, shift)
    result = plain[0].iou(plain[1])
    assert ((result > 0) & (result < 1)).sum() > 10
    torch.testing.assert_close(mapped[0].iou(mapped[1]), result, rtol=0, atol=1e-8)
    torch.testing.assert_close(plain[1].iou(plain[0]), result, rtol=0, atol=1e-9)


# Space


def test_two_balls():
    for distance in (0.0, 0.5, 1.0, 1.7, 2.0, 3.0):
        lens = math.pi / 12 * (4 + distance) * (2 - distance) ** 2 if distance < 2 else 0.0
        expected = lens / (8 * math.pi / 3 - lens)
        for direction in (t(1.0, 0.0, 0.0), t(0.0, 0.6, 0.8), t(2 / 3, -1 / 3, 2 / 3)):
            result = ball((0.0, 0.0, 0.0), 1.0).iou(ball(tuple((distance * direction).tolist()), 1.0))
            assert value(result) == pytest.approx(expected, abs=1e-4)


def test_balls_and_boxes():
    unit = ball((0.0, 0.0, 0.0), 1.0)
    volume = 4 * math.pi / 3
    eighth = box((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert value(unit.iou(eighth)) == pytest.approx(volume / 8 / (volume + 1 - volume / 8), abs=1e-4)
    cap = box((-2.0, -2.0, 0.5), (2.0, 2.0, 2.0))
    shared = math.pi / 3 * 0.25 * 2.5
    assert value(unit.iou(cap)) == pytest.approx(shared / (volume + 24 - shared), abs=1e-4)
    assert value(unit.iou(box((-0.1, -0.1, -0.1), (0.1, 0.1, 0.1)))) == pytest.approx(0.008 / volume, abs=1e-6)
    assert unit.iou(box((2.0, 2.0, 2.0), (3.0, 3.0, 3.0))) == 0
    assert unit.iou(box((0.1, 0.1, 0.1), (0.1, 0.5, 0.5))) == 0


def test_ellipsoids_against_many_draws():
    generator = torch.Generator().manual_seed(1)
    factors = torch.randn(2, 6, 3, 3, generator=generator, dtype=F64)
    centers = 0.5 * torch.randn(2, 6, 3, generator=generator, dtype=F64)
    first, second = (
        MultivariateBetaGaussian.from_support(c, f @ f.mT + 0.1 * torch.eye(3, dtype=F64))
        for c, f in zip(centers, factors, strict=True)
    )
    points = torch.randn(200_000, 3, generator=generator, dtype=F64)
    points = (
        points / points.norm(dim=-1, keepdim=True) * torch.rand(200_000, 1, generator=generator, dtype=F64) ** (1 / 3)
    )
    inside = first.radius[:, None, None] * first.scale_tril @ points.mT
    hits = second.support.check((inside.mT + first.loc[:, None]).movedim(1, 0)).double().mean(0)
    shared = hits * first.area
    torch.testing.assert_close(first.iou(second), shared / (first.area + second.area - shared), rtol=0, atol=5e-3)
    torch.testing.assert_close(first.iou(second), second.iou(first), rtol=0, atol=1e-4)


# Shapes, transforms and refusals


def test_batches_broadcast():
    p = MultivariateBetaGaussian.from_support(torch.zeros(3, 1, 2), torch.eye(2))
    q = MultivariateBetaGaussian.from_support(torch.rand(4, 2), torch.eye(2), alpha=1.5)
    assert p.iou(q).shape == (3, 4)
    assert p.iou(contmax.domains.Box([0.0, 0.0], [1.0, 1.0])).shape == (3, 1)
    assert p.iou(Independent(Uniform(torch.zeros(5, 1, 1, 2), torch.ones(2)), 1)).shape == (5, 3, 1)
    line = TruncatedParabola(torch.rand(3, 1), 0.1)
    assert line.iou(Uniform(torch.zeros(2), 1.0)).shape == (3, 2)
    assert line.iou(contmax.domains.Interval(0.0, 1.0)).shape == (3, 1)
    one = MultivariateBetaGaussian.from_support(torch.zeros(2, 1), torch.eye(1))
    torch.testing.assert_close(one.iou(contmax.domains.Box([0.0], [1.0])), torch.full((2,), 0.5))
    assert p.iou(q).dtype == torch.float32


def test_under_vmap():
    loc = torch.rand(5, 2)
    other = ellipse((0.3, 0.4), (0.5, 0.2), 0.3)

    def agreement(center):
        p = MultivariateBetaGaussian.from_support(center, 0.2 * torch.eye(2), validate_args=False)
        return p.iou(other)

    torch.testing.assert_close(vmap(agreement)(loc), torch.stack([agreement(row) for row in loc]))


def test_half_precision():
    p = MultivariateBetaGaussian(torch.zeros(2, dtype=torch.float16), scale_diag=torch.ones(2, dtype=torch.float16))
    assert p.area.dtype == p.semi_axes.dtype == p.iou(p).dtype == torch.float16
    assert p.iou(p) == 1


@pytest.mark.graph
def test_compiles():
    def sizes(loc, tril, low):
        p = MultivariateBetaGaussian(loc, scale_tril=tril, validate_args=False)
        spans = Uniform(low, low + 1.0, validate_args=False)
        return p.area, p.semi_axes, p.iou(Independent(spans, 1)), TruncatedParabola(loc[0], 1.0).iou(spans)

    arguments = (torch.zeros(2), torch.tensor([[1.0, 0.0], [0.2, 0.4]]), torch.zeros(2))
    compiled = torch.compile(sizes, fullgraph=True, backend="eager")(*arguments)
    for result, expected in zip(compiled, sizes(*arguments), strict=True):
        torch.testing.assert_close(result, expected)


def test_what_cannot_be_compared():
    line, plane = TruncatedParabola(0.0, 1.0), TruncatedParaboloid(torch.zeros(2), torch.eye(2))
    for endless in (BetaGaussian(0.0, 1.0, 1.0), BetaGaussian(0.0, 1.0, torch.tensor([0.8, 2.0]))):
        for first, second in ((line, endless), (endless, line)):
            with pytest.raises(ValueError, match=r"BetaGaussian has unbounded support; .* alpha > 1"):
                first.iou(second)
    with pytest.raises(ValueError, match="got 1 and 2 dimensions"):
        line.iou(plane)
    with pytest.raises(TypeError, match="Normal has no support to compare with"):
        line.iou(Normal(0.0, 1.0))
    with pytest.raises(NotImplementedError, match="support of Empirical is not known"):
        Empirical(torch.rand(4)).area  # noqa: B018
    with pytest.raises(NotImplementedError, match="on the line"):
        Mixture(Categorical(torch.ones(3)), plane.expand((3,))).iou(plane)
    four = TruncatedParaboloid(torch.zeros(4), torch.eye(4))
    with pytest.raises(NotImplementedError, match="three dimensions; got 4"):
        four.iou(four)
