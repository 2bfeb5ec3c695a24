"""The finite maps and losses as modules."""

import copy
import io

import pytest
import torch

import contmax


def test_modules_equal_functions():
    x = torch.randn(2, 3, 5)
    mask = torch.rand(2, 3, 5) > 0.3
    torch.testing.assert_close(contmax.nn.Sparsemax(dim=1)(x, mask=mask), contmax.sparsemax(x, 1, mask=mask))
    torch.testing.assert_close(contmax.nn.Entmax(4 / 3)(x, temperature=2.0), contmax.entmax(x, 4 / 3, temperature=2.0))
    torch.testing.assert_close(
        contmax.nn.Entmax([1.2, 1.5, 2.5], num_heads=3)(x),
        contmax.entmax(x, torch.tensor([1.2, 1.5, 2.5]).view(3, 1)),
    )
    torch.testing.assert_close(
        contmax.nn.FenchelYoungLoss(2.0, label_smoothing=0.1)(x, torch.zeros(2, 5, dtype=torch.long)),
        contmax.losses.sparsemax_loss(x, torch.zeros(2, 5, dtype=torch.long), label_smoothing=0.1),
    )


def test_learned_alpha_stays_inside_its_bounds_and_learns():
    attend = contmax.nn.Entmax(1.3, learnable=True, num_heads=2, head_dim=0)
    torch.testing.assert_close(attend.alpha, torch.tensor([1.3, 1.3]))
    with torch.no_grad():
        attend.alpha_logit.copy_(torch.tensor([-1e4, 1e4]))
    assert 1 < attend.alpha.min() < attend.alpha.max() < 2
    with torch.no_grad():
        attend.alpha_logit.zero_()
    optimizer = torch.optim.Adam(attend.parameters(), lr=0.1)
    scores = torch.randn(2, 16, 10)
    before = attend.alpha.detach().clone()
    for _ in range(30):
        optimizer.zero_grad()
        p = attend(scores)
        # Head 0 is asked to be sparse, head 1 to be dense.
        (p[1].square().sum() - p[0].square().sum()).backward()
        optimizer.step()
    assert attend.alpha[0] > before[0] + 0.1
    assert attend.alpha[1] < before[1] - 0.1


def test_state_dict_round_trip():
    trained = contmax.nn.Entmax(1.7, learnable=True, num_heads=3)
    fresh = contmax.nn.Entmax(1.2, learnable=True, num_heads=3)
    buffer = io.BytesIO()
    torch.save(trained.state_dict(), buffer)
    buffer.seek(0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    torch.testing.assert_close(fresh.alpha, trained.alpha)
    assert "given_alpha" in contmax.nn.Entmax([1.1, 1.9], num_heads=2).state_dict()
    assert copy.deepcopy(trained)(torch.randn(2, 3, 4)).shape == (2, 3, 4)


def test_one_learned_alpha_and_dtype_moves():
    attend = contmax.nn.Entmax(1.5, learnable=True).double()
    p = attend(torch.randn(3, 4, dtype=torch.float64))
    assert p.dtype == torch.float64
    p[:, 0].sum().backward()
    assert attend.alpha_logit.grad.isfinite()


def test_weights_of_classes_are_saved():
    weight = torch.tensor([1.0, 2.0])
    loss = contmax.nn.FenchelYoungLoss(weight=weight)
    fresh = contmax.nn.FenchelYoungLoss(weight=torch.ones(2))
    fresh.load_state_dict(loss.state_dict())
    assert torch.equal(fresh.weight, weight)


def test_representations_say_what_they_are():
    assert repr(contmax.nn.Sparsemax(1)) == "Sparsemax(dim=1)"
    assert repr(contmax.nn.Entmax(1.5)) == "Entmax(alpha=1.5, dim=-1, learnable=False)"
    assert "alpha=1.5, ignore_index=-100" in repr(contmax.nn.FenchelYoungLoss())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: contmax.nn.Entmax(2.0, learnable=True), "inside \\(1, 2\\)"),
        (lambda: contmax.nn.Entmax(0.0), "positive and finite"),
        (lambda: contmax.nn.Entmax([1.1, 1.2]), "num_heads is None"),
        (lambda: contmax.nn.Entmax([1.1, 1.2], num_heads=3), "num_heads is 3"),
        (lambda: contmax.nn.Entmax(num_heads=3)(torch.randn(2, 4, 5)), "do not have 3 heads"),
    ],
)
def test_bad_input_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
