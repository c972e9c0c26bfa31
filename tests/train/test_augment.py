"""Augmentation: the same pictures for every replica count, others for every row and step, and what each dial does."""

from dataclasses import fields

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit import augment
from manyfit.augment import OPERATIONS, Augmentation
from manyfit.replicated import ReplicatedModel
from manyfit.schema.augment import AugmentConfig, LightAugmentConfig, StrongAugmentConfig

OFF = {f.name: 0.0 for f in fields(LightAugmentConfig) if f.name != "name"}
ROWS, SIDE = 8, 24
DIALS = {"flip": 0.5, "crop": 0.4, "rotation": 45.0, "colour": 0.5, "mixup": 1.0, "cutmix": 1.0, "randaugment": 9.0}
LABELS = np.arange(ROWS, dtype=np.int32)
ONES = np.ones(ROWS, np.float32)


def pictures(rows=ROWS, channels=3, height=SIDE, width=SIDE):
    """Blurred noise: smooth as photos are, another one in each row."""
    noise = np.random.default_rng(1).normal(size=(rows, height // 4, width // 4, channels)) * 70 + 128
    return tf.image.resize(noise, [height, width]).numpy().clip(0, 255).astype(np.uint8)


def only(**dials):
    """The augmentation with these dials and no other."""
    return Augmentation.of(LightAugmentConfig(**{**OFF, **dials}), seed=0)


def varied(augmentation, images, step=0, mask=ONES, **place):
    """Its results as arrays."""
    return [
        np.asarray(part) for part in augmentation(images, LABELS[: len(images)], mask[: len(images)], step, **place)
    ]


def by_replicas(augmentation, images, num_replicas, micro_batches=1, mask=ONES):
    """What R replicas make of the rows, back in the order of the micro-batches."""
    shape = [micro_batches, num_replicas, -1]
    index = np.arange(ROWS).reshape(shape)
    results = []
    for replica in range(num_replicas):
        own = index[:, replica].reshape(-1)
        place = {"replica_id": replica, "num_replicas": num_replicas, "micro_batches": micro_batches}
        results.append([np.asarray(p) for p in augmentation(images[own], LABELS[own], mask[own], 3, **place)])
    order = np.argsort(np.concatenate([index[:, replica].reshape(-1) for replica in range(num_replicas)]))
    return [np.concatenate(parts)[order] for parts in zip(*results, strict=True)]


@pytest.mark.parametrize(("num_replicas", "micro_batches"), [(2, 1), (4, 1), (2, 2)])
def test_replicas_make_the_pictures_of_one(num_replicas, micro_batches):
    augmentation, images = Augmentation.of(StrongAugmentConfig(rotation=20.0), seed=5), pictures()
    mask = np.where(LABELS < 5, 1, 0).astype(np.float32)
    one = by_replicas(augmentation, images, 1, micro_batches, mask)
    many = by_replicas(augmentation, images, num_replicas, micro_batches, mask)
    assert len(one) == 5
    for first, second in zip(one, many, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dial", DIALS)
def test_draws_follow_from_seed_and_step_alone_and_differ_by_row(dial):
    config = LightAugmentConfig(**{**OFF, dial: DIALS[dial]})
    images = np.tile(pictures(2), [ROWS // 2, 1, 1, 1])  # every pair the same two pictures
    first = varied(Augmentation.of(config, 1), images, step=4)[0]
    np.testing.assert_array_equal(first, varied(Augmentation.of(config, 1), images, step=4)[0])
    assert (first != varied(Augmentation.of(config, 1), images, step=5)[0]).any()
    assert (first != varied(Augmentation.of(config, 2), images, step=4)[0]).any()
    assert max(len(np.unique(first[one::2].reshape(ROWS // 2, -1), axis=0)) for one in (0, 1)) > 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dial", DIALS)
def test_shape_and_type_stay_and_the_values_are_in_range(dial, channels):
    images = pictures(channels=channels, height=20, width=28)
    augmentation = only(**{dial: DIALS[dial]})
    result = tf.function(augmentation)(images, LABELS, ONES, tf.constant(2, tf.int64))
    assert result[0].shape == images.shape and result[0].dtype == tf.uint8
    assert (result[0].numpy() != images).any()
    as_float = augmentation(tf.cast(images, tf.float32), LABELS, ONES, 2)[0].numpy()
    assert as_float.min() >= 0 and as_float.max() <= 255  # nothing had to wrap around to be a uint8
    assert np.abs(as_float - result[0].numpy()).max() <= 1


def test_every_dial_at_zero_is_no_augmentation():
    assert only() is None
    assert Augmentation.of(AugmentConfig(), seed=0) is None


def test_what_is_not_drawn_leaves_a_row_bit_exact(monkeypatch):
    """All code paths run, with draws and operations that change nothing."""
    neutral = {name: tf.zeros(ROWS) for name in OPERATIONS}
    monkeypatch.setattr(augment, "chosen_operations", lambda draws, strength: neutral)
    np.testing.assert_array_equal(varied(only(randaugment=10.0), pictures())[0], pictures())


def test_one_dial_moves_no_other_draws():
    images = pictures()
    flipped = varied(only(flip=0.5), images)[0]
    mirrored = np.array([(row == image[:, ::-1]).all() for row, image in zip(flipped, images, strict=True)])
    assert 0 < mirrored.sum() < ROWS
    np.testing.assert_array_equal(flipped[~mirrored], images[~mirrored])
    resampled = varied(only(flip=0.5, rotation=1e-6), images)[0]
    np.testing.assert_allclose(resampled, flipped, atol=1)


def test_flip_one_mirrors_every_row():
    for more in ({}, {"rotation": 1e-6}):
        np.testing.assert_array_equal(varied(only(flip=1.0, **more), pictures())[0], pictures()[:, :, ::-1])


def test_a_crop_stays_inside_the_picture_and_both_ways_of_moving_agree():
    white = np.full((ROWS, SIDE, SIDE, 3), 255, np.uint8)
    for step in range(20):
        assert (varied(only(crop=0.5, flip=0.5), white, step)[0] == 255).all()
    ramp = np.tile(np.arange(SIDE, dtype=np.uint8)[:, None, None] * 10, [ROWS, 1, SIDE, 1])
    cropped = varied(only(crop=0.5), ramp)[0].astype(int)
    span = cropped[:, -1, 0, 0] - cropped[:, 0, 0, 0]
    assert ((span >= (SIDE - 1) * 5 - 1) & (span <= (SIDE - 1) * 10)).all() and len(set(span)) > 1
    images = pictures()
    fast, general = (varied(only(crop=0.5, flip=0.5, **more), images)[0] for more in ({}, {"rotation": 1e-6}))
    np.testing.assert_allclose(fast.astype(int), general.astype(int), atol=1)


def test_a_rotation_turns_about_the_centre_by_no_more_than_asked():
    images = np.zeros((ROWS, 65, 65, 1), np.uint8)
    images[:, 31:34, 57:60] = 255  # a mark 26 pixels to the right of the centre
    turned = varied(only(rotation=30.0), images)[0][..., 0].astype(float)
    y, x = np.mgrid[:65, :65] - 32
    angles = np.degrees(np.arctan2((turned * y).sum((1, 2)), (turned * x).sum((1, 2))))
    radii = np.hypot((turned * y).sum((1, 2)), (turned * x).sum((1, 2))) / turned.sum((1, 2))
    assert (np.abs(angles) <= 30.5).all() and angles.min() < 0 < angles.max()
    np.testing.assert_allclose(radii, 26, atol=0.3)


def test_colour_factors_do_what_they_say():
    images = tf.cast(pictures(1), tf.float32) * 0.5 + 40
    one = tf.ones(1)
    np.testing.assert_allclose(augment.recoloured(images, one, one, one), images)
    np.testing.assert_allclose(augment.recoloured(images, 1.2 * one, one, one), 1.2 * images, rtol=1e-5)
    grey = tf.image.rgb_to_grayscale(images)
    without_colour = augment.recoloured(images, one, one, 0 * one)
    np.testing.assert_allclose(without_colour, tf.repeat(grey, 3, axis=-1), atol=0.2)
    np.testing.assert_allclose(
        augment.recoloured(images, one, 0 * one, one), np.full(images.shape, np.mean(grey)), atol=0.2
    )


def test_operations_on_levels():
    images = tf.reshape(tf.range(64, dtype=tf.float32), [1, 8, 8, 1]) * 2 + 100  # 100 to 226
    zero = {name: tf.zeros(1) for name in OPERATIONS}
    few = augment.with_fewer_levels(images, {**zero, "posterize": -tf.ones(1)})
    np.testing.assert_array_equal(few, images // 16 * 16)
    inverted = augment.with_fewer_levels(images, {**zero, "solarize": tf.fill([1], 0.25)})
    np.testing.assert_array_equal(inverted, tf.where(images >= 192, 255 - images, images))
    stretched = augment.with_fewer_levels(images, {**zero, "autocontrast": tf.fill([1], 0.1)})
    np.testing.assert_allclose(stretched, (images - 100) * 255 / 126, rtol=1e-5)
    flat = tf.fill([1, 8, 8, 1], 7.0)
    np.testing.assert_array_equal(augment.with_fewer_levels(flat, {**zero, "autocontrast": tf.ones(1)}), flat)
    np.testing.assert_array_equal(augment.sharpened(flat, tf.ones(1)), flat)


def test_two_different_operations_are_chosen_evenly():
    draws = augment.draw(3, 0, 13000)
    chosen = np.stack([operation.numpy() for operation in augment.chosen_operations(draws, 4.0).values()])
    assert set(np.unique(np.abs(chosen))) == {np.float32(0), np.float32(0.4)}
    assert (np.count_nonzero(chosen, axis=0) == 2).all()
    np.testing.assert_allclose(np.count_nonzero(chosen, axis=1), 2000, rtol=0.1)
    assert 0.45 < np.mean(chosen[chosen != 0] > 0) < 0.55


def test_mixup_blends_each_pair_by_the_share_it_tells():
    images = pictures()
    mixed, labels, mask, partner_labels, share = varied(only(mixup=0.5), images)
    np.testing.assert_array_equal(labels, LABELS)
    np.testing.assert_array_equal(mask, ONES)
    np.testing.assert_array_equal(partner_labels, [1, 0, 3, 2, 5, 4, 7, 6])
    assert ((share >= 0.5) & (share <= 1)).all() and len(set(share)) == ROWS
    own = share[:, None, None, None]
    np.testing.assert_array_equal(mixed, np.rint(own * images + (1 - own) * images[partner_labels]).astype(np.uint8))


def test_cutmix_pastes_a_box_whose_area_is_the_share_it_tells():
    images = pictures()
    for step in range(5):
        mixed, _, _, partner_labels, share = varied(only(cutmix=1.0), images, step)
        own, partner = (mixed == images).all(-1), (mixed == images[partner_labels]).all(-1)
        assert (own | partner).all()
        assert (share >= 0.5).all()
        np.testing.assert_allclose(own.mean((1, 2)), share, atol=0.01)
        for box in ~own:
            rows, columns = np.flatnonzero(box.any(1)), np.flatnonzero(box.any(0))
            if rows.size:
                assert box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].mean() > 0.95


def test_both_kinds_of_mixing_take_turns():
    images = pictures()
    mixed, _, _, partner_labels, _ = varied(only(mixup=2.0, cutmix=1.0), images)
    pasted = ((mixed == images) | (mixed == images[partner_labels])).all((1, 2, 3))
    assert 0 < pasted.sum() < ROWS


@pytest.mark.parametrize("dials", [{"mixup": 1.0}, {"cutmix": 1.0}])
def test_padding_is_mixed_into_nothing(dials):
    mask = np.array([1, 1, 1, 0, 0, 0, 1, 1], np.float32)
    mixed, _, _, _, share = varied(only(**dials), pictures(), mask=mask)
    np.testing.assert_array_equal(share[2:6], 1.0)
    np.testing.assert_array_equal(mixed[2:6], pictures()[2:6])
    assert (share[[0, 1, 6, 7]] < 1).any()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_shares_have_the_beta_distribution(alpha):
    draws = augment.draw(1, 0, 40000)
    sample = augment.symmetric_beta(tf.constant(alpha), draws["share"], draws["share_angle"]).numpy()
    reference = np.random.default_rng(0).beta(alpha, alpha, 40000)
    points = np.linspace(0.01, 0.99, 25)
    cumulative = [np.searchsorted(np.sort(values), points) / 40000 for values in (sample, reference)]
    np.testing.assert_allclose(*cumulative, atol=0.015)
    ends = augment.symmetric_beta(tf.constant(alpha), tf.constant([0.0, 0.0]), tf.constant([0.25, 0.0]))
    assert ((ends >= 0) & (ends <= 1)).numpy().all()


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_loss_of_a_mixed_batch_is_the_formula(outputs):
    """Share times the loss of one label plus the rest times that of the other, each with its class weight."""
    augmentation, images = only(mixup=1.0), pictures(4)
    labels, mask = np.array([0, 1, 1, 0], np.int32), np.array([1, 1, 1, 0], np.float32)
    network = keras.Sequential([keras.Input((SIDE, SIDE, 3), dtype="uint8"), keras.layers.Rescaling(1 / 255)])
    network.add(keras.layers.Flatten())
    network.add(keras.layers.Dense(outputs))
    loss_class = keras.losses.BinaryCrossentropy if outputs == 1 else keras.losses.SparseCategoricalCrossentropy
    model = ReplicatedModel(network)
    model.compile(
        keras.optimizers.SGD(), loss_class(from_logits=True), class_weight=[1.0, 3.0], augmentation=augmentation
    )
    _, loss, finite = model._gradients(model._augmented((images, labels, mask)), tf.constant(1.0))
    mixed, _, _, partners, share = augmentation(images, labels, mask, 0)
    logits = network(mixed).numpy().astype(np.float64)
    if outputs == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    losses = np.log(np.exp(logits).sum(1, keepdims=True)) - logits
    weighted = losses[:, :2] * [1.0, 3.0]
    rows, share = np.arange(4), share.numpy()
    by_hand = share * weighted[rows, labels] + (1 - share) * weighted[rows, partners.numpy()]
    np.testing.assert_allclose(loss, (by_hand * mask).sum() / 3, rtol=1e-5)
    assert finite


def test_mixing_and_a_training_step_of_ones_own_are_refused():
    class Own(ReplicatedModel):
        def example_losses(self, x, y, training):
            return tf.zeros(tf.shape(y)), self.network(x)

    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(Exception, match="Own has a training step of its own"):
        Own(network).compile(keras.optimizers.SGD(), "mse", augmentation=only(mixup=1.0))
    Own(network).compile(keras.optimizers.SGD(), "mse", augmentation=only(flip=0.5))
