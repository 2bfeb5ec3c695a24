"""Series of the user's own, with classes or numbers as labels: sensors and faults, patients and outcomes.

Observations at any times, a convolution over them, an attention over time, a linear decision.
"""

from contmax_lab.tasks.series._data import Series as Series
from contmax_lab.tasks.series._data import SeriesData as SeriesData
from contmax_lab.tasks.series._data import load as load
from contmax_lab.tasks.series._model import SeriesModel as SeriesModel
from contmax_lab.tasks.series._model import SeriesReader as SeriesReader
from contmax_lab.tasks.series._task import SeriesTask as SeriesTask

TASK = SeriesTask()
