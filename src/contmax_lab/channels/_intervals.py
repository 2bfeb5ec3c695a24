"""A network that looks at learned intervals of each channel, by densities or, as a control, by discrete weights.

The control uses the network unchanged except for the weights.
"""

import math

import torch
from torch import Tensor, nn

import contmax
from contmax.nn import Entmax
from contmax_lab.channels._linear import LinearStart
from contmax_lab.channels._observations import CHANNELS, Sizes, hours_of
from contmax_lab.contract import Batch
from contmax_lab.settings import ChannelsModel

# Bounds of the standard deviation of a density.
_NARROWEST, _WIDEST = 0.02, 0.6
_LARGEST = 4.0
# For `weighing="scores"`: frequencies, as multiples of π, of the sines and cosines of the time.
_RATES = (1.0, 2.0, 4.0, 8.0)


class Intervals(LinearStart):
    r"""Predicts from what each channel c did in learned intervals j of its positions.

    .. math:: m_{cj} = E_{p_{cj}}[V_c] \;\text{or}\; \sum_\ell w_{cj\ell}\,h_\ell, \qquad
              n_{cj} = E_{p_{cj}}[\lambda_c] \;\text{or}\; \sum_\ell k_{cj}(t_\ell)

    V is the signal through three channels: the value, and its excess above and below half a standard deviation; λ is
    the intensity of the observations. The logit is a linear function of m, ln(1 + n) and the summary of the series,
    which begins as a logistic regression, plus the output of a hidden layer.

    Args:
        model: configuration of the network.
        basis: of the signals.
        sizes: of the data.

    Example:
        >>> sizes = Sizes(channels=37, numbers=120, static=9)
        >>> network = Intervals(ChannelsModel(heads=2), contmax.basis.GaussianBasis.covering(8), sizes)
        >>> network({"summary": torch.zeros(5, 120), "signals": torch.randn(5, 37, 8, 4)}).shape
        torch.Size([5])
    """

    def __init__(self, model: ChannelsModel, basis: contmax.basis.GaussianBasis, sizes: Sizes) -> None:
        count = sizes.channels
        super().__init__(sizes.numbers + count * model.heads * (CHANNELS + 1), sizes.outputs)
        self.channels, self.weighing, self.heads, self.basis = count, model.weighing, model.heads, basis
        start = torch.linspace(0.05, 0.85, model.heads).expand(count, -1)
        self.location = nn.Parameter(start.clone())
        self.log_scale = nn.Parameter(torch.full((count, model.heads), math.log(0.4 / model.heads)))
        alpha = torch.full((count,), model.alpha)
        self.index = Entmax(alpha if model.learn_alpha else model.alpha, learnable=model.learn_alpha, num_heads=count)
        if model.weighing == "scores":
            inputs = 2 + 2 * len(_RATES)
            self.embedding = nn.Embedding(count, 16)
            self.score = nn.Sequential(nn.Linear(inputs + 16, 16), nn.Tanh(), nn.Linear(16, model.heads))
        self.dropout = nn.Dropout(model.dropout)
        self.hidden = nn.Linear(self.skip.in_features, model.hidden_dim)
        self.decide = nn.Linear(model.hidden_dim, sizes.outputs)
        # The output of the hidden layer begins at 0, so that training begins with the linear decision.
        nn.init.zeros_(self.decide.weight)
        nn.init.zeros_(self.decide.bias)

    @property
    def alpha(self) -> Tensor:
        """α of each channel, (C, 1)."""
        return torch.as_tensor(self.index.alpha, dtype=torch.float32).expand(self.channels).unsqueeze(-1)

    @property
    def scale(self) -> Tensor:
        """Standard deviation of each density, (C, J)."""
        return self.log_scale.exp().clamp(_NARROWEST, _WIDEST)

    def densities(self) -> contmax.densities.BetaGaussian:
        """One density over positions for each channel and head, batch shape (C, J)."""
        alpha = self.index.alpha
        if self.index.alpha_logit is not None:
            alpha = torch.as_tensor(alpha).unsqueeze(-1).expand(self.channels, self.heads)
        elif isinstance(alpha, Tensor):
            # All channels share α: pass a float, whose formulas are cheaper than those of a tensor α.
            alpha = float(alpha.flatten()[0])
        variance: Tensor = self.scale.square()
        return contmax.densities.BetaGaussian.from_moments(self.location, variance, alpha)

    def features(self, batch: Batch) -> Tensor:
        """The summary, and for each interval three means and an amount of observations, (B, S + 4·C·J)."""
        held = self._of_signals(batch["signals"]) if self.weighing == "continuous" else self._of_observations(batch)
        means, amounts = held[..., :CHANNELS], held[..., CHANNELS:]
        pooled = torch.cat([means.clamp(-_LARGEST, _LARGEST), amounts.relu().log1p()], -1)
        return torch.cat([batch["summary"], pooled.flatten(1)], -1)

    def _of_signals(self, signals: Tensor) -> Tensor:
        """Expectations of all channels of the signals under the densities, (B, C, K, 4) → (B, C, J, 4)."""
        r = contmax.expectation(self.densities(), self.basis).to(signals.dtype)
        flat = signals.permute(1, 2, 0, 3).flatten(2)
        held: Tensor = (r @ flat).unflatten(-1, (len(signals), -1)).permute(2, 0, 1, 3)
        return held

    def _of_observations(self, batch: Batch) -> Tensor:
        """Weighted means of observations, and sums of kernels, (B, C, J, 4)."""
        weights, kernel, group = self.weights(batch)
        values = torch.where(batch["mask"], batch["values"], 0.0)
        hinges = torch.stack([values, (values - 0.5).relu(), (-values - 0.5).relu()], -1).unsqueeze(-2)
        each = torch.cat([weights.unsqueeze(-1) * hinges, kernel.unsqueeze(-1)], -1)
        held: Tensor = _sums(each, group, len(values) * self.channels).unflatten(0, (len(values), self.channels))
        return held

    def weights(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of single observations, which sum to 1 over a channel of a series; Gaussian kernels of their times.

        Returns:
            Weights and kernels, (B, L, J), 0 where padded; and the index of each observation's sequence (a channel
            of a series), (B, L).
        """
        channel, mask = batch["channel"], batch["mask"].unsqueeze(-1)
        group = channel + self.channels * torch.arange(len(channel), device=channel.device).unsqueeze(-1)
        position = torch.where(batch["mask"], batch["position"], 0.0)
        location, scale = (nn.functional.embedding(channel, own) for own in (self.location, self.scale))
        kernel = torch.exp(-0.5 * ((position.unsqueeze(-1) - location) / scale).square()) * mask
        raised = kernel + 1e-6 * mask
        if self.weighing == "kernel-dt":
            raised = raised * batch["span"].unsqueeze(-1)
        if self.weighing == "scores":
            raised = self._scores(batch, position).exp() * mask
        total = _sums(raised, group, len(channel) * self.channels)
        return raised / total.clamp(min=1e-12)[group], kernel, group

    def _scores(self, batch: Batch, position: Tensor) -> Tensor:
        angles = position.unsqueeze(-1) * math.pi * torch.tensor(_RATES, device=position.device)
        values = torch.where(batch["mask"], batch["values"], 0.0)
        seen = torch.stack([values, position], -1)
        inputs = torch.cat([seen, angles.sin(), angles.cos(), self.embedding(batch["channel"])], -1)
        # Scores are bounded by ±8, so that no exponential overflows.
        scores: Tensor = 8 * torch.tanh(self.score(inputs) / 8)
        return scores

    def forward(self, batch: Batch) -> Tensor:
        """Logits, (B,) or (B, outputs)."""
        features = self.features(batch)
        hidden = torch.relu(self.hidden(self.dropout(features)))
        logits: Tensor = self.skip(features) + self.decide(self.dropout(hidden))
        return logits.squeeze(-1)

    # -- where it looks ------------------------------------------------------------------------------------------------

    def importance(self) -> Tensor:
        """How much the decision depends on each interval: the sum of its |weights| in the linear part, (C, J)."""
        own = self.skip.weight.abs().sum(0)[-self.channels * self.heads * (CHANNELS + 1) :]
        return own.view(self.channels, self.heads, CHANNELS + 1).sum(-1)

    def relevance(self, batch: Batch) -> Tensor:
        """How much each observation is looked at: densities, or weights, times the importance of the interval, (B, L).

        Values of the observations matter only where weights depend on them, in weights by scores.
        """
        channel = batch["channel"]
        if self.weighing == "continuous":
            densities = self.densities()
            alpha = densities.alpha
            alpha = (
                alpha.expand(self.channels, self.heads)[channel] if isinstance(alpha, Tensor) and alpha.dim() else alpha
            )
            places, scales = self.location[channel], self.scale[channel]
            each = contmax.densities.BetaGaussian.from_moments(places, scales.square(), alpha)
            held = each.density(batch["position"].unsqueeze(-1))
        else:
            held = self.weights(batch)[0]
        relevance: Tensor = (held * self.importance()[channel]).sum(-1)
        return relevance * batch["mask"]

    def interval_hours(self) -> Tensor:
        """Both ends of the support of each density, in hours before the last observation, (C, J, 2).

        If the support is unbounded, the ends are two standard deviations from the mean.
        """
        densities = self.densities()
        reach = torch.as_tensor(densities.half_width)
        reach = torch.where(reach.isfinite(), reach, 2 * self.scale)
        ends = torch.stack([self.location - reach, self.location + reach], -1)
        return hours_of(ends)


def _sums(each: Tensor, group: Tensor, count: int) -> Tensor:
    """Sums over the observations of each sequence (a channel of a series), (B, L, …) → (count, …)."""
    found = each.new_zeros(count, *each.shape[2:])
    return found.index_add(0, group.flatten(), each.flatten(0, 1))
