"""A mask of a wrong shape is told in one line by everything that takes one, before any kernel sees it."""

import pytest
import torch

import contmax
from contmax import nn
from contmax.basis import GaussianBasis, MultivariateGaussianBasis

X, VALUES = torch.randn(2, 5, 7), torch.randn(2, 7, 4)
CLASSES = torch.zeros(2, 5, dtype=torch.int64)
LINE = GaussianBasis.covering(6)
PAIR = torch.rand(2), torch.rand(2) + 0.1
MASKED = {
    "softmax": lambda mask: contmax.softmax(X, mask=mask),
    "sparsemax": lambda mask: contmax.sparsemax(X, mask=mask),
    "entmax": lambda mask: contmax.entmax(X, 1.5, mask=mask),
    "entmax in half precision": lambda mask: contmax.entmax(X.bfloat16(), 1.3, mask=mask),
    "entmax, learned": lambda mask: contmax.entmax(X, torch.tensor(1.5, requires_grad=True), mask=mask),
    "entmax, tempered": lambda mask: contmax.entmax(X, 1.5, mask=mask, temperature=2.0),
    "nn.Entmax": lambda mask: nn.Entmax()(X, mask=mask),
    "moments": lambda mask: contmax.maps.moments(X.softmax(-1), torch.rand(7), mask=mask),
    "entmax_loss": lambda mask: contmax.losses.entmax_loss(X, CLASSES, 1.5, dim=-1, mask=mask),
    "soft targets": lambda mask: contmax.losses.entmax_loss(X, X.softmax(-1), 1.5, dim=-1, mask=mask),
    "smoothing": lambda mask: contmax.losses.entmax_loss(X, CLASSES, dim=-1, mask=mask, label_smoothing=0.1),
    "entmax_attention": lambda mask: contmax.entmax_attention(X, X, X, mask=mask),
    "nn.EntmaxAttention": lambda mask: nn.EntmaxAttention(4, 2)(VALUES, mask=mask),
    "fit_signal": lambda mask: contmax.fit_signal(VALUES, LINE, mask=mask),
    "accumulator": lambda mask: contmax.SignalAccumulator(LINE).update(VALUES, torch.rand(7), mask),
    "spanning": lambda mask: GaussianBasis.spanning(torch.rand(2, 7), 4, mask=mask),
    "spanning the plane": lambda mask: MultivariateGaussianBasis.spanning(torch.rand(2, 7, 2), 4, mask=mask),
    "given place": lambda mask: nn.ContinuousAttention(LINE)(VALUES, PAIR, mask=mask),
    "gates": lambda mask: nn.ContinuousAttention(LINE, embed_dim=4)(VALUES, mask=mask),
    "pooled": lambda mask: nn.ContinuousAttention(LINE, head=nn.PooledHead(4))(VALUES, mask=mask),
    "moment head": lambda mask: nn.MomentHead(nn.DiscreteAttention(4))(VALUES, alpha=2.0, mask=mask),
    "windows": lambda mask: nn.WindowHead(nn.DiscreteAttention(4))(VALUES, alpha=2.0, mask=mask),
    "discrete": lambda mask: nn.DiscreteAttention(4)(VALUES, mask=mask),
    "bags": lambda mask: nn.BagPooling(4)(VALUES, mask=mask),
    "combined": lambda mask: nn.CombinedAttention(nn.DiscreteAttention(4), LINE)(VALUES, mask=mask),
    "multihead": lambda mask: nn.MultiheadContinuousAttention(4, 2, LINE)(VALUES, VALUES, mask=mask),
}


@pytest.mark.parametrize("shape", [(3, 6), (2, 6), (9,), (3, 7), (2, 5, 8)], ids=str)
@pytest.mark.parametrize("call", MASKED.values(), ids=MASKED)
def test_a_mask_of_a_wrong_shape_is_told_in_one_line(call, shape):
    with pytest.raises(ValueError, match=r"mask .*\(") as raised:
        call(torch.ones(shape, dtype=torch.bool))
    assert "\n" not in str(raised.value)
    assert ", ".join(map(str, shape)) in str(raised.value)


@pytest.mark.parametrize("call", MASKED.values(), ids=MASKED)
def test_a_mask_for_all_positions_fits_everywhere(call):
    length = 5 if call is MASKED["entmax_attention"] else 7
    call(torch.ones(length, dtype=torch.bool))
