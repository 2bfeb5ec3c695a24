"""An LSTM under autocast on a CPU: the same everywhere, also where oneDNN has none in bfloat16."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from contmax_lab.recurrent import LSTM, Bidirectional
from contmax_lab.tasks.documents import DocumentsModel
from contmax_lab.tasks.documents._model import Reader

HALVES = [torch.bfloat16, torch.float16]


def lstms(**options):
    """torch's and ours, with the same weights."""
    torch.manual_seed(0)
    theirs, ours = (kind(5, 4, batch_first=True, **options) for kind in (nn.LSTM, LSTM))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def states_and_gradients(lstm, inputs, state=None):
    states, last = lstm(inputs, state)
    states.sin().sum().backward()
    return [states, *last, *(weight.grad for weight in lstm.parameters())]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}])
def test_autocast_on_the_cpu_changes_nothing(half, options):
    theirs, ours = lstms(**options)
    inputs = torch.randn(3, 7, 5)
    expected = states_and_gradients(theirs, inputs)
    with torch.autocast("cpu", half):
        got = states_and_gradients(ours, inputs)
        with torch.inference_mode():
            torch.testing.assert_close(ours(inputs)[0], expected[0], rtol=1e-5, atol=1e-6)
        assert (inputs @ inputs.mT).dtype == half
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_rounded_inputs_and_states_and_packed_ones_are_taken():
    theirs, ours = lstms()
    inputs, state = torch.randn(3, 7, 5).bfloat16(), tuple(torch.randn(1, 3, 4).bfloat16() for _ in range(2))
    expected = states_and_gradients(theirs, inputs.float(), tuple(s.float() for s in state))
    lengths = torch.tensor([7, 4, 2])
    with torch.autocast("cpu", torch.bfloat16):
        got = states_and_gradients(ours, inputs, state)
        packed, _ = ours(pack_padded_sequence(inputs, lengths, batch_first=True))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    plain, _ = theirs(pack_padded_sequence(inputs.float(), lengths, batch_first=True))
    torch.testing.assert_close(packed.data, plain.data)


def test_weights_decide_about_the_precision():
    theirs, ours = (lstm.double() for lstm in lstms())
    inputs = torch.randn(3, 7, 5).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(inputs)[0], theirs(inputs)[0])


def test_without_autocast_it_is_the_lstm_of_torch():
    theirs, ours = lstms(num_layers=2)
    inputs = torch.randn(3, 7, 5)
    assert torch.equal(copy.deepcopy(ours)(inputs)[0], theirs(inputs)[0])
    assert torch.equal(ours.bfloat16()(inputs.bfloat16())[0], theirs.bfloat16()(inputs.bfloat16())[0])


# -- documents; test_vqa.py has a step of the other network with an LSTM, test_language.py a training in bfloat16 ------


@pytest.mark.parametrize("attention", ["discrete", "continuous", "combined"])
def test_a_reader_reads_under_autocast(attention):
    torch.manual_seed(0)
    reader = Reader(DocumentsModel(attention=attention, hidden_dim=8, num_basis=4, dropout=0.0), torch.randn(12, 5))
    tokens = torch.randint(1, 12, (3, 9))
    with torch.autocast("cpu", torch.bfloat16):
        logits = reader({"tokens": tokens}).logits
        logits.sum().backward()
    torch.testing.assert_close(logits.float(), reader({"tokens": tokens}).logits, rtol=0.05, atol=0.02)
    assert all(weight.grad.isfinite().all() for weight in reader.encoder.parameters())


def test_the_states_of_a_reader_are_not_rounded():
    torch.manual_seed(0)
    encoder, vectors, mask = Bidirectional("lstm", 5, 8), torch.randn(3, 9, 5), torch.ones(3, 9, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        states = encoder(vectors, mask)
    assert torch.equal(states, encoder(vectors, mask))
