"""Data as users have it: a table of texts, a table of series, folders of images; and what every task on it promises."""

import csv
import math
import random

from PIL import Image, ImageDraw

from contmax_lab.registry import open_trained

FILLING = ["the", "film", "was", "seen", "by", "us", "on", "a", "rainy", "day", "in", "town", "and", "we", "had", "tea"]
TELLING = {"1": ["dreadful", "boring"], "3": ["decent", "ordinary"], "5": ["superb", "wonderful"]}
HEADER = ["machine", "seconds", "level", "heat", "state"]


def reviews(path, count=180):
    """Two words tell the stars, somewhere."""
    draw = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["review", "stars"])
        for _ in range(count):
            stars = draw.choice("135")
            words = draw.choices(FILLING, k=draw.randint(5, 14))
            place = draw.randrange(len(words))
            words[place:place] = draw.choices(TELLING[stars], k=2)
            table.writerow([" ".join(words) + draw.choice([".", ',\n"he" said', ""]), stars])
    return path


def sensors(path, count=90):
    """At some time there is a peak, a dip or nothing; observations are irregular, machines begin at any time."""
    draw = random.Random(1)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(HEADER)
        for machine in range(count):
            state, begin = draw.choice(["ok", "peak", "dip"]), draw.uniform(0, 1000)
            time, middle = begin, draw.uniform(5, 15)
            for _ in range(draw.randint(14, 24)):
                time += draw.expovariate(1) + 0.01
                bump = {"ok": 0, "peak": 4, "dip": -4}[state] * math.exp(-(((time - begin - middle) / 3) ** 2))
                table.writerow([machine, time, draw.gauss(bump, 0.2), draw.gauss(20, 1), state])
    return path


def pictures(folder, count=24):
    """A disc or an outlined box somewhere on a dark ground."""
    draw = random.Random(0)
    for kind in ("disc", "box"):
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            image = Image.new("RGB", (30, 24), tuple(draw.randint(0, 60) for _ in range(3)))
            x, y = draw.randint(6, 24), draw.randint(6, 18)
            canvas, frame = ImageDraw.Draw(image), (x - 5, y - 5, x + 5, y + 5)
            if kind == "disc":
                canvas.ellipse(frame, fill="white")
            else:
                canvas.rectangle(frame, outline="white")
            image.save(folder / kind / f"{number}.png")
    return folder


def learns(recipe, examples=None):
    """Losses and gradients of the first training examples, or of all, are finite; there are as many heads as asked for.

    Returns:
        The network, its output and the batch.
    """
    task = recipe.task
    splits = task.load(recipe.data, 0)
    network = task.build(recipe.model, splits)
    batch = task.batch(splits.train, range(examples or len(splits.train)))
    output = network(batch)
    total, weight = task.loss(output, batch)
    total.sum().backward()
    assert total.isfinite().all()
    assert total.shape == weight.shape == (len(batch["target"]),)
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())
    assert len(output.heads) == recipe.model.heads
    return network, output, batch


def padding_changes_nothing(run):
    """A trained model answers the shortest validation example alone as it does beside the longest."""
    trained = open_trained(run)
    task, valid = trained.task, trained.splits.valid
    order = sorted(range(len(valid)), key=task.lengths(valid).__getitem__)
    alone = trained.model(task.batch(valid, order[:1])).scores
    beside = trained.model(task.batch(valid, [order[0], order[-1]])).scores
    assert (alone[0] - beside[0]).abs().max() < 1e-4
