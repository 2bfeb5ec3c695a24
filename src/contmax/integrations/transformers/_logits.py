"""Sampling words by α-entmax."""

import torch
from transformers import LogitsProcessor

from contmax.maps import entmax


class EntmaxLogitsProcessor(LogitsProcessor):
    r"""Lets `generate` sample from exactly the words to which α-entmax gives a positive probability.

    .. math:: z \mapsto \ln\,\alpha\text{-entmax}(z)

    Words of probability zero get −∞, and the softmax of the result is the entmax of the logits. It comes before
    ``temperature``, ``top_k`` and ``top_p``: pass ``top_k=0``, since `generate` has 50 by default.

    Args:
        alpha: α > 0; 1 is softmax, larger values keep fewer words.

    Raises:
        ValueError: if α is not positive.

    Example:
        >>> import torch
        >>> EntmaxLogitsProcessor(2.0)(None, torch.tensor([[1.0, 0.5, -1.0]])).exp()
        tensor([[0.7500, 0.2500, 0.0000]])

    With a model: ``model.generate(**inputs, do_sample=True, top_k=0, logits_processor=[EntmaxLogitsProcessor(1.5)])``.

    Reference: Martins, Marinho & Martins 2020 (Sparse text generation).
    """

    def __init__(self, alpha: float = 1.5) -> None:
        if not 0 < alpha < float("inf"):
            raise ValueError(f"α must be positive; got {alpha}. 1 is softmax; 1.5 is a good choice.")
        self.alpha = float(alpha)

    def __call__(self, input_ids: torch.LongTensor | None, scores: torch.Tensor) -> torch.Tensor:
        """Logarithms of the probabilities, (B, V).

        Args:
            input_ids: the words so far, which do not matter.
            scores: logits of the next word, (B, V).
        """
        return entmax(scores, self.alpha).log()
