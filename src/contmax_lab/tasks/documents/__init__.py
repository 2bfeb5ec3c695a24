"""Document classification: is a film review positive or negative?

Martins et al. 2020, section on document classification: word vectors, a bidirectional LSTM, an attention over the words
of a review, discrete, continuous or both, and one logit. On the authors' own data, the IMDB reviews of Maas et al. 2011
(``--data.path``).
"""

from contmax_lab.tasks.documents._settings import DocumentsData as DocumentsData
from contmax_lab.tasks.documents._settings import DocumentsModel as DocumentsModel
