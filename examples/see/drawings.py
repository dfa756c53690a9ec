"""Drawings of shapes, and what is asked and said about them.

A drawing has one or two groups of equal shapes; of two, one is left of the other, or above it.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

SIZE = 256  # pixels of an edge
COLORS = {
    "red": (214, 40, 40),
    "green": (46, 139, 70),
    "blue": (38, 84, 200),
    "yellow": (240, 200, 30),
    "black": (25, 25, 25),
}
SHAPES = ("circle", "square", "triangle")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
MAX_COUNT = 3
RADII = (22, 32)  # pixels
QUESTIONS = {
    "describe": ("What do you see?", "Describe the picture.", "What is in this image?"),
    "count": ("How many shapes are there?", "Count the shapes."),
    "color": ("Which colors are there?", "What colors do you see?"),
}


class Group(NamedTuple):
    """Some shapes that look alike."""

    count: int
    color: str
    shape: str

    @property
    def text(self) -> str:
        """What it is called."""
        return f"{NUMBERS[self.count]} {self.color} {self.shape}{'' if self.count == 1 else 's'}"


class Scene(NamedTuple):
    """What is drawn."""

    groups: tuple[Group, ...]  # the left one first, or the upper one
    relation: str = ""  # of the first to the second

    def answer(self, kind: str) -> str:
        """Return the answer to a kind of question."""
        if kind == "count":
            text = NUMBERS[sum(group.count for group in self.groups)]
        elif kind == "color":
            text = " and ".join(dict.fromkeys(group.color for group in self.groups))
        else:
            text = f" {self.relation} ".join(group.text for group in self.groups)
        return f"{text[0].upper()}{text[1:]}."


def scene(chosen: random.Random, *, most_groups: int = 2) -> Scene:
    """Choose what is drawn."""
    groups = tuple(
        Group(chosen.randint(1, MAX_COUNT), chosen.choice(list(COLORS)), chosen.choice(SHAPES))
        for _ in range(chosen.randint(1, most_groups))
    )
    if len(groups) == 1:
        return Scene(groups)
    while groups[1][1:] == groups[0][1:]:  # they would be one group
        groups = (groups[0], groups[1]._replace(color=chosen.choice(list(COLORS)), shape=chosen.choice(SHAPES)))
    return Scene(groups, chosen.choice(("left of", "above")))


def draw(drawn: Scene, chosen: random.Random) -> Image.Image:
    """Draw a scene: where each shape lies in its part of the picture, and how large it is, is chosen."""
    light = tuple(chosen.randint(225, 255) for _ in range(3))
    picture = Image.new("RGB", (SIZE, SIZE), light)
    pencil = ImageDraw.Draw(picture)
    half = SIZE // 2
    parts = {
        "": [(0, 0, SIZE, SIZE)],
        "left of": [(0, 0, half, SIZE), (half, 0, SIZE, SIZE)],
        "above": [(0, 0, SIZE, half), (0, half, SIZE, SIZE)],
    }
    for group, part in zip(drawn.groups, parts[drawn.relation], strict=True):
        red, green, blue = (min(255, max(0, value + chosen.randint(-18, 18))) for value in COLORS[group.color])
        for x, y, radius in _places(group.count, part, chosen):
            box = (x - radius, y - radius, x + radius, y + radius)
            match group.shape:
                case "circle":
                    pencil.ellipse(box, fill=(red, green, blue))
                case "square":
                    pencil.rectangle(box, fill=(red, green, blue))
                case _:
                    corners = ((x, y - radius), (x - radius, y + radius), (x + radius, y + radius))
                    pencil.polygon(corners, fill=(red, green, blue))
    return picture


def _places(count: int, part: Sequence[int], chosen: random.Random) -> list[tuple[int, int, int]]:
    """Return middles and radii of shapes that do not touch."""
    left, top, right, bottom = part
    while True:
        places: list[tuple[int, int, int]] = []
        for _ in range(50):
            radius = chosen.randint(*RADII)
            x = chosen.randint(left + radius + 4, right - radius - 4)
            y = chosen.randint(top + radius + 4, bottom - radius - 4)
            if all(max(abs(x - u), abs(y - v)) > radius + r + 6 for u, v, r in places):
                places.append((x, y, radius))
            if len(places) == count:
                return places
