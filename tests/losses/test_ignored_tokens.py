"""What is ignored or masked never matters to a loss: logits, hidden vectors, results and every gradient."""

import math

import pytest
import torch

from contmax.losses import entmax_loss, linear_entmax_loss
from masked_checks import ALL, assert_never_matters

TOKENS, CLASSES, WIDTH = 10, 7, 4
KEPT = torch.arange(TOKENS) % 3 != 1
ALPHAS = [1.0, 1.01, 1.5, 2.0, 2.5, torch.tensor(1.5)]
REDUCTIONS = ["mean", "sum", "none"]


def ids():
    return torch.where(KEPT, torch.arange(TOKENS) % CLASSES, -100)


def linear(alpha, smoothing, reduction, has_bias, dtype=torch.float32, tokens=TOKENS):
    given = [torch.randn(tokens, WIDTH), torch.randn(CLASSES, WIDTH), torch.randn(CLASSES)]
    given = [x.to(dtype) for x in given]
    options = {"label_smoothing": smoothing, "reduction": reduction}

    def call(hidden, weight, bias=None):
        return [linear_entmax_loss(hidden, weight, ids()[:tokens], alpha, bias=bias, **options)]

    count = 3 if has_bias else 2
    assert_never_matters(call, given[:count], [KEPT[:tokens, None], None, None][:count], ALL)


@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_hidden_vectors_of_ignored_tokens(alpha, smoothing, reduction, has_bias):
    linear(alpha, smoothing, reduction, has_bias)


# For α > 2 a row takes the interpreter a tenth of a second: there each test by Triton has all that it may have at once,
# and few tokens.
@pytest.mark.usefixtures("triton_takes_cpu_tensors")
@pytest.mark.parametrize(
    ("dtype", "alpha", "smoothing", "tokens"),
    [
        (torch.float32, 1.5, 0.0, TOKENS),
        (torch.float32, 2.0, 0.1, TOKENS),
        (torch.float16, 1.5, 0.1, TOKENS),
        (torch.float16, 2.0, 0.0, TOKENS),
        (torch.float16, 2.5, 0.1, 3),
    ],
)
def test_hidden_vectors_of_ignored_tokens_by_triton(dtype, alpha, smoothing, tokens):
    linear(alpha, smoothing, "sum", True, dtype, tokens)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.5])
def test_hidden_vectors_of_ignored_tokens_where_all_logits_are_made_at_once(alpha):
    """By torch.func, and in second derivatives."""
    may = KEPT[:, None]
    weight, hidden = torch.randn(CLASSES, WIDTH), torch.randn(TOKENS, WIDTH)

    def loss(weight, hidden):
        return linear_entmax_loss(hidden, weight, ids(), alpha, reduction="sum")

    want, found = (torch.func.grad(loss)(weight, torch.where(may, hidden, x)) for x in (0.0, math.nan))
    torch.testing.assert_close(found, want, rtol=0, atol=0)

    def slopes(weight, hidden):
        hidden = hidden.requires_grad_()
        return torch.autograd.grad(loss(weight, hidden), [weight, hidden], create_graph=True)

    assert_never_matters(slopes, [weight, hidden], [None, may], ALL)


def logits(alpha, smoothing, reduction, is_masked, rounding=0.0):
    target = ids()
    may = KEPT[:, None]
    options = {"label_smoothing": smoothing, "reduction": reduction}
    if is_masked:
        options["mask"] = torch.rand(TOKENS, CLASSES) > 0.4
        options["mask"].scatter_(1, target.clamp(min=0)[:, None], True)
        may = may & options["mask"]
    given = [torch.randn(TOKENS, CLASSES)]

    def call(z):
        return [entmax_loss(z, target, alpha, dim=-1, **options)]

    assert_never_matters(call, given, [may], ALL, rounding=rounding)


@pytest.mark.parametrize("is_masked", [False, True], ids=["", "mask"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_logits_of_ignored_tokens(alpha, smoothing, reduction, is_masked):
    logits(alpha, smoothing, reduction, is_masked)


@pytest.mark.usefixtures("triton_takes_cpu_tensors")
@pytest.mark.parametrize(
    ("alpha", "smoothing", "is_masked"),
    [(a, s, m) for a in (1.0, 1.5, torch.tensor(1.5)) for s in (0.0, 0.1) for m in (False, True)] + [(2.5, 0.1, True)],
)
def test_logits_of_ignored_tokens_by_triton(alpha, smoothing, is_masked):
    logits(alpha, smoothing, "sum", is_masked, rounding=1e-6)


def soft(alpha, smoothing):
    mask = torch.rand(TOKENS, CLASSES) > 0.3
    mask[:, 0] = True
    target = torch.rand(TOKENS, CLASSES).masked_fill(~mask, 0)
    target = target / target.sum(-1, keepdim=True)
    options = {"mask": mask, "label_smoothing": smoothing, "reduction": "sum"}
    assert_never_matters(
        lambda z: [entmax_loss(z, target, alpha, dim=-1, **options)], [torch.randn(TOKENS, CLASSES)], [mask], ALL
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_masked_logits_of_soft_targets(alpha, smoothing):
    soft(alpha, smoothing)


@pytest.mark.usefixtures("triton_takes_cpu_tensors")
@pytest.mark.parametrize(("alpha", "smoothing"), [(1.0, 0.0), (1.0, 0.1), (1.5, 0.0), (1.5, 0.1), (2.5, 0.1)])
def test_masked_logits_of_soft_targets_by_triton(alpha, smoothing):
    soft(alpha, smoothing)
