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


def check_derivatives_of_the_map_are_those_of_torch():
    found = jax_gradients(lambda x, alpha: entmax(x, alpha) * WEIGHT)
    expected = torch_gradients(lambda x, alpha: contmax.entmax(x, alpha) * torch.tensor(WEIGHT))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def check_losses_and_their_derivatives_are_those_of_torch():
    ids, soft = RANDOM.integers(0, 9, 12), RANDOM.random((12, 9))
    soft = soft / soft.sum(-1, keepdims=True)
    for target in (ids, soft):
        as_tensor = torch.tensor(target)
        found = jax_gradients(lambda x, alpha, y=target: entmax_loss(x, y, alpha))
        expected = torch_gradients(lambda x, alpha, y=as_tensor: torch_loss(x, y, alpha, reduction="none"))
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    losses, moved = jax.jit(jax.value_and_grad(lambda y: entmax_loss(SCORES, y, ALPHAS).sum()))(soft)
    variable = torch.tensor(soft, requires_grad=True)
    expected = torch_loss(torch.tensor(SCORES), variable, torch.tensor(ALPHAS), reduction="sum")
    expected.backward()
    assert_close(losses, expected)
    # A constant makes no difference on the simplex.
    assert_close(moved - moved.mean(-1, keepdims=True), variable.grad - variable.grad.mean(-1, keepdim=True))


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


def check_losses_of_impossible_targets_are_infinite():
    z = jnp.array([[1.0, -jnp.inf, 0.0], [-jnp.inf] * 3, [1.0, 2.0, 3.0]])
    for target in (jnp.array([1, 0, 2]), jnp.full((3, 3), 1 / 3)):
        losses, grad = jax.jit(jax.vmap(jax.value_and_grad(entmax_loss)))(z, target)
        assert np.isinf(losses).tolist() == [True, True, False]
        assert np.isfinite(grad).all()


def check_half_precision_is_computed_in_float32():
    run = jax.jit(jax.value_and_grad(lambda x: entmax(x, 1.5)[0, 0], has_aux=False))
    single = jnp.asarray(SCORES, jnp.bfloat16).astype(jnp.float32)
    for dtype in (jnp.float32, jnp.bfloat16):
        value, grad = run(single.astype(dtype))
        assert value.dtype == grad.dtype == dtype
        expected, slope = run(single)
        assert value == expected.astype(dtype)
        assert (grad == slope.astype(dtype)).all()
    assert abs(run(single)[0] - contmax.entmax(torch.tensor(np.asarray(single)), 1.5)[0, 0].item()) < 1e-6
    assert entmax_loss(single[0].astype(jnp.bfloat16), 0).dtype == jnp.bfloat16


def check_mistakes_are_told():
    x = jnp.zeros((2, 3))
    for kind, words, call in (
        (TypeError, "real floating-point scores; got int", lambda: entmax(x.astype(int))),
        (TypeError, "mask must be boolean", lambda: entmax(x, mask=x)),
        (ValueError, "alpha must be positive and finite; got 0", lambda: entmax(x, 0)),
        (ValueError, "temperature must be positive; got -1", lambda: entmax(x, temperature=-1)),
        (ValueError, "alpha of shape (3,) does not fit scores of shape (2, 3)", lambda: entmax(x, np.ones(3))),
        (ValueError, "at least one score along axis -1", lambda: entmax(np.zeros((2, 0)))),
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
