"""One of the networks, by its settings; how fast its parameters learn."""

from collections.abc import Sequence

from torch import nn

import contmax
from contmax_lab.channels._boosting import Boosting
from contmax_lab.channels._intervals import Intervals
from contmax_lab.channels._linear import Logistic
from contmax_lab.channels._observations import Sizes
from contmax_lab.channels._recurrent import GruD, Mtan
from contmax_lab.contract import ParameterGroup
from contmax_lab.settings import ChannelsModel

# The linear part, which is solved for before the training, has a tenth of the learning rate.
_PACE_OF_START = 0.1


def network_of(model: ChannelsModel, basis: contmax.basis.GaussianBasis, sizes: Sizes) -> nn.Module:
    """The network that the settings name.

    Args:
        model: its configuration.
        basis: of the signals.
        sizes: of the data.
    """
    if model.kind == "intervals":
        return Intervals(model, basis, sizes)
    kinds = {"logistic": Logistic, "boosting": Boosting, "gru-d": GruD, "mtan": Mtan}
    return kinds[model.kind](model, sizes)


def paces(network: nn.Module) -> Sequence[ParameterGroup]:
    """Three groups: the linear part and the places of intervals, without weight decay, and the other parameters."""
    named = dict(network.named_parameters())
    start = [name for name in named if "skip." in name]
    places = [name for name in named if name.rpartition(".")[2] in ("location", "log_scale", "alpha_logit")]
    rest = [named[name] for name in named if name not in (*start, *places)]
    return (
        ParameterGroup([named[name] for name in start], learning_rate=_PACE_OF_START, weight_decay=0.0),
        ParameterGroup([named[name] for name in places], weight_decay=0.0),
        ParameterGroup(rest),
    )
