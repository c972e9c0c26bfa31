"""The rehearsal backbone: MobileNetV2 weights that ship with the package, so frozen-backbone runs work offline.

They were trained on seeded drawings of animals and things, never of cats or dogs; see README.md beside this file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras

ALPHA = 0.35
WEIGHTS_PATH = Path(__file__).with_name("mobilenet_v2_0.35_drawn.npz")
FACTS_PATH = Path(__file__).with_name("mobilenet_v2_0.35_drawn.json")
WEIGHTS_SHA256 = "5650b36a570361a50960c499dbdbbb9519b10bfd3a2881de9413b71934beaff0"


def load_rehearsal_weights(backbone: keras.Model) -> None:
    """Set the shipped weights on a `MobileNetV2(alpha=.35, include_top=False)` of any input size.

    The inputs it then expects are MobileNetV2's own: RGB scaled to -1..1 by `x / 127.5 - 1`.

    Raises:
        ValueError: `backbone` is another architecture, or the shipped file isn't the one this version was made with.
    """
    import numpy as np

    content = WEIGHTS_PATH.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != WEIGHTS_SHA256:
        raise ValueError(
            f"{WEIGHTS_PATH} has sha256 {found}, expected {WEIGHTS_SHA256}: the file is damaged or was replaced. "
            "Reinstall manyfit, or train it again with `python -m manyfit.models.rehearsal.train_backbone`."
        )
    with np.load(WEIGHTS_PATH, allow_pickle=False) as stored:
        arrays = {name: stored[name].astype(np.float32) for name in stored.files}
    wanted = {name: tuple(variable.shape) for name, variable in named_weights(backbone)}
    given = {name: array.shape for name, array in arrays.items()}
    if wanted != given:
        differing = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        raise ValueError(
            f"backbone {backbone.name!r} can't take the rehearsal weights: {len(differing)} of its weights differ, "
            f"first {differing[0]!r} (received shape {wanted.get(differing[0])}, expected {given.get(differing[0])}). "
            f"Expected keras.applications.MobileNetV2(alpha={ALPHA}, include_top=False, weights=None)."
        )
    for name, variable in named_weights(backbone):
        variable.assign(arrays[name])


def named_weights(backbone: keras.Model) -> list[tuple[str, keras.Variable]]:
    """List a backbone's weights as (`layer/variable`, variable), names that don't change with the model's own name."""
    return [(f"{layer.name}/{variable.name}", variable) for layer in backbone.layers for variable in layer.weights]
