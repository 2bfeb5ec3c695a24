"""Reviews in three parts."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import shuffled
from contmax_lab.errors import LabError
from contmax_lab.tasks.documents import DocumentsData
from contmax_lab.tasks.documents._prepared import FIRST_WORD, PADDING, UNKNOWN, Part, prepared
from contmax_lab.tasks.documents._reviews import ORIGINAL

# Of each label, among which those for validation are chosen.
_STRETCHES = 50


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
    """Read, hold out the same share of both labels for validation, and take the words of the training reviews.

    Args:
        data: what to read.
        seed: of the random words of the deletion test.
    """
    if data.path is None:
        raise LabError(f"no path was given for the reviews; pass --data.path FOLDER. The original: {ORIGINAL}")
    read = prepared(data.path, data.vectors, data.cache)
    train, test = (_documents(read.parts[part]) for part in ("train", "test"))
    films = torch.from_numpy(read.parts["train"].films)
    held_out = held_out_reviews(train.labels, films, data.valid, data.split)
    kept, valid = ((held_out == chosen).nonzero().flatten().tolist() for chosen in (False, True))
    words = _words_of(train[kept], FIRST_WORD + len(read.words))[: data.max_words or None]
    columns = min(data.dimensions or read.vectors.shape[1], read.vectors.shape[1])
    vectors = torch.from_numpy(read.vectors[words - FIRST_WORD, :columns]).float()
    # A word without a vector of its own begins with the mean of all.
    table = torch.cat([torch.zeros(1, columns), vectors.mean(0, keepdim=True), vectors])
    numbers = torch.full((FIRST_WORD + len(read.words),), UNKNOWN, dtype=train.tokens.dtype)
    numbers[words] = torch.arange(FIRST_WORD, FIRST_WORD + len(words), dtype=numbers.dtype)
    train, test = (dataclasses.replace(part, tokens=numbers[part.tokens]) for part in (train, test))
    if data.deletion:
        draws = torch.rand(len(test.tokens), generator=torch.Generator().manual_seed(seed))
        test = dataclasses.replace(test, draws=draws)
    known = [read.words[number - FIRST_WORD] for number in words.tolist()]
    info = {"vectors": table, "words": known, "vocabulary": len(known), "dimensions": columns}
    return Splits(train[kept], train[valid], test, info)


def _documents(part: Part) -> Documents:
    tokens, starts = torch.from_numpy(part.tokens), torch.from_numpy(part.starts)
    return Documents(tokens, starts[:-1], starts.diff(), torch.from_numpy(part.labels).long())


def _words_of(documents: Documents, count: int) -> Tensor:
    """The numbers of the words, below count, that these reviews hold, in rising order; unknown ones are none."""
    ends = documents.starts + documents.lengths
    # +1 where a review begins, -1 where it ends: the running sum is 1 inside these reviews, 0 inside others.
    steps = torch.zeros(len(documents.tokens) + 1, dtype=torch.int8)
    steps.index_add_(0, documents.starts, torch.ones_like(documents.starts, dtype=torch.int8))
    steps.index_add_(0, ends, -torch.ones_like(ends, dtype=torch.int8))
    held = documents.tokens[steps[:-1].cumsum(0) > 0].long()
    return torch.bincount(held, minlength=count)[FIRST_WORD:].nonzero().flatten() + FIRST_WORD


def held_out_reviews(labels: Tensor, films: Tensor, share: float, seed: int) -> Tensor:
    """Which reviews are held out: a share of each label, of films that have no other reviews among the rest.

    The films of the test half are not those of the training half, so neither should be those of validation. Where the
    films are known, whole films are held out, in random order, as long as no label gets more than its share. Where they
    are not, reviews of one film and label still lie side by side, and stretches of neighbours are held out. At the ends
    of a stretch a film is cut in two, and its reviews of the other label stay in training.

    Args:
        labels: 0 or 1, (B,).
        films: numbers from 0 on, -1 where not known, (B,).
        share: of each label; at least one review is held out.
        seed: of the choice.

    Returns:
        (B,) of bool.

    Raises:
        LabError: if every film has more reviews than the share.
    """
    wanted = [max(round(share * int((labels == label).sum())), 1) for label in (0, 1)]
    if bool((films < 0).any()):
        return _held_out_stretches(labels, wanted, seed)
    counts = torch.zeros(int(films.max()) + 1, 2, dtype=torch.long)
    counts.index_put_((films.long(), labels), torch.ones_like(labels), accumulate=True)
    chosen = torch.zeros(len(counts), dtype=torch.bool)
    for film in shuffled(len(counts), seed):
        left = [room - count for room, count in zip(wanted, counts[film].tolist(), strict=True)]
        if min(left) >= 0:
            chosen[film], wanted = True, left
    if not bool(chosen.any()):
        raise LabError("every film has more reviews than validation may hold; pass a larger --data.valid")
    return chosen[films.long()]


def _held_out_stretches(labels: Tensor, wanted: Sequence[int], seed: int) -> Tensor:
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label, count in enumerate(wanted):
        places = (labels == label).nonzero().flatten()
        stretches = places.tensor_split(_STRETCHES)
        order = torch.cat([stretches[i] for i in shuffled(_STRETCHES, seed)])
        held_out[order[:count]] = True
    return held_out
