"""Measures of sparse probabilities, and prediction sets that hold the true class as often as they promise."""

import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon

import contmax
from contmax.losses import sparsemax_loss
from contmax.output import (
    conformal_temperature,
    epsilon_perplexity,
    jensen_shannon_divergence,
    prediction_sets,
    reliability,
    sparsemax_score,
)

MEASURES = {
    "perplexity": lambda p, y, **options: epsilon_perplexity(p, y, 1e-3, **options),
    "score": sparsemax_score,
    "divergence": jensen_shannon_divergence,
    "error": lambda p, y, **options: reliability(p, y, **options).calibration_error,
}


@pytest.fixture
def p():
    return contmax.entmax(3 * torch.randn(50, 8, dtype=torch.float64), 1.5)


@pytest.fixture
def label():
    return torch.randint(8, (50,))


def test_perplexity_is_that_of_the_smoothed_probabilities(p, label):
    for epsilon in (1e-6, 0.3):
        smoothed = (p + epsilon) / (p + epsilon).sum(-1, keepdim=True)
        expected = torch.nn.functional.nll_loss(smoothed.log(), label).exp()
        torch.testing.assert_close(epsilon_perplexity(p, label, epsilon), expected)
    assert (p[torch.arange(50), label] == 0).any()
    assert epsilon_perplexity(p, label, 0.0) == math.inf


def test_smoothing_gives_nothing_to_classes_that_are_masked(p, label):
    wider = torch.nn.functional.pad(p, (0, 5))
    mask = torch.arange(13) < 8
    torch.testing.assert_close(epsilon_perplexity(wider, label, 0.1, mask=mask), epsilon_perplexity(p, label, 0.1))
    assert epsilon_perplexity(wider, label + 5, 0.1, mask=mask) == math.inf


def test_the_score_is_one_less_the_smallest_sparsemax_loss(p, label):
    losses = sparsemax_loss(
        p, label, reduction="none"
    )  # sparsemax(p) = p, and of all such scores none has a smaller loss
    torch.testing.assert_close(sparsemax_score(p, label, reduction="none"), 1 - losses)
    lower = p - torch.where(p == 0, torch.rand_like(p), 0)
    assert (sparsemax_loss(lower, label, reduction="none") >= losses - 1e-15).all()


def test_the_divergence_is_that_of_scipy(p, label):
    observed = torch.nn.functional.one_hot(label, 8).double()
    expected = jensenshannon(p.numpy(), observed.numpy(), axis=-1) ** 2
    found = jensen_shannon_divergence(p, label, reduction="none")
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-12, rtol=0)


def test_reliability_is_accuracy_and_confidence_in_each_bin(p, label):
    curve = reliability(p, label, bins=4)
    confidence, predicted = p.max(-1)
    for number in range(4):
        inside = (confidence >= number / 4) & ((confidence < (number + 1) / 4) | (number == 3))
        assert curve.share[number] == inside.double().mean()
        if inside.any():
            torch.testing.assert_close(curve.confidence[number], confidence[inside].mean())
            torch.testing.assert_close(curve.accuracy[number], (predicted == label)[inside].double().mean())
    certain = torch.eye(3)[[0, 1, 2, 0]]
    torch.testing.assert_close(reliability(certain, torch.tensor([0, 1, 2, 1])).calibration_error, torch.tensor(0.25))


@pytest.mark.parametrize("name", MEASURES)
def test_ignored_examples_other_axes_and_dtypes(name, p, label):
    measure = MEASURES[name]
    expected = measure(p[:40], label[:40])
    target = torch.where(torch.arange(50) < 40, label, -1)
    torch.testing.assert_close(measure(p, target, ignore_index=-1), expected)
    # (C, 5, 10): classes first, two axes of examples
    torch.testing.assert_close(measure(p[:40].T.reshape(8, 5, 8), label[:40].view(5, 8), dim=0), expected)
    half = measure(p[:40].bfloat16(), label[:40])
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, measure(p[:40].bfloat16().float(), label[:40]))
    assert measure(p, torch.full((50,), -100)) == (name == "perplexity")
    nothing = torch.zeros(2, 8)
    assert not measure(nothing, label[:2]).isnan()


