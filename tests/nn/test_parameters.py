"""The order of arguments, which differs between attentions: told where it was mistaken."""

import inspect

import pytest

from contmax.basis import GaussianBasis
from contmax.nn import CombinedAttention, ContinuousAttention, DiscreteAttention, MultiheadContinuousAttention

BASIS = GaussianBasis.covering(4)
SWAPPED = {
    "channels first": lambda: ContinuousAttention(8, BASIS),
    "as multihead attention": lambda: ContinuousAttention(8, 2, BASIS),
    "no basis": lambda: ContinuousAttention(8),
    "the basis as a number of channels": lambda: ContinuousAttention(8, embed_dim=BASIS),
    "channels by their place": lambda: ContinuousAttention(BASIS, 8),
    "channels as a basis": lambda: ContinuousAttention(basis=8, embed_dim=8),
    "basis first": lambda: MultiheadContinuousAttention(BASIS, 8, 2),
    "basis between": lambda: MultiheadContinuousAttention(8, BASIS, 2),
    "as continuous attention": lambda: MultiheadContinuousAttention(BASIS, embed_dim=8),
    "combined": lambda: CombinedAttention(BASIS, DiscreteAttention(8)),
    "combined without a discrete attention": lambda: CombinedAttention(BASIS, None),
}


@pytest.mark.graph  # with the run-time type checker of the tests it would be the one to refuse
@pytest.mark.parametrize("make", SWAPPED.values(), ids=SWAPPED)
def test_arguments_in_another_order_are_told_in_one_line(make):
    says = r"is not the order of its arguments\. Call ContinuousAttention\(basis, embed_dim=64\)"
    with pytest.raises(TypeError, match=says) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_the_right_orders_and_names():
    ContinuousAttention(BASIS, embed_dim=8)
    ContinuousAttention(basis=BASIS)
    CombinedAttention(DiscreteAttention(8), BASIS)
    CombinedAttention(discrete=DiscreteAttention(8), basis=BASIS)
    MultiheadContinuousAttention(8, 2, BASIS)
    MultiheadContinuousAttention(8, num_heads=2, basis=BASIS)
    for kind in (ContinuousAttention, CombinedAttention, MultiheadContinuousAttention):
        assert "basis" in inspect.signature(kind).parameters
