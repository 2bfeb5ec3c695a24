"""Questions about images: modular co-attention, and an attention over the image that is discrete or continuous."""

from contmax_lab.tasks.vqa._settings import VqaData as VqaData
from contmax_lab.tasks.vqa._settings import VqaModel as VqaModel
