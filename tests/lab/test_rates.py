"""Metrics for rare classes, against scikit-learn."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contmax_lab.labelled import class_metrics, confusion
from contmax_lab.labelled._classifier import log_odds

metrics = pytest.importorskip("sklearn.metrics")


@st.composite
def answers(draw):
    """Scores with many ties, and classes some of which are missing."""
    classes, count = draw(st.integers(2, 5)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scores = torch.randint(-4, 5, (count, classes), generator=generator) / draw(st.sampled_from([1, 2, 7]))
    known = draw(st.integers(1, classes))
    return scores, torch.randint(classes - known, classes, (count,), generator=generator)


@given(answers(), st.integers(0, 1))
def test_they_are_those_of_scikit_learn(drawn, rarest):
    scores, target = drawn
    count = scores.shape[1]
    given_classes = scores.argmax(-1)
    found = class_metrics(scores, target, rarest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are not there
        assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(target, given_classes))
        assert found["f1"] == pytest.approx(metrics.f1_score(target, given_classes, average="macro"))
        matrix = metrics.confusion_matrix(target, given_classes, labels=range(count))
    assert confusion(scores, target).tolist() == matrix.tolist()
    ranked = log_odds(scores)
    shares = scores.double().softmax(-1)
    torch.testing.assert_close(ranked, shares.log() - (1 - shares).log(), rtol=1e-9, atol=1e-9)
    present = [c for c in range(count) if 0 < int((target == c).sum()) < len(target)]
    areas = [metrics.roc_auc_score(target == c, ranked[:, c]) for c in present]
    precisions = {c: metrics.average_precision_score(target == c, ranked[:, c]) for c in present}
    if not present:
        assert found.keys() == {"balanced_accuracy", "f1"}
        return
    assert found["auroc"] == pytest.approx(sum(areas) / len(areas))
    wanted = precisions[rarest] if count == 2 else sum(precisions.values()) / len(precisions)
    assert found["auprc"] == pytest.approx(wanted)


def test_two_classes_as_users_of_scikit_learn_write_it():
    generator = torch.Generator().manual_seed(0)
    scores, target = torch.randn(200, 2, generator=generator), (torch.rand(200, generator=generator) < 0.1).long()
    found, probability = class_metrics(scores, target, rarest=1), scores.softmax(-1)[:, 1]
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(target, probability))
    assert found["auprc"] == pytest.approx(metrics.average_precision_score(target, probability))


def test_answers_that_are_nearly_certain_are_still_ranked():
    scores = torch.tensor([[0.0, 200.0], [0.0, 150.0], [0.0, 300.0], [0.0, 400.0]])
    assert class_metrics(scores, torch.tensor([0, 0, 1, 1]), rarest=1)["auroc"] == 1
