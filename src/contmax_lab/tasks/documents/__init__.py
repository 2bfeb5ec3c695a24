"""Document classification: is a film review positive or negative?

Martins et al. 2020, section on document classification: word vectors, a bidirectional LSTM, an attention over the words
of a review, discrete, continuous or both, and one logit. On the authors' own data, the IMDB reviews of Maas et al. 2011
(``--data.path``).
"""

from contmax_lab.tasks.documents._data import Documents as Documents
from contmax_lab.tasks.documents._data import DocumentsData as DocumentsData
from contmax_lab.tasks.documents._data import load as load
from contmax_lab.tasks.documents._model import DocumentsModel as DocumentsModel
from contmax_lab.tasks.documents._model import Encoder as Encoder
from contmax_lab.tasks.documents._model import Reader as Reader
from contmax_lab.tasks.documents._prepared import FIRST_WORD as FIRST_WORD
from contmax_lab.tasks.documents._prepared import PADDING as PADDING
from contmax_lab.tasks.documents._prepared import UNKNOWN as UNKNOWN
from contmax_lab.tasks.documents._reading import Reading as Reading
from contmax_lab.tasks.documents._task import DocumentClassification as DocumentClassification
from contmax_lab.tasks.documents._tokens import tokenize as tokenize

TASK = DocumentClassification()
