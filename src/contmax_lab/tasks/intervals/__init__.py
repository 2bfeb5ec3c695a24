"""Interval regression: tomorrow's lowest and highest temperature from those of the days before.

Martins et al. 2020, section on interval regression: a small network predicts a density, trained by the Fenchel–Young
loss against a density that stands for the observed interval. On the authors' own data, daily temperatures of Ithaca
(``--data.path``), or on those of Seattle that come with vega_datasets.
"""

from contmax_lab.tasks.intervals._settings import IntervalsData as IntervalsData
from contmax_lab.tasks.intervals._settings import IntervalsModel as IntervalsModel
