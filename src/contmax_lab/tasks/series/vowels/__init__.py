"""Speakers: who of nine men says two Japanese vowels, from 7 to 29 frames of 12 cepstral coefficients.

The task series, on real speech that comes with aeon: the JapaneseVowels data of Kudo, Toyama & Shimbo (1999) with its
published split.
"""

from contmax_lab.tasks.series.vowels._settings import VowelsData as VowelsData
