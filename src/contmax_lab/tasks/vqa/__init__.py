"""Questions about images: modular co-attention, and an attention over the image that is discrete or continuous."""

from contmax_lab.tasks.vqa._answers import normalised as normalised
from contmax_lab.tasks.vqa._answers import soft_accuracy as soft_accuracy
from contmax_lab.tasks.vqa._data import VqaData as VqaData
from contmax_lab.tasks.vqa._data import load as load
from contmax_lab.tasks.vqa._extraction import GridNetwork as GridNetwork
from contmax_lab.tasks.vqa._extraction import extract as extract
from contmax_lab.tasks.vqa._features import open_features as open_features
from contmax_lab.tasks.vqa._model import CoAttentionNetwork as CoAttentionNetwork
from contmax_lab.tasks.vqa._model import VqaModel as VqaModel
from contmax_lab.tasks.vqa._reduction import Reduction as Reduction
from contmax_lab.tasks.vqa._task import VisualQuestionAnswering as VisualQuestionAnswering
from contmax_lab.tasks.vqa._wordnet import Nouns as Nouns
from contmax_lab.tasks.vqa._wordnet import wups as wups

TASK = VisualQuestionAnswering()
