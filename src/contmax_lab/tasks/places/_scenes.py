"""Recordings in noise and digits in clutter, at random places."""

import math

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from contmax_lab.contract import Batch
from contmax_lab.data import Images, Recordings

# A series with two utterances is this many times longer than both: each takes about a quarter, as in noise 4× longer.
_PAIR_RATIO = 2.0
# Two in turn: frames of the series; share of it that both take; share of this that the longer one takes.
_TURNS_LENGTH = 96
_TURNS_SHARE = (0.4, 0.6)
_TURNS_LONGER = (0.6, 0.7)
# Half of the missing frames lie in stretches of this share of the series, the other half is missing frame by frame.
_GAP = 0.1
SIDE = 24
_FRAGMENTS = 6
_FRAGMENT_SIDE = 4
_NOISE = 0.1


def one_in_noise(source: Recordings, ratios: tuple[float, float]) -> Batch:
    """Each recording at a random place in white noise, which makes the series longer by a random ratio.

    Args:
        source: recordings of L frames, channels standardised, so that noise of variance 1 is as loud.
        ratios: smallest and largest length of the series over that of the recording; log-uniform between them.

    Returns:
        ``frames`` (B, T, C); ``mask`` (B, T); ``label`` (B,), its class; ``low``, ``high`` (B, 1), where the recording
        begins and ends, the series having length 1.
    """
    frames, lengths = _padded(source)
    low, high = math.log(ratios[0]), math.log(ratios[1])
    ratio = torch.exp(low + (high - low) * torch.rand(len(lengths)))
    total = torch.maximum((lengths * ratio).round().long(), lengths)
    start = (torch.rand(len(lengths)) * (total - lengths + 1)).long()
    series, mask = _noise(total, frames.shape[-1])
    return {
        "frames": _inserted(series, frames, lengths, start) * mask.unsqueeze(-1),
        "mask": mask,
        "label": source.label,
        **_span(start, lengths, total),
    }


def two_in_noise(source: Recordings, others: Recordings, speakers: int) -> Batch:
    """An utterance and one of another speaker, each forwards or backwards, at random places that do not overlap.

    Returns:
        as `one_in_noise`; ``query`` (B, speakers), one-hot, names the speaker of the first; ``label`` is 1 if that one
        is played backwards; ``other_low``, ``other_high`` (B, 1) is where the other one is.
    """
    first, lengths = _padded(source)
    second, other_lengths = _padded(others)
    backwards, other_backwards = torch.rand(2, len(lengths)) < 0.5
    first, second = _turned(first, lengths, backwards), _turned(second, other_lengths, other_backwards)
    both = lengths + other_lengths
    total = (_PAIR_RATIO * both).round().long()
    # Split the free frames at random: before, between and after the two.
    edges = (torch.rand(len(lengths), 2) * (total - both + 1).unsqueeze(-1)).long().sort(-1).values
    asked_first = torch.rand(len(lengths)) < 0.5
    start = torch.where(asked_first, edges[:, 0], edges[:, 1] + other_lengths)
    other_start = torch.where(asked_first, edges[:, 1] + lengths, edges[:, 0])
    series, mask = _noise(total, first.shape[-1])
    series = _inserted(_inserted(series, first, lengths, start), second, other_lengths, other_start)
    other = _span(other_start, other_lengths, total)
    return {
        "frames": series * mask.unsqueeze(-1),
        "mask": mask,
        "query": torch.nn.functional.one_hot(source.label, speakers).float(),
        "label": backwards.long(),
        **_span(start, lengths, total),
        "other_low": other["low"],
        "other_high": other["high"],
    }


def two_in_turn(source: Recordings, others: Recordings) -> Batch:
    """Two utterances, one right after the other in random order, played so that the first of the pair takes longer.

    The longer one is no longer in its own frames, only in time: what it says is played more slowly.

    Returns:
        as `one_in_noise`; ``label`` is the speaker of the longer one; ``low``, ``high`` is where both are.
    """
    count = len(source)
    both = (_TURNS_LENGTH * _between(_TURNS_SHARE, count)).round().long()
    longer = (both * _between(_TURNS_LONGER, count)).round().long()
    total = torch.full((count,), _TURNS_LENGTH)
    start = (torch.rand(count) * (total - both + 1)).long()
    is_first = torch.rand(count) < 0.5
    series, mask = _noise(total, source.series[0].shape[-1])
    series = _inserted(series, _played(source, longer), longer, start + torch.where(is_first, 0, both - longer))
    shorter = both - longer
    series = _inserted(series, _played(others, shorter), shorter, start + torch.where(is_first, longer, 0))
    return {"frames": series, "mask": mask, "label": source.label, **_span(start, both, total)}


def irregular(batch: Batch, dropped: float) -> Batch:
    """Series of which a share of the frames is not observed, half of it in long gaps.

    ``positions`` (B, T') say when the others were.
    """
    mask = batch["mask"]
    total = mask.sum(-1, keepdim=True)
    positions = (torch.arange(mask.shape[1]) + 0.5) / total
    # Gaps and single frames are missing independently, each with probability d: 1 − dropped = (1 − d)².
    kept = math.sqrt(1 - dropped)
    stretch = (positions / _GAP + torch.rand(len(mask), 1)).long()
    in_gap = (torch.rand(len(mask), int(stretch.max()) + 1) >= kept).gather(1, stretch)
    seen = mask & ~in_gap & (torch.rand(mask.shape) < kept)
    # A series without any observed frame stays whole.
    seen = torch.where(seen.any(-1, keepdim=True), seen, mask)
    # Move observed frames to the front, in their order; mask the others.
    order = torch.argsort(~seen, dim=-1, stable=True)[:, : int(seen.sum(-1).max())]
    there = seen.gather(1, order)

    def observed(series: Tensor) -> Tensor:
        return series.gather(1, order.unsqueeze(-1).expand(-1, -1, series.shape[-1])) * there.unsqueeze(-1)

    return {
        **batch,
        "frames": observed(batch["frames"]),
        "mask": there,
        "positions": torch.where(there, positions.gather(1, order), 1.0),
    }


