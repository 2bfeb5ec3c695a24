"""α-entmax in `transformers`: attention with exact zeros in any model that follows its attention interface.

.. code-block:: python

    from contmax.integrations import transformers as entmax
    entmax.register()
    model = AutoModel.from_pretrained(name, attn_implementation="entmax")

α is 1.5 unless the configuration sets ``entmax_alpha``, one for all layers or one per layer. `set_alpha` changes it,
`AlphaSchedule` raises it from 1 during fine-tuning with `transformers.Trainer`, and `make_alpha_learnable` lets each
head learn its own.
"""

from contmax.integrations.transformers._attention import ContinuousPooling as ContinuousPooling
from contmax.integrations.transformers._attention import EntmaxLogitsProcessor as EntmaxLogitsProcessor
from contmax.integrations.transformers._attention import KeyPagesCache as KeyPagesCache
from contmax.integrations.transformers._registration import AlphaSchedule as AlphaSchedule
from contmax.integrations.transformers._registration import make_alpha_learnable as make_alpha_learnable
from contmax.integrations.transformers._registration import register as register
from contmax.integrations.transformers._registration import set_alpha as set_alpha
