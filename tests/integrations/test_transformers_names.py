"""The inside of the installed `transformers` is what the integration takes it for."""

import inspect
import re
from pathlib import Path

import pytest

# Own parameters of the extended methods, in front of whatever else a version adds.
EXTENDED = {
    "__init__": ["self", "config"],
    "post_init": ["self"],
    "set_attn_implementation": ["self", "attn_implementation"],
    "_initialize_weights": ["self", "module"],
    "_from_config": ["cls", "config"],
    "from_pretrained": ["cls", "pretrained_model_name_or_path"],
}


@pytest.mark.parametrize("name", EXTENDED)
def test_extended_methods_take_what_is_passed_on(name):
    from transformers import PreTrainedModel

    from contmax.integrations.transformers import _registration

    assert _registration.EXTENDED.keys() == EXTENDED.keys()
    method = vars(PreTrainedModel)[name]
    assert isinstance(method, classmethod) == name.startswith(("_from", "from"))
    function = inspect.unwrap(getattr(method, "__func__", method))
    assert list(inspect.signature(function).parameters)[: len(EXTENDED[name])] == EXTENDED[name]


def test_private_names_exist():
    import transformers
    from transformers import BertConfig, BertModel, initialization, modeling_utils
    from transformers.utils.output_capturing import _active_collector

    assert _active_collector.get() is None
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    assert BertModel._can_set_attn_implementation()
    assert BertModel(config).config._attn_implementation in transformers.AttentionInterface()
    for module in (initialization, modeling_utils):
        assert "_is_hf_initialized" in inspect.getsource(module)


def test_every_attention_with_a_softmax_of_its_own_is_declared():
    """In files of models that follow the interface; and every declared ending is that of a class."""
    import transformers.models

    from contmax.integrations.transformers._layers import _OWN_SOFTMAX

    undeclared, names = set(), set()
    for path in Path(transformers.models.__file__).parent.glob("*/modeling_*.py"):
        source = path.read_text(encoding="utf-8")
        # The rule by which transformers itself refuses a model.
        settable = "ALL_ATTENTION_FUNCTIONS.get_interface(" in source
        settable = settable or not re.search(r"^class \w*Attention\w*\(nn\.Module\):", source, re.MULTILINE)
        for part in re.split(r"^(?=class )", source, flags=re.MULTILINE)[1:]:
            # What follows a class at the left margin is a function, such as eager_attention_forward.
            own = re.split(r"^(?=\S)", part, flags=re.MULTILINE)[1]
            name = re.match(r"class (\w+)", own)[1]
            names.add(name)
            by_itself = re.search(r"\bsoftmax\(", own) and "ALL_ATTENTION_FUNCTIONS" not in own
            if settable and by_itself and "Attention" in name and not name.endswith(_OWN_SOFTMAX):
                undeclared.add(name)
    assert undeclared == set()
    assert {ending for ending in _OWN_SOFTMAX if not any(name.endswith(ending) for name in names)} == set()
