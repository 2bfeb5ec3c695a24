"""Language: which word comes next, and which came before?

An encoder that has learned to answer reads better afterwards: a run of this task is what ``--model.start`` of
``documents`` takes (Dai and Le 2015, Semi-supervised sequence learning). It learns from the training reviews
without their labels and from nothing else; validation reviews decide which of its epochs is kept.
"""

from contmax_lab.tasks.documents.language._settings import LanguageModel as LanguageModel
