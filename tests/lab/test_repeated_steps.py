"""Parts of batches that come again in the same shape: when they are recorded, and what is played then."""

import contextlib

import pytest
import torch
from test_recorded_steps import events  # noqa: F401, a fixture

from contmax_lab import recorded
from contmax_lab.recorded import RepeatedParts


def parts_of(learned):
    def learn(batch):
        learned.append(int(batch["x"].sum()))
        return batch["x"].sum().double().reshape(1)

    return RepeatedParts(learn, "cpu")


def batch(value, length=2):
    return {"x": torch.full((length,), value)}


def test_a_shape_is_recorded_at_its_third_visit(events, monkeypatch):  # noqa: F811
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    learned = []
    parts = parts_of(learned)
    # Another shape in between is another matter.
    found = [int(parts(batch(value, length))) for value, length in ((1, 2), (2, 2), (5, 3), (3, 2))]
    assert (found, events) == ([2, 4, 15, 6], ["wait", "wait"])
    # Recorded and played; the stand-in for a device plays nothing, so the result is that of the recording.
    assert int(parts(batch(4))) == 8
    assert events[2:] == ["record", "recorded", "play"]
    assert learned == [2, 4, 15, 6, 8]
    # What is played finds the batch where it was recorded.
    parts(batch(7))
    assert int(next(iter(parts._recorded.values()))._batch["x"].sum()) == 14
    assert events[5:] == ["play"]
    assert len(learned) == 5


def test_only_so_many_shapes_are_recorded(events, monkeypatch):  # noqa: F811
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(recorded, "_MOST", 1)
    parts = parts_of([])
    for length in (2, 3) * 6:
        assert int(parts(batch(1, length))) == (length if length == 3 or "play" not in events else 2)
    assert len(parts._recorded) == 1


def test_what_does_not_fit_is_not_recorded(events, monkeypatch):  # noqa: F811
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")

    @contextlib.contextmanager
    def full(graph, pool, capture_error_mode):
        raise torch.OutOfMemoryError
        yield

    learned = []
    parts = parts_of(learned)
    for _ in range(4):
        parts(batch(1))
    monkeypatch.setattr(torch.cuda, "graph", full)
    for length in (3,) * 6:
        assert int(parts(batch(1, length))) == length
    # The first shape is played as before, the second is learned as it is, every time once.
    assert (list(parts._recorded), len(learned)) == ([(("x", torch.Size([2]), torch.int64),)], 4 + 6)
    parts(batch(1))
    assert events[-1] == "play"


def test_a_step_that_does_not_fit_fails(events, monkeypatch):  # noqa: F811
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    learned = []

    def learn(sent):
        learned.append(1)
        if len(learned) == 3:
            raise torch.OutOfMemoryError
        return sent["x"].sum()

    parts = RepeatedParts(learn, "cpu")
    parts(batch(1)), parts(batch(1))
    with pytest.raises(torch.OutOfMemoryError):
        parts(batch(1))


def test_a_result_stays_when_the_next_part_is_played(events, monkeypatch):  # noqa: F811
    class Played:
        """A step that is taken at every call, as a device would play it."""

        def __init__(self, step, rehearsals, **shared):
            self._step = step

        def __call__(self):
            self._step()

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(recorded, "RecordedStep", Played)
    parts = parts_of([])
    found = [parts(batch(value)) for value in range(6)]
    assert len(parts._recorded) == 1
    assert [int(result) for result in found] == [0, 2, 4, 6, 8, 10]
