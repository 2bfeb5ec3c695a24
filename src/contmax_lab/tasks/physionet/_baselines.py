"""Baselines: logistic regression, boosted trees, and from the literature, re-implemented, GRU-D and mTAN."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from contmax_lab.contract import Batch
from contmax_lab.packages import require
from contmax_lab.tasks.physionet import PhysionetModel
from contmax_lab.tasks.physionet._reading import HOURS, VARIABLES
from contmax_lab.tasks.physionet._stays import STATIC_NUMBERS

_C = len(VARIABLES)
_STEPS = int(HOURS)
# How many reference points mTAN has, and how many numbers its embedding of a time has.
_REFERENCES = 48
_TIME_NUMBERS = 32
_LEAST = 1e-9
# Initial standard deviation of the frequencies of the sines of a time embedding, in radians per stay.
_RATE = 10.0


class GruD(nn.Module):
    r"""A GRU on hourly means. Without new observations an input decays from its last value to the mean, the state to 0.

    .. math:: \hat x_t = m_t x_t + (1 - m_t)\,\gamma_t x_{t'}, \qquad \gamma = e^{-\max(0, W\delta_t + b)}, \qquad
              h_t = \mathrm{GRU}(\hat x_t, m_t, \gamma^h_t \odot h_{t-1})

    m is 1 for variables that were observed in an hour, else 0; δ is the time since the last observation. The mean is 0,
    because values are scaled.

    Args:
        model: its configuration.

    Reference: Che et al. 2018.
    """

    def __init__(self, model: PhysionetModel) -> None:
        super().__init__()
        width = model.hidden_dim
        self.fade_input = nn.Parameter(torch.zeros(2, _C))
        self.fade_state = nn.Linear(_C, width)
        self.into = nn.Linear(2 * _C, 3 * width)
        self.again = nn.Linear(width, 3 * width)
        self.dropout = nn.Dropout(model.dropout)
        self.decide = nn.Linear(width + STATIC_NUMBERS, 1)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of death, (B,)."""
        values, seen = on_grid(batch, (batch["hours"].clamp(max=HOURS - 0.5)).long(), _STEPS)
        filled, gap = last_seen(values, seen)
        weight, bias = self.fade_input
        # Gaps δ are shares of the stay.
        faded = filled * torch.exp(-(gap * weight.exp() + bias).relu())
        inputs = self.into(torch.cat([torch.where(seen, values, faded), seen.to(values)], -1))
        keep = torch.exp(-self.fade_state(gap).relu())
        state = values.new_zeros(len(values), keep.shape[-1])
        for own, kept in zip(inputs.unbind(1), keep.unbind(1), strict=True):
            state = state * kept
            reset_i, update_i, new_i = own.chunk(3, -1)
            reset_s, update_s, new_s = self.again(state).chunk(3, -1)
            update = torch.sigmoid(update_i + update_s)
            new = torch.tanh(new_i + torch.sigmoid(reset_i + reset_s) * new_s)
            state = new + update * (state - new)
        logits: Tensor = self.decide(torch.cat([self.dropout(state), batch["summary"][:, -STATIC_NUMBERS:]], -1))
        return logits.squeeze(-1)


def on_grid(batch: Batch, place: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Means of the values of each variable at each place of a grid, and where there are any, (B, steps, C) both.

    Args:
        batch: values, variables and mask, (B, L).
        place: grid point of each observation, (B, L).
        steps: number of grid points.
    """
    mask, rows = batch["mask"], len(place)
    row = torch.arange(rows, device=place.device).unsqueeze(-1)
    flat = ((row * steps + place) * _C + batch["variable"])[mask]
    zeros = batch["values"].new_zeros(rows * steps * _C)
    total = zeros.index_add(0, flat, batch["values"][mask])
    count = zeros.index_add(0, flat, torch.ones_like(batch["values"][mask]))
    shape = rows, steps, _C
    return (total / count.clamp(min=1)).view(shape), (count > 0).view(shape)


def last_seen(values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The last value of each variable before or at each step, and how long ago it was, as a share of all steps.

    Before the first observation the value is 0, and the gap is the time since the first step.

    Args:
        values, seen: (B, steps, C).
    """
    steps = torch.arange(values.shape[1], device=values.device).view(1, -1, 1)
    latest = torch.where(seen, steps, -1).cummax(1).values
    filled = torch.where(latest >= 0, values.gather(1, latest.clamp(min=0)), 0.0)
    return filled, (steps - latest.clamp(min=0)) / values.shape[1]


class Mtan(nn.Module):
    r"""mTAND-Enc: attention from reference points to the times of each variable, a GRU over the points, a classifier.

    .. math:: \hat x_c(r) = \frac{\sum_\ell m_{c\ell}\, e^{s(r, t_\ell)}\, x_{c\ell}}
              {\sum_\ell m_{c\ell}\, e^{s(r, t_\ell)}}, \qquad s(r, t) = \frac{(W_q\phi(r))^\top W_k\phi(t)}{\sqrt{d}}

    φ is learned: one linear number and sines. A variable gives 0 if it was never observed or its observations have no
    weight; the network sees this from the masks, which are averaged with the weights of the values. The weights are
    those of the published code; the sums over times are two products of matrices, since the scores do not depend on
    the variable.

    Args:
        model: its configuration.

    Reference: Shukla & Marlin 2021.
    """

    reference: Tensor

    def __init__(self, model: PhysionetModel) -> None:
        super().__init__()
        width = model.hidden_dim
        self.linear_time, self.periodic_time = nn.Linear(1, 1), nn.Linear(1, _TIME_NUMBERS - 1)
        # Begin with frequencies that distinguish hours (times are shares of the stay): in training they change slowly.
        nn.init.normal_(self.periodic_time.weight, std=_RATE)
        self.query, self.key = (nn.Linear(_TIME_NUMBERS, _TIME_NUMBERS) for _ in range(2))
        self.register_buffer("reference", torch.linspace(0, 1, _REFERENCES), persistent=False)
        self.mixed = nn.Linear(2 * _C, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(model.dropout)
        self.decide = nn.Sequential(
            nn.Linear(width + STATIC_NUMBERS, 2 * width), nn.ReLU(), nn.Dropout(model.dropout), nn.Linear(2 * width, 1)
        )

    def embedded(self, time: Tensor) -> Tensor:
        """φ of times as shares of the stay, (…) → (…, numbers)."""
        time = time.unsqueeze(-1)
        return torch.cat([self.linear_time(time), torch.sin(self.periodic_time(time))], -1)

    def interpolated(self, batch: Batch) -> Tensor:
        """Values of each variable at the reference points, and the share of the weight at times when it was observed.

        Returns:
            (B, references, 2·C).
        """
        times, place, count = distinct_times(batch["hours"] / HOURS, batch["mask"])
        values, seen = on_grid(batch, place, times.shape[1])
        scores = (
            self.query(self.embedded(self.reference)) @ self.key(self.embedded(times)).mT / math.sqrt(_TIME_NUMBERS)
        )
        exists = torch.arange(times.shape[1], device=times.device) < count.unsqueeze(-1)
        scores = scores.masked_fill(~exists.unsqueeze(1), -torch.inf)
        most = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - torch.where(most.isfinite(), most, 0.0))
        there = seen.to(values)
        mass = weights @ there
        means = weights @ (values * there) / mass.clamp(min=_LEAST)
        share = mass / weights.sum(-1, keepdim=True).clamp(min=_LEAST)
        return torch.cat([means, share], -1)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of death, (B,)."""
        _, state = self.encoder(self.mixed(self.interpolated(batch)))
        state = self.dropout(state.squeeze(0))
        logits: Tensor = self.decide(torch.cat([state, batch["summary"][:, -STATIC_NUMBERS:]], -1))
        return logits.squeeze(-1)


def distinct_times(times: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct times of each stay, ascending, padded with 0; each observation's index among them; their number.

    Args:
        times: (B, L).
        mask: (B, L).

    Example:
        >>> distinct_times(torch.tensor([[0.5, 0.1, 0.5, 0.0]]), torch.tensor([[True, True, True, False]]))[:2]
        (tensor([[0.1000, 0.5000]]), tensor([[1, 0, 1, 2]]))
    """
    ordered, order = torch.where(mask, times, torch.inf).sort(-1)
    is_new = torch.ones_like(mask)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    place = torch.zeros_like(order).scatter(-1, order, is_new.cumsum(-1) - 1)
    count = (is_new & ordered.isfinite()).sum(-1)
    longest = max(int(count.max()), 1)
    found = times.new_zeros(len(times), longest + 1)
    found.scatter_(-1, torch.where(mask, place, longest), torch.where(mask, times, 0.0))
    return found[:, :longest], place, count


# The number of trees that are grown. Trees after the one with the least validation loss are set to 0.
TREES = 300
_REGULARISATION = 5.0
_LEAST_IN_LEAF = 20


class Boosting(nn.Module):
    """Boosted trees on the summary of a stay.

    Args:
        model: configuration of the trees.

    Example:
        >>> Boosting(PhysionetModel(kind="boosting"))({"summary": torch.zeros(3, 120)})
        tensor([0., 0., 0.], grad_fn=<AddBackward0>)
    """

    feature: Tensor
    threshold: Tensor
    branches: Tensor
    value: Tensor

    def __init__(self, model: PhysionetModel) -> None:
        super().__init__()
        self.model = model
        nodes = 2 * model.leaves - 1
        self.register_buffer("feature", torch.zeros(TREES, nodes, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(TREES, nodes))
        # Both branches of a leaf lead to the leaf, so that a walk from the root may take any number of steps.
        self.register_buffer("branches", torch.zeros(TREES, nodes, 2, dtype=torch.int64))
        self.register_buffer("value", torch.zeros(TREES, nodes))
        # This is the only number that an optimizer could change.
        self.offset = nn.Parameter(torch.zeros(()))

    def fit(self, train: tuple[Tensor, Tensor], valid: tuple[Tensor, Tensor], seed: int) -> None:
        """Grow trees on the training stays, and use the number of trees with the least loss on the validation stays.

        Args:
            train, valid: summaries (B, S) and deaths (B,).
            seed: seed of scikit-learn's random choices.
        """
        ensemble = require("sklearn.ensemble", "Gradient boosting")
        grower = ensemble.HistGradientBoostingClassifier(
            learning_rate=self.model.rate,
            max_leaf_nodes=self.model.leaves,
            max_iter=TREES,
            l2_regularization=_REGULARISATION,
            min_samples_leaf=_LEAST_IN_LEAF,
            early_stopping=False,
            random_state=seed,
        ).fit(train[0].double().numpy(), train[1].numpy())
        self._take(grower)
        with torch.no_grad():
            logits = self._of_trees(valid[0]).cumsum(-1) + self.offset
            losses = nn.functional.softplus(logits) - valid[1].unsqueeze(-1) * logits
            self.value[int(losses.mean(0).argmin()) + 1 :] = 0

    def _take(self, grower: Any) -> None:
        """Copy the trees of scikit-learn."""
        for tree, (predictor,) in enumerate(grower._predictors):
            nodes = predictor.nodes
            count, is_leaf = len(nodes), torch.from_numpy(nodes["is_leaf"].astype(bool))
            own = torch.arange(count)
            for side, name in enumerate(("left", "right")):
                child = torch.from_numpy(nodes[name].astype("int64"))
                self.branches[tree, :count, side] = torch.where(is_leaf, own, child)
            self.feature[tree, :count] = torch.from_numpy(nodes["feature_idx"].astype("int64"))
            self.threshold[tree, :count] = torch.from_numpy(nodes["num_threshold"].astype("float32"))
            self.value[tree, :count] = torch.from_numpy(nodes["value"].astype("float32"))
        with torch.no_grad():
            self.offset.copy_(torch.tensor(float(grower._baseline_prediction.item())))

    def _of_trees(self, summary: Tensor) -> Tensor:
        """The value of each tree for each stay, (B, trees)."""
        tree = torch.arange(TREES, device=summary.device)
        node = torch.zeros(len(summary), TREES, dtype=torch.int64, device=summary.device)
        for _ in range(self.model.leaves - 1):
            right = summary.gather(1, self.feature[tree, node]) > self.threshold[tree, node]
            node = self.branches[tree, node, right.long()]
        return self.value[tree, node]

    def forward(self, batch: Batch) -> Tensor:
        """Logits of death, (B,)."""
        return self._of_trees(batch["summary"]).sum(-1) + self.offset


# Of Newton's method at most, and how small the last step is.
_MOST_STEPS = 12
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
    for _ in range(_MOST_STEPS):
        probability = (inputs @ solution).sigmoid()
        gradient = inputs.mT @ (probability - target) / len(inputs) + penalty * solution
        spread = (probability * (1 - probability) / len(inputs)).unsqueeze(-1)
        step = torch.linalg.solve(inputs.mT @ (spread * inputs) + penalty.diag(), gradient)
        # Far from the solution a Newton step may be too long: shorten steps that change a weight by more than 4.
        solution = solution - step * min(1.0, 4.0 / float(step.abs().max().clamp(min=1e-12)))
        if float(step.abs().max()) < _DONE:
            break
    return solution[:-1], solution[-1]
