"""Texts of the user's own, with classes or numbers as labels: reviews and stars, messages and topics.

Word vectors that are learned, a convolution, an attention over the words, a linear decision.
"""

from contmax_lab.tasks.texts._settings import TextsData as TextsData
from contmax_lab.tasks.texts._settings import TextsModel as TextsModel
