"""Continuous Fenchel–Young losses of batches that are labelled in part: masks, weights, and targets full of garbage."""

import math

import pytest
import torch
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal, StudentT, Uniform
from torch.func import vmap

from contmax.densities import (
    BetaGaussian,
    Empirical,
    LocationScale,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
)
from contmax.losses import fenchel_young

F64 = torch.float64
NAN = math.nan


def t(*values):
    return torch.tensor(values, dtype=F64)


def test_spans_known_for_some_of_a_batch():
    loc, scale = t(0.3, 0.5, 0.7, 0.2).requires_grad_(), t(0.1, 0.2, 0.3, 0.1).requires_grad_()
    start, end = t(0.2, NAN, 0.5, 0.4), t(0.6, NAN, 0.5, 0.4)  # unknown; a span that ends where it begins; and again
    mask = torch.tensor([True, False, False, False])
    losses = fenchel_young(TruncatedParabola(loc, scale), Uniform(start, end, validate_args=False), mask=mask)
    expected = fenchel_young(TruncatedParabola(loc[0], scale[0]), Uniform(t(0.2)[0], t(0.6)[0]))
    torch.testing.assert_close(losses, torch.stack([expected, *[torch.zeros((), dtype=F64)] * 3]))
    gradients = torch.autograd.grad(losses.sum(), (loc, scale))
    alone = torch.autograd.grad(expected, (loc, scale))
    for gradient, wanted in zip(gradients, alone, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-13, atol=0)
        assert (gradient[1:] == 0).all()


# Targets with garbage in their second and third entry.
GARBAGE = {
    "uniform": lambda: Uniform(t(0.2, NAN, 0.5), t(0.6, 1.0, 0.5), validate_args=False),
    "reversed": lambda: Uniform(t(0.2, 0.9, math.inf), t(0.6, 0.1, -math.inf), validate_args=False),
    "normal": lambda: Normal(t(0.2, NAN, 0.0), t(0.6, 1.0, -1.0), validate_args=False),
    "laplace": lambda: Laplace(t(0.2, NAN, 0.0), t(0.6, 1.0, 0.0), validate_args=False),
    "student": lambda: StudentT(t(3.0, 2.0, 1.0), t(0.2, NAN, 0.0), t(0.6, 1.0, 0.0), validate_args=False),
    "ours": lambda: BetaGaussian(t(0.2, NAN, 0.0), t(0.6, 1.0, 0.0), 1.5, validate_args=False),
    "triangle": lambda: Triangular(t(0.2, NAN, 0.0), t(0.6, 1.0, -1.0), validate_args=False),
    "observations": lambda: t(0.2, NAN, math.inf),
    "samples": lambda: Empirical(t(0.2, NAN, 0.0)[:, None] + t(0.0, 0.1), event_dim=0, validate_args=False),
}
MASK = torch.tensor([True, False, False])


def of_entry(target, index):
    """The target of one example; for those whose parameters are numbers."""
    if isinstance(target, torch.Tensor):
        return target[index]
    if isinstance(target, Empirical):
        return Empirical(target.samples[index], target.weights[index])
    names = {"low", "high", "loc", "scale", "df"} & set(vars(target))
    given = {name: getattr(target, name)[index] for name in names}
    return type(target)(**given, **({"alpha": target.alpha} if isinstance(target, BetaGaussian) else {}))


