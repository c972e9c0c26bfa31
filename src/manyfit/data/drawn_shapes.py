"""The drawing tools behind the drawn sample: a sketch in unit coordinates, coats, backgrounds and camera effects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

Colour = tuple[int, int, int]
Point = tuple[float, float]

# One palette for every animal and one for every eye, nose and object: colour must not tell the kinds apart.
COATS: tuple[Colour, ...] = (
    (40, 38, 40), (90, 66, 48), (140, 98, 60), (190, 140, 84), (214, 150, 80), (226, 200, 160),
    (238, 234, 226), (128, 128, 132), (90, 96, 108), (168, 88, 52), (178, 164, 150), (110, 80, 70),
)  # fmt: skip
EYES: tuple[Colour, ...] = ((104, 66, 30), (190, 140, 40), (110, 150, 60), (90, 140, 190), (70, 50, 40))
NOSES: tuple[Colour, ...] = ((30, 26, 28), (70, 44, 40), (214, 130, 130))
_CIRCLE = np.stack([np.cos(np.linspace(0, 2 * np.pi, 28)[:-1]), np.sin(np.linspace(0, 2 * np.pi, 28)[:-1])], axis=1)


def any_colour(rng: np.random.Generator) -> Colour:
    """Draw a colour of any hue and lightness, half drained of its saturation."""
    channels = rng.uniform(15, 240, 3)
    red, green, blue = channels + rng.uniform(0.1, 0.8) * (channels.mean() - channels)
    return int(red), int(green), int(blue)


def pick(rng: np.random.Generator, options: Sequence):
    """Draw one of `options` evenly, leaving its type alone (`rng.choice` makes arrays)."""
    return options[int(rng.integers(len(options)))]


def shaded(colour: Colour, factor: float) -> Colour:
    """Multiply a colour by `factor`, cut at white."""
    red, green, blue = (min(255, int(channel * factor)) for channel in colour)
    return red, green, blue


def curve(start: Point, bend: Point, end: Point, steps: int = 12) -> np.ndarray:
    """Give `steps` points of the quadratic Bezier curve from `start` to `end`, pulled towards `bend`."""
    t = np.linspace(0, 1, steps)[:, None]
    return (1 - t) ** 2 * np.asarray(start) + 2 * t * (1 - t) * np.asarray(bend) + t**2 * np.asarray(end)


@dataclass(frozen=True)
class Sketch:
    """An image with a coordinate frame on it: x to the right, y down, and a unit of about one head's radius.

    Args:
        image: drawn upon in place.
        coats: images of `image`'s size by name (`fur`, `light`, `dark`); a fill that is a name shows that coat.
        line: outline colour, or None for shapes without an outline.
        axes: 2x2 matrix from units to pixels.
        origin: the frame's origin in pixels.
    """

    image: Image.Image
    coats: dict[str, Image.Image]
    line: Colour | None
    axes: np.ndarray
    origin: np.ndarray

    def moved(self, x: float, y: float, scale: float = 1.0, turn: float = 0.0) -> Sketch:
        """Give the same image under a frame moved to (x, y), scaled, and turned by `turn` radians."""
        cosine, sine = math.cos(turn), math.sin(turn)
        axes = self.axes @ (scale * np.array([[cosine, -sine], [sine, cosine]]))
        return replace(self, axes=axes, origin=self._pixels([(x, y)])[0])

    def shape(self, points: Sequence[Point] | np.ndarray, fill: Colour | str, outline: bool = True) -> None:
        """Fill a closed polygon with a colour or a coat."""
        pixels = self._pixels(points)
        corners = [tuple(point) for point in pixels.tolist()]
        draw = ImageDraw.Draw(self.image)
        if isinstance(fill, str):
            self._paste_coat(fill, pixels, 0.0, lambda pen, moved: pen.polygon(moved, fill=255))
        else:
            draw.polygon(corners, fill=fill)
        if outline and self.line is not None:
            draw.line([*corners, corners[0]], fill=self.line, width=max(1, round(self._unit() * 0.035)))

    def oval(
        self, x: float, y: float, rx: float, ry: float, fill: Colour | str, turn: float = 0.0, outline: bool = True
    ) -> None:
        """Fill an ellipse around (x, y) with half axes `rx` and `ry`, turned by `turn` radians."""
        cosine, sine = math.cos(turn), math.sin(turn)
        points = (_CIRCLE * (rx, ry)) @ np.array([[cosine, sine], [-sine, cosine]]) + (x, y)
        self.shape(points, fill, outline)

    def stroke(self, points: Sequence[Point] | np.ndarray, width: float, fill: Colour | str) -> None:
        """Draw a line through `points`, `width` units thick, with round ends when it is thick."""
        pixels = self._pixels(points)
        thickness = max(1, round(width * self._unit()))

        def run(pen: ImageDraw.ImageDraw, path: list[Point], ink) -> None:
            pen.line(path, fill=ink, width=thickness, joint="curve")
            radius = thickness / 2
            for x, y in (path[0], path[-1]) if thickness > 3 else ():
                pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)

        if isinstance(fill, str):
            self._paste_coat(fill, pixels, thickness, lambda pen, moved: run(pen, moved, 255))
        else:
            run(ImageDraw.Draw(self.image), [tuple(point) for point in pixels.tolist()], fill)

    def _paste_coat(self, name: str, pixels: np.ndarray, margin: float, paint) -> None:
        low = np.floor(pixels.min(axis=0) - margin - 1).astype(int)
        high = np.ceil(pixels.max(axis=0) + margin + 2).astype(int)
        left, top = np.maximum(low, 0).tolist()
        right, bottom = np.minimum(high, self.image.size).tolist()
        if left >= right or top >= bottom:
            return
        mask = Image.new("L", (right - left, bottom - top))
        paint(ImageDraw.Draw(mask), [(x - left, y - top) for x, y in pixels.tolist()])
        self.image.paste(self.coats[name].crop((left, top, right, bottom)), (left, top), mask)

    def _pixels(self, points: Sequence[Point] | np.ndarray) -> np.ndarray:
        return np.asarray(points, dtype=float) @ self.axes.T + self.origin

    def _unit(self) -> float:
        return math.sqrt(abs(float(np.linalg.det(self.axes))))


def make_coats(size: tuple[int, int], rng: np.random.Generator) -> dict[str, Image.Image]:
    """Make a coat (plain, striped, spotted or patched) as three images of `size`: `fur`, `light` and `dark`."""
    base = np.array(pick(rng, COATS), dtype=np.float32)
    other = np.array(pick(rng, COATS), dtype=np.float32)
    y, x = np.mgrid[0:64, 0:64].astype(np.float32)
    pattern = pick(rng, ("plain", "plain", "stripes", "spots", "patches"))
    if pattern == "stripes":
        angle, wave = rng.uniform(0, np.pi), rng.uniform(0.5, 1.3)
        mix = np.sin(wave * (np.cos(angle) * x + np.sin(angle) * y) + np.sin(x / 7 + y / 9)) > rng.uniform(0, 0.7)
    elif pattern in ("spots", "patches"):
        count, radius = (40, 2.5) if pattern == "spots" else (7, 9)
        centres = rng.uniform(0, 64, (count, 2, 1, 1))
        distance = ((x - centres[:, 0]) ** 2 + (y - centres[:, 1]) ** 2).min(axis=0)
        mix = distance < (radius * rng.uniform(0.7, 1.3)) ** 2
    else:
        mix = np.zeros_like(x)
    mix = np.where(mix, rng.uniform(0.5, 1.0), 0.0)[..., None]
    texture = base * (1 - mix) + other * mix + rng.normal(0, 7, (64, 64, 1))
    fur = Image.fromarray(np.clip(texture, 0, 255).astype(np.uint8)).resize(size, Image.Resampling.BILINEAR)
    light = fur.point([min(255, int(level * 0.95 + 46)) for level in range(256)] * 3)
    dark = fur.point([int(level * 0.72) for level in range(256)] * 3)
    return {"fur": fur, "light": light, "dark": dark}


def make_background(size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """Make a background: a gradient with coarse noise, often a ground, and a clutter of plain shapes."""
    ramp = np.linspace(0, 1, 24, dtype=np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    mix = (np.cos(angle) * ramp[None, :] + np.sin(angle) * ramp[:, None])[..., None]
    mix = (mix - mix.min()) / (np.ptp(mix) + 1e-6)
    pixels = np.array(any_colour(rng)) * (1 - mix) + np.array(any_colour(rng)) * mix
    if rng.random() < 0.5:
        pixels[int(rng.integers(12, 21)) :] = np.array(any_colour(rng))
    pixels = pixels + rng.normal(0, rng.uniform(0, 16), (24, 24, 3))
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).resize(size, Image.Resampling.BILINEAR)
    for _ in range(int(rng.integers(0, 12))):
        clutter(image, rng, rng.uniform(0, 1, 2), rng.uniform(0.03, 0.2))
    return image


def clutter(image: Image.Image, rng: np.random.Generator, centre: Sequence[float], radius: float) -> None:
    """Draw one plain shape (oval, box, triangle or bar) at `centre`, both in shares of the image."""
    width, height = image.size
    scale = radius * min(width, height)
    sketch = Sketch(image, {}, None, np.eye(2) * scale, np.array([centre[0] * width, centre[1] * height]))
    sketch = sketch.moved(0, 0, 1.0, rng.uniform(0, 2 * np.pi))
    colour, form = any_colour(rng), int(rng.integers(4))
    if form == 0:
        sketch.oval(0, 0, 1, rng.uniform(0.4, 1.0), colour)
    elif form == 1:
        side = rng.uniform(0.4, 1.0)
        sketch.shape([(-1, -side), (1, -side), (1, side), (-1, side)], colour)
    elif form == 2:
        sketch.shape([(-0.8, 0.6), (0.8, 0.6), (rng.uniform(-0.5, 0.5), -1)], colour)
    else:
        sketch.stroke(curve((-1.4, 0), (0, rng.uniform(-1, 1)), (1.4, 0)), rng.uniform(0.05, 0.3), colour)


def photograph(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Do to a drawing what a camera does: exposure, soft focus and grain."""
    gain, offset = rng.uniform(0.75, 1.2), rng.uniform(-20, 25)
    image = image.point([int(min(255, max(0, level * gain + offset))) for level in range(256)] * 3)
    image = image.filter(ImageFilter.BoxBlur(rng.uniform(0.4, 1.3)))
    grain = rng.standard_normal((image.height, image.width), dtype=np.float32) * rng.uniform(1, 11) + 128
    layer = Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8))
    return ImageChops.add(image, Image.merge("RGB", (layer, layer, layer)), offset=-128)
