"""Places: the data, in which it is known where the answer is."""

import re

import pytest
import torch

from contmax_lab.data import Images, Recordings
from contmax_lab.errors import LabError
from contmax_lab.registry import find_task
from contmax_lab.tasks.places import PlacesData, _scenes

TASK = find_task("places")
LOUD = 100.0


def loud(count, sign=1.0, speaker=0):
    """Utterances whose frames nobody takes for noise: the k-th is ±(100 + k), in 5 to 9 frames."""
    series = [torch.full((5 + i % 5, 3), sign * (LOUD + i)) for i in range(count)]
    return Recordings(series, torch.full((count,), speaker))


def inside(batch):
    """Which observations lie in the true interval."""
    where = batch.get("positions", (torch.arange(batch["mask"].shape[1]) + 0.5) / batch["mask"].sum(-1, keepdim=True))
    return (where > batch["low"]) & (where < batch["high"]) & batch["mask"]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# -- data --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratios", [(4.0, 4.0), (16.0, 16.0), (1.5, 8.0), (1.0, 1.0)])
def test_an_utterance_lies_where_it_is_said_to(ratios):
    source = loud(60)
    batch = _scenes.one_in_noise(source, ratios)
    is_loud = batch["frames"].abs().amin(-1) > LOUD / 2
    assert torch.equal(is_loud, inside(batch))
    for row, series in enumerate(source.series):
        torch.testing.assert_close(batch["frames"][row][is_loud[row]], series)
    length = torch.tensor([len(series) for series in source.series])
    ratio = batch["mask"].sum(-1) / length
    assert bool(((ratio >= ratios[0] - 0.1) & (ratio <= ratios[1] + 0.1)).all())
    assert bool((batch["frames"][~batch["mask"]] == 0).all())
    # Everywhere: from the very beginning to the very end.
    if ratios[0] > 1:
        assert float(batch["low"].min()) < 0.1
        assert float(batch["high"].max()) > 0.9


def test_noise_is_white_and_as_loud_as_speech():
    batch = _scenes.one_in_noise(loud(200), (16.0, 16.0))
    noise = batch["frames"][batch["mask"] & ~inside(batch)]
    torch.testing.assert_close(noise.mean(0), torch.zeros(3), atol=0.03, rtol=0)
    torch.testing.assert_close(noise.T.cov(), torch.eye(3), atol=0.03, rtol=0)


def test_two_utterances_do_not_overlap_and_the_query_names_the_one_that_is_asked_for():
    rising = [torch.arange(8.0).unsqueeze(-1).expand(8, 3) + LOUD for _ in range(200)]
    asked = Recordings(rising, torch.arange(200) % 4)
    batch = _scenes.two_in_noise(asked, loud(200, sign=-1), 9)
    frames = batch["frames"][..., 0]
    own = frames > LOUD / 2
    assert torch.equal(own, inside(batch))
    other = {**batch, "low": batch["other_low"], "high": batch["other_high"]}
    assert torch.equal(frames < -LOUD / 2, inside(other))
    assert torch.equal(batch["query"].argmax(-1), asked.label)
    for row in range(200):
        falls = bool(frames[row][own[row]].diff().lt(0).all())
        assert falls == bool(batch["label"][row])
    assert 0.3 < float(batch["label"].float().mean()) < 0.7
    assert 0.3 < float((batch["low"] < batch["other_low"]).float().mean()) < 0.7


def test_of_two_in_turn_the_first_takes_longer_and_frames_do_not_tell():
    batch = _scenes.two_in_turn(loud(300, speaker=3), loud(300, sign=-1))
    frames = batch["frames"][..., 0]
    longer, shorter = (frames > LOUD / 2).sum(-1), (frames < -LOUD / 2).sum(-1)
    share = longer / (longer + shorter)
    assert bool((batch["label"] == 3).all())
    assert 0.58 < float(share.min()) < float(share.max()) < 0.72
    assert torch.equal(frames.abs() > LOUD / 2, inside(batch))
    # Half of the time the longer one comes second.
    first = frames.gather(1, (frames.abs() > LOUD / 2).float().argmax(-1, keepdim=True)) > 0
    assert 0.4 < float(first.float().mean()) < 0.6


@pytest.mark.parametrize("dropped", [0.3, 0.5, 0.7])
def test_irregular_series_keep_their_times_and_lose_the_share_they_should(dropped):
    whole = _scenes.two_in_turn(loud(300), loud(300, sign=-1))
    seen = _scenes.irregular(whole, dropped)
    share = seen["mask"].sum() / whole["mask"].sum()
    assert float(share) == pytest.approx(1 - dropped, abs=0.03)
    assert bool((seen["positions"].diff(dim=-1) >= 0).all())
    index = (seen["positions"] * whole["mask"].shape[1]).long()
    for row in range(20):
        kept = seen["mask"][row]
        torch.testing.assert_close(seen["frames"][row][kept], whole["frames"][row][index[row][kept]])
    is_loud = (seen["frames"][..., 0].abs() > LOUD / 2) & seen["mask"]
    assert torch.equal(is_loud, inside(seen))
    # There are long gaps: independent frames would leave one of this length in hardly any series.
    gap = torch.where(seen["mask"][:, 1:], seen["positions"].diff(dim=-1), 0).amax(-1)
    assert float(gap.median()) > 0.08


