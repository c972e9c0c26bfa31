"""The feed: which example is where in which epoch, for any number of replicas, and what its pixels are."""

import numpy as np
import pytest
import tensorflow as tf

from manyfit.data.examples import Split
from manyfit.data.pipeline import Feed, fit_shape

SHAPE = (4, 4, 1)


def numbered(num_examples: int) -> Split:
    """Example i is a picture of the grey level i, with the label i % 3."""
    levels = np.arange(num_examples, dtype=np.uint8)
    images = np.broadcast_to(levels[:, None, None, None], (num_examples, *SHAPE)).copy()
    return Split("train", (levels % 3).astype(np.int32), images=images)


def feed_of(num_examples: int, rows: int, **changes) -> Feed:
    steps = changes.pop("steps", -(-num_examples // rows))
    return Feed(numbered(num_examples), rows, steps, SHAPE, **{"shuffle_seed": 3, **changes})


def rows_of(feed: Feed, num_replicas: int = 1, steps: int | None = None, replicas: slice = slice(None)):
    """Index and mask of every row: int [steps, replicas, rows of a replica] each, checked against the label."""
    here = len(range(*replicas.indices(num_replicas)))
    steps = feed.steps if steps is None else steps
    taken = list(feed.rows_of(replicas, num_replicas).take(steps * here).as_numpy_iterator())
    assert len(taken) == steps * here
    indices, masks = [], []
    for x, y, mask in taken:
        assert (x.dtype, y.dtype, mask.dtype) == (np.uint8, np.int32, np.float32)
        assert x.shape == (feed.rows_per_step // num_replicas, *feed.image_shape)
        index = x[:, 0, 0, 0].astype(int)
        np.testing.assert_array_equal(index % 3, y)
        indices.append(index)
        masks.append(mask.astype(int))
    shape = (steps, here, feed.rows_per_step // num_replicas)
    return np.reshape(indices, shape), np.reshape(masks, shape)


def as_one_replica(parts: np.ndarray, micro_batches: int = 1) -> np.ndarray:
    """[steps, replicas, rows] -> [steps, rows of the step], in the order that one replica would get."""
    steps, replicas, rows = parts.shape
    parts = parts.reshape(steps, replicas, micro_batches, rows // micro_batches)
    return parts.transpose(0, 2, 1, 3).reshape(steps, -1)


@pytest.mark.parametrize(
    ("num_examples", "rows", "num_replicas"),
    [(37, 8, 4), (9, 8, 4), (8, 8, 2), (2, 4, 4), (1, 8, 8), (13, 3, 3), (17, 16, 1)],
)
def test_an_epoch_visits_each_example_once(num_examples, rows, num_replicas):
    feed = feed_of(num_examples, rows)
    indices, masks = rows_of(feed, num_replicas, steps=2 * feed.steps)
    for epoch in (slice(0, feed.steps), slice(feed.steps, None)):
        real = indices[epoch][masks[epoch] == 1]
        assert sorted(real) == list(range(num_examples))


def test_padding_stands_at_the_end_of_the_last_step_and_copies_real_rows():
    indices, masks = rows_of(feed_of(9, 4))
    np.testing.assert_array_equal(masks[:, 0], [[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0]])
    assert set(indices[2, 0, 1:]) <= set(range(9))


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_order_is_the_same_for_any_number_of_replicas(micro_batches):
    feed = feed_of(37, 16, micro_batches=micro_batches)
    one, mask = rows_of(feed)
    for num_replicas in (2, 4, 8):
        parts, masks = rows_of(feed, num_replicas)
        np.testing.assert_array_equal(as_one_replica(parts, micro_batches), one[:, 0])
        np.testing.assert_array_equal(as_one_replica(masks, micro_batches), mask[:, 0])


def test_a_micro_batch_holds_the_same_examples_for_any_number_of_replicas():
    feed = feed_of(16, 16, micro_batches=2)
    first_half = set(rows_of(feed)[0][0, 0, :8])
    parts = rows_of(feed, 4)[0][0]  # [replicas, rows]: each replica's first half is its part of micro-batch 0
    assert set(parts[:, :2].ravel()) == first_half


def test_the_order_follows_seed_and_epoch_alone():
    feed = feed_of(20, 5)
    first, _ = rows_of(feed, steps=12)
    again, _ = rows_of(feed_of(20, 5), steps=12)
    np.testing.assert_array_equal(first, again)
    epochs = first.reshape(3, 20)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    other, _ = rows_of(feed_of(20, 5, shuffle_seed=4))
    assert not np.array_equal(other.ravel(), epochs[0])
    # Another batch size cuts the same order elsewhere.
    np.testing.assert_array_equal(rows_of(feed_of(20, 10))[0].ravel(), epochs[0])


def test_without_a_seed_the_order_is_that_of_the_split():
    indices, _ = rows_of(feed_of(6, 3, shuffle_seed=None), steps=4)
    np.testing.assert_array_equal(indices.ravel(), [0, 1, 2, 3, 4, 5] * 2)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_feed_goes_on_where_another_one_stopped(num_replicas):
    whole, masks = rows_of(feed_of(11, 4), num_replicas, steps=9)
    for epoch, step in ((0, 2), (1, 0), (2, 1)):
        done = 3 * epoch + step
        rest, rest_masks = rows_of(feed_of(11, 4, start_epoch=epoch, start_step=step), num_replicas, steps=9 - done)
        np.testing.assert_array_equal(rest, whole[done:])
        np.testing.assert_array_equal(rest_masks, masks[done:])


def test_dropping_the_remainder_leaves_out_other_examples_each_epoch():
    feed = feed_of(11, 4, steps=2)
    indices, masks = rows_of(feed, steps=4)
    assert masks.all()
    first, second = set(indices[:2].ravel()), set(indices[2:].ravel())
    assert len(first) == len(second) == 8
    assert first != second


def test_the_workers_together_hold_what_one_would():
    feed = feed_of(21, 8, micro_batches=2)
    whole, _ = rows_of(feed, 4)
    parts = [rows_of(feed, 4, replicas=slice(first, first + 2))[0] for first in (0, 2)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    last, _ = rows_of(feed_of(21, 8, micro_batches=2, start_step=1), 4, steps=2, replicas=slice(2, 4))
    np.testing.assert_array_equal(last, whole[1:, 2:])


def test_no_strategy_gets_the_rows_as_they_are():
    feed = feed_of(6, 3, shuffle_seed=None)
    x, y, mask = next(iter(feed.distribute(tf.distribute.get_strategy())))
    np.testing.assert_array_equal(x[:, 0, 0, 0], [0, 1, 2])
    assert y.shape == mask.shape == (3,)


def test_files_and_arrays_give_the_same_pixels(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (7, 5, 6, 3), dtype=np.uint8)
    labels = np.arange(7, dtype=np.int32)
    paths = tuple(str(tmp_path / f"{index}.png") for index in range(7))
    for path, image in zip(paths, images, strict=True):
        tf.io.write_file(path, tf.io.encode_png(image))
    for shape in ((5, 6, 3), (9, 4, 3), (5, 6, 1)):
        read, held = (
            list(Feed(split, 4, 2, shape, shuffle_seed=1).rows_of(slice(None), 2).take(6).as_numpy_iterator())
            for split in (Split("train", labels, paths=paths), Split("train", labels, images=images))
        )
        for one, other in zip(read, held, strict=True):
            for left, right in zip(one, other, strict=True):
                np.testing.assert_array_equal(left, right)


def test_a_picture_of_the_right_shape_is_left_alone():
    images = np.random.default_rng(1).integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
    np.testing.assert_array_equal(fit_shape(tf.constant(images), (5, 6, 3)), images)


def test_a_resize_rounds_to_the_nearest_level():
    row = tf.constant(np.array([0, 10, 255, 3, 100], np.uint8).reshape(1, 1, 5, 1))
    small = fit_shape(row, (1, 12, 1))
    wanted = np.rint(tf.image.resize(tf.cast(row, tf.float32), [1, 12]).numpy())
    np.testing.assert_array_equal(small, wanted)
    assert small.dtype == tf.uint8
    white = fit_shape(tf.fill([1, 7, 5, 1], tf.constant(255, tf.uint8)), (3, 11, 1))
    assert set(white.numpy().ravel()) == {255}


def test_a_batch_is_resized_as_each_of_its_pictures():
    images = tf.constant(np.random.default_rng(2).integers(0, 256, (3, 9, 8, 3), dtype=np.uint8))
    together = fit_shape(images, (5, 5, 3))
    np.testing.assert_array_equal(together, [fit_shape(image, (5, 5, 3)) for image in images])


def test_grey_becomes_colour_and_colour_grey():
    grey = np.array([[0], [128], [255]], np.uint8).reshape(1, 3, 1, 1)
    colour = fit_shape(tf.constant(grey), (3, 1, 3)).numpy()
    np.testing.assert_array_equal(colour, np.repeat(grey, 3, axis=-1))
    np.testing.assert_array_equal(fit_shape(tf.constant(colour), (3, 1, 1)), grey)
    green = np.array([0, 200, 0], np.uint8).reshape(1, 1, 1, 3)
    assert abs(int(fit_shape(tf.constant(green), (1, 1, 1))[0, 0, 0, 0]) - 0.587 * 200) <= 1


def test_pictures_of_other_sizes_than_asked_are_a_clear_shape():
    images = np.zeros((5, 10, 12, 3), np.uint8)
    feed = Feed(Split("train", np.zeros(5, np.int32), images=images), 2, 3, (8, 8, 1))
    assert feed.rows_of(slice(None), 1).element_spec[0].shape == (2, 8, 8, 1)


def test_no_tuning_thread_outlives_a_run():
    """tf.data's tuning thread sleeps for up to a minute, for which the end of a run would wait."""
    split = Split("train", np.arange(6, dtype=np.int32) % 2, images=np.zeros((6, 4, 4, 1), np.uint8))
    for stacked in (False, True):
        rows = Feed(split, 4, 2, (4, 4, 1)).rows_of(slice(None), 2, stacked=stacked)
        assert rows.options().autotune.enabled is False


def test_a_step_of_all_replicas_is_their_parts_one_after_the_other():
    split = Split("train", np.arange(7, dtype=np.int32), images=np.arange(7, dtype=np.uint8).reshape(7, 1, 1, 1))
    feed = Feed(split, 4, 2, (1, 1, 1), shuffle_seed=3)
    parts = list(feed.rows_of(slice(None), 2).take(4))
    steps = list(feed.rows_of(slice(None), 2, stacked=True).take(2))
    for step, element in enumerate(steps):
        for replica in range(2):
            for stacked, part in zip(element, parts[2 * step + replica], strict=True):
                np.testing.assert_array_equal(stacked[replica], part)
