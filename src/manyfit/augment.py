"""Training pictures varied on the device, each on its own: what is drawn for an example is a function of the seed, the
update and the example's row in the global batch, so that N replicas see the pictures of one.

Keras' random layers serve one device: they draw for the rows they are given, from a seed that is a variable.
"""

import math
from typing import Any

import tensorflow as tf

from manyfit.schema.augment import MAX_RANDAUGMENT, AugmentConfig, LightAugmentConfig

COLUMNS = (
    *("flip", "crop", "crop_x", "crop_y", "rotation", "brightness", "contrast", "saturation"),
    *("operation", "sign", "other_operation", "other_sign", "mix", "share", "share_angle", "box_x", "box_y"),
)
"""The numbers drawn for a row. Each has its place whether it is used or not: one dial moves no other's draws."""

OPERATIONS = (
    *("identity", "rotation", "shear_x", "shear_y", "shift_x", "shift_y"),
    *("brightness", "contrast", "saturation", "sharpness", "posterize", "solarize", "autocontrast"),
)
"""RandAugment's operations (Cubuk et al. 2019, arXiv:1909.13719) without `equalize`, which costs more than the rest."""

STEEPEST = {"rotation": math.radians(30), "shear": 0.3, "shift": 0.33, "colour": 0.9, "posterize": 4.0}
"""What an operation does at full strength: radians, slope, share of a side, relative change, bits left out."""

GREY = (0.299, 0.587, 0.114)
SEED_OFFSET = 0x6175676D << 32  # another stream than the order of the examples, which has the same seed

Draws = dict[str, tf.Tensor]
Plan = dict[str, Any]


