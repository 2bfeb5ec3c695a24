"""Machine translation: a sentence into another language.

Martins et al. 2020, section on machine translation: a bidirectional GRU reads the source sentence, a GRU with input
feeding says the translation piece by piece, and for every piece an attention looks at the source: discrete, continuous
or both. Beside it stands a small transformer, with softmax or α-entmax. On Multi30k, Tatoeba, IWSLT 2017
(``--data.path``) or pairs of your own (``--data.train``).
"""

from contmax_lab.tasks.translation._settings import TranslationData as TranslationData
from contmax_lab.tasks.translation._settings import TranslationModel as TranslationModel
