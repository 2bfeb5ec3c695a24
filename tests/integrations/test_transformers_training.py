"""α that is annealed, learned, saved and loaded; a trained model that gets zeros and keeps its accuracy; pooling."""

import doctest
import gc
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest
import torch
from tiny_transformers import BERT, MODELS, padded_inputs, states, tiny

from forked import run_apart


@pytest.fixture(scope="module", autouse=True)
def integration():
    from transformers import Trainer  # noqa: F401, which imports much

    from contmax.integrations import transformers

    transformers.register()
    # At every training it looks for garbage; what was imported is none.
    gc.freeze()
    return transformers


def test_examples_in_docstrings_run(integration):
    for found in pkgutil.iter_modules(integration.__path__, integration.__name__ + "."):
        result = doctest.testmod(
            importlib.import_module(found.name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        )
        assert result.failed == 0, found.name


@pytest.mark.parametrize(("page", "count"), [("transformers.md", 7), ("convert-a-pretrained-model.md", 5)])
def test_the_guide_runs_from_top_to_bottom(page, count, tmp_path, monkeypatch):
    guide = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", guide, flags=re.DOTALL | re.MULTILINE)
    assert len(snippets) >= count
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "guide"}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"snippet {number} of {page}", "exec"), names)


# One word of four, somewhere among words that mean nothing, is the label of every word of the sentence.
def sentences(count, seed):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(10, 50, (count, 8), generator=generator)
    label = torch.randint(0, 4, (count,), generator=generator)
    place = torch.randint(1, 7, (count,), generator=generator)
    words[torch.arange(count), place] = 2 + label
    words[:, 0] = 1
    return words, label.unsqueeze(-1).repeat(1, 8)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.words, self.label = sentences(count, seed)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.label[index]}


def trainer(model, folder, steps, callbacks=(), **options):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=5e-3,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        **{"save_strategy": "no", **options},
    )
    return Trainer(
        model, arguments, train_dataset=Sentences(2000, 1), eval_dataset=Sentences(300, 2), callbacks=list(callbacks)
    )


def watched():
    """A callback, and the list of α at the beginning of each step that it fills."""
    from transformers import TrainerCallback

    alphas = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, model, **context):
            alphas.append(model.config.entmax_alpha)

    return Watch(), alphas


def accuracy_and_zeros(model):
    words, label = sentences(300, 2)
    with torch.no_grad():
        output = model.eval()(input_ids=words, output_attentions=True)
    weights = torch.cat([layer.flatten() for layer in output.attentions])
    return (output.logits.argmax(-1) == label).float().mean().item(), (weights == 0).float().mean().item()


@pytest.fixture(scope="module")
def annealed(integration, tmp_path_factory):
    """A model trained with softmax, fine-tuned with entmax: accuracy and zeros before and after, α on the way."""
    from transformers import BertConfig, BertForTokenClassification

    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    dropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(**BERT | {"hidden_size": 32} | dropped, num_labels=4)
    model = BertForTokenClassification(config)
    trainer(model, folder, 60).train()
    model.save_pretrained(folder / "softmax")

    watch, alphas = watched()
    model = BertForTokenClassification.from_pretrained(folder / "softmax", attn_implementation="entmax")
    integration.set_alpha(model, 1.0)
    before = accuracy_and_zeros(model)
    trainer(model, folder, 40, [integration.AlphaSchedule(1.5, rise=0.5), watch]).train()
    return model, before, accuracy_and_zeros(model), alphas


def test_a_trained_model_gets_zeros_and_keeps_its_accuracy(annealed):
    model, (accuracy_before, zeros_before), (accuracy, zeros), alphas = annealed
    assert accuracy_before > 0.95
    assert zeros_before == 0
    assert accuracy >= accuracy_before - 0.01
    assert zeros > 0.5
    assert alphas[0] == 1.0
    assert alphas == sorted(alphas)
    assert alphas[20:] == [1.5] * 20
    assert len(set(alphas)) == 21
    assert model.config.entmax_alpha == 1.5


