"""Reviews in three parts."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from jsonargparse.typing import NonNegativeInt, OpenUnitInterval
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import shuffled
from contmax_lab.errors import LabError
from contmax_lab.tasks.documents._prepared import FIRST_WORD, PADDING, UNKNOWN, Part, prepared
from contmax_lab.tasks.documents._reviews import ORIGINAL

# Of each label, among which those for validation are chosen.
_STRETCHES = 50


@dataclasses.dataclass(frozen=True)
class DocumentsData:
    """Where the reviews are, and which words count.

    Args:
        path: folder of IMDB reviews, {train,test}/{pos,neg}/ID_STARS.txt or imdb_{train,test}.tsv.
        vectors: word vectors, a text file of GloVe or .npy with .vocab.txt; by default those in the folder.
        cache: folder for the prepared arrays; by default .contmax in the folder of the reviews.
        max_words: keep so many words, the first of the word vectors; 0 = all.
        dimensions: keep so many columns of the word vectors; 0 = all.
        valid: share of the training reviews that is held out for validation.
        split: seed of the choice of these.
        deletion: measure the test reviews also without the words that are attended, without all the others, and without
            random ones, drawn by the seed of the run.
    """

    path: Path | None = None
    vectors: Path | None = None
    cache: Path | None = None
    max_words: NonNegativeInt = 0
    dimensions: NonNegativeInt = 0
    valid: OpenUnitInterval = 0.1
    split: int = 0
    deletion: bool = False


@dataclasses.dataclass(frozen=True)
class Documents:
    """Reviews as numbers of words.

    Args:
        tokens: of all reviews of a file, one after the other: 1 = unknown, 2 + i = word i.
        starts: where each of these reviews begins, (B,).
        lengths: its words, (B,).
        labels: 1 = positive, 0 = negative, (B,).
        draws: a random number in [0, 1) for each of the tokens; None = not to be tested by deletion.
    """

    tokens: Tensor
    starts: Tensor
    lengths: Tensor
    labels: Tensor
    draws: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Sequence[int]) -> "Documents":
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return Documents(self.tokens, self.starts[chosen], self.lengths[chosen], self.labels[chosen], self.draws)

    def padded(self) -> Tensor:
        """Numbers of words, (B, L), with 0 after the end of a review."""
        return self._padded(self.tokens).long()

    def padded_draws(self) -> Tensor | None:
        """The random numbers of the words, (B, L)."""
        return None if self.draws is None else self._padded(self.draws)

    def _padded(self, of_tokens: Tensor) -> Tensor:
        steps = torch.arange(int(self.lengths.max()))
        places = (self.starts.unsqueeze(-1) + steps).clamp(max=len(self.tokens) - 1)
        return torch.where(steps < self.lengths.unsqueeze(-1), of_tokens[places], PADDING)


def load(data: DocumentsData, seed: int = 0) -> Splits:
    """Read, cut the vocabulary, hold out the same share of both labels for validation.

    Args:
        data: what to read.
        seed: of the random words of the deletion test.
    """
    if data.path is None:
        raise LabError(f"no path was given for the reviews; pass --data.path FOLDER. The original: {ORIGINAL}")
    read = prepared(data.path, data.vectors, data.cache)
    count = min(data.max_words or len(read.words), len(read.words))
    columns = min(data.dimensions or read.vectors.shape[1], read.vectors.shape[1])
    vectors = torch.from_numpy(read.vectors[:count, :columns]).float()
    # A word without a vector of its own begins with the mean of all.
    table = torch.cat([torch.zeros(1, columns), vectors.mean(0, keepdim=True), vectors])
    train, test = (_documents(read.parts[part], FIRST_WORD + count) for part in ("train", "test"))
    held_out = _held_out(train.labels, data.valid, data.split)
    kept, valid = ((held_out == chosen).nonzero().flatten().tolist() for chosen in (False, True))
    if data.deletion:
        draws = torch.rand(len(test.tokens), generator=torch.Generator().manual_seed(seed))
        test = dataclasses.replace(test, draws=draws)
    info = {"vectors": table, "words": read.words[:count], "vocabulary": count, "dimensions": columns}
    return Splits(train[kept], train[valid], test, info)


def _documents(part: Part, limit: int) -> Documents:
    tokens, starts = torch.from_numpy(part.tokens), torch.from_numpy(part.starts)
    known = torch.where(tokens < limit, tokens, UNKNOWN)
    return Documents(known, starts[:-1], starts.diff(), torch.from_numpy(part.labels).long())


def _held_out(labels: Tensor, share: float, seed: int) -> Tensor:
    """Which reviews are held out: a share of each label, at least one, in stretches of neighbours.

    Reviews of one film and label lie side by side, and the films of the test half are not those of the training half.
    Held out one by one, most reviews would be judged by a model that knows their films; so, those of the edges are.
    """
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in (0, 1):
        places = (labels == label).nonzero().flatten()
        stretches = places.tensor_split(_STRETCHES)
        order = torch.cat([stretches[i] for i in shuffled(_STRETCHES, seed)])
        held_out[order[: max(round(share * len(places)), 1)]] = True
    return held_out
