"""Networks for multivariate series whose channels are observed at times of their own: no grid, nothing filled in.

They take batches with a ``summary`` (B, S) of each series, at whose end static numbers stand, and either ``signals``
(B, C, K, 4) or single observations, padded to (B, L): ``values``, ``position`` in [0, 1], ``hours``, ``span``,
``channel`` and ``mask``. They return logits, (B,) for two classes and (B, outputs) for more. Times are in units in
which the longest series has 48, whence the word hours.
"""

from contmax_lab.channels._boosting import Boosting as Boosting
from contmax_lab.channels._intervals import Intervals as Intervals
from contmax_lab.channels._linear import LinearStart as LinearStart
from contmax_lab.channels._linear import logistic_regression as logistic_regression
from contmax_lab.channels._networks import network_of as network_of
from contmax_lab.channels._networks import paces as paces
from contmax_lab.channels._observations import HOURS as HOURS
from contmax_lab.channels._observations import Sizes as Sizes
from contmax_lab.channels._observations import basis_of as basis_of
from contmax_lab.channels._observations import hours_of as hours_of
from contmax_lab.channels._observations import observations as observations
from contmax_lab.channels._observations import signals as signals
from contmax_lab.channels._observations import spans as spans
from contmax_lab.channels._observations import warped as warped
from contmax_lab.channels._observations import weights_and_intensity as weights_and_intensity
from contmax_lab.channels._recurrent import Mtan as Mtan
from contmax_lab.channels._recurrent import distinct_times as distinct_times
from contmax_lab.channels._recurrent import last_seen as last_seen