def test_digits_lie_in_their_box_and_fragments_around():
    bright = Images(torch.full((50, 8, 8), 5.0), torch.arange(50) % 10)
    dim = Images(torch.full((30, 8, 8), 0.5), torch.zeros(30, dtype=torch.long))
    batch = _scenes.digit_in_clutter(bright, dim)
    rows = (torch.arange(24) + 0.5) / 24
    within = [(rows > batch["low"][:, i, None]) & (rows < batch["high"][:, i, None]) for i in range(2)]
    box = within[0].unsqueeze(2) & within[1].unsqueeze(1)
    assert torch.equal(batch["pixels"] > 3, box)
    assert torch.equal(batch["label"], bright.digit)
    clutter = batch["pixels"][~box] > 0.25
    assert 0.05 < float(clutter.float().mean()) < 0.25


def test_other_frame_rates_keep_the_duration():
    slow = Recordings([torch.linspace(0, 1, 12).unsqueeze(-1).expand(12, 3)], torch.zeros(1))
    fast = _scenes.resampled(slow, 2.0)
    assert len(fast.series[0]) == 24
    assert bool((fast.series[0][:, 0].diff() >= 0).all())


def test_seeds_reproduce_splits_share_nothing_and_training_moves():
    data = PlacesData()
    one, two = TASK.load(data, seed=0), TASK.load(data, seed=1)
    torch.testing.assert_close(one.test.examples, two.test.examples)
    assert not torch.equal(one.train.batch([0])["low"], one.train.batch([0])["low"])
    assert (len(one.train), len(one.valid), len(one.test)) == (216, 54 * 4, 370)
    assert "background" in one.test.examples
    assert "background" not in one.valid.examples
    known = {tuple(series[0].tolist()) for series in one.train.source.series}
    for part in (one.valid.examples, one.test.examples):
        first = part["frames"][torch.arange(len(part["label"])), inside(part).float().argmax(-1)]
        assert not known & {tuple(frame.tolist()) for frame in first}


@pytest.mark.parametrize(
    ("kind", "sizes", "frames", "channels", "classes"),
    [("motion", (32, 8 * 2, 40 * 3), 100, 6, 4), ("rows", (1197, 200 * 2, 400 * 3), 8, 8, 10)],
)
def test_other_recordings_are_hidden_as_utterances_are(kind, sizes, frames, channels, classes):
    splits = TASK.load(PlacesData(kind=kind, valid_places=2, test_places=3), seed=0)
    assert (len(splits.train), len(splits.valid), len(splits.test)) == sizes
    assert (splits.info["channels"], splits.info["classes"], splits.info["query_dim"]) == (channels, classes, 0)
    batch = splits.test.examples
    assert batch["frames"].shape == (sizes[2], 4 * frames, channels)
    assert bool((inside(batch).sum(-1) == frames).all())
    assert sorted(batch["label"].unique().tolist()) == list(range(classes))
    # As loud as the noise, over the training examples; each at several places.
    assert float(torch.cat(splits.train.source.series).std()) == pytest.approx(1, abs=0.02)
    first = sizes[2] // 3
    assert torch.equal(batch["label"][:first], batch["label"][first : 2 * first])
    assert not torch.equal(batch["low"][:first], batch["low"][first : 2 * first])


def test_a_folder_takes_the_place_of_installed_packages(tmp_path, monkeypatch):
    from contmax_lab.data import _packaged

    inside_packages = _packaged.require_folder("sklearn", "") / "datasets" / "data" / "digits.csv.gz"
    (tmp_path / "digits.csv.gz").write_bytes(inside_packages.read_bytes())
    monkeypatch.setattr(_packaged, "require_folder", lambda *_: pytest.fail("no package is needed"))
    for kind in ("digit", "rows"):
        assert len(TASK.load(PlacesData(kind=kind, path=tmp_path), seed=0).train) == 1197
    with pytest.raises(LabError, match=r"BasicMotions_TRAIN.ts: no such file"):
        TASK.load(PlacesData(kind="motion", path=tmp_path), seed=0)


@pytest.mark.parametrize("labelled", [0.0, 0.1, 1.0])
def test_so_many_spans_are_known(labelled):
    splits = TASK.load(PlacesData(labelled=labelled), seed=0)
    assert int(splits.train.spans.sum()) == round(216 * labelled)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (PlacesData(shortest=5.0, longest=2.0), "5 to 2 times as long"),
        (PlacesData(shortest=0.5), "1 <= --data.shortest"),
        (PlacesData(kind="turns", dropped=1.0), "--data.dropped below 1"),
    ],
)
def test_impossible_data_is_one_line(data, says):
    with pytest.raises(LabError, match=re.escape(says)):
        TASK.load(data, seed=0)