def test_a_schedule_begins_with_softmax_and_ends_with_its_goal(integration):
    schedule = integration.AlphaSchedule([1.3, 1.7], rise=1.0)
    assert schedule.alpha_after(0) == [1.0, 1.0]
    assert schedule.alpha_after(1) == [1.3, 1.7]
    assert schedule.alpha_after(0.5) == pytest.approx([1.15, 1.35])
    for goal, options in ((0.0, {}), (float("nan"), {}), ([], {}), (1.5, {"rise": 0.0}), (1.5, {"rise": 1.5})):
        with pytest.raises(ValueError, match=r"goal|rise"):
            integration.AlphaSchedule(goal, **options)


def test_a_checkpoint_has_the_alpha_of_its_step_and_the_best_comes_with_its_own(integration, tmp_path):
    from transformers import BertConfig, BertForTokenClassification

    model = BertForTokenClassification._from_config(
        BertConfig(**BERT, num_labels=4), attn_implementation="entmax", dtype=torch.float32
    )
    options = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
    schedule = integration.AlphaSchedule(1.8, rise=1.0)
    run = trainer(model, tmp_path, 4, [schedule], **options)
    run.train()
    assert json.loads((tmp_path / "checkpoint-2" / "config.json").read_text())["entmax_alpha"] == pytest.approx(1.4)
    assert model.config.entmax_alpha == pytest.approx(1 + 0.8 * run.state.best_global_step / 4)
    watch, alphas = watched()
    resumed = trainer(model, tmp_path, 4, [schedule, watch])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert alphas == pytest.approx([1.4, 1.6])
    assert model.config.entmax_alpha == 1.8


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "vit"])
def test_a_learned_alpha_has_gradients_and_is_kept(name, integration, tmp_path):
    model, inputs = tiny(name), padded_inputs(name)
    integration.make_alpha_learnable(model, 1.3)
    learned = {key: p for key, p in model.named_parameters() if key.endswith("entmax_alpha.alpha_logit")}
    assert len(learned) == (6 if name == "t5" else 2)
    assert all(len(p) == (4 if name == "llama" else 2) for p in learned.values())
    states(model(**inputs)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in learned.values())
    with torch.no_grad():
        for p in learned.values():
            p.add_(torch.randn_like(p))
        expected = states(model(**inputs))
    model.save_pretrained(tmp_path)
    again, report = type(model).from_pretrained(tmp_path, attn_implementation="entmax", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        assert torch.equal(states(again(**inputs)), expected)
    later = type(model).from_pretrained(tmp_path)  # with softmax, which knows nothing of α
    later.set_attn_implementation("entmax")
    with torch.no_grad():
        assert torch.equal(states(later(**inputs)), expected)


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_a_learned_alpha_outlives_another_end_of_construction(name, integration):
    """Classes on top of a model call `post_init` once more, which initialises what seems to have no values yet."""
    model = tiny(name)
    integration.make_alpha_learnable(model, 1.3)
    learned = {key: p for key, p in model.named_parameters() if key.endswith("entmax_alpha.alpha_logit")}
    with torch.no_grad():
        for p in learned.values():
            p.add_(torch.randn_like(p))
    expected = {key: p.detach().clone() for key, p in learned.items()}
    model.post_init()
    found = dict(model.named_parameters())
    assert all(found[key] is p for key, p in learned.items())
    assert all(torch.equal(found[key], p) for key, p in expected.items())


def test_a_checkpoint_without_alpha_starts_from_the_configuration(integration, tmp_path):
    tiny("bert", entmax_alpha=1.25).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"entmax_alpha_learnable": True}))
    from transformers import BertModel

    model = BertModel.from_pretrained(tmp_path, attn_implementation="entmax")
    alpha = model.encoder.layer[0].attention.self.entmax_alpha.alpha
    assert torch.allclose(alpha, torch.full((2,), 1.25))


