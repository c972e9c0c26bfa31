"""The `data` group: where the examples come from."""

from dataclasses import dataclass

from manyfit.errors import ConfigError
from manyfit.schema.checks import AUTO, absolute, at_least, one_of


@dataclass
class DataConfig:
    """Any data set: where its examples come from.

    Args:
        name: The data set; also the choice of the group.
        root: A local copy; None means that `source` decides.
        source: `folder` (under `root`), `tfds`, `sample` (drawn pictures, cats_dogs only) or `auto` (the first that
            can be had).
        validation_fraction: Share of the examples held out where the set brings no validation split.
        on_bad_image: `skip` a file that cannot be read (and list it), or `error`.
        parallel_map: Load several examples at once.
        prefetch: Load ahead of the step that runs.
        cache: Where decoded pictures are kept: `memory`, `disk`, `off`, or `auto` (in memory if they fit and serve
            more than one epoch).
        cache_dir: Folder of what is kept on disk, features too; None for the user's own cache folder.
        cache_gb: What it may take there, in GB; what was used longest ago goes first.
    """

    name: str = "cats_dogs"
    root: str | None = None
    source: str = AUTO
    validation_fraction: float = 0.2
    on_bad_image: str = "skip"
    parallel_map: bool = True
    prefetch: bool = True
    cache: str = AUTO
    cache_dir: str | None = None
    cache_gb: float = 20.0

    def __post_init__(self) -> None:
        if self.root is not None:
            self.root = absolute(self.root)
        one_of("data.source", self.source, (AUTO, "folder", "tfds", "sample"))
        one_of("data.on_bad_image", self.on_bad_image, ("skip", "error"))
        one_of("data.cache", self.cache, (AUTO, "off", "memory", "disk"))
        at_least("data.cache_gb", self.cache_gb, 0)
        if self.cache_dir is not None:
            self.cache_dir = absolute(self.cache_dir)
        if not 0 < self.validation_fraction < 1:
            raise ConfigError(
                f"data.validation_fraction={self.validation_fraction} is out of range.",
                "Give a share between 0 and 1, such as 0.2.",
            )
        if self.source == "sample" and self.name != "cats_dogs":
            raise ConfigError(
                f"data.source=sample does not exist for data={self.name}.",
                "Only data=cats_dogs has an embedded sample; give data.root=PATH or data.source=tfds.",
            )
        if self.source == "folder" and self.root is None:
            raise ConfigError("data.source=folder needs a folder.", "Give data.root=PATH.")


EMNIST_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}


@dataclass
class EmnistConfig(DataConfig):
    """EMNIST in one of its variants (balanced, byclass, bymerge, digits, letters, mnist)."""

    name: str = "emnist"
    variant: str = "balanced"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("data.variant", self.variant, EMNIST_CLASSES)


@dataclass
class SyntheticConfig(DataConfig):
    """Seeded pictures made in memory, whose class can be learned: for self-checks and measurements."""

    name: str = "synthetic"
    num_train: int = 512
    num_validation: int = 128
    num_classes: int = 4
    image_size: int = 28
    channels: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("num_train", "num_validation", "image_size"):
            at_least(f"data.{key}", getattr(self, key), 1)
        at_least("data.num_classes", self.num_classes, 2)
        if self.channels not in (1, 3):
            raise ConfigError(f"data.channels={self.channels} is not possible.", "Give 1 (grey) or 3 (colour).")
