"""How each animal of the drawn sample looks: a table of builds, and the three poses that draw any of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyfit.data.drawn_shapes import EYES, NOSES, Colour, Sketch, any_colour, curve, pick

PINK: Colour = (222, 120, 130)
HORN: Colour = (220, 208, 180)
# How far an ear moves from its place on a head seen from the front to its place on a head seen from the side.
PROFILE_EAR: dict[str, tuple[float, float]] = {
    "pointed": (-0.6, 0.15), "long": (-0.45, 0.1), "round": (-0.85, 0.1),
    "floppy": (-1.15, 0.3), "fan": (-1.4, 0.4), "leaf": (-1.5, 0.3), "none": (0.0, 0.0),
}  # fmt: skip


@dataclass(frozen=True)
class Build:
    """What an animal is made of; lengths are in head radii, and each drawing varies them by about a sixth.

    Args:
        ears: pointed, floppy, round, long, leaf or fan.
        head: half width and half height of the head seen from the front.
        muzzle: how far the muzzle stands out.
        nose: half width of the nose.
        legs: length of the legs.
        tail: thin, stub, bushy, puff, tuft, curl, hair or none.
        ear_size: multiplies the ears.
        slit: upright slit pupils instead of round ones.
        extras: any of whiskers, tongue, horns, trunk, mane, snout, beard, wool.
    """

    ears: str
    head: tuple[float, float]
    muzzle: float
    nose: float
    legs: float
    tail: str
    ear_size: float = 1.0
    slit: bool = False
    extras: tuple[str, ...] = ()


BUILDS: dict[str, Build] = {
    "cats": Build("pointed", (1.0, 0.84), 0.16, 0.1, 0.75, "thin", 1.0, True, ("whiskers",)),
    "dogs": Build("floppy", (0.82, 0.96), 0.62, 0.22, 0.95, "stub", 1.0, False, ("tongue",)),
    "rabbit": Build("long", (0.78, 0.86), 0.16, 0.08, 0.45, "puff", 1.0, False, ("whiskers",)),
    "fox": Build("pointed", (0.92, 0.84), 0.72, 0.13, 0.8, "bushy", 1.2, False),
    "mouse": Build("round", (0.72, 0.8), 0.45, 0.1, 0.35, "thin", 1.5, False, ("whiskers",)),
    "bear": Build("round", (1.0, 0.94), 0.38, 0.2, 0.65, "none", 0.8, False),
    "pig": Build("pointed", (0.98, 0.9), 0.3, 0.1, 0.5, "curl", 0.7, False, ("snout",)),
    "cow": Build("leaf", (0.74, 1.0), 0.5, 0.2, 0.9, "tuft", 1.0, False, ("horns", "tongue")),
    "goat": Build("floppy", (0.66, 0.96), 0.5, 0.12, 0.9, "stub", 0.7, True, ("horns", "beard")),
    "sheep": Build("leaf", (0.7, 0.86), 0.36, 0.14, 0.6, "puff", 1.0, False, ("wool",)),
    "horse": Build("pointed", (0.6, 1.1), 0.8, 0.16, 1.3, "hair", 0.6, False, ("mane",)),
    "elephant": Build("fan", (0.86, 0.92), 0.2, 0.0, 0.9, "tuft", 1.0, False, ("trunk",)),
    "seal": Build("none", (0.9, 0.86), 0.3, 0.2, 0.25, "stub", 1.0, False, ("whiskers",)),
}


@dataclass(frozen=True)
class Look:
    """The colours one drawn animal keeps through all its parts."""

    eye: Colour
    nose: Colour
    inner_ear: Colour
    collar: Colour | None


def draw_animal(sketch: Sketch, kind: str, rng: np.random.Generator) -> None:
    """Draw an animal of `kind` (a key of `BUILDS`) about the origin, in one of three poses, some 2 units around."""
    build = _varied(BUILDS[kind], rng)
    collar = any_colour(rng) if rng.random() < 0.35 else None
    look = Look(pick(rng, EYES), pick(rng, NOSES), pick(rng, (PINK, (120, 86, 80), (200, 160, 150))), collar)
    pose = rng.choice(3, p=(0.45, 0.3, 0.25))
    if pose == 0:
        _draw_face(sketch.moved(0, 0.1, 1.25), build, look, rng)
    elif pose == 1:
        _draw_sitting(sketch, build, look, rng)
    else:
        _draw_side(sketch, build, look, rng)


def _varied(build: Build, rng: np.random.Generator) -> Build:
    width, height, muzzle, nose, legs, ear = rng.uniform(0.85, 1.17, 6)
    return Build(
        build.ears, (build.head[0] * width, build.head[1] * height), build.muzzle * muzzle, build.nose * nose,
        build.legs * legs, build.tail, build.ear_size * ear, build.slit,
        tuple(extra for extra in build.extras if extra not in ("tongue", "horns") or rng.random() < 0.7),
    )  # fmt: skip


def _draw_sitting(sketch: Sketch, build: Build, look: Look, rng: np.random.Generator) -> None:
    _draw_tail(sketch.moved(0.6, 1.35, 0.9), build.tail, rng)
    sketch.oval(0, 0.75, rng.uniform(0.6, 0.85), 1.0, "fur")
    for side in (-1, 1):
        sketch.oval(side * 0.62, 1.45, 0.36, 0.3, "fur")
        sketch.stroke([(side * 0.26, 0.7), (side * 0.28, 1.6)], 0.3, "light")
        sketch.oval(side * 0.3, 1.66, 0.22, 0.13, "light")
    if look.collar is not None:
        sketch.stroke(curve((-0.5, 0.08), (0, 0.4), (0.5, 0.08)), 0.15, look.collar)
    _draw_face(sketch.moved(rng.uniform(-0.1, 0.1), -0.65, 0.85, rng.uniform(-0.2, 0.2)), build, look, rng)


def _draw_side(sketch: Sketch, build: Build, look: Look, rng: np.random.Generator) -> None:
    sketch = sketch.moved(-0.25, 0.05, 0.76)
    length, depth = rng.uniform(1.15, 1.5), rng.uniform(0.46, 0.62)
    foot = depth * 0.6 + build.legs
    _draw_tail(sketch.moved(-length * 0.9, -0.15), build.tail, rng)
    stride = rng.uniform(0, 0.3)
    for x, coat in ((-0.72, "dark"), (0.62, "dark"), (-0.86, "fur"), (0.78, "fur")):
        shift = stride if coat == "fur" else -stride
        sketch.stroke([(x * length, depth * 0.3), (x * length + shift, foot)], rng.uniform(0.24, 0.32), coat)
        sketch.oval(x * length + shift + 0.08, foot + 0.05, 0.2, 0.12, coat)
    if "wool" in build.extras:
        for angle in np.linspace(0, 2 * np.pi, 14):
            sketch.oval(length * 0.9 * np.cos(angle), depth * np.sin(angle), 0.3, 0.28, "light")
    sketch.oval(0, 0, length, depth, "fur")
    neck = rng.uniform(0.75, 1.05) * (0.6 + 0.4 * build.legs)
    head_x, head_y = length * 0.95 + 0.2, -neck
    sketch.stroke([(length * 0.72, -0.1), (head_x - 0.1, head_y + 0.1)], 0.55, "fur")
    if look.collar is not None:
        sketch.stroke([(length * 0.75, -0.5 * neck), (length + 0.2, -0.35 * neck)], 0.14, look.collar)
    _draw_profile(sketch.moved(head_x, head_y, 0.62, rng.uniform(-0.2, 0.3)), build, look, rng)


def _draw_profile(sketch: Sketch, build: Build, look: Look, rng: np.random.Generator) -> None:
    """Draw the head from the side, looking right."""
    if build.ears == "pointed":
        _draw_ear(sketch.moved(-0.05, 0.0, 0.95, -0.25), build, look, "dark", rng)
    if "mane" in build.extras:
        sketch.stroke(curve((0.1, -1.0), (-1.0, -0.6), (-1.1, 1.2)), 0.4, "dark")
    sketch.oval(0, 0, 0.88, 0.8, "fur")
    reach = 0.75 + 1.3 * build.muzzle
    half = 0.27 if build.nose < 0.15 else 0.36
    sketch.oval(0.75, 0.26, reach - 0.75 + 0.12, half, "light", 0.08)
    if "tongue" in build.extras:
        sketch.oval(reach - 0.12, 0.26 + half + 0.18, 0.13, 0.3, PINK)
    if "beard" in build.extras:
        sketch.shape([(0.5, 0.5), (0.9, 0.5), (0.6, 1.2)], "dark")
    sketch.stroke([(reach - 0.1, 0.42), (0.62, 0.46)], 0.05, (50, 36, 36))
    if build.nose:
        sketch.oval(reach + 0.02, 0.16, build.nose * 0.95, build.nose * 0.85, look.nose)
    if "trunk" in build.extras:
        sketch.stroke(curve((0.7, 0.1), (1.5, 0.5), (1.3, rng.uniform(1.2, 2.2))), 0.42, "fur")
    if "horns" in build.extras:
        sketch.stroke(curve((0.1, -0.7), (0.5, -1.2), (0.3, -1.5)), 0.17, HORN)
    _draw_eye(sketch.moved(0.36, -0.2), build, look, 0.17)
    if "whiskers" in build.extras:
        for rise in (-0.14, 0.05, 0.24):
            sketch.stroke([(0.85, 0.3), (0.2, 0.34 + rise * 2)], 0.03, (240, 238, 232))
    _draw_ear(sketch.moved(*PROFILE_EAR[build.ears], turn=-0.3), build, look, "fur", rng)


def _draw_face(sketch: Sketch, build: Build, look: Look, rng: np.random.Generator) -> None:
    """Draw the head from the front, at times turned a little to one side."""
    width, height = build.head
    over = build.ears == "floppy"
    turned = rng.uniform(-0.16, 0.16)
    if "wool" in build.extras:
        for angle in np.linspace(0, 2 * np.pi, 12):
            sketch.oval(width * np.cos(angle), height * np.sin(angle) - 0.1, 0.36, 0.34, "light")
    if "mane" in build.extras:
        sketch.stroke(curve((0, -height), (width * 1.8, -0.4), (width * 1.3, 1.0)), 0.4, "dark")
    if not over:
        _draw_both_ears(sketch, build, look, rng)
    sketch.oval(0, 0, width, height, "fur")
    if over:
        _draw_both_ears(sketch, build, look, rng)
    if "horns" in build.extras:
        for side in (-1, 1):
            x = side * width
            sketch.stroke(curve((x * 0.5, -height * 0.8), (x * 1.2, -height), (x, -height * 1.5)), 0.17, HORN)
    spread = width * rng.uniform(0.38, 0.48)
    for side in (-1, 1):
        _draw_eye(sketch.moved(side * spread + turned, -0.2 * height), build, look, rng.uniform(0.16, 0.22))
    _draw_muzzle(sketch.moved(turned * 1.6, 0.0), build, look, rng)


def _draw_muzzle(sketch: Sketch, build: Build, look: Look, rng: np.random.Generator) -> None:
    height = build.head[1]
    if "beard" in build.extras:
        sketch.shape([(-0.25, height * 0.8), (0.25, height * 0.8), (0, height * 1.5)], "dark")
    if build.muzzle > 0.25:
        long = 0.22 + 0.42 * build.muzzle
        drop = 0.28 * height + long * 0.6
        if "tongue" in build.extras:
            sketch.oval(rng.uniform(-0.1, 0.1), drop + long * 0.9 + 0.16, 0.17, 0.34, PINK)
        sketch.oval(0, drop, 0.3 + build.nose * 0.75, long, "light")
        nose_y = drop - long * 0.45
    else:
        for side in (-1, 1):
            sketch.oval(side * 0.17, 0.44 * height, 0.22, 0.18, "light")
        nose_y = 0.24 * height
    if "whiskers" in build.extras:
        for side in (-1, 1):
            for rise in (-0.22, 0.0, 0.2):
                ink = (240, 238, 232) if rise else (60, 56, 54)
                sketch.stroke([(side * 0.2, nose_y + 0.18), (side * 1.15, nose_y + 0.14 + rise)], 0.03, ink)
    if "snout" in build.extras:
        sketch.oval(0, nose_y + 0.15, 0.4, 0.28, PINK)
        for side in (-1, 1):
            sketch.oval(side * 0.15, nose_y + 0.15, 0.07, 0.11, (90, 50, 50))
    elif "trunk" in build.extras:
        sketch.stroke(curve((0, 0.1), (rng.uniform(-0.5, 0.5), 0.9), (rng.uniform(-0.6, 0.6), 1.7)), 0.42, "light")
        for side in (-1, 1):
            sketch.stroke(curve((side * 0.4, 0.5), (side * 0.6, 0.9), (side * 0.75, 1.0)), 0.12, HORN)
    elif build.nose > 0.15:
        sketch.oval(0, nose_y, build.nose, build.nose * 0.8, look.nose)
        sketch.oval(-build.nose * 0.3, nose_y - build.nose * 0.3, build.nose * 0.2, 0.03, (200, 200, 200), 0.0, False)
    else:
        nose = build.nose * 1.2
        sketch.shape([(-nose, nose_y), (nose, nose_y), (0, nose_y + nose * 1.1)], look.nose)
    if not {"trunk", "snout"} & set(build.extras):
        mouth = nose_y + build.nose + 0.16
        for side in (-1, 1):
            sketch.stroke(
                curve((0, mouth - 0.08), (side * 0.06, mouth + 0.12), (side * 0.26, mouth)), 0.045, (50, 36, 36)
            )


def _draw_both_ears(sketch: Sketch, build: Build, look: Look, rng: np.random.Generator) -> None:
    width, height = build.head
    mirrored = Sketch(sketch.image, sketch.coats, sketch.line, sketch.axes * (-1, 1), sketch.origin)
    for half in (sketch, mirrored):
        shift = (width - 1.0, 0.0) if build.ears in ("floppy", "leaf", "fan") else (0.6 * (width - 1), 0.85 - height)
        _draw_ear(half.moved(*shift, 1.0, rng.uniform(-0.12, 0.12)), build, look, "fur", rng)


def _draw_ear(sketch: Sketch, build: Build, look: Look, coat: str, rng: np.random.Generator) -> None:
    """Draw the right-hand ear of a head of radius 1."""
    size = build.ear_size
    if build.ears == "pointed":
        tip = (0.72 + rng.uniform(-0.08, 0.14), -0.55 - 0.88 * size)
        sketch.shape([(0.12, -0.66), tip, (0.96, -0.2)], coat)
        inner = [(0.32, -0.72), (tip[0] - 0.02, tip[1] + 0.24), (0.82, -0.48)]
        sketch.shape(inner, look.inner_ear, False)
    elif build.ears == "floppy":
        hang = rng.uniform(0.6, 0.85) * size
        sketch.oval(1.0, hang - 0.5, 0.29, hang, "dark", rng.uniform(-0.45, -0.05))
    elif build.ears == "round":
        sketch.oval(0.74, -0.72, 0.36 * size, 0.36 * size, coat)
        sketch.oval(0.74, -0.72, 0.22 * size, 0.22 * size, look.inner_ear, 0.0, False)
    elif build.ears == "long":
        sketch.oval(0.42, -1.45, 0.22, 0.8 * size, coat, 0.14)
        sketch.oval(0.42, -1.42, 0.11, 0.6 * size, look.inner_ear, 0.14, False)
    elif build.ears == "leaf":
        sketch.oval(1.2, -0.42, 0.42 * size, 0.19, coat, rng.uniform(-0.3, 0.4))
        sketch.oval(1.22, -0.42, 0.26 * size, 0.09, look.inner_ear, 0.05, False)
    elif build.ears == "fan":
        sketch.oval(1.1, -0.05, 0.62 * size, 0.9 * size, coat, -0.2)
        sketch.oval(1.15, 0.0, 0.42 * size, 0.68 * size, look.inner_ear, -0.2, False)


def _draw_eye(sketch: Sketch, build: Build, look: Look, radius: float) -> None:
    sketch.oval(0, 0, radius * 1.15, radius, look.eye)
    if build.slit:
        sketch.oval(0, 0, radius * 0.26, radius * 0.92, (14, 12, 14), 0.0, False)
    else:
        sketch.oval(0, 0, radius * 0.66, radius * 0.66, (14, 12, 14), 0.0, False)
    sketch.oval(radius * 0.3, -radius * 0.35, radius * 0.2, radius * 0.2, (245, 245, 245), 0.0, False)


def _draw_tail(sketch: Sketch, tail: str, rng: np.random.Generator) -> None:
    """Draw a tail from the origin to the left and up."""
    lift = rng.uniform(-0.3, 0.3)
    if tail == "thin":
        sketch.stroke(curve((0, 0), (-1.3, 0.5 + lift), (-0.9 + lift, -1.3)), 0.15, "fur")
    elif tail == "stub":
        sketch.stroke(curve((0, 0), (-0.35, -0.1), (-0.6, -0.6 + lift)), 0.2, "fur")
    elif tail == "bushy":
        sketch.oval(-0.7, -0.15, 0.85, 0.34, "fur", 0.3 + lift)
        sketch.oval(-1.2, -0.3, 0.34, 0.24, "light", 0.3 + lift)
    elif tail == "puff":
        sketch.oval(-0.1, 0, 0.27, 0.25, "light")
    elif tail == "tuft":
        sketch.stroke(curve((0, 0), (-0.5, 0.1), (-0.5, 1.0 + lift)), 0.1, "fur")
        sketch.oval(-0.5, 1.05 + lift, 0.13, 0.24, "dark")
    elif tail == "curl":
        turns = np.linspace(0, 3.2 * np.pi, 20)
        sketch.stroke(np.stack([-turns * 0.06, 0.18 * np.sin(turns)], axis=1), 0.08, PINK)
    elif tail == "hair":
        sketch.stroke(curve((0, 0), (-0.7, 0), (-0.6, 1.2 + lift)), 0.32, "dark")
