"""Machine translation: a sentence into another language.

Martins et al. 2020, section on machine translation: a bidirectional GRU reads the source sentence, a GRU with input
feeding says the translation piece by piece, and for every piece an attention looks at the source: discrete, continuous
or both. Beside it stands a small transformer, with softmax or α-entmax. On Multi30k, Tatoeba, IWSLT 2017
(``--data.path``) or pairs of your own (``--data.train``).
"""

from contmax_lab.tasks.translation._attention import SourceAttention as SourceAttention
from contmax_lab.tasks.translation._beam import Decoding as Decoding
from contmax_lab.tasks.translation._beam import beam_search as beam_search
from contmax_lab.tasks.translation._data import TranslationData as TranslationData
from contmax_lab.tasks.translation._data import load as load
from contmax_lab.tasks.translation._model import Guesses as Guesses
from contmax_lab.tasks.translation._model import TranslationModel as TranslationModel
from contmax_lab.tasks.translation._model import Translator as Translator
from contmax_lab.tasks.translation._task import Translation as Translation
from contmax_lab.tasks.translation._transformer import Transformer as Transformer

TASK = Translation()
