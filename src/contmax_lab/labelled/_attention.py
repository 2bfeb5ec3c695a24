"""The attention of a network, as its settings say."""

from contmax.basis import Basis
from contmax_lab.attention import AttentionHeads
from contmax_lab.settings import AttentionModel


def attention_over(basis: Basis, width: int, model: AttentionModel) -> AttentionHeads:
    """The heads.

    Args:
        basis: functions on the line or the plane.
        width: channels of what is attended to.
        model: the settings.
    """
    return AttentionHeads(model.heads, model.attention, width, model.alpha, basis, learnable=model.learn_alpha)