class Augmentation:
    """Varies the pictures of a training step; call it on every replica, outside of what XLA compiles.

    Geometry (flip, crop, rotation, RandAugment's part) is one bilinear resampling, colour one affine map. Mixup and
    cutmix then take the partner of row 2k to be row 2k+1 and the reverse: neighbours in an order that is shuffled each
    epoch, which never sit on two replicas as long as each has an even number of rows (`check_rows`). A row keeps at
    least half of its own picture, so that its label stays the main one: as mixing is symmetric, the pictures are those
    of any share. A row beside padding is not mixed.

    Args:
        config: The dials.
        seed: Seed of all draws.
    """

    def __init__(self, config: LightAugmentConfig, seed: int):
        self.config = config
        self.mixes = bool(config.mixing_keys)
        self._seed = seed + SEED_OFFSET
        chosen = config.randaugment > 0
        self._turns = config.rotation > 0 or chosen
        self._colours = config.colour > 0 or chosen

    @classmethod
    def of(cls, config: AugmentConfig, seed: int) -> "Augmentation | None":
        """The augmentation that `config` asks for; None where it changes nothing."""
        return cls(config, seed) if isinstance(config, LightAugmentConfig) and config.active else None

    def __call__(self, images, labels, mask, step, *, replica_id=0, num_replicas: int = 1, micro_batches: int = 1):
        """One replica's rows of one step, varied: `(images, labels, mask)`, or with mixup or cutmix
        `(images, labels, mask, partner_labels, own_share)`, where the loss of a row is
        `own_share * loss(label) + (1 - own_share) * loss(partner_label)`.

        Args:
            images: [rows, height, width, 1 or 3] with values of 0 to 255, in any dtype; whole numbers come out.
            labels: [rows, ...].
            mask: [rows], 1 for a real example and 0 for padding.
            step: The number of this update of the weights, the same on every replica.
            replica_id: Which part of the global batch these rows are, of `num_replicas`.
            micro_batches: Parts of equal size that the rows are split into later.
        """
        height, width = images.shape[1:3]
        all_rows = tf.shape(images)[0] * num_replicas
        # Also what follows from the draws is computed for all rows: vectorised functions round by a row's position,
        # and a box must not be a pixel larger on one replica.
        plan = self._plan(draw(self._seed, step, all_rows), height, width)
        plan = tf.nest.map_structure(lambda of_all: part_of(of_all, replica_id, num_replicas, micro_batches), plan)
        pictures = self._varied(tf.cast(images, tf.float32), plan)
        mixed = ()
        if self.mixes:
            pictures, own_share = mix(pictures, mask, plan["mixing"])
            mixed = (swapped(labels), own_share)
        # A network takes uint8 pictures, and Keras would cut the fractions off.
        pictures = tf.ensure_shape(tf.cast(tf.round(pictures), images.dtype), images.shape)
        return pictures, labels, mask, *mixed

    def _plan(self, draws: Draws, height: int, width: int) -> Plan:
        """What happens to each row, from what was drawn for it."""
        config = self.config
        operations = chosen_operations(draws, config.randaugment)
        plan: Plan = {"operations": operations}
        if self._turns:
            plan["transforms"] = self._transforms(draws, operations, height, width)
        elif config.crop > 0 or config.flip > 0:
            plan["windows"] = self._windows(draws)
        if self._colours:
            plan["colours"] = self._colour_factors(draws, operations)
        if self.mixes:
            plan["mixing"] = mixing(draws, config.mixup, config.cutmix, height, width)
        return plan

    def _varied(self, pictures: tf.Tensor, plan: Plan) -> tf.Tensor:
        if "transforms" in plan:
            pictures = resampled(pictures, plan["transforms"])
        elif "windows" in plan:  # the same map, several times faster on a CPU
            rows, size = tf.range(tf.shape(pictures)[0]), tf.shape(pictures)[1:3]
            pictures = tf.image.crop_and_resize(pictures, plan["windows"], rows, size)
        if "colours" in plan:
            pictures = recoloured(pictures, *plan["colours"])
        if self.config.randaugment > 0:
            operations = plan["operations"]
            pictures = sharpened(pictures, STEEPEST["colour"] * operations["sharpness"])
            pictures = with_fewer_levels(tf.round(pictures), operations)
        return pictures

    def _windows(self, draws: Draws) -> tf.Tensor:
        """Top, left, bottom and right of what is kept of each row, as shares; left and right change places to flip."""
        zoom = 1.0 - self.config.crop * draws["crop"]
        left, top = ((1 - zoom) * draws[name] for name in ("crop_x", "crop_y"))
        right, bottom = left + zoom, top + zoom
        mirrored = draws["flip"] < self.config.flip
        windows = [top, tf.where(mirrored, right, left), bottom, tf.where(mirrored, left, right)]
        # Beyond the edge is black, by however little rounding gets there.
        return tf.clip_by_value(tf.stack(windows, axis=1), 1e-6, 1 - 1e-6)

    def _transforms(self, draws: Draws, operations: Draws, height: int, width: int) -> tf.Tensor:
        """Where each output pixel comes from, as 8 numbers a row for `resampled`."""
        angle = math.radians(self.config.rotation) * _symmetric(draws["rotation"])
        angle += STEEPEST["rotation"] * operations["rotation"]
        cos, sin = tf.cos(angle), tf.sin(angle)
        slope_x, slope_y = (STEEPEST["shear"] * operations[name] for name in ("shear_x", "shear_y"))
        zoom = 1.0 - self.config.crop * draws["crop"]
        mirror = tf.where(draws["flip"] < self.config.flip, -zoom, zoom)
        xx, xy = mirror * (cos - sin * slope_y), mirror * (cos * slope_x - sin)
        yx, yy = zoom * (sin + cos * slope_y), zoom * (sin * slope_x + cos)
        x, y = (width - 1) / 2, (height - 1) / 2  # the centre stays, but for the window and the shift
        to_x = x + (1 - zoom) * x * _symmetric(draws["crop_x"]) + STEEPEST["shift"] * width * operations["shift_x"]
        to_y = y + (1 - zoom) * y * _symmetric(draws["crop_y"]) + STEEPEST["shift"] * height * operations["shift_y"]
        zero = tf.zeros_like(xx)
        return tf.stack([xx, xy, to_x - xx * x - xy * y, yx, yy, to_y - yx * x - yy * y, zero, zero], axis=1)

    def _colour_factors(self, draws: Draws, operations: Draws) -> list[tf.Tensor]:
        """The factors of brightness, contrast and saturation, [rows] each; 1 changes nothing."""
        return [
            (1 + self.config.colour * _symmetric(draws[name])) * (1 + STEEPEST["colour"] * operations[name])
            for name in ("brightness", "contrast", "saturation")
        ]


