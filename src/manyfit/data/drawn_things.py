"""Birds, fish and lifeless things: the kinds of drawing that have no four legs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from manyfit.data.drawn_shapes import Sketch, any_colour, curve, shaded

ORANGE = (224, 150, 50)
BLACK = (20, 18, 20)


def _draw_bird(sketch: Sketch, rng: np.random.Generator) -> None:
    for x in (-0.15, 0.2):
        sketch.stroke([(x, 0.6), (x + 0.05, 1.4)], 0.07, ORANGE)
    sketch.shape([(-0.7, 0.1), (-1.8, rng.uniform(-0.3, 0.5)), (-1.6, 0.7)], "dark")
    sketch.oval(0, 0.1, 1.0, rng.uniform(0.6, 0.8), "fur", -0.3)
    sketch.shape([(1.2, -0.8), (1.9, rng.uniform(-0.75, -0.5)), (1.2, -0.45)], ORANGE)
    sketch.oval(0.85, -0.6, 0.5, 0.48, "fur")
    sketch.oval(1.02, -0.7, 0.12, 0.12, BLACK)
    sketch.oval(-0.2, 0.1, 0.65, 0.34, "dark", rng.uniform(-0.7, 0.3))


def _draw_owl(sketch: Sketch, rng: np.random.Generator) -> None:
    sketch.oval(0, 0.4, 0.85, 1.1, "fur")
    sketch.oval(0, 0.6, 0.5, 0.75, "light")
    for side in (-1, 1):
        sketch.shape([(side * 0.25, -0.95), (side * 0.7, -1.45), (side * 0.75, -0.7)], "fur")
        sketch.oval(side * 0.82, 0.5, 0.25, 0.75, "dark", -side * 0.15)
    sketch.oval(0, -0.5, 0.85, 0.66, "fur")
    pupil = rng.uniform(0.12, 0.22)
    for side in (-1, 1):
        sketch.oval(side * 0.36, -0.5, 0.34, 0.34, (236, 220, 150))
        sketch.oval(side * 0.36, -0.5, pupil, pupil, BLACK)
    sketch.shape([(-0.13, -0.35), (0.13, -0.35), (0, 0.0)], ORANGE)


def _draw_fish(sketch: Sketch, rng: np.random.Generator) -> None:
    sketch.shape([(-0.9, 0), (-1.8, -0.7), (-1.5, 0), (-1.8, 0.7)], "dark")
    sketch.shape([(-0.5, -0.4), (0.1, rng.uniform(-1.3, -0.9)), (0.5, -0.4)], "dark")
    sketch.oval(0, 0, 1.2, rng.uniform(0.55, 0.8), "fur")
    sketch.shape([(0.1, 0.1), (-0.4, 0.6), (0.3, 0.4)], "light")
    sketch.oval(0.72, -0.15, 0.14, 0.14, (240, 240, 236))
    sketch.oval(0.74, -0.15, 0.07, 0.07, BLACK)


def _draw_snail(sketch: Sketch, rng: np.random.Generator) -> None:
    sketch.stroke(curve((-1.4, 0.75), (0.3, 0.8), (1.2, 0.6)), 0.4, "light")
    sketch.stroke([(1.15, 0.6), (1.4, 0.0)], 0.34, "light")
    for x in (1.3, 1.65):
        sketch.stroke([(1.4, 0.0), (x, -0.6)], 0.08, "light")
        sketch.oval(x, -0.62, 0.1, 0.1, BLACK)
    radius = rng.uniform(0.75, 0.95)
    for share in (1.0, 0.7, 0.42, 0.18):
        sketch.oval(-0.1, 0.05, radius * share, radius * share, "fur" if share in (1.0, 0.42) else "dark")


def _draw_car(sketch: Sketch, rng: np.random.Generator) -> None:
    body = any_colour(rng)
    roof = rng.uniform(0.4, 0.7)
    sketch.shape([(-0.9, -0.2), (-roof, -0.9), (roof, -0.9), (1.0, -0.2)], body)
    sketch.shape([(-0.7, -0.22), (-roof + 0.08, -0.75), (-0.05, -0.75), (-0.05, -0.22)], (190, 214, 226))
    sketch.shape([(0.05, -0.22), (0.05, -0.75), (roof - 0.08, -0.75), (0.78, -0.22)], (190, 214, 226))
    sketch.shape([(-1.5, -0.2), (1.5, -0.2), (1.6, 0.5), (-1.5, 0.5)], body)
    for x in (-0.85, 0.9):
        sketch.oval(x, 0.5, 0.38, 0.38, (30, 30, 32))
        sketch.oval(x, 0.5, 0.18, 0.18, (170, 170, 174))


def _draw_house(sketch: Sketch, rng: np.random.Generator) -> None:
    wall = any_colour(rng)
    height = rng.uniform(0.9, 1.3)
    sketch.shape([(-1.0, -0.2), (1.0, -0.2), (1.0, height), (-1.0, height)], wall)
    sketch.shape([(-1.25, -0.2), (rng.uniform(-0.3, 0.3), -1.3), (1.25, -0.2)], any_colour(rng))
    sketch.shape([(-0.2, height), (-0.2, 0.4), (0.2, 0.4), (0.2, height)], any_colour(rng))
    for x in (-0.6, 0.6):
        sketch.shape([(x - 0.2, 0.05), (x + 0.2, 0.05), (x + 0.2, 0.4), (x - 0.2, 0.4)], (240, 226, 150))


def _draw_tree(sketch: Sketch, rng: np.random.Generator) -> None:
    leaves = any_colour(rng)
    sketch.stroke([(0, 0), (0, 1.6)], rng.uniform(0.2, 0.4), "dark")
    if rng.random() < 0.5:
        for level in (0.7, 0.1, -0.5):
            half = 0.65 + 0.35 * level
            sketch.shape([(-half, level), (0, level - 1.0), (half, level)], leaves)
    else:
        for x, y in rng.uniform(-0.6, 0.6, (7, 2)):
            sketch.oval(x, y - 0.5, 0.55, 0.5, shaded(leaves, rng.uniform(0.8, 1.2)))


def _draw_flower(sketch: Sketch, rng: np.random.Generator) -> None:
    petal = any_colour(rng)
    sketch.stroke(curve((0, 0), (0.2, 0.8), (rng.uniform(-0.2, 0.2), 1.7)), 0.12, any_colour(rng))
    count = int(rng.integers(5, 10))
    for angle in np.linspace(0, 2 * np.pi, count, endpoint=False):
        sketch.oval(0.6 * np.cos(angle), 0.6 * np.sin(angle) - 0.4, 0.42, 0.24, petal, angle)
    sketch.oval(0, -0.4, 0.32, 0.32, any_colour(rng))


def _draw_boat(sketch: Sketch, rng: np.random.Generator) -> None:
    sketch.stroke([(0, 0.5), (0, -1.4)], 0.09, "dark")
    sketch.shape([(0.08, -1.3), (0.08, 0.3), (rng.uniform(0.8, 1.2), 0.3)], any_colour(rng))
    sketch.shape([(-0.08, -1.0), (-0.08, 0.3), (-0.8, 0.3)], any_colour(rng))
    sketch.shape([(-1.4, 0.5), (1.4, 0.5), (0.9, 1.1), (-0.9, 1.1)], any_colour(rng))


THINGS: dict[str, Callable[[Sketch, np.random.Generator], None]] = {
    "bird": _draw_bird,
    "owl": _draw_owl,
    "fish": _draw_fish,
    "snail": _draw_snail,
    "car": _draw_car,
    "house": _draw_house,
    "tree": _draw_tree,
    "flower": _draw_flower,
    "boat": _draw_boat,
}
