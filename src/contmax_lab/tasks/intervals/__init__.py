"""Interval regression: tomorrow's lowest and highest temperature from those of the days before.

Martins et al. 2020, section on interval regression: a small network predicts a density, trained by the Fenchel–Young
loss against a density that stands for the observed interval. On the authors' own data, daily temperatures of Ithaca
(``--data.path``), or on those of Seattle that come with vega_datasets.
"""

from contmax_lab.tasks.intervals._data import Days as Days
from contmax_lab.tasks.intervals._data import IntervalsData as IntervalsData
from contmax_lab.tasks.intervals._families import FAMILIES as FAMILIES
from contmax_lab.tasks.intervals._families import Family as Family
from contmax_lab.tasks.intervals._model import Forecast as Forecast
from contmax_lab.tasks.intervals._model import IntervalsModel as IntervalsModel
from contmax_lab.tasks.intervals._model import Network as Network
from contmax_lab.tasks.intervals._task import Intervals as Intervals

TASK = Intervals()