def draw(seed: int, step, rows) -> Draws:
    """Uniform numbers in [0, 1) for the rows of all replicas, [rows] each."""
    seeds = tf.stack([tf.constant(seed, tf.int64), tf.cast(step, tf.int64)])
    table = tf.random.stateless_uniform([rows, len(COLUMNS)], seed=seeds)
    return dict(zip(COLUMNS, tf.unstack(table, axis=1), strict=True))


def part_of(of_all: tf.Tensor, replica_id, num_replicas: int, micro_batches: int) -> tf.Tensor:
    """One replica's rows, [rows, ...], of what lies as [micro-batch, replica, row] in the global batch."""
    rest = tf.shape(of_all)[1:]
    parts = tf.reshape(of_all, tf.concat([[micro_batches, num_replicas, -1], rest], axis=0))
    return tf.reshape(parts[:, replica_id], tf.concat([[-1], rest], axis=0))


def chosen_operations(draws: Draws, strength: float) -> Draws:
    """RandAugment: two different operations a row; the signed strength of each, -1 to 1, and 0 where not chosen."""
    if strength == 0:
        return dict.fromkeys(OPERATIONS, tf.zeros_like(draws["operation"]))
    count = len(OPERATIONS)
    first = tf.floor(draws["operation"] * count)
    second = tf.math.floormod(first + 1 + tf.floor(draws["other_operation"] * (count - 1)), count)
    signs = [tf.where(draws[name] < 0.5, -1.0, 1.0) for name in ("sign", "other_sign")]
    level = strength / MAX_RANDAUGMENT

    def signed(index: int) -> tf.Tensor:
        chosen = [tf.where(one == index, sign, 0.0) for one, sign in zip((first, second), signs, strict=True)]
        return level * tf.add_n(chosen)

    return {name: signed(index) for index, name in enumerate(OPERATIONS)}


def resampled(pictures: tf.Tensor, transforms: tf.Tensor) -> tf.Tensor:
    """The pictures moved: bilinear, reflected beyond the edge; exact where all pixels fall on pixels.

    Args:
        pictures: float32 [rows, height, width, channels].
        transforms: [rows, 8]; the output at (x, y) is the input at (t0 x + t1 y + t2, t3 x + t4 y + t5).
    """
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=pictures,
        transforms=transforms,
        output_shape=tf.shape(pictures)[1:3],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="REFLECT",
    )


def recoloured(pictures: tf.Tensor, brightness: tf.Tensor, contrast: tf.Tensor, saturation: tf.Tensor) -> tf.Tensor:
    """Saturation about each pixel's grey, contrast about the mean grey, brightness about black, in [0, 255].

    Args:
        pictures: float32 [rows, height, width, 1 or 3].
        brightness, contrast, saturation: Factors, [rows] each.
    """
    grey = pictures
    if pictures.shape[-1] == 3:
        grey = tf.add_n([weight * pictures[..., i : i + 1] for i, weight in enumerate(GREY)])
    mean = tf.reduce_mean(grey, axis=[1, 2, 3])
    both = brightness * contrast
    changed = _per_row(both * saturation) * pictures
    changed += _per_row(both * (1 - saturation)) * grey + _per_row(brightness * (1 - contrast) * mean)
    return tf.clip_by_value(changed, 0.0, 255.0)


