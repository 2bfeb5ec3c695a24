"""Logistic regression with an L2 penalty, solved by Newton's method: the linear part of a network begins with it."""

import torch
from torch import Tensor, nn

from contmax_lab.contract import Batch

_STEPS = 12
_DONE = 1e-6


class LinearStart(nn.Module):
    """A network whose decision has a linear part, which begins as the solution of a logistic regression.

    Args:
        numbers: how many features the linear part takes.
    """

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.skip = nn.Linear(numbers, 1)
        nn.init.zeros_(self.skip.weight)
        nn.init.zeros_(self.skip.bias)

    def features(self, batch: Batch) -> Tensor:
        """The features that the linear part takes, (B, numbers)."""
        return batch["summary"]

    @torch.no_grad()
    def solve(self, features: Tensor, died: Tensor, ridge: float) -> None:
        """Set the linear part to the solution for the training stays.

        Args:
            features: (B, numbers).
            died: (B,).
            ridge: penalty λ of λ/2·‖w‖² beside the mean of the losses.
        """
        weight, bias = logistic_regression(features, died, ridge)
        self.skip.weight.copy_(weight.unsqueeze(0))
        self.skip.bias.copy_(bias)


class Logistic(LinearStart):
    """Logistic regression on the summary of a stay.

    Example:
        >>> Logistic(120)({"summary": torch.zeros(3, 120)})
        tensor([0., 0., 0.], grad_fn=<SqueezeBackward1>)
    """

    def forward(self, batch: Batch) -> Tensor:
        """Logits of death, (B,)."""
        logits: Tensor = self.skip(self.features(batch))
        return logits.squeeze(-1)


def logistic_regression(features: Tensor, labels: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    r"""Minimise the mean of the cross-entropy plus λ/2·‖w‖²; the bias has no penalty.

    Args:
        features: (B, n).
        labels: 0 or 1, (B,).
        ridge: λ > 0.

    Returns:
        w, (n,), and the bias, in float64.

    Example:
        >>> weight, bias = logistic_regression(torch.tensor([[-1.0], [1.0], [2.0]]), torch.tensor([0.0, 1.0, 1.0]), 0.1)
        >>> bool(weight[0] > 0)
        True
    """
    inputs = torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64)], -1)
    target = labels.double()
    penalty = torch.full((inputs.shape[-1],), ridge, dtype=torch.float64)
    penalty[-1] = 1e-9
    solution = inputs.new_zeros(inputs.shape[-1])
    for _ in range(_STEPS):
        probability = (inputs @ solution).sigmoid()
        gradient = inputs.mT @ (probability - target) / len(inputs) + penalty * solution
        spread = (probability * (1 - probability) / len(inputs)).unsqueeze(-1)
        step = torch.linalg.solve(inputs.mT @ (spread * inputs) + penalty.diag(), gradient)
        # Far from the solution a Newton step may be too long: shorten steps that change a weight by more than 4.
        solution = solution - step * min(1.0, 4.0 / float(step.abs().max().clamp(min=1e-12)))
        if float(step.abs().max()) < _DONE:
            break
    return solution[:-1], solution[-1]
