"""The examples of a run as every other module sees them: splits of files or arrays, with their class names."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class Split:
    """One split: N examples, held either as file paths or as one array in memory.

    Args:
        name: `train`, `validation` or `test`.
        labels: int32 [N], indices into the class names.
        paths: N absolute paths, or None.
        images: uint8 [N, height, width, channels], or float32 [N, num_features], what a frozen backbone makes of them;
            it may be memory-mapped. Or None.
    """

    name: str
    labels: np.ndarray
    paths: tuple[str, ...] | None = None
    images: np.ndarray | None = None

    def __post_init__(self) -> None:
        held = self.images if self.paths is None else self.paths
        if held is None or (self.paths is not None and self.images is not None):
            raise ValueError(f"Split {self.name} needs either paths or images.")
        if len(held) != len(self.labels):
            raise ValueError(f"Split {self.name} has {len(held)} examples but {len(self.labels)} labels.")

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, first: int, last: int) -> "Split":
        """The examples from `first` up to, not with, `last`."""
        paths, images = self.paths, self.images
        return Split(
            self.name,
            self.labels[first:last],
            paths=None if paths is None else paths[first:last],
            images=None if images is None else images[first:last],
        )


@dataclass(frozen=True)
class Skipped:
    """A file that was found and not used."""

    path: str
    split: str
    class_name: str
    reason: str


@dataclass(frozen=True, eq=False)
class ImageData:
    """A loaded data set.

    Args:
        name: The data set.
        source: Where it came from: `folder`, `arrays`, `tfds`, `sample` or `synthetic`.
        class_names: One name a class, in the order of the label indices.
        found: Files found a split and class: `{"train": {"cats": 1000}}`; kept + skipped = found.
        skipped: The files not used, each with its reason.
        fingerprint: Hash of what the examples are: names, sizes and labels of every split.
        rehearsal: True where drawn pictures stand in for the photos asked for.
        notices: What the user should know, each one line; shown at the start and kept in the record.
    """

    name: str
    source: str
    class_names: tuple[str, ...]
    train: Split
    validation: Split
    test: Split | None = None
    found: dict[str, dict[str, int]] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    fingerprint: str = ""
    rehearsal: bool = False
    notices: tuple[str, ...] = ()

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels where all pictures share them (arrays), else None (files)."""
        return None if self.train.images is None else tuple(self.train.images.shape[1:])