def sharpened(pictures: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """The pictures plus `amount` [rows] times their difference to a smooth copy, in [0, 255]; below 0 they blur."""
    smooth = (9 * tf.nn.avg_pool2d(pictures, 3, 1, "SAME") + 4 * pictures) / 13  # the kernel of Pillow's SMOOTH
    return tf.clip_by_value(pictures + _per_row(amount) * (pictures - smooth), 0.0, 255.0)


def with_fewer_levels(pictures: tf.Tensor, operations: Draws) -> tf.Tensor:
    """Posterize, solarize and autocontrast of whole numbers from 0 to 255, for the rows that have drawn them."""
    unit = _per_row(2.0 ** tf.round(STEEPEST["posterize"] * tf.abs(operations["posterize"])))
    pictures = tf.floor(pictures / unit) * unit
    threshold = _per_row(256.0 * (1 - tf.abs(operations["solarize"])))
    pictures = tf.where(pictures >= threshold, 255 - pictures, pictures)
    low = tf.reduce_min(pictures, axis=[1, 2], keepdims=True)
    high = tf.reduce_max(pictures, axis=[1, 2], keepdims=True)
    stretch = _per_row(operations["autocontrast"] != 0) & (high > low)
    scale = tf.where(stretch, tf.math.divide_no_nan(255.0, high - low), 1.0)
    return (pictures - tf.where(stretch, low, 0.0)) * scale


def mixing(draws: Draws, mixup: float, cutmix: float, height: int, width: int) -> Draws:
    """How each row goes with its neighbour: blended (mixup, Zhang et al. 2017, arXiv:1710.09412) or with a box of it
    (cutmix, Yun et al. 2019, arXiv:1905.04899), one or the other at even odds where both are asked for.

    Args:
        mixup, cutmix: alpha of the Beta distribution of the share; 0 for none, at least one above 0.

    Returns:
        `blends` [rows], what a row that blends keeps of its own as `share` [rows] in [0.5, 1], and the sides of the box
        of one that does not as `box_rows` [rows, height] and `box_columns` [rows, width], 1 inside.
    """
    blends = tf.fill(tf.shape(draws["mix"]), mixup > 0)
    if mixup > 0 and cutmix > 0:
        blends = draws["mix"] < 0.5
    share = symmetric_beta(tf.where(blends, float(mixup), float(cutmix)), draws["share"], draws["share_angle"])
    share = tf.maximum(share, 1 - share)
    side = tf.where(blends, 0.0, tf.sqrt(1 - share))
    rows, columns = _inside(draws["box_y"], side, height), _inside(draws["box_x"], side, width)
    return {"blends": blends, "share": share, "box_rows": rows, "box_columns": columns}


def mix(pictures: tf.Tensor, mask: tf.Tensor, how: Draws) -> tuple[tf.Tensor, tf.Tensor]:
    """The pictures mixed as `mixing` says, and what each row keeps of its own, [rows] in [0.5, 1].

    Args:
        pictures: float32 [rows, height, width, channels], rows even.
        mask: [rows]; a row that is padding, or whose neighbour is, stays as it is.
    """
    outside = 1 - how["box_rows"][:, :, None] * how["box_columns"][:, None, :]
    weight = tf.where(how["blends"][:, None, None], how["share"][:, None, None], outside)
    real = tf.cast(mask, tf.float32) * swapped(tf.cast(mask, tf.float32)) > 0
    weight = tf.where(real[:, None, None], weight, 1.0)[..., None]
    share = tf.where(how["blends"], how["share"], tf.reduce_mean(outside, axis=[1, 2]))
    return weight * pictures + (1 - weight) * swapped(pictures), tf.where(real, share, 1.0)


def _inside(centre: tf.Tensor, side: tf.Tensor, size: int) -> tf.Tensor:
    """[rows, size]: 1 for the pixels of a box `side` long about `centre`, both as shares; it ends at the edge."""
    length = tf.floor(side * size)  # rounded down: a box never covers more than its share
    start = tf.floor(centre * size) - tf.floor(length / 2)
    pixel = tf.range(size, dtype=tf.float32)[None]
    return tf.cast((pixel >= start[:, None]) & (pixel < (start + length)[:, None]), tf.float32)


def symmetric_beta(alpha: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Beta(alpha, alpha) from two uniform numbers, exactly (Bailey 1994, "Polar generation of random variates with
    the t-distribution": t / sqrt(n + t**2) of Student's t with n = 2 alpha is Beta on [-1, 1])."""
    radius = 1 - first ** (1 / alpha)
    cosine = tf.cos(2 * math.pi * second)
    square = radius * tf.square(cosine)
    square = tf.math.divide_no_nan(square, 1 - radius + square)
    return 0.5 + 0.5 * tf.sign(cosine) * tf.sqrt(square)


def swapped(rows: tf.Tensor) -> tf.Tensor:
    """Row 2k in the place of row 2k+1 and the reverse."""
    pairs = tf.reshape(rows, tf.concat([[-1, 2], tf.shape(rows)[1:]], axis=0))
    return tf.ensure_shape(tf.reshape(tf.reverse(pairs, [1]), tf.shape(rows)), rows.shape)


def _per_row(values: tf.Tensor) -> tf.Tensor:
    """[rows] or a scalar, to go with [rows, height, width, channels]."""
    return tf.reshape(values, [-1, 1, 1, 1])


def _symmetric(uniform: tf.Tensor) -> tf.Tensor:
    """[0, 1) as [-1, 1)."""
    return 2 * uniform - 1