def resampled(source: Recordings, rate: float) -> Recordings:
    """Recordings with `rate` times as many frames, by linear interpolation.

    Example:
        >>> len(resampled(Recordings([torch.zeros(8, 12)], torch.zeros(1)), 0.5).series[0])
        4
    """
    if rate == 1.0:
        return source
    sizes = [max(round(len(series) * rate), 2) for series in source.series]
    series = [
        torch.nn.functional.interpolate(frames.mT.unsqueeze(0), size=size, mode="linear").squeeze(0).mT
        for frames, size in zip(source.series, sizes, strict=True)
    ]
    return Recordings(series, source.label)


def _between(ends: tuple[float, float], count: int) -> Tensor:
    return ends[0] + (ends[1] - ends[0]) * torch.rand(count)


def _played(source: Recordings, lengths: Tensor) -> Tensor:
    """Utterances in other numbers of frames, by linear interpolation, (B, T, C)."""
    frames, own = _padded(source)
    # First and last frame stay first and last.
    step = torch.arange(int(lengths.max())) / (lengths - 1).clamp(min=1).unsqueeze(-1)
    place = step.clamp(max=1) * (own - 1).unsqueeze(-1)
    below = place.floor().long()

    def at(index: Tensor) -> Tensor:
        return frames.gather(1, index.clamp(max=frames.shape[1] - 1).unsqueeze(-1).expand(-1, -1, frames.shape[-1]))

    return torch.lerp(
        at(below), at(below + 1) * (below + 1 < own.unsqueeze(-1)).unsqueeze(-1), (place - below).unsqueeze(-1)
    )


def _padded(source: Recordings) -> tuple[Tensor, Tensor]:
    return pad_sequence(source.series, batch_first=True), torch.tensor([len(series) for series in source.series])


def _turned(frames: Tensor, lengths: Tensor, backwards: Tensor) -> Tensor:
    """Reverse the first `lengths` frames where `backwards`."""
    index = torch.arange(frames.shape[1]).expand(frames.shape[:2])
    index = torch.where(backwards.unsqueeze(-1), (lengths.unsqueeze(-1) - 1 - index).clamp(min=0), index)
    return frames.gather(1, index.unsqueeze(-1).expand_as(frames))


def _noise(total: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """White noise (B, T, channels), and the mask (B, T) of `total` frames."""
    longest = int(total.max())
    return torch.randn(len(total), longest, channels), torch.arange(longest) < total.unsqueeze(-1)


def _inserted(series: Tensor, frames: Tensor, lengths: Tensor, start: Tensor) -> Tensor:
    """The series with `lengths` frames from `start` on replaced by those of an utterance."""
    index = torch.arange(series.shape[1]) - start.unsqueeze(-1)
    inside = (index >= 0) & (index < lengths.unsqueeze(-1))
    index = index.clamp(0, frames.shape[1] - 1).unsqueeze(-1).expand(-1, -1, frames.shape[-1])
    return torch.where(inside.unsqueeze(-1), frames.gather(1, index), series)


def _span(start: Tensor, lengths: Tensor, total: Tensor) -> Batch:
    return {"low": (start / total).unsqueeze(-1), "high": ((start + lengths) / total).unsqueeze(-1)}


def digit_in_clutter(source: Images, others: Images) -> Batch:
    """Each digit at a random place among fragments of others, with a little noise.

    Args:
        source: the digits to be found, B of them.
        others: digits that fragments of 4 × 4 pixels are cut from.

    Returns:
        ``pixels`` (B, 24, 24); ``label`` (B,); ``low``, ``high`` (B, 2), corners of the digit's scan, row and column,
        the canvas having sides of length 1.
    """
    count, side = len(source), source.pixels.shape[-1]
    canvas = _clutter(others, count)
    corner = torch.randint(0, SIDE - side + 1, (count, 2))
    canvas[_window(corner, side)] = source.pixels
    return {
        "pixels": canvas + _NOISE * torch.randn_like(canvas),
        "label": source.digit,
        "low": corner / SIDE,
        "high": (corner + side) / SIDE,
    }


def clutter_alone(others: Images, count: int) -> Tensor:
    """Canvases without a digit, (count, 24, 24): what takes the place of what is deleted."""
    canvas = _clutter(others, count)
    return canvas + _NOISE * torch.randn_like(canvas)


def _clutter(others: Images, count: int) -> Tensor:
    canvas = torch.zeros(count, SIDE, SIDE)
    free = others.pixels.shape[-1] - _FRAGMENT_SIDE + 1
    for _ in range(_FRAGMENTS):
        whole = others.pixels[torch.randint(0, len(others), (count,))]
        fragment = whole[_window(torch.randint(0, free, (count, 2)), _FRAGMENT_SIDE)]
        place = _window(torch.randint(0, SIDE - _FRAGMENT_SIDE + 1, (count, 2)), _FRAGMENT_SIDE)
        canvas[place] = torch.maximum(canvas[place], fragment)
    return canvas


def _window(corner: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of a square in each of B images, its upper left corner (B, 2)."""
    steps = torch.arange(side)
    rows, columns = corner[:, :1] + steps, corner[:, 1:] + steps
    return torch.arange(len(corner))[:, None, None], rows.unsqueeze(-1), columns.unsqueeze(1)
