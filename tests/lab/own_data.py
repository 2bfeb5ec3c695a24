"""Data as users have it: a table of texts, a table of series, folders of images."""

import csv
import math
import random

from PIL import Image, ImageDraw

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
