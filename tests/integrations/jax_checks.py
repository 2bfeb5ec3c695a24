"""What `test_jax.py` checks, in a process of its own, because JAX starts threads: `contmax.integrations.jax`.

The reference is our torch in float64. A call has many α, one in each row, so that JAX compiles few programs.
"""

import doctest
import json
import re
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import contmax
from contmax.integrations import jax as ours
from contmax.integrations.jax import entmax, entmax_loss, sparsemax
from contmax.losses import entmax_loss as torch_loss

ALPHAS = np.array([0.3, 0.7, 1.0, 1 + 1e-9, 1.1, 1.5, 1.9, 2.0, 2 + 1e-7, 2.5, 4.0, 10.0])[:, None]
RANDOM = np.random.default_rng(0)
SCORES, WEIGHT, DIRECTION = RANDOM.standard_normal((3, 12, 9)) * 2


def assert_close(found, expected, tolerance=5e-14):
    """The difference in each row is small beside the largest number of the row."""
    found, expected = np.atleast_1d(found), np.atleast_1d(expected.detach())
    assert found.shape == expected.shape
    largest = np.abs(expected).reshape(len(expected), -1).max(-1)
    error = np.abs(found - expected).reshape(len(expected), -1).max(-1)
    assert (error <= tolerance * (1 + largest)).all(), error / (1 + largest)


def check_probabilities_are_those_of_torch():
    x = RANDOM.standard_normal((36, 100)) * np.repeat([0.01, 1.0, 100.0], 12)[:, None]
    x[:, 7:11] = -np.inf
    x[9, 3] = x[2, 3] = np.nan
    x[4] = -np.inf
    alphas = np.tile(ALPHAS, (3, 1))
    expected = contmax.entmax(torch.tensor(x), torch.tensor(alphas)).numpy()
    found = np.asarray(jax.jit(entmax)(x, alphas))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-15)
    x = np.where(np.isnan(x), 0, x)
    for alpha in (0.7, 1.0, 2.0, 4.0):
        expected = contmax.entmax(torch.tensor(x), alpha).numpy()
        np.testing.assert_allclose(entmax(x, alpha), expected, rtol=0, atol=2e-15)
    np.testing.assert_array_equal(sparsemax(x.T, 0).T, entmax(x, 2))


def jax_gradients(value):
    """Gradients of Σ value in x and α; those of ⟨first, DIRECTION⟩ + Σ second of these; the change of Σ value."""

    def first(x, alpha):
        return jax.grad(lambda x, alpha: value(x, alpha).sum(), (0, 1))(x, alpha)

    def combined(x, alpha):
        in_x, in_alpha = first(x, alpha)
        return (in_x * DIRECTION).sum() + in_alpha.sum()

    def every(x, alpha):
        change = jax.jvp(value, (x, alpha), (DIRECTION, jnp.ones_like(alpha)))[1]
        return *first(x, alpha), *jax.grad(combined, (0, 1))(x, alpha), change.sum()

    return jax.jit(every)(SCORES, ALPHAS)


def torch_gradients(value):
    """`jax_gradients`, by torch."""
    inputs = [torch.tensor(v, requires_grad=True) for v in (SCORES, ALPHAS)]
    first = torch.autograd.grad(value(*inputs).sum(), inputs, create_graph=True)
    change = (first[0] * torch.tensor(DIRECTION)).sum() + first[1].sum()
    return *first, *torch.autograd.grad(change, inputs), change


def check_derivatives_are_those_of_torch():
    """Of a map and a loss, in one program: their sum has the sum of the derivatives."""
    ids = RANDOM.integers(0, 9, 12)
    found = jax_gradients(lambda x, a: (entmax(x, a) * WEIGHT).sum(-1) + entmax_loss(x, ids, a))
    weight, as_tensor = torch.tensor(WEIGHT), torch.tensor(ids)
    expected = torch_gradients(
        lambda x, a: (contmax.entmax(x, a) * weight).sum(-1) + torch_loss(x, as_tensor, a, reduction="none")
    )
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def check_losses_against_probabilities_are_those_of_torch():
    soft = RANDOM.random((12, 9))
    soft = soft / soft.sum(-1, keepdims=True)
    inputs = [torch.tensor(v, requires_grad=True) for v in (SCORES, soft, ALPHAS)]
    expected = torch_loss(*inputs, reduction="sum")
    losses, found = jax.jit(jax.value_and_grad(lambda *inputs: entmax_loss(*inputs).sum(), (0, 1, 2)))(
        SCORES, soft, ALPHAS
    )
    assert_close(losses, expected)
    for one, other in zip(found, torch.autograd.grad(expected, inputs), strict=True):
        # A constant in the gradient of the target makes no difference on the simplex.
        simplex = one.shape == SCORES.shape
        assert_close(*((v - v.mean(-1)[:, None]) if simplex else v for v in (np.asarray(one), other)))


