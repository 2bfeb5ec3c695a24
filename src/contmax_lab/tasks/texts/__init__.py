"""Texts of the user's own, with classes or numbers as labels: reviews and stars, messages and topics.

Word vectors that are learned, a convolution, an attention over the words, a linear decision.
"""

from contmax_lab.tasks.texts._data import Texts as Texts
from contmax_lab.tasks.texts._data import TextsData as TextsData
from contmax_lab.tasks.texts._data import load as load
from contmax_lab.tasks.texts._model import TextReader as TextReader
from contmax_lab.tasks.texts._model import TextsModel as TextsModel
from contmax_lab.tasks.texts._task import TextsTask as TextsTask
from contmax_lab.tasks.texts._words import split_words as split_words

TASK = TextsTask()
