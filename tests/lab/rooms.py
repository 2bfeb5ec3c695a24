"""Small data for questions about images: features by hand, images that are drawn, a WordNet of a dozen nouns."""

import csv
import gzip
import json

import numpy as np

from contmax_lab.tasks.vqa import VqaModel

COLOURS = ("red", "green", "blue", "white")
_SIZES = {"layers": 1, "heads": 2, "hidden_dim": 16, "fused_dim": 16, "flat_dim": 8, "word_dim": 8, "functions": 4}
SMALL_MODEL = VqaModel(**_SIZES, variance=0.02, loss="categorical")
SMALL = (*(f"--model.{name}={size}" for name, size in _SIZES.items()), "--model.variance=0.02")


def colour_grids(folder, count=24, side=4):
    """A folder with a coloured cell somewhere in each grid, and a table that asks for the colour."""
    random = np.random.default_rng(0)
    (folder / "features").mkdir(parents=True)
    rows = []
    for number in range(count):
        colour = number % len(COLOURS)
        grid = 0.1 * random.standard_normal((side, side, len(COLOURS) + 1)).astype(np.float16)
        row, column = random.integers(side, size=2)
        grid[row, column, [colour, -1]] = 2.0
        np.save(folder / "features" / f"room{number}.npy", grid)
        rows.append({"image": f"room{number}.jpg", "question": "What colour is it?", "answer": COLOURS[colour]})
    return write_table(folder / "questions.csv", rows)


def write_table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def vqa2_files(folder, images, part, answers=("yes",) * 10, kind="yes/no"):
    """Questions and annotations in the original format, compressed."""
    questions = [{"image_id": image, "question": f"Is it {image}?", "question_id": image * 10} for image in images]
    annotations = [
        {
            "question_id": image * 10,
            "image_id": image,
            "answer_type": kind,
            "multiple_choice_answer": answers[0],
            "answers": [{"answer": answer, "answer_id": number} for number, answer in enumerate(answers)],
        }
        for image in images
    ]
    names = (f"v2_OpenEnded_mscoco_{part}2014_questions.json.gz", f"v2_mscoco_{part}2014_annotations.json.gz")
    for name, content in zip(names, ({"questions": questions}, {"annotations": annotations}), strict=True):
        (folder / name).write_bytes(gzip.compress(json.dumps(content).encode()))
    return [folder / name for name in names]


def tiny_wordnet(folder):
    """entity > thing > (furniture > (chair, table), animal > dog); entity > abstraction > number."""
    parents = {
        "entity": [],
        "thing": ["entity"],
        "abstraction": ["entity"],
        "furniture": ["thing"],
        "animal": ["thing"],
        "chair": ["furniture"],
        "table": ["furniture"],
        "dog": ["animal"],
        "number": ["abstraction"],
    }
    places = {name: f"{index:08d}" for index, name in enumerate(parents)}
    folder.mkdir(parents=True, exist_ok=True)
    licence = "  1 This software and database is being provided to you, the LICENSEE\n"
    lines = [
        f"{places[name]} 03 n 01 {name} 0 {len(up):03d} {''.join(f'@ {places[p]} n 0000 ' for p in up)}| a {name}  \n"
        for name, up in parents.items()
    ]
    (folder / "data.noun").write_text(licence + "".join(lines))
    index = [f"{name} n 1 1 @ 1 0 {places[name]}  \n" for name in sorted(parents)]
    # A bank of two senses: a table, and an animal.
    index.append(f"bank n 2 1 @ 2 0 {places['table']} {places['dog']}  \n")
    (folder / "index.noun").write_text(licence + "".join(index))
    (folder / "noun.exc").write_text("chairen chair\n")
    return folder
