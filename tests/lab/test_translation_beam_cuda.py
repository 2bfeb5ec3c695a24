"""On a GPU the steps of a beam search are recorded: what is said is what steps one by one say."""

import pytest
import torch

from cuda_checks import DEVICE, ON_GPU

pytestmark = pytest.mark.gpu

for package in ("accelerate", "jsonargparse", "safetensors", "tokenizers", "yaml"):
    pytest.importorskip(package)

from contmax_lab.tasks.translation import TranslationModel, _beam  # noqa: E402, below what may be missing
from contmax_lab.tasks.translation._model import Translator  # noqa: E402


@pytest.mark.parametrize("kind", [("discrete", 1.0), ("combined", 2.0), ("continuous", 1.0)])
@pytest.mark.parametrize("beam", [1, 4])
def test_recorded_searches_say_the_same(monkeypatch, kind, beam):
    torch.manual_seed(0)
    attention, alpha = kind
    sizes = {"embedding_dim": 7, "encoder_dim": 5, "decoder_dim": 6, "beam": beam, "max_output": 30}
    model = Translator(TranslationModel(attention=attention, alpha=alpha, **sizes), vocabulary=20).eval().to(DEVICE)
    recorded, graph = [], torch.cuda.CUDAGraph
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: recorded.append("graph") or graph())
    sources = [torch.randint(4, 20, (sentences, 6), device=DEVICE) for sentences in (3, 5, 3)]
    found = [model.translated(source) for source in sources]
    assert len(recorded) == (3 if ON_GPU else 0)
    monkeypatch.setattr(_beam, "RecordedStep", lambda step, **options: step)
    for source, said in zip(sources, found, strict=True):
        assert torch.equal(model.translated(source), said)