def check_what_is_masked_has_no_effect():
    x, mask = SCORES.copy(), np.ones((12, 9), bool)
    mask[:, 2:4], x[:, 2:4] = False, [np.nan, np.inf]
    mask[5], x[6] = False, -np.inf

    @jax.jit
    def every(x, alpha, temperature):
        p, pull = jax.vjp(lambda *inputs: entmax(*inputs[:2], mask=mask, temperature=inputs[2]), x, alpha, temperature)
        return p, *pull(jnp.where(mask, WEIGHT, jnp.nan))

    inputs = [torch.tensor(v, requires_grad=True) for v in (x, ALPHAS, np.full((12, 1), 0.7))]
    p = contmax.entmax(*inputs[:2], mask=torch.tensor(mask), temperature=inputs[2])
    expected = torch.autograd.grad(p, inputs, torch.tensor(WEIGHT))
    found = every(*(v.detach().numpy() for v in inputs))
    assert not np.asarray(found[0][5:7]).any()
    for one, other in zip(found, (p, *expected), strict=True):
        assert np.isfinite(one).all()
        assert_close(one, other)

    def first(temperature, *masked):  # masked by the most negative number, whose quotient is −∞
        return entmax(jnp.array([1.0, 0.5, *masked]), temperature=temperature)[0]

    assert np.isclose(jax.grad(first)(0.7, jnp.finfo(float).min), jax.grad(first)(0.7))


def check_losses_of_impossible_targets_are_infinite():
    z = jnp.array([[1.0, -jnp.inf, 0.0], [-jnp.inf] * 3, [1.0, 2.0, 3.0]])
    for target in (jnp.array([1, 0, 2]), jnp.full((3, 3), 1 / 3)):
        losses, grad = jax.jit(jax.vmap(jax.value_and_grad(entmax_loss)))(z, target)
        assert np.isinf(losses).tolist() == [True, True, False]
        assert np.isfinite(grad).all()


def check_half_precision_is_computed_in_float32():
    half = torch.tensor(SCORES, dtype=torch.bfloat16, requires_grad=True)
    p, pull = jax.vjp(jax.jit(lambda x: entmax(x, 1.5)), jnp.asarray(half.detach().float().numpy(), jnp.bfloat16))
    weight = torch.tensor(WEIGHT, dtype=torch.bfloat16)
    expected = contmax.entmax(half, 1.5)
    (grad,) = pull(jnp.asarray(weight.float().numpy(), jnp.bfloat16))
    assert p.dtype == grad.dtype == jnp.bfloat16
    for one, other in ((p, expected), (grad, torch.autograd.grad(expected, half, weight)[0])):
        assert_close(np.asarray(one, np.float32), other.float(), 4e-3)
    assert (np.asarray(p, np.float32) == expected.detach().float().numpy()).mean() > 0.99


def check_mistakes_are_told():
    x = jnp.zeros((2, 3))
    for kind, words, call in (
        (TypeError, "real floating-point scores; got int", lambda: entmax(x.astype(int))),
        (TypeError, "mask must be boolean", lambda: entmax(x, mask=x)),
        (ValueError, "alpha must be positive and finite; got 0", lambda: entmax(x, 0)),
        (ValueError, "temperature must be positive; got -1", lambda: entmax(x, temperature=-1)),
        (ValueError, "alpha of shape (3,) does not fit scores of shape (2, 3)", lambda: entmax(x, np.ones(3))),
        (ValueError, "at least one score along axis -1", lambda: entmax(np.zeros((2, 0)))),
        (ValueError, "at least one score along axis 5; got shape (2, 3)", lambda: entmax(x, axis=5)),
        (ValueError, "of shape (2,) or probabilities", lambda: entmax_loss(x, np.array([1]))),
        (ValueError, "got float64 of shape (3,)", lambda: entmax_loss(jnp.eye(3), jnp.zeros(3))),  # ids as floats
        (ValueError, "got int32 of shape (2, 3)", lambda: entmax_loss(x, x.astype(np.int32))),
    ):
        with pytest.raises(kind, match=re.escape(words)):
            call()


def check_the_examples_of_the_docstrings():
    with jax.enable_x64(False):
        result = doctest.testmod(ours, optionflags=doctest.NORMALIZE_WHITESPACE, report=False)
    assert (result.failed, result.attempted >= 7) == (0, True)


def check_there_are_less_than_300_lines():
    with open(ours.__file__, encoding="utf-8") as file:
        assert len(file.readlines()) < 300


def complaints():
    """The traceback of each check by its name, empty if it passed."""
    told = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check()
                told[name] = ""
            except Exception:
                told[name] = traceback.format_exc()
    return told


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print(json.dumps(complaints()))
