"""A small trained model that comes with the package: is a text positive or negative, and which words say so?

``model.safetensors`` (weights, float16), ``vocab.txt`` (the words it knows) and ``config.json`` (its configuration, how
it was trained, what was measured). ``contmax predict`` uses it; ``contmax export`` makes such a folder from a run.
"""

from contmax_lab.tasks.documents.pretrained._reader import EXAMPLES as EXAMPLES
from contmax_lab.tasks.documents.pretrained._reader import PretrainedReader as PretrainedReader
from contmax_lab.tasks.documents.pretrained._reader import Verdict as Verdict
from contmax_lab.tasks.documents.pretrained._reader import examples_section as examples_section
from contmax_lab.tasks.documents.pretrained._reader import export as export
