"""The group `augment`: how the pictures of the training are varied, at random and each on its own."""

from dataclasses import dataclass

from manyfit.errors import ConfigError
from manyfit.schema.checks import at_least, between

MAX_RANDAUGMENT = 10.0


@dataclass
class AugmentConfig:
    """Pictures as they are."""

    name: str = "none"

    @property
    def active(self) -> bool:
        """Whether any dial is above 0, so that an example looks different in every epoch."""
        return False

    @property
    def mixing_keys(self) -> list[str]:
        """The keys that are set and mix an example with another one."""
        return []


@dataclass
class LightAugmentConfig(AugmentConfig):
    """Small changes that keep the class of most photos; every dial at 0 changes nothing.

    Args:
        flip: Probability of a left-right mirror image.
        crop: Largest share of a side that is cut off: a window of 1-crop to 1 of the picture, anywhere in it.
        rotation: Largest angle to either side, in degrees; what lies beyond the edge is reflected.
        colour: Largest relative change of brightness, contrast and saturation, each drawn on its own.
        mixup: alpha of the Beta distribution by which two pictures are blended; 0 for none.
        cutmix: alpha of the Beta distribution by which a box of another picture is pasted in; 0 for none.
        randaugment: Strength, 0 to 10, of two operations that are drawn for each picture; 0 for none.
    """

    name: str = "light"
    flip: float = 0.5
    crop: float = 0.1
    rotation: float = 0.0
    colour: float = 0.1
    mixup: float = 0.0
    cutmix: float = 0.0
    randaugment: float = 0.0

    def __post_init__(self) -> None:
        between("augment.flip", self.flip, 0, 1)
        if not 0 <= self.crop < 1:
            raise ConfigError(f"augment.crop={self.crop} is out of range.", "Give a share in [0, 1), such as 0.1.")
        between("augment.rotation", self.rotation, 0, 180)
        between("augment.colour", self.colour, 0, 1)
        at_least("augment.mixup", self.mixup, 0)
        at_least("augment.cutmix", self.cutmix, 0)
        between("augment.randaugment", self.randaugment, 0, MAX_RANDAUGMENT)

    @property
    def active(self) -> bool:
        """Whether any dial is above 0, so that an example looks different in every epoch."""
        dials = (self.flip, self.crop, self.rotation, self.colour, self.mixup, self.cutmix, self.randaugment)
        return any(dial > 0 for dial in dials)

    @property
    def mixing_keys(self) -> list[str]:
        """The keys that are set and mix an example with another one."""
        return [f"augment.{key}" for key in ("mixup", "cutmix") if getattr(self, key) > 0]


@dataclass
class StrongAugmentConfig(LightAugmentConfig):
    """Large changes and mixed examples, for long trainings that overfit."""

    name: str = "strong"
    crop: float = 0.25
    rotation: float = 15.0
    colour: float = 0.2
    mixup: float = 0.2
    cutmix: float = 1.0
    randaugment: float = 5.0


AUGMENTS: dict[str, type[AugmentConfig]] = {
    "none": AugmentConfig,
    "light": LightAugmentConfig,
    "strong": StrongAugmentConfig,
}
"""The choices of the group."""


def check_rows(config: AugmentConfig, rows: int) -> None:
    """Refuse to mix an odd number of rows: partners are neighbours, and none may sit on another replica.

    Args:
        rows: Rows of one micro-batch on one replica.

    Raises:
        ConfigError: mixup or cutmix with an odd number of rows.
    """
    if config.mixing_keys and rows % 2:
        keys = config.mixing_keys
        raise ConfigError(
            f"{' and '.join(keys)} {'mixes' if len(keys) == 1 else 'mix'} the rows of a replica in pairs, but a "
            f"replica gets {rows} row{'' if rows == 1 else 's'} at a time.",
            f"Give batch.per_replica_batch_size={rows + 1}, another even size, or "
            f"{' '.join(f'{key}=0' for key in keys)}.",
        )
