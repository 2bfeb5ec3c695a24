"""Film reviews that a test can generate, in each published layout, and a recipe on them that trains in a second."""

import random
from pathlib import Path

import numpy as np

from contmax_lab.contract import Recipe
from contmax_lab.registry import load_recipe

GOOD, BAD = ("wonderful", "moving", "superb"), ("dull", "wooden", "boring")
NEUTRAL = ("the", "film", "is", "a", "plot", "and", "with", "actors", ".", ",", "n't", "'s")
WORDS = (*NEUTRAL, *GOOD, *BAD)
DIM = 6


def texts(count: int, seed: int) -> list[tuple[int, str]]:
    """Labels and texts of 3 to 20 words, one of which gives the label away."""
    draw = random.Random(seed)
    reviews = []
    for place in range(count):
        label = place * 2 // count
        words = draw.choices(NEUTRAL[:10], k=draw.randint(2, 19))
        words.insert(draw.randint(0, len(words)), draw.choice(GOOD if label else BAD))
        reviews.append((label, " ".join(words)))
    return reviews


def write_table(folder: Path, train=None, test=None) -> Path:
    """imdb_{train,test}.tsv."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, reviews in (("train", train or texts(80, 0)), ("test", test or texts(30, 1))):
        lines = [f"{label}\t{place}\t{9 if label else 2}\t{text}" for place, (label, text) in enumerate(reviews)]
        (folder / f"imdb_{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write_archive(folder: Path) -> Path:
    """aclImdb/{train,test}/{pos,neg}/ID_STARS.txt."""
    for part, reviews in (("train", texts(80, 0)), ("test", texts(30, 1))):
        for place, (label, text) in enumerate(reviews):
            side = folder / "aclImdb" / part / ("pos" if label else "neg")
            side.mkdir(parents=True, exist_ok=True)
            (side / f"{place:03d}_{9 if label else 2}.txt").write_text(text, encoding="utf-8")
    return folder


def vectors() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(WORDS), DIM)).astype(np.float16)


def write_text_vectors(folder: Path) -> Path:
    path = folder / "glove.tiny.txt"
    lines = [
        " ".join([word, *(f"{x:.6f}" for x in row)]) for word, row in zip(WORDS, vectors().astype(float), strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_array_vectors(folder: Path) -> Path:
    np.save(folder / "tiny.f16.npy", vectors())
    (folder / "tiny.vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return folder / "tiny.f16.npy"


def tiny_recipe(folder: Path, *overrides: str, name: str = "documents/imdb") -> Recipe:
    """Eight units, four basis functions, batches of an odd size."""
    if not (folder / "imdb_train.tsv").exists():
        write_text_vectors(write_table(folder))
    small = {
        "data.path": folder,
        "model.hidden_dim": 8,
        **({"model.num_basis": 4} if name.startswith("documents/") else {}),
        "training.batch_size": 25,
        "training.epochs": 2,
    }
    return load_recipe(name, [*(f"--{key}={value}" for key, value in small.items()), *overrides])
