"""Tells the sampler of the system metrics which part of the run begins."""

import keras

from manyfit.callbacks.throughput import EpochRows
from manyfit.system.sampler import Sampler


class Phases(keras.callbacks.Callback):
    """Passes the phases `train`, `validation` and `end` to a sampler, and the number of images that were trained on.

    Args:
        sampler: Samples the machine.
        rows: Counts the images; it must stand before in the list of callbacks.
    """

    def __init__(self, sampler: Sampler, rows: EpochRows):
        super().__init__()
        self._sampler = sampler
        sampler.count_images = lambda: rows.num_trained

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """The training begins or goes on."""
        self._sampler.enter("train")

    def on_test_begin(self, logs: dict | None = None) -> None:
        """A validation begins."""
        self._sampler.enter("validation")

    def on_test_end(self, logs: dict | None = None) -> None:
        """What follows a validation belongs to the training."""
        self._sampler.enter("train")

    def on_train_end(self, logs: dict | None = None) -> None:
        """What follows is neither training nor validation."""
        self._sampler.enter("end")