@pytest.mark.parametrize("target", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("family", [TruncatedParabola, BetaGaussian, Triangular, "cosh", Normal])
def test_garbage_reaches_neither_loss_nor_gradient(family, target):
    loc, scale = t(0.3, 0.5, 0.7).requires_grad_(), t(0.1, 0.2, 0.3).requires_grad_()
    arguments = {"cosh": ("cosh",), BetaGaussian: (1.4,)}.get(family, ())
    kind = LocationScale if family == "cosh" else family
    losses = fenchel_young(kind(loc, scale, *arguments), target(), mask=MASK)
    expected = fenchel_young(kind(loc[0], scale[0], *arguments), of_entry(target(), 0))
    torch.testing.assert_close(losses, torch.stack([expected, torch.zeros_like(expected), torch.zeros_like(expected)]))
    first = torch.autograd.grad(losses.sum(), (loc, scale), create_graph=True)
    for gradient in (*first, *torch.autograd.grad(first[0].sum() + first[1].sum(), (loc, scale))):
        assert gradient.isfinite().all()
        assert (gradient[1:] == 0).all()


def test_parameters_of_the_target_get_no_gradient_where_unlabelled():
    start, end = t(0.2, NAN, 0.5).requires_grad_(), t(0.6, NAN, 0.5).requires_grad_()
    spans = Uniform(start, end, validate_args=False)
    fenchel_young(TruncatedParabola(t(0.3, 0.5, 0.7), 0.2), spans, mask=MASK, reduction="mean").backward()
    assert start.grad[0] != 0
    assert (start.grad[1:] == 0).all()
    assert (end.grad[1:] == 0).all()


SPACE_GARBAGE = {
    "box": lambda: Independent(
        Uniform(
            torch.tensor([[0.2, 0.1], [NAN, 0.0], [0.5, 0.5]], dtype=F64),
            torch.tensor([[0.6, 0.4], [1.0, 1.0], [0.5, 0.1]], dtype=F64),
            validate_args=False,
        ),
        1,
    ),
    "normal": lambda: MultivariateNormal(
        torch.tensor([[0.2, 0.1], [NAN, 0.0], [0.5, 0.5]], dtype=F64),
        scale_tril=torch.eye(2, dtype=F64) * t(1.0, NAN, 0.0)[:, None, None],
        validate_args=False,
    ),
    "ours": lambda: MultivariateBetaGaussian(
        torch.tensor([[0.2, 0.1], [NAN, 0.0], [0.5, 0.5]], dtype=F64),
        scale_diag=t(1.0, NAN, 0.0)[:, None] * t(1.0, 2.0),
        validate_args=False,
    ),
    "points": lambda: torch.tensor([[0.2, 0.1], [NAN, 0.0], [0.5, math.inf]], dtype=F64),
    "samples": lambda: Empirical(t(0.2, NAN, math.inf)[:, None, None] + torch.eye(2, dtype=F64), validate_args=False),
}


@pytest.mark.parametrize("target", SPACE_GARBAGE.values(), ids=SPACE_GARBAGE)
def test_garbage_in_the_plane(target):
    loc = torch.tensor([[0.3, 0.3], [0.1, 0.2], [0.5, 0.4]], dtype=F64, requires_grad=True)
    tril = torch.tensor([[0.3, 0.0], [0.1, 0.2]], dtype=F64).expand(3, 2, 2).clone().requires_grad_()
    losses = fenchel_young(MultivariateBetaGaussian(loc, scale_tril=tril, alpha=1.5), target(), mask=MASK)
    assert losses[0].isfinite()
    assert losses[0] != 0
    assert (losses[1:] == 0).all()
    for gradient in torch.autograd.grad(losses.sum(), (loc, tril)):
        assert gradient[0].abs().max() > 0
        assert (gradient[1:] == 0).all()


def test_families_without_harmless_parameters_are_masked_too():
    gamma = torch.distributions.Gamma(t(2.0, 3.0), t(1.0, 1.0))
    loc = t(0.3, 0.5).requires_grad_()
    losses = fenchel_young(TruncatedParabola(loc, 0.2), gamma, mask=torch.tensor([True, False]))
    assert losses[0] > 0
    assert losses[1] == 0
    assert torch.autograd.grad(losses.sum(), loc)[0][1] == 0


def test_weights_and_reductions():
    prediction, target = TruncatedParabola(t(0.3, 0.5, 0.7, 0.1), 0.2), Uniform(t(0.2)[0], t(0.6)[0])
    losses = fenchel_young(prediction, target)
    mask, weight = torch.tensor([True, True, False, True]), t(1.0, 0.5, 7.0, 0.0)
    counted = t(1.0, 0.5, 0.0, 0.0)
    torch.testing.assert_close(fenchel_young(prediction, target, weight=weight), losses * weight)
    torch.testing.assert_close(fenchel_young(prediction, target, mask=mask, weight=weight), losses * counted)
    total = fenchel_young(prediction, target, mask=mask, weight=weight, reduction="sum")
    torch.testing.assert_close(total, (losses * counted).sum())
    mean = fenchel_young(prediction, target, mask=mask, weight=weight, reduction="mean")
    torch.testing.assert_close(mean, (losses * counted).sum() / 1.5)
    kept = fenchel_young(prediction, target, mask=mask, reduction="mean")
    torch.testing.assert_close(kept, losses[mask].mean())
    every = fenchel_young(prediction, target, mask=torch.tensor(True), reduction="mean")
    torch.testing.assert_close(every, fenchel_young(prediction, target, reduction="mean"))


def test_nothing_labelled_costs_nothing():
    loc = t(0.3, 0.5).requires_grad_()
    spans = Uniform(t(NAN, NAN), t(NAN, NAN), validate_args=False)
    for reduction in ("none", "sum", "mean"):
        loss = fenchel_young(
            TruncatedParabola(loc, 0.2), spans, mask=torch.tensor([False, False]), reduction=reduction
        ).sum()
        assert loss == 0
        assert (torch.autograd.grad(loss, loc)[0] == 0).all()


def test_a_weight_that_is_nan_where_unlabelled_and_a_loss_that_is_infinite():
    prediction = TruncatedParabola(t(0.3, 0.5), 0.2)
    weight = t(2.0, NAN)
    losses = fenchel_young(prediction, Uniform(0.2, 0.6), mask=torch.tensor([True, False]), weight=weight)
    assert losses.isfinite().all()
    endless = StudentT(t(1.0, 3.0), 0.0, 1.0)
    assert fenchel_young(prediction, endless, weight=t(0.0, 1.0), reduction="sum").isfinite()


def test_shapes_broadcast():
    prediction = TruncatedParabola(torch.zeros(3, 2), 1.0)
    mask = torch.tensor([[True], [False], [True]])
    losses = fenchel_young(prediction, Uniform(-1.0, 1.0), mask=mask)
    assert losses.shape == (3, 2)
    assert (losses[1] == 0).all()
    assert (losses[0] > 0).all()
    observed = fenchel_young(prediction, torch.zeros(5, 3, 2), mask=mask, reduction="mean")
    torch.testing.assert_close(observed, fenchel_young(prediction, torch.tensor(0.0))[0, 0])
    per_sample = fenchel_young(prediction, torch.zeros(5, 1, 1), weight=torch.ones(5, 3, 2))
    assert per_sample.shape == (5, 3, 2)


def test_dtypes_stay_those_of_the_parameters():
    prediction = TruncatedParabola(torch.zeros(2), 1.0)
    masked = fenchel_young(prediction, Uniform(-1.0, 1.0), mask=torch.tensor([True, False]), weight=t(1.0, 1.0))
    assert masked.dtype == torch.float32
    halves = TruncatedParabola(torch.zeros(2, dtype=torch.float16), torch.ones((), dtype=torch.float16))
    low, high = torch.tensor([-1.0, NAN]).half(), torch.tensor([1.0, NAN]).half()
    spans = Uniform(low, high, validate_args=False)
    assert fenchel_young(halves, spans, mask=torch.tensor([True, False]), reduction="mean").dtype == torch.float16


def test_under_vmap():
    mask = torch.tensor([[True, False], [False, True]])
    start = torch.where(mask, 0.1, NAN)

    def loss(loc, start, mask):
        spans = Uniform(start, start + 0.4, validate_args=False)
        return fenchel_young(TruncatedParabola(loc, 0.2, validate_args=False), spans, mask=mask, reduction="mean")

    loc = torch.tensor([[0.2, 0.3], [0.4, 0.5]])
    batched = vmap(loss)(loc, start, mask)
    torch.testing.assert_close(batched, torch.stack([loss(*row) for row in zip(loc, start, mask, strict=True)]))


@pytest.mark.graph
def test_compiles():
    def loss(loc, start, end, mask, weight):
        spans = Uniform(start, end, validate_args=False)
        return fenchel_young(
            TruncatedParabola(loc, 0.2, validate_args=False), spans, mask=mask, weight=weight, reduction="mean"
        )

    arguments = (t(0.2, 0.3), t(0.1, NAN), t(0.4, NAN), torch.tensor([True, False]), t(1.0, NAN))
    compiled = torch.compile(loss, fullgraph=True, backend="eager")(*arguments)
    torch.testing.assert_close(compiled, loss(*arguments))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mask": torch.tensor([1, 0])}, TypeError, "mask"),
        ({"mask": torch.tensor([True, False, True])}, ValueError, "must broadcast to the losses"),
        ({"weight": torch.ones(3)}, ValueError, "must broadcast to the losses"),
        ({"weight": torch.tensor([1.0, -1.0])}, ValueError, "not negative; got a minimum of -1"),
        ({"weight": torch.tensor([1.0, NAN])}, ValueError, "weight must be finite"),
    ],
)
def test_bad_masks_and_weights(arguments, error, message):
    with pytest.raises(error, match=message):
        fenchel_young(TruncatedParabola(torch.zeros(2), 1.0), Uniform(-1.0, 1.0), **arguments)
