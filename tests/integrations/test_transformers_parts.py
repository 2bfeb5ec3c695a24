"""α of models inside modules and of composite models, and what a schedule says of a model with softmax."""

import pytest
import torch
from tiny_transformers import BERT, WIDTHS, padded_inputs, tiny


@pytest.fixture(scope="module", autouse=True)
def integration():
    from contmax.integrations import transformers

    transformers.register()
    return transformers


class Wrapped(torch.nn.Module):
    """A module of one's own around a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_a_model_inside_a_module(name, integration, tmp_path):
    model, inputs = tiny(name), padded_inputs(name)
    integration.set_alpha(Wrapped(model), 1.2)
    assert model.config.entmax_alpha == 1.2
    integration.make_alpha_learnable(Wrapped(model))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="entmax")
    with torch.no_grad():
        assert torch.equal(again(**inputs)[0], model(**inputs)[0])
    assert sum("alpha_logit" in key for key, _ in again.named_parameters()) == (6 if name == "t5" else 2)


@pytest.fixture
def clip():
    from transformers import CLIPConfig, CLIPModel

    seen = {**WIDTHS, "num_hidden_layers": 3, "image_size": 16, "patch_size": 4, "projection_dim": 8}
    config = CLIPConfig(text_config={**BERT, "projection_dim": 8}, vision_config=seen, projection_dim=8)
    return CLIPModel._from_config(config, attn_implementation="entmax")


def test_alpha_that_does_not_fit_a_part_changes_none(clip, integration):
    integration.set_alpha(clip, 1.3)
    with pytest.raises(ValueError, match="3 for CLIPVisionConfig; got 2"):
        integration.set_alpha(clip, [1.2, 1.4])
    assert {c.entmax_alpha for c in (clip.config, clip.config.text_config, clip.config.vision_config)} == {1.3}


def test_only_parts_with_entmax_learn(clip, integration):
    clip.set_attn_implementation({"vision_config": "sdpa"})
    integration.make_alpha_learnable(clip)
    assert clip.config.entmax_alpha_learnable
    assert clip.config.text_config.entmax_alpha_learnable
    assert not hasattr(clip.config.vision_config, "entmax_alpha_learnable")
    assert sum("alpha_logit" in key for key, _ in clip.named_parameters()) == 2


def test_a_schedule_for_softmax_is_refused(integration):
    from transformers import TrainerControl, TrainerState

    schedule, state = integration.AlphaSchedule(1.5, rise=1.0), TrainerState(max_steps=4)
    with pytest.raises(ValueError, match="BertModel has no entmax attention"):
        schedule.on_train_begin(None, state, TrainerControl(), model=tiny("bert", "sdpa"))
    model = tiny("bert")
    schedule.on_train_begin(None, state, TrainerControl(), model=Wrapped(model))
    assert model.config.entmax_alpha == 1.0
