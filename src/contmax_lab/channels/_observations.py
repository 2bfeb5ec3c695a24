"""What is computed of observations before a network sees them: positions, spans, coefficients of signals.

Observations are sorted by series, channel and time. A sequence is a channel of a series; its index is
series · C + channel.
"""

import dataclasses
import math

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import contmax

HOURS = 48.0
# A signal has CHANNELS channels: the value, and its excess above and below _HINGE standard deviations. The intensity is
# one more.
_HINGE = 0.5
CHANNELS = 3
# Sequences are fitted in groups by length: up to 1 observation, up to 2, and so on. Few short ones are one group.
_TOGETHER = (1, 2, 4, 8, 16, 32, 64, 128, 4096, 2**62)
_ROWS, _FEW = 4096, 2**16


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a network has to know of its data.

    Args:
        channels: C.
        numbers: S, the numbers in the summary of a series.
        static: how many of them, at the end, are static.
        outputs: 1 for two classes, else one for each class.
    """

    channels: int
    numbers: int
    static: int
    outputs: int = 1


def warped(hours: Tensor) -> Tensor:
    """Hours before the last observation as a position in [0, 1]; the last hours take most of it.

    Example:
        >>> warped(torch.tensor([0.0, 6.0, 48.0]))
        tensor([0.0000, 0.5000, 1.0000])
    """
    return torch.log1p(hours) / math.log1p(HOURS)


def hours_of(position: Tensor) -> Tensor:
    """The inverse of `warped`, inside of the 48 hours."""
    return torch.expm1(position.clamp(0, 1) * math.log1p(HOURS))


def basis_of(functions: int) -> contmax.basis.GaussianBasis:
    """The functions of a signal over positions in [0, 1]."""
    return contmax.basis.GaussianBasis.linspace(functions, scale=0.85 / max(functions - 1, 1))


def spans(position: Tensor, group: Tensor) -> Tensor:
    """The length of the position axis that each observation stands for, between the midpoints to its neighbours, (N,).

    The first observation of a sequence reaches as far into its past as into its future, and so does the last.

    Args:
        position: of the observations, (N,).
        group: index of the sequence of each, (N,).

    Example:
        >>> spans(warped(torch.tensor([2.0, 1.0, 0.0])), torch.tensor([3, 3, 3]))
        tensor([0.1042, 0.1411, 0.1781])
    """
    if len(position) < 2:
        return torch.ones_like(position)
    gaps = (position[:-1] - position[1:]).abs()
    inside = group[:-1] == group[1:]
    empty = gaps.new_full((1,), torch.nan)
    left = torch.cat([empty, torch.where(inside, gaps, torch.nan)])
    right = torch.cat([torch.where(inside, gaps, torch.nan), empty])
    both = torch.stack([torch.where(left.isnan(), right, left), torch.where(right.isnan(), left, right)])
    # The only observation of a sequence stands for the whole axis.
    return both.mean(0).nan_to_num(1.0).clamp(min=1e-3)


def weights_and_intensity(
    position: Tensor, counts: Tensor, basis: contmax.basis.GaussianBasis, penalty: float
) -> tuple[Tensor, Tensor]:
    """Ridge weights of all observations, (N, K), and the coefficients of intensities, (B, C, K).

    Args:
        position: of the observations, (N,).
        counts: numbers of observations of each sequence, (B, C).
        basis: K functions.
        penalty: of the ridge fit.
    """
    flat, ends = counts.flatten(), counts.flatten().cumsum(0)
    weights = position.new_zeros(len(position), basis.num_functions)
    intensity = position.new_zeros(len(flat), basis.num_functions)
    most = int(flat.max()) if len(flat) else 0
    bounds = _TOGETHER if len(flat) * most > _FEW else (max(most, 1),)
    for low, high in zip((0, *bounds), bounds, strict=False):
        chosen = ((flat > low) & (flat <= high)).nonzero().squeeze(-1)
        for some in chosen.split(max(1, _ROWS * 16 // high)) if len(chosen) else ():
            steps = torch.arange(int(flat[some].max()), device=flat.device)
            mask = steps < flat[some].unsqueeze(-1)
            places = torch.where(mask, (ends - flat)[some].unsqueeze(-1) + steps, 0)
            fitted = contmax.signal.ridge_weights(position[places], basis, mask=mask, penalty=penalty)
            weights[places[mask]] = fitted[mask]
            found = contmax.fit_intensity(position[places], basis, mask=mask, penalty=0.1)
            intensity[some] = found.coefficients.squeeze(-1)
    return weights, intensity.view(*counts.shape, -1)


def signals(values: Tensor, group: Tensor, weights: Tensor, intensity: Tensor) -> Tensor:
    """Coefficients of all channels of signals, (B, C, K, 4): value, excess above and below, intensity.

    Args:
        values: scaled, (N,).
        group: index of the sequence of each, (N,).
        weights, intensity: of `weights_and_intensity`.
    """
    hinges = values, (values - _HINGE).relu(), (-values - _HINGE).relu()
    fits = [weights.new_zeros(intensity.flatten(0, 1).shape) for _ in hinges]
    for fit, hinge in zip(fits, hinges, strict=True):
        fit.index_add_(0, group, weights * hinge.unsqueeze(-1))
    return torch.stack([*(fit.view(intensity.shape) for fit in fits), intensity], -1)


def observations(values: Tensor, position: Tensor, hours: Tensor, group: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Single observations as the networks take them: a row for each series, padded with 0 to the longest, (B, L).

    Args:
        values: scaled, (N,).
        position: in [0, 1], (N,).
        hours: since the beginning of the series, (N,).
        group: index of the sequence of each, (N,).
        counts: numbers of observations of each sequence, (B, C).
    """
    columns = {
        "values": values,
        "position": position,
        "hours": hours,
        "span": spans(position, group),
        "channel": group % counts.shape[-1],
        "mask": torch.ones_like(group, dtype=torch.bool),
    }
    lengths = counts.sum(-1).tolist()
    rows = {name: pad_sequence(list(own.split(lengths)), batch_first=True) for name, own in columns.items()}
    # A network needs at least one column, even if nothing was observed.
    return {name: own if own.shape[1] else own.new_zeros(len(lengths), 1) for name, own in rows.items()}
