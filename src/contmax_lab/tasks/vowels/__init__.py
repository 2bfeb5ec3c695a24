"""Speakers: who of nine men says two Japanese vowels, from 7 to 29 frames of 12 cepstral coefficients.

Attention over time, on real speech that comes with aeon: the JapaneseVowels data of Kudo, Toyama & Shimbo (1999) with
its published split, 270 utterances to train (of which some are kept for validation) and 370 to test.
"""

from contmax_lab.tasks.vowels._data import VowelsData as VowelsData
from contmax_lab.tasks.vowels._model import Answer as Answer
from contmax_lab.tasks.vowels._model import Listener as Listener
from contmax_lab.tasks.vowels._model import VowelsModel as VowelsModel
from contmax_lab.tasks.vowels._task import Vowels as Vowels

TASK = Vowels()
