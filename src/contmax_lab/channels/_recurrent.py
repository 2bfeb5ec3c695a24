"""Two baselines from the literature, re-implemented: GRU-D on a grid of hours, and mTAN on reference points."""

import math

import torch
from torch import Tensor, nn

from contmax_lab.channels._observations import HOURS, Sizes
from contmax_lab.contract import Batch
from contmax_lab.settings import ChannelsModel

_STEPS = int(HOURS)
# How many reference points mTAN has, and how many numbers its embedding of a time has.
_REFERENCES = 48
_TIME_NUMBERS = 32
_LEAST = 1e-9
# Initial standard deviation of the frequencies of the sines of a time embedding, in radians per 48 hours.
_RATE = 10.0


class GruD(nn.Module):
    r"""A GRU on hourly means. Without new observations an input decays from its last value to the mean, the state to 0.

    .. math:: \hat x_t = m_t x_t + (1 - m_t)\,\gamma_t x_{t'}, \qquad \gamma = e^{-\max(0, W\delta_t + b)}, \qquad
              h_t = \mathrm{GRU}(\hat x_t, m_t, \gamma^h_t \odot h_{t-1})

    m is 1 for channels that were observed in an hour, else 0; δ is the time since the last observation. The mean is 0,
    because values are scaled.

    Args:
        model: its configuration.
        sizes: of the data.

    Reference: Che et al. 2018.
    """

    def __init__(self, model: ChannelsModel, sizes: Sizes) -> None:
        super().__init__()
        width, self.channels, self.dynamic = model.hidden_dim, sizes.channels, sizes.numbers - sizes.static
        self.fade_input = nn.Parameter(torch.zeros(2, sizes.channels))
        self.fade_state = nn.Linear(sizes.channels, width)
        self.into = nn.Linear(2 * sizes.channels, 3 * width)
        self.again = nn.Linear(width, 3 * width)
        self.dropout = nn.Dropout(model.dropout)
        self.decide = nn.Linear(width + sizes.static, sizes.outputs)

    def forward(self, batch: Batch) -> Tensor:
        """Logits, (B,) or (B, outputs)."""
        values, seen = on_grid(batch, (batch["hours"].clamp(max=HOURS - 0.5)).long(), _STEPS, self.channels)
        filled, gap = last_seen(values, seen)
        weight, bias = self.fade_input
        # Gaps δ are shares of the 48 hours.
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
        logits: Tensor = self.decide(torch.cat([self.dropout(state), batch["summary"][:, self.dynamic :]], -1))
        return logits.squeeze(-1)


def on_grid(batch: Batch, place: Tensor, steps: int, channels: int) -> tuple[Tensor, Tensor]:
    """Means of the values of each channel at each place of a grid, and where there are any, (B, steps, C) both.

    Args:
        batch: values, channels and mask, (B, L).
        place: grid point of each observation, (B, L).
        steps: number of grid points.
        channels: C.
    """
    mask, rows = batch["mask"], len(place)
    row = torch.arange(rows, device=place.device).unsqueeze(-1)
    flat = ((row * steps + place) * channels + batch["channel"])[mask]
    zeros = batch["values"].new_zeros(rows * steps * channels)
    total = zeros.index_add(0, flat, batch["values"][mask])
    count = zeros.index_add(0, flat, torch.ones_like(batch["values"][mask]))
    shape = rows, steps, channels
    return (total / count.clamp(min=1)).view(shape), (count > 0).view(shape)


def last_seen(values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The last value of each channel before or at each step, and how long ago it was, as a share of all steps.

    Before the first observation the value is 0, and the gap is the time since the first step.

    Args:
        values, seen: (B, steps, C).
    """
    steps = torch.arange(values.shape[1], device=values.device).view(1, -1, 1)
    latest = torch.where(seen, steps, -1).cummax(1).values
    filled = torch.where(latest >= 0, values.gather(1, latest.clamp(min=0)), 0.0)
    return filled, (steps - latest.clamp(min=0)) / values.shape[1]


class Mtan(nn.Module):
    r"""mTAND-Enc: attention from reference points to the times of each channel, a GRU over the points, a classifier.

    .. math:: \hat x_c(r) = \frac{\sum_\ell m_{c\ell}\, e^{s(r, t_\ell)}\, x_{c\ell}}
              {\sum_\ell m_{c\ell}\, e^{s(r, t_\ell)}}, \qquad s(r, t) = \frac{(W_q\phi(r))^\top W_k\phi(t)}{\sqrt{d}}

    φ is learned: one linear number and sines. A channel gives 0 if it was never observed or its observations have no
    weight; the network sees this from the masks, which are averaged with the weights of the values. The weights are
    those of the published code; the sums over times are two products of matrices, since the scores do not depend on
    the channel.

    Args:
        model: its configuration.
        sizes: of the data.

    Reference: Shukla & Marlin 2021.
    """

    reference: Tensor

    def __init__(self, model: ChannelsModel, sizes: Sizes) -> None:
        super().__init__()
        width, self.channels, self.dynamic = model.hidden_dim, sizes.channels, sizes.numbers - sizes.static
        self.linear_time, self.periodic_time = nn.Linear(1, 1), nn.Linear(1, _TIME_NUMBERS - 1)
        # Begin with frequencies that distinguish hours (times are shares of the 48): in training they change slowly.
        nn.init.normal_(self.periodic_time.weight, std=_RATE)
        self.query, self.key = (nn.Linear(_TIME_NUMBERS, _TIME_NUMBERS) for _ in range(2))
        self.register_buffer("reference", torch.linspace(0, 1, _REFERENCES), persistent=False)
        self.mixed = nn.Linear(2 * sizes.channels, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(model.dropout)
        self.decide = nn.Sequential(
            nn.Linear(width + sizes.static, 2 * width),
            nn.ReLU(),
            nn.Dropout(model.dropout),
            nn.Linear(2 * width, sizes.outputs),
        )

    def embedded(self, time: Tensor) -> Tensor:
        """φ of times as shares of the 48 hours, (…) → (…, numbers)."""
        time = time.unsqueeze(-1)
        return torch.cat([self.linear_time(time), torch.sin(self.periodic_time(time))], -1)

    def interpolated(self, batch: Batch) -> Tensor:
        """Values of each channel at the reference points, and the share of the weight at times when it was observed.

        Returns:
            (B, references, 2·C).
        """
        times, place, count = distinct_times(batch["hours"] / HOURS, batch["mask"])
        values, seen = on_grid(batch, place, times.shape[1], self.channels)
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
        """Logits, (B,) or (B, outputs)."""
        _, state = self.encoder(self.mixed(self.interpolated(batch)))
        state = self.dropout(state.squeeze(0))
        logits: Tensor = self.decide(torch.cat([state, batch["summary"][:, self.dynamic :]], -1))
        return logits.squeeze(-1)


def distinct_times(times: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct times of each series, ascending, padded with 0; each observation's index among them; their number.

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
