"""Logistic regression with an L2 penalty, solved by Newton's method: the linear part of a network begins with it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.channels._observations import Sizes
from contmax_lab.contract import Batch
from contmax_lab.settings import ChannelsModel

_STEPS = 12
_DONE = 1e-6


class LinearStart(nn.Module):
    """A network whose decision has a linear part, which begins as the solution of a logistic regression.

    Args:
        numbers: how many features the linear part takes.
        outputs: 1 for two classes, else one for each class.
    """

    def __init__(self, numbers: int, outputs: int) -> None:
        super().__init__()
        self.skip = nn.Linear(numbers, outputs)
        nn.init.zeros_(self.skip.weight)
        nn.init.zeros_(self.skip.bias)

    def features(self, batch: Batch) -> Tensor:
        """The features that the linear part takes, (B, numbers)."""
        return batch["summary"]

    @torch.no_grad()
    def solve(self, features: Tensor, labels: Tensor, ridge: float) -> None:
        """Set the linear part to the solution for the training series.

        Args:
            features: (B, numbers).
            labels: classes, (B,).
            ridge: penalty λ of λ/2·‖w‖² beside the mean of the losses.
        """
        weight, bias = logistic_regression(features, labels, ridge, self.skip.out_features)
        self.skip.weight.copy_(weight.mT)
        self.skip.bias.copy_(bias)


class Logistic(LinearStart):
    """Logistic regression on the summary of a series.

    Example:
        >>> Logistic(ChannelsModel(), Sizes(channels=37, numbers=120, static=9))({"summary": torch.zeros(3, 120)})
        tensor([0., 0., 0.], grad_fn=<SqueezeBackward1>)
    """

    def __init__(self, model: ChannelsModel, sizes: Sizes) -> None:
        super().__init__(sizes.numbers, sizes.outputs)

    def forward(self, batch: Batch) -> Tensor:
        """Logits, (B,) or (B, outputs)."""
        logits: Tensor = self.skip(self.features(batch))
        return logits.squeeze(-1)


def logistic_regression(features: Tensor, labels: Tensor, ridge: float, outputs: int = 1) -> tuple[Tensor, Tensor]:
    r"""Minimise the mean of the cross-entropy plus λ/2·‖w‖²; the bias has no penalty.

    Args:
        features: (B, n).
        labels: classes, (B,).
        ridge: λ > 0.
        outputs: 1 for the classes 0 and 1, else one for each class.

    Returns:
        w, (n, outputs), and the bias, (outputs,), in float64.

    Example:
        >>> weight, bias = logistic_regression(torch.tensor([[-1.0], [1.0], [2.0]]), torch.tensor([0, 1, 1]), 0.1)
        >>> bool(weight[0] > 0)
        True
    """
    inputs = torch.cat([features.double(), features.new_ones(len(features), 1).double()], -1)
    target = labels.double().unsqueeze(-1) if outputs == 1 else F.one_hot(labels.long(), outputs).double()
    penalty = torch.full_like(inputs[0], ridge)
    penalty[-1] = 1e-9
    solution = inputs.new_zeros(inputs.shape[-1], outputs)
    for _ in range(_STEPS):
        scores = inputs @ solution
        probability = scores.sigmoid() if outputs == 1 else scores.softmax(-1)
        gradient = inputs.mT @ (probability - target) / len(inputs) + penalty.unsqueeze(-1) * solution
        spread = probability.diag_embed() - probability.unsqueeze(-1) * probability.unsqueeze(-2)
        # The blocks of the second derivatives, one for each pair of outputs.
        blocks = [
            torch.cat([inputs.mT @ (own.unsqueeze(-1) * inputs) / len(inputs) for own in row.unbind(-1)], -1)
            for row in spread.unbind(-2)
        ]
        curvature = torch.cat(blocks) + penalty.repeat(outputs).diag()
        factor = torch.linalg.cholesky(curvature)
        step = torch.cholesky_solve(gradient.mT.flatten().unsqueeze(-1), factor).view(outputs, -1).mT
        # Far from the solution a Newton step may be too long: shorten steps that change a weight by more than 4.
        solution = solution - step * min(1.0, 4.0 / float(step.abs().max().clamp(min=1e-12)))
        if float(step.abs().max()) < _DONE:
            break
    return solution[:-1], solution[-1]
