"""Pairs of sentences that a test can generate, in each published layout, and a recipe on them that trains quickly."""

import random
from pathlib import Path

import torch

from contmax_lab.contract import Recipe
from contmax_lab.registry import load_recipe

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}


def pairs(count: int, seed: int, longest: int = 4) -> list[tuple[str, str]]:
    """Numbers, and the same numbers in the other order; no sentence twice."""
    draw = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        words = draw.choices(list(WORDS), k=draw.randint(1, longest))
        found[" ".join(words).capitalize() + "."] = " ".join(WORDS[word] for word in reversed(words)) + "."
    return list(found.items())


def write_parallel(folder: Path, name: str, found: list[tuple[str, str]]) -> Path:
    """NAME.de and NAME.en."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, ending in enumerate(("de", "en")):
        lines = "".join(f"{pair[side]}\n" for pair in found)
        (folder / f"{name}.{ending}").write_text(lines, encoding="utf-8")
    return folder / name


def write_multi30k(folder: Path, train=40, valid=9, test=7) -> Path:
    found = pairs(train + valid + test, 0)
    parts = {"train": found[:train], "val": found[train : train + valid], "test_2016_flickr": found[train + valid :]}
    for name, own in parts.items():
        write_parallel(folder, name, own)
    write_parallel(folder, "test_2017_flickr", pairs(3, 5))
    return folder


def write_tatoeba(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    found = pairs(56, 0)
    for name, own in (("train", found[:40]), ("valid", found[40:49]), ("test", found[49:])):
        (folder / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in own), encoding="utf-8")
    return folder


def write_iwslt(folder: Path) -> Path:
    """train.tags.de-en.de, IWSLT17.TED.dev2010.de-en.de.xml, and two years of tests."""
    folder.mkdir(parents=True, exist_ok=True)
    found = pairs(56, 0)
    for side, ending in enumerate(("de", "en")):
        tags = "<url>http://www.ted.com/</url>\n<keywords>a, b</keywords>\n<talkid>1</talkid>\n<title>T</title>\n"
        # A sentence that nobody has translated stands in the published file as well.
        missing = "Ohne Übersetzung.\n" if ending == "de" else "\n"
        lines = tags + missing + "".join(f" {pair[side]} \n" for pair in found[:40])
        (folder / f"train.tags.de-en.{ending}").write_text(lines, encoding="utf-8")
        for name, own in (("dev2010", found[40:49]), ("tst2010", found[49:52]), ("tst2011", found[52:])):
            segments = "".join(f'<seg id="{n}"> {pair[side]} </seg>\n' for n, pair in enumerate(own, start=1))
            content = f'<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n<doc>\n{segments}</doc>\n</mteval>\n'
            (folder / f"IWSLT17.TED.{name}.de-en.{ending}.xml").write_text(content, encoding="utf-8")
    return folder


def tiny_recipe(folder: Path, *overrides: str, name: str = "translation/multi30k") -> Recipe:
    """A few units, short translations; so many merges that most words are one piece: a step takes as long as it has."""
    if not (folder / "train.de").exists():
        write_multi30k(folder)
    small = {
        "data.path": folder,
        "data.merges": 100,
        "model.embedding_dim": 12,
        "model.encoder_dim": 10,
        "model.decoder_dim": 12,
        "model.max_output": 12,
        "model.beam": 2,
        "training.batch_tokens": 90,
        "training.epochs": 1,
        "training.warmup_steps": 0,
    }
    return load_recipe(name, [*(f"--{key}={value}" for key, value in small.items()), *overrides])


def padded_and_alone(translator):
    """What it guesses for a pair that is padded beside a longer one, and for the pair alone; both must be the same.

    The longer pair has pieces everywhere.
    """
    source = torch.tensor([[5, 9, 3, 0, 0, 0], [7, 8, 9, 10, 11, 3]])
    target = torch.tensor([[2, 6, 3, 0, 0], [2, 6, 12, 13, 3]])
    together = translator({"source": source, "target": target})
    alone = translator({"source": source[:1, :3], "target": target[:1, :3]})
    torch.testing.assert_close(together.logits[:1, :2], alone.logits)
    torch.testing.assert_close(together.look.weights[:1, :2, :3], alone.look.weights)
    assert not together.look.weights[0, :, 3:].any()
    return together, alone