def test_alpha_that_cannot_be_is_refused(integration):
    model = tiny("bert")
    for alpha, meaning in (
        (0.0, "positive"),
        ([], "positive"),
        ([1.5], "one per layer, 2"),
        (float("nan"), "positive"),
        (None, "positive, .*; got None"),
        ("1.5", "positive, .*; got '1.5'"),
        (torch.tensor(1.5), r"positive, .*; got tensor\(1.5"),
    ):
        with pytest.raises(ValueError, match=meaning):
            integration.set_alpha(model, alpha)
    model.config.entmax_alpha = [1.5, 1.5, 1.5]
    with pytest.raises(ValueError, match="one per layer, 2"):
        model(**padded_inputs("bert"))
    model.config.entmax_alpha = 1.0
    with pytest.raises(ValueError, match=r"inside \(1, 2\)"):
        integration.make_alpha_learnable(model)
    assert not any("alpha" in name for name, _ in model.named_parameters())
    integration.make_alpha_learnable(model, 1.5)
    with pytest.raises(ValueError, match="learns its α"):
        integration.set_alpha(model, 1.5)
    with pytest.raises(ValueError, match="no entmax attention"):
        integration.make_alpha_learnable(tiny("bert", "sdpa"))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_alpha_of_a_model_with_softmax_cannot_be_set(integration, implementation):
    model = tiny("t5", implementation)
    with pytest.raises(ValueError, match=r"has no entmax attention\. Call model\.set_attn_implementation"):
        integration.set_alpha(model, 1.5)
    assert not hasattr(model.config, "entmax_alpha")
    model.set_attn_implementation("entmax")
    integration.set_alpha(model, 1.25)
    assert model.config.entmax_alpha == 1.25


def test_a_configuration_with_alpha_and_softmax_is_noticed(capfd):
    from contmax.integrations.transformers import _registration

    _registration.logger.warning_once.cache_clear()
    tiny("bert", "sdpa", entmax_alpha=1.75)
    assert "config.entmax_alpha is 1.75, but attention is sdpa" in capfd.readouterr().err


LOADED = """
import sys, torch
assert "transformers" not in sys.modules
from transformers import BertForTokenClassification
from contmax.integrations import transformers as entmax
entmax.register()
model = BertForTokenClassification.from_pretrained("model", attn_implementation="entmax").eval()
with torch.no_grad():
    found = model(torch.load("words.pt")).logits
assert torch.equal(found, torch.load("expected.pt")), found
pooling = entmax.ContinuousPooling.from_pretrained("pooling")
with torch.no_grad():
    assert torch.equal(pooling(torch.load("states.pt")), torch.load("pooled.pt"))
"""


def test_another_process_gets_the_same_numbers(annealed, integration, tmp_path):
    model = annealed[0].eval()
    words, _ = sentences(5, 3)
    pooling, hidden = integration.ContinuousPooling(16, num_basis=8).eval(), torch.randn(3, 20, 16)
    with torch.no_grad():
        torch.save(model(words).logits, tmp_path / "expected.pt")
        torch.save(pooling(hidden), tmp_path / "pooled.pt")
    torch.save(words, tmp_path / "words.pt")
    torch.save(hidden, tmp_path / "states.pt")
    model.save_pretrained(tmp_path / "model")
    pooling.save_pretrained(tmp_path / "pooling")
    run_apart(LOADED, tmp_path)


def test_pooling_on_an_encoder_learns_and_is_kept(integration, tmp_path):
    encoder, inputs = tiny("bert"), padded_inputs("bert")
    pooling = integration.ContinuousPooling(encoder.config.hidden_size, num_basis=8, alpha=1.5)
    hidden = encoder(**inputs).last_hidden_state
    pooling(hidden, inputs["attention_mask"]).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in pooling.parameters())
    pooling.eval()
    pooled, density = pooling(hidden, inputs["attention_mask"], need_density=True)
    assert pooled.shape == (2, 16)
    assert density.half_width.shape == (2,)
    assert torch.allclose(pooling(hidden[1:, :6])[0], pooled[1], atol=1e-5)  # padding does not matter
    pooling.save_pretrained(tmp_path)
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept == {"embed_dim": 16, "num_basis": 8, "alpha": 1.5, "penalty": 0.01}
    card = (tmp_path / "README.md").read_text()
    assert "library_name: contmax" in card
    assert "ContinuousPooling.from_pretrained" in card
    again = integration.ContinuousPooling.from_pretrained(tmp_path).eval()
    assert torch.equal(again(hidden, inputs["attention_mask"]), pooled)


def test_registering_again_changes_nothing(integration):
    from transformers import PreTrainedModel

    before = PreTrainedModel.post_init, PreTrainedModel.set_attn_implementation
    integration.register()
    assert before == (PreTrainedModel.post_init, PreTrainedModel.set_attn_implementation)
    assert len(MODELS) == 14
