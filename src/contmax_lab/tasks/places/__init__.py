"""Places: is what is attended to where the answer is?

Utterances at random places in noise, alone, in pairs or with gaps, and digits at random places in clutter: where the
answer is, is known, but models learn from the answers alone. The data is that of the tasks vowels and digits.
"""

from contmax_lab.tasks.places._data import Fixed as Fixed
from contmax_lab.tasks.places._data import Moving as Moving
from contmax_lab.tasks.places._data import PlacesData as PlacesData
from contmax_lab.tasks.places._model import Answer as Answer
from contmax_lab.tasks.places._model import Finder as Finder
from contmax_lab.tasks.places._model import PlacesModel as PlacesModel
from contmax_lab.tasks.places._task import Places as Places

TASK = Places()
