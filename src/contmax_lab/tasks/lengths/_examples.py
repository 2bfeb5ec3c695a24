"""Examples of the four problems, made on the device by whole-tensor operations; each is a function of its number.

A generator of torch has a state, and numbers that differ between devices. Here every number is a hash of the seed, the
part of the data, the number of the example and a place in it: any device makes the same examples, a row sees those of
every other row, and a resumed training needs no state.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from contmax_lab.tasks.lengths._problems import LETTERS, Problem

PARTS = ("train", "valid", "test")
# The first symbols of the recall problem; its letters follow.
SPACE, OF_PAIR, OF_QUERY = range(3)
QUERIES = 4
# The symbols of a pair: a word and its value of two letters each, a separator, and a space.
_PAIR = 6
_BITS = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9


class Examples(NamedTuple):
    """Sequences with their targets: the model reads them and predicts the next symbol where `is_target` is True.

    Args:
        tokens: begin, the source, a separator, the target, end; then padding, (B, T).
        is_target: symbols to be predicted: the target and the end, (B, T).
    """

    tokens: Tensor
    is_target: Tensor


def symbols(problem: Problem) -> tuple[int, int, int, int]:
    """The symbols begin, separator, end, and padding: those after the words of the problem."""
    begin, separator, end, padding = range(problem.words, problem.words + 4)
    return begin, separator, end, padding


def mixed(x: Tensor) -> Tensor:
    """A hash of 32 bits, a bijection; its constants are below 2³¹, so that no product leaves 63 bits.

    Example:
        >>> mixed(torch.tensor([0, 1, 2])).tolist()
        [0, 2261973619, 229111015]
    """
    x = x ^ (x >> 16)
    x = (x * 0x21F0AAAD) & _BITS
    x = x ^ (x >> 15)
    x = (x * 0x735A2D97) & _BITS
    return x ^ (x >> 15)


class _Numbers:
    """The random numbers of some examples; every call draws from a new stream.

    Args:
        key: the result of `key_of`.
        examples: numbers of the examples, (B,).
    """

    def __init__(self, key: int, examples: Tensor) -> None:
        self._examples = mixed((examples & _BITS) ^ (key & _BITS)).unsqueeze(-1)
        self._streams = 0

    def stream(self) -> Tensor:
        """A new key for each example, (B, 1): each call begins another stream of numbers."""
        self._streams += 1
        return mixed((self._examples + self._streams * 0x5BD1E995) & _BITS)

    def below(self, limit: int | Tensor, count: int) -> Tensor:
        """`count` whole numbers of each example, from 0 to `limit` − 1, (B, count)."""
        key = self.stream()
        places = torch.arange(count, device=key.device) * _GOLDEN
        return (mixed((key + places) & _BITS) * limit) >> 32

    def words(self, count: int) -> Tensor:
        """`count` different words of each example, from 0 to 65,535, (B, count).

        A Feistel network of four rounds permutes the 65,536 words, and each example has a network of its own.
        """
        keys = [self.stream() for _ in range(4)]
        place = torch.arange(count, device=keys[0].device)
        left, right = (place >> 8).expand(len(keys[0]), -1), place & 255
        for key in keys:
            left, right = right, left ^ (mixed((key + right * _GOLDEN) & _BITS) >> 24)
        return (left << 8) | right


def key_of(seed: int, part: str) -> int:
    """The key of the random numbers of a part of the data; only the training examples depend on the seed."""
    number = PARTS.index(part) + 1
    return (number * 0x2545F491 + (seed * 0x61C88647 if part == "train" else 0)) & _BITS


def examples(problem: Problem, key: int, numbers: Tensor, length: int | None = None) -> Examples:
    """The examples with these numbers.

    Args:
        problem: the problem.
        key: the result of `key_of`.
        numbers: numbers of the examples, (B,), int64.
        length: length of every source; None = a random length for each example, within those of the training.

    Returns:
        Sequences, padded to the longest that is possible; with a `length` none needs padding.
    """
    draw = _Numbers(key, numbers)
    span = problem.longest - problem.shortest + 1
    lengths = problem.shortest + draw.below(span, 1) if length is None else torch.full_like(numbers[:, None], length)
    most = problem.longest if length is None else length
    if problem.name == "recall":
        source, target, sizes = _recalled(draw, lengths, most, whole=length is not None)
    else:
        source, sizes = draw.below(problem.words, most), (lengths, lengths)
        target = _rearranged(problem, source, lengths)
    return _joined(problem, source, target, *sizes)


def _rearranged(problem: Problem, source: Tensor, lengths: Tensor) -> Tensor:
    """The first `lengths` symbols of the source as they are, reversed or sorted; what comes after them is arbitrary."""
    place = torch.arange(source.shape[1], device=source.device)
    if problem.name == "copy":
        return source
    if problem.name == "reverse":
        return source.gather(1, (lengths - 1 - place).clamp(min=0))
    return torch.where(place < lengths, source, problem.words).sort(-1).values


def _joined(problem: Problem, source: Tensor, target: Tensor, sources: Tensor, targets: Tensor) -> Examples:
    """Begin, source, separator, target, end, padding, of sources and targets of these sizes, (B, 1)."""
    begin, separator, end, padding = symbols(problem)
    place = torch.arange(source.shape[1] + target.shape[1] + 3, device=source.device)
    first = sources + 2
    of_source = source.gather(1, (place - 1).clamp(0, source.shape[1] - 1).expand(len(source), -1))
    of_target = target.gather(1, (place - first).clamp(0, target.shape[1] - 1))
    tokens = torch.where(place <= sources, of_source, of_target)
    for where, symbol in (
        (place == 0, begin),
        (place == first - 1, separator),
        (place == first + targets, end),
        (place > first + targets, padding),
    ):
        tokens = torch.where(where, symbol, tokens)
    return Examples(tokens, (place >= first) & (place <= first + targets))


def pairs_of(length: int | Tensor) -> int | Tensor:
    """How many pairs of a word and its value a source of this length holds: pairs are four fifths of its symbols."""
    return 2 * length // 15


def _recalled(
    draw: _Numbers, lengths: Tensor, longest: int, *, whole: bool
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Sources and targets of the recall problem, and their sizes.

    A pair is ``k k : v v`` and a space; further spaces make all pairs of a source equally long. After the pairs come
    queries of some of their words, and the target consists of the values of these words, in the order of the queries.
    """
    pairs = pairs_of(lengths)
    most = longest // 7 + 1  # a pair has 7 symbols or more
    width = lengths // pairs
    keys, values, before = draw.words(most), draw.words(most), _spaces_before(draw, width, most)
    asked = draw.below(pairs, QUERIES)
    # With one length for all sources, `size` is the length of their pairs, so that there is no padding.
    size = int(longest // int(pairs_of(longest)) * int(pairs_of(longest))) if whole else longest
    place = torch.arange(size, device=lengths.device)
    pair = (place // width).clamp(max=most - 1)
    inside = place % width - before.gather(1, pair)
    of_key, of_value = (_letters(words.gather(1, pair)) for words in (keys, values))
    text = torch.full_like(inside, SPACE)
    separator = torch.full_like(inside, OF_PAIR)
    for offset, symbol in enumerate((*of_key, separator, *of_value)):
        text = torch.where(inside == offset, symbol, text)
    first, second = (
        torch.stack([torch.full_like(asked, OF_QUERY), *_letters(words.gather(1, asked))], -1).flatten(1)
        for words in (keys, values)
    )
    used = width * pairs
    source = torch.cat([text, torch.zeros_like(first)], 1)
    place = torch.arange(source.shape[1], device=lengths.device)
    query = first.gather(1, (place - used).clamp(0, first.shape[1] - 1))
    source = torch.where(place < used, source, query)
    return source, second, (used + first.shape[1], torch.full_like(used, second.shape[1]))


def _spaces_before(draw: _Numbers, width: Tensor, count: int) -> Tensor:
    """How many of the `width` − 6 spaces of each pair stand before it, (B, count).

    The places of the spaces are drawn without replacement from `width` − 1 before the pair and `width` − 3 after it.
    """
    before = torch.zeros_like(width).expand(-1, count)
    for chosen in range(3):  # width is at most 9
        left = 2 * width - 4 - chosen
        is_before = draw.below(left, count) < width - 1 - before
        before = before + (is_before & (chosen < width - _PAIR))
    return before


def _letters(words: Tensor) -> tuple[Tensor, Tensor]:
    """The two letters of each word, as symbols."""
    return words // LETTERS + OF_QUERY + 1, words % LETTERS + OF_QUERY + 1
