"""Places: is what is attended to where the answer is?

Utterances at random places in noise, alone, in pairs or with gaps, and digits at random places in clutter: where the
answer is, is known, but models learn from the answers alone. The data is that of the tasks vowels and digits.
"""

from contmax_lab.tasks.places._settings import PlacesData as PlacesData
from contmax_lab.tasks.places._settings import PlacesModel as PlacesModel
