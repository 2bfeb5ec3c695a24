"""Series of the user's own, with classes or numbers as labels: sensors and faults, patients and outcomes.

Observations at any times, a convolution over them, an attention over time, a linear decision.
"""

from contmax_lab.tasks.series._settings import SeriesData as SeriesData
from contmax_lab.tasks.series._settings import SeriesModel as SeriesModel
