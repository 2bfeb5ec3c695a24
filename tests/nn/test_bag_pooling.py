"""BagPooling: the formula written out, the order of instances, padding, exact zeros, autocast."""

import pytest
import torch

import contmax
from contmax.nn import BagPooling

ALPHAS = [1.0, 1.5, 2.0]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_scores_are_gated_attention(alpha):
    pool, values = BagPooling(6, alpha=alpha), torch.randn(2, 9, 6)
    V, U, w = pool.content.weight, pool.gate.weight, pool.energy.weight[0]
    pooled, weights = pool(values)
    for bag in range(2):
        z = torch.stack([w @ (torch.tanh(V @ h) * torch.sigmoid(U @ h)) for h in values[bag]])
        p = contmax.entmax(z, alpha)
        torch.testing.assert_close(weights[bag], p)
        torch.testing.assert_close(pooled[bag], p @ values[bag])
    assert set(pool.state_dict()) == {"content.weight", "gate.weight", "energy.weight"}


@pytest.mark.parametrize("alpha", ALPHAS)
def test_instances_have_no_order(alpha):
    pool, values = BagPooling(6, alpha=alpha), torch.randn(3, 9, 6)
    mask, order = torch.rand(3, 9) > 0.3, torch.randperm(9)
    pooled, weights = pool(values, mask=mask)
    again, moved = pool(values[:, order], mask=mask[:, order])
    torch.testing.assert_close(again, pooled)
    torch.testing.assert_close(moved, weights[:, order])


def test_padded_bags_are_short_ones_and_an_empty_bag_gives_zeros():
    pool, values = BagPooling(6), torch.randn(3, 8, 6, requires_grad=True)
    pooled, weights = pool(values, mask=torch.arange(8) < torch.tensor([[8], [5], [0]]))
    short = pool(values[1:2, :5])
    torch.testing.assert_close((pooled[1], weights[1, :5]), (short[0][0], short[1][0]))
    assert not pooled[2].any()
    assert not weights[2].any()
    pooled[2].sum().backward()
    assert not any(x.grad.any() for x in (values, *pool.parameters()))


def test_an_instance_that_is_ruled_out_does_not_matter():
    pool, values = BagPooling(4, alpha=2.0), torch.randn(2, 7, 4, requires_grad=True)
    with torch.no_grad():
        pool.energy.weight.mul_(20)
    pooled, weights = pool(values)
    pooled.sum().backward()
    zero = weights == 0
    assert zero.any(1).all()
    assert (~zero).any(1).all()
    assert not values.grad[zero].any()


def test_under_autocast_weights_stay_float32():
    pool, values = BagPooling(8), torch.randn(2, 5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        pooled, weights = pool(values)
    assert weights.dtype is torch.float32
    torch.testing.assert_close(pooled.float(), pool(values)[0], rtol=0.05, atol=0.05)


def test_values_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"values must have shape \(B, L, 6\); got \(2, 9, 5\)"):
        BagPooling(6)(torch.randn(2, 9, 5))