@pytest.mark.parametrize("alpha", [1.001, 1.3, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_true_class_enters_its_set_at_the_chosen_temperature(alpha, dtype):
    scores, label = (2 * torch.randn(200, 6)).to(dtype), torch.randint(6, (200,))
    scores[:, 5] = -torch.inf
    label.clamp_(max=4)
    temperature = conformal_temperature(scores, label, 0.8, alpha)
    own = torch.arange(200), label
    needed = math.ceil(201 * 0.8)
    assert prediction_sets(scores, temperature, alpha)[own].sum() >= needed
    assert prediction_sets(scores, temperature * (1 - 1e-8), alpha)[own].sum() < needed
    assert not prediction_sets(scores, 1e6, alpha)[:, 5].any()


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0])
def test_sets_are_supports(alpha):
    scores = 3 * torch.randn(400, 30, dtype=torch.float64)
    scores[:, 3:5] = scores[:, 5:6]
    mask = torch.rand(400, 30) < 0.8
    mask[7] = False
    support = contmax.entmax(scores, alpha, mask=mask, temperature=1.7) > 0
    assert prediction_sets(scores, 1.7, alpha, mask=mask).equal(support)
    assert prediction_sets(scores.T, 1.7, alpha, dim=0, mask=mask.T).T.equal(support)


def test_a_model_that_is_mostly_right_needs_no_more_than_the_best_class():
    scores = torch.eye(4)[torch.arange(100) % 4]
    temperature = conformal_temperature(scores, torch.arange(100) % 4, 0.9)
    assert prediction_sets(scores, temperature).equal(scores > 0)
    assert (contmax.entmax(scores, 1.5, temperature=temperature) > 0).equal(scores > 0)


def test_an_example_with_nan_is_in_no_set():
    """Such sets are empty, so that in the calibration too the example counts as one whose class is missed."""
    scores, label = torch.randn(100, 5), torch.randint(5, (100,))
    scores[::20, 2] = torch.nan
    temperature = conformal_temperature(scores, label, 0.9)
    covered = prediction_sets(scores, temperature)[torch.arange(100), label]
    assert not covered[::20].any()
    assert covered.double().mean() >= 0.9


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_hold_the_true_class_as_often_as_they_promise(coverage):
    """Over draws of calibration and test, the coverage is beta-binomial; its mean is ⌈(n+1)c⌉/(n+1)."""
    draws, n, new = 200, 99, 100
    scores = torch.randn(draws, n + new, 10, dtype=torch.float64)
    # The model is wrong about its own probabilities: labels follow softmax(2z), and entmax sees z.
    label = torch.multinomial(torch.softmax(2 * scores, -1).flatten(0, 1), 1).view(draws, n + new)
    covered = torch.empty(draws)
    for draw in range(draws):
        temperature = conformal_temperature(scores[draw, :n], label[draw, :n], coverage)
        sets = prediction_sets(scores[draw, n:], temperature)
        covered[draw] = sets.gather(-1, label[draw, n:, None]).double().mean()
    rank = math.ceil((n + 1) * coverage)
    a, b = rank, n + 1 - rank
    # The probability of a set, over calibrations, is Beta(a, b) without ties; test examples add a binomial error.
    mean = a / (a + b)
    spread = a * b / ((a + b) ** 2 * (a + b + 1))
    variance = spread + (mean * (1 - mean) - spread) / new
    assert abs(covered.mean().item() - mean) < 4.5 * math.sqrt(variance / draws)
    assert abs(covered.var().item() / variance - 1) < 0.45
    assert mean == pytest.approx(coverage)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z, y: epsilon_perplexity(z.softmax(-1), y, -0.1), "epsilon must be a number ≥ 0; got -0.1"),
        (lambda z, y: sparsemax_score(z, y), r"probabilities must be ≥ 0 with sum 1 .* Pass contmax.entmax\(scores\)"),
        (lambda z, y: sparsemax_score(z.softmax(-1), y, reduction="sum"), "reduction must be 'none' or 'mean'"),
        (
            lambda z, y: sparsemax_score(z.softmax(-1), y[:2]),
            r"class ids \(integers\) of shape \(5,\); got torch.int64",
        ),
        (lambda z, y: sparsemax_score(z.softmax(-1), y + 7), r"class ids must be in \[0, 2\]"),
        (lambda z, y: reliability(z.softmax(-1), y, bins=0), "bins must be at least 1"),
        (lambda z, y: conformal_temperature(z, y, 0.9), "5 examples cannot promise a coverage of 0.9; pass at least 9"),
        (lambda z, y: conformal_temperature(z, y, 90.0), "coverage must be between 0 and 1; got 90"),
        (lambda z, y: conformal_temperature(z, y, 0.5, 1.0), "alpha must be above 1"),
        (
            lambda z, y: conformal_temperature(z, y, 0.5, mask=torch.arange(3) > 2),
            "the true class is masked, or a score is NaN, in too many",
        ),
        (lambda z, y: conformal_temperature(z * torch.nan, y, 0.5), "or a score is NaN, in too many"),
        (lambda z, y: prediction_sets(z, -1.0), "temperature must be positive; got -1"),
    ],
)
def test_mistakes_are_told(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1]))
