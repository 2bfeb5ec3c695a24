"""A domain class of one's own: registered once, it is accepted wherever the domains of contmax are."""

import pytest
import torch

import contmax
from contmax.domains import Interval, Nodes
from contmax.prediction import NodesPrediction, _regularized_prediction, register_prediction

F64 = torch.float64


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """A copy of the table of rules, so that what a test registers is gone after it."""
    rules = dict(_regularized_prediction._RULES)
    monkeypatch.setattr(_regularized_prediction, "_RULES", rules)
    return rules


class Circle:
    def __init__(self, count=360):
        angle = torch.arange(count, dtype=F64) * 2 * torch.pi / count
        self.nodes = Nodes(torch.stack([angle.cos(), angle.sin()], -1), torch.full((count,), 2 * torch.pi / count))


class Arc(Circle):
    """A circle without a rule of its own."""


def predict_on_circle(score, domain, alpha):
    return contmax.regularized_prediction(score, domain.nodes, alpha)


@pytest.mark.parametrize("kind", [Circle, Arc])
def test_a_registered_domain_is_accepted_and_so_are_its_descendants(kind):
    assert register_prediction(Circle)(predict_on_circle) is predict_on_circle
    weight = torch.tensor(3.0, dtype=F64, requires_grad=True)
    p = contmax.regularized_prediction(lambda t: weight * t[:, 0], kind(), 1.0)
    # On the circle exp(κ cos θ) is the von Mises density.
    known = torch.distributions.VonMises(torch.tensor(0.0, dtype=F64), torch.tensor(3.0, dtype=F64))
    assert isinstance(p, NodesPrediction)
    torch.testing.assert_close(
        p.density(kind().nodes.points[7]).log(), known.log_prob(torch.tensor(7 * torch.pi / 180, dtype=F64))
    )
    p.conjugate().backward()
    torch.testing.assert_close(weight.grad, p.mean[0].detach())


def test_the_nearest_ancestor_decides():
    @register_prediction(Circle)
    def never(score, domain, alpha):
        raise AssertionError("the rule of the ancestor was used")

    register_prediction(Arc)(predict_on_circle)
    assert contmax.regularized_prediction(lambda t: t[:, 0], Arc(), 2.0).batch_shape == ()

    class Named(Interval):
        """An interval with a rule of its own, which must not fall back on the interval's."""

    register_prediction(Named)(lambda score, domain, alpha: contmax.regularized_prediction(score, Circle().nodes))
    assert contmax.regularized_prediction(lambda t: t[:, 0], Named(0.0, 1.0)).event_shape == (2,)
    assert contmax.regularized_prediction(lambda t: t, Interval(0.0, 1.0)).event_shape == ()


def test_the_domains_of_contmax_are_registered_the_same_way(table):
    assert {kind.__name__ for kind in table} >= {"Interval", "Box", "Nodes", "Knots"}


def test_what_is_not_registered_is_named_with_what_is():
    words = ("Interval", "Box", "Nodes", "Knots", "got Circle", "register_prediction")
    with pytest.raises(TypeError, match="".join(f"(?=.*{word})" for word in words)):
        contmax.regularized_prediction(lambda t: t[:, 0], Circle())


def test_only_classes_can_be_registered():
    with pytest.raises((TypeError, Exception), match=r"class|type"):
        register_prediction(Circle())
