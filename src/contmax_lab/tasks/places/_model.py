"""An encoder, attention, a linear classifier."""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from contmax_lab.attention import Attended
from contmax_lab.contract import Batch
from contmax_lab.labelled import cell_centres
from contmax_lab.tasks.places import PlacesModel
from contmax_lab.tasks.places._attention import PlaceAttention, Scene, looked

# The receptive field reaches this far beyond a value, by the number of axes: in frames and in pixels.
_REACH = {1: 2, 2: 4}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the network says of each example.

    Args:
        logits: shape (B, classes).
        scene: what the attention was given; None for an answer to the query alone.
        place: what it returned; None without attention.
        kept: logits for the input with all removed but what was attended to; None without a background.
        deleted: logits for the input without it; None without a background.
        span_weight: of the loss to a known span.
    """

    logits: Tensor
    scene: Scene | None = None
    place: Attended | None = None
    kept: Tensor | None = None
    deleted: Tensor | None = None
    span_weight: float = 0.0


class Finder(nn.Module):
    """Series or canvases → answers, and where the network looked.

    Args:
        model: its configuration.
        channels: of an observation.
        classes: answers.
        query_dim: channels of the query, 0 = there is none.
        dim: 1 = series, 2 = canvases.

    Example:
        >>> finder = Finder(PlacesModel(hidden_dim=8), channels=12, classes=9, query_dim=0, dim=1)
        >>> frames, mask = torch.zeros(2, 20, 12), torch.ones(2, 20, dtype=torch.bool)
        >>> finder({"frames": frames, "mask": mask}).logits.shape
        torch.Size([2, 9])
    """

    def __init__(self, model: PlacesModel, channels: int, classes: int, query_dim: int, dim: int) -> None:
        super().__init__()
        self.model, self.dim, width = model, dim, int(model.hidden_dim)
        given = channels + int(model.time_channel)
        if dim == 1:
            # A value sees 5 frames.
            self.first: nn.Module = nn.Conv1d(given, width, 3, padding=1)
            self.second: nn.Module = nn.Conv1d(width, width, 3, padding=1)
        else:
            # A value sees 9 × 9 pixels and stands for 2 × 2.
            self.first = _block(nn.Conv2d(given, width // 2, 5, padding=2, stride=2), width // 2)
            self.second = _block(nn.Conv2d(width // 2, width, 3, padding=1), width)
        self.states = None
        if model.encoder == "bigru":
            self.states = nn.GRU(given, width // 2, batch_first=True, bidirectional=True)
        # Scores and gates compare values with the query: a product shows agreement at once, a sum must learn to.
        self.asked = nn.Linear(query_dim, width) if query_dim else None
        self.dropout = nn.Dropout(model.dropout)
        self.attend = None if model.attention == "query" else PlaceAttention(model, query_dim or None, dim)
        # The classifier sees the query only where there is no attention.
        self.classifier = nn.Linear(query_dim if self.attend is None else width, classes)

    def forward(self, batch: Batch) -> Answer:
        """Answers to ``frames`` or ``pixels``; with a ``background`` also to the attended part, and to the rest."""
        if self.attend is None:
            return Answer(self.classifier(batch["query"]))
        given = "frames" if self.dim == 1 else "pixels"
        logits, scene, place = self._answer(batch, batch[given])
        answer = Answer(logits, scene, place, span_weight=float(self.model.span_weight))
        if "background" not in batch:
            return answer
        seen = self._seen(scene, place, batch)
        kept, *_ = self._answer(batch, torch.where(seen, batch[given], batch["background"]))
        deleted, *_ = self._answer(batch, torch.where(seen, batch["background"], batch[given]))
        return dataclasses.replace(answer, kept=kept, deleted=deleted)

    def _answer(self, batch: Batch, given: Tensor) -> tuple[Tensor, Scene, Attended]:
        scene = self._line(batch, given) if self.dim == 1 else self._plane(given)
        assert self.attend is not None
        place: Attended = self.attend(scene)
        return self.classifier(self.dropout(place.context)), scene, place

    def _line(self, batch: Batch, frames: Tensor) -> Scene:
        where, mask = _positions(batch), batch["mask"]
        if self.model.grid:
            left, right, share = _neighbours(where, mask, int(self.model.grid))
            there = mask.any(-1, keepdim=True).expand_as(left)
            frames = torch.lerp(_rows(frames, left), _rows(frames, right), share.unsqueeze(-1))
            where = cell_centres((int(self.model.grid),), frames).squeeze(-1).expand_as(share)
            mask = there
        if self.model.time_channel:
            frames = torch.cat([frames, where.unsqueeze(-1)], -1) * mask.unsqueeze(-1)
        seen = self.dropout(frames)
        hidden = F.gelu(self.first(seen.mT)) * mask.unsqueeze(1)
        values = (F.gelu(self.second(self.dropout(hidden))) * mask.unsqueeze(1)).mT
        keys = values
        if self.states is not None:
            packed = pack_padded_sequence(seen, mask.sum(-1).cpu(), batch_first=True, enforce_sorted=False)
            keys, _ = pad_packed_sequence(self.states(packed)[0], batch_first=True, total_length=mask.shape[1])
        if self.asked is not None:
            keys = keys * self.asked(batch["query"]).unsqueeze(1)
        where = where.unsqueeze(-1)
        return Scene(
            values, keys, where, mask, batch.get("query"), irregular="positions" in batch and not self.model.grid
        )

    def _plane(self, pixels: Tensor) -> Scene:
        hidden = self.second(self.first(pixels.unsqueeze(1)))
        height, width = hidden.shape[-2:]
        where = cell_centres((height, width), pixels).expand(len(pixels), -1, -1)
        values = hidden.flatten(2).mT
        mask = torch.ones(values.shape[:2], dtype=torch.bool, device=pixels.device)
        return Scene(values, values, where, mask, grid=(height, width))

    @torch.no_grad()
    def _seen(self, scene: Scene, place: Attended, batch: Batch) -> Tensor:
        """Which inputs the attended values depend on, shaped as the input without its channels, or with one."""
        found = looked(scene, place)
        reach = _REACH[self.dim]
        if self.dim == 1:
            # The points of the fine grid that are nearest to the observations.
            nearest = (scene.where.squeeze(-1) * len(found.points)).long().clamp(0, len(found.points) - 1)
            seen = (found.seen.gather(1, nearest) & scene.mask).float()
            seen = F.max_pool1d(seen.unsqueeze(1), 2 * reach + 1, 1, reach).squeeze(1)
            if self.model.grid:
                # A cell depends on the observations on both of its sides.
                left, right, _ = _neighbours(_positions(batch), batch["mask"], int(self.model.grid))
                of_cells, seen = seen, torch.zeros_like(batch["mask"], dtype=seen.dtype)
                for side in (left, right):
                    seen = seen.scatter_reduce(1, side, of_cells, "amax")
            return seen.unsqueeze(-1) > 0
        side = round(len(found.points) ** 0.5)
        seen = found.seen.float().reshape(-1, 1, side, side)
        seen = F.adaptive_max_pool2d(seen, batch["pixels"].shape[-2:])
        return F.max_pool2d(seen, 2 * reach + 1, 1, reach).squeeze(1) > 0


def _positions(batch: Batch) -> Tensor:
    """When each observation was made, (B, L): the centres of equal cells if the batch has no positions."""
    mask = batch["mask"]
    cells = (torch.arange(mask.shape[1], device=mask.device) + 0.5) / mask.sum(-1, keepdim=True)
    return batch.get("positions", cells)


def _neighbours(where: Tensor, mask: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each cell of a grid the observations on its two sides, and how near it is to the second: each (B, cells)."""
    line = torch.where(mask, where, torch.inf)
    points = ((torch.arange(cells, device=where.device) + 0.5) / cells).expand(len(where), -1).contiguous()
    right = torch.searchsorted(line, points)
    left, right = (right - 1).clamp(min=0), torch.minimum(right, (mask.sum(-1, keepdim=True) - 1).clamp(min=0))
    before, after = where.gather(1, left), where.gather(1, right)
    return left, right, ((points - before) / (after - before).clamp(min=1e-9)).clamp(0, 1)


def _rows(frames: Tensor, index: Tensor) -> Tensor:
    return frames.gather(1, index.unsqueeze(-1).expand(-1, -1, frames.shape[-1]))


def _block(convolution: nn.Conv2d, width: int) -> nn.Module:
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.GELU())
